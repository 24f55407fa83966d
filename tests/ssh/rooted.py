"""A road to this machine on which `/var/lib/stoker` is a folder of the test and chown, stat and id believe in root."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from daemon.domain.errors import TransportError
from daemon.domain.status import Reason
from daemon.ssh import HELPER_PATH, Finished, LocalRoad, Wrap
from daemon.ssh.road import answered

STAND_INS = {
    "chown": "exit 0",
    "stat": "PATH=${PATH#*:}; stat \"$@\" | sed 's/ [0-9]*$/ 0/'",
    "id": "echo 0",
}


class Rooted:
    """`sudo_allows` is what sudoers permits; `cut_at` keeps only that many bytes of what is sent."""

    def __init__(self, folder: Path, tools: dict[str, str] | None = None) -> None:
        self.state = folder / "state"
        self.sudo_allows = "all"
        self.cut_at: int | None = None
        self.commands: list[tuple[str, ...]] = []
        self._bin = folder / "bin"
        self._bin.mkdir()
        for name, text in {**STAND_INS, **(tools or {})}.items():
            (self._bin / name).write_text(f"#!/bin/sh\n{text}\n")
            (self._bin / name).chmod(0o755)
        self._road = LocalRoad(Wrap(), confined=lambda: None)

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        return answered(await self.run((HELPER_PATH, verb), stdin, timeout_s))

    async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Finished:
        self.commands.append(tuple(argv))
        if self.sudo_allows == "none" or (self.sudo_allows == "helper" and argv[0] != HELPER_PATH):
            raise TransportError(Reason.SUDO_DENIED, "sudo: a password is required")
        moved = [word.replace("/var/lib/stoker", str(self.state)) for word in argv]
        path = f"PATH={self._bin}:{os.environ['PATH']}"
        return await self._road.run(("env", path, *moved), stdin[: self.cut_at], timeout_s)

    async def close(self) -> None:
        await self._road.close()

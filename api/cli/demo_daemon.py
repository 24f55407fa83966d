"""The demo's own daemon: a `stoker serve` process with a folder, key and settings of its own, and its end.

Called by the demo. It ends with the block it was started for, whatever happens, and with the demo's process, even one
that was killed. Nothing of the user's own settings, keys or hosts reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from api.token import TOKEN_FILE
from daemon.domain.errors import StokerError

START_S, END_S, LOOK_S = 60.0, 20.0, 0.05
TOLD_LINES = 8
_PR_SET_PDEATHSIG = 1
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Running:
    """A daemon that answers."""

    url: str
    data: Path
    log: Path
    process: asyncio.subprocess.Process

    @property
    def token_file(self) -> Path:
        return self.data / TOKEN_FILE

    def refuse_if_dead(self) -> None:
        """Raises: StokerError with the end of its log."""
        if self.process.returncode is not None:
            raise StokerError(f"the demo's daemon ended with {self.process.returncode}: {last_lines(self.log)}")


@contextlib.asynccontextmanager
async def running_daemon(folder: Path, port: int, identity: Path, known_hosts: Path) -> AsyncIterator[Running]:
    """`stoker serve` on loopback, in `folder`; port 0 is any free one. Raises: StokerError when it does not start."""
    data, log = folder / "data", folder / "daemon.log"
    settings = {
        "DATA": data,
        "LISTEN_HOST": "127.0.0.1",
        "PORT": port,
        "SSH_IDENTITY": identity,
        "SSH_KNOWN_HOSTS": known_hosts,
        "LOG_FORMAT": "json",
    }
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environ |= {f"STOKER_{name}": str(value) for name, value in settings.items()}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "api.serve", env=environ, cwd=folder, stdin=asyncio.subprocess.DEVNULL,
            stdout=out, stderr=out, start_new_session=True, preexec_fn=_end_with_parent,
        )  # fmt: skip
    try:
        yield Running(await _url(process, log), data, log, process)
    finally:
        await _end(process)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _url(process: asyncio.subprocess.Process, log: Path) -> str:
    """Where it listens, as its log says. Raises: StokerError when it ended, or says nothing in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while process.returncode is None:
                if (url := _told_url(log)) is not None:
                    return url
                await asyncio.sleep(LOOK_S)
    raise StokerError(f"the demo's daemon did not start: {last_lines(log)}")


def _told_url(log: Path) -> str | None:
    for line in log.read_text("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if said.get("event") == "listening":
                return str(said["url"])
    return None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def last_lines(log: Path) -> str:
    """The end of its log, for a person."""
    lines = log.read_text("utf-8", "replace").splitlines()
    return " / ".join(lines[-TOLD_LINES:])

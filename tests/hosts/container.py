"""Runs a built image as `docker run` does, without an engine: PID 1 in its own namespaces, no capability, few mounts.

The options are read from the README's own `docker run` line.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.containerfile import Image, NotKnown, Space

STOP_S = 10.0  # what `docker stop` waits before it kills
DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True)
class Options:
    """What a `docker run` line asks for. `mounts` are (source, target, mode)."""

    mounts: tuple[tuple[str, str, str], ...] = ()
    env: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    tmpfs: tuple[str, ...] = ()
    read_only: bool = False
    no_capabilities: bool = False


def options_of(line: str) -> Options:
    """The options of one `docker run` line. Raises NotKnown for what is not carried out here."""
    words = shlex.split(line)
    found: dict[str, list[str]] = {"-v": [], "-e": [], "-p": [], "--tmpfs": [], "--name": [], "--cap-drop": []}
    flags = set[str]()
    while len(words) > 1:
        word = words.pop(0)
        if word in found:
            found[word].append(words.pop(0))
        elif word in ("-d", "--read-only"):
            flags.add(word)
        else:
            raise NotKnown(f"docker run {word}")
    mounts = [tuple([*text.split(":"), "rw"][:3]) for text in found["-v"]]
    return Options(
        tuple((source, target, mode) for source, target, mode in mounts),
        tuple(found["-e"]),
        tuple(found["-p"]),
        tuple(found["--tmpfs"]),
        "--read-only" in flags,
        found["--cap-drop"] == ["ALL"],
    )


def readme_line(readme: str) -> str:
    """What follows `docker run` in the README, joined."""
    found = re.search(r"^docker run ((?:.*\\\n)*.*)$", readme, re.MULTILINE)
    assert found, "the README has no docker run line"
    return found[1].replace("\\\n", " ")


class Container:
    """One container; `sources` says which folder here each mount's source is. `net` names a network namespace."""

    def __init__(
        self,
        where: Space,
        image: Image,
        options: Options,
        sources: dict[str, Path],
        *,
        name: str,
        net: str | None = None,
        command: tuple[str, ...] = (),
    ) -> None:
        self._image, self._options = image, options
        self._root = where.folder / name
        self._log = sources["log"] / f"{name}.log"
        where.overlay(self._root, image.layers, where.folder / f"{name}-upper")
        self._mounts(where, sources)
        network = ["nsenter", f"--net=/run/netns/{net}", "--"] if net else ["unshare", "--net", "--"]
        inside = shlex.join(["chroot", str(self._root), *self._as_user(), *(command or image.command)])
        new = ["unshare", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child"]
        argv = [*new, f"--mount-proc={self._root}/proc", "--", "sh", "-c", f"ip link set lo up; exec {inside}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*network, *where.argv(*argv)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _mounts(self, where: Space, sources: dict[str, Path]) -> None:
        root = self._root
        where.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/dev")
        for device in DEVICES:
            where.run("touch", f"{root}/dev/{device}")
            where.run("mount", "--bind", f"/dev/{device}", f"{root}/dev/{device}")
        for target in self._options.tmpfs:
            where.run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}{target}")
        for source, target, mode in self._options.mounts:
            where.run("mkdir", "-p", f"{root}{target}")
            if not source.startswith("/"):
                self._fill_volume(where, sources[source], target)
            where.bind(sources[source], root / target[1:], mode)
        if self._options.read_only:
            where.run("mount", "-o", "remount,ro", str(root))

    def _fill_volume(self, where: Space, volume: Path, target: str) -> None:
        """A new named volume begins as what the image has at that place, its owner and mode included."""
        if not any(volume.iterdir()):
            where.run("cp", "-a", f"{self._root}{target}/.", str(volume))

    def _as_user(self) -> list[str]:
        image = self._image
        drop = ["--bounding-set=-all", "--inh-caps=-all"] if self._options.no_capabilities else []
        env = [f"{name}={value}" for name, value in image.env.items()]
        home = "HOME=/var/lib/stoker-server"  # an engine reads it from the image's passwd
        user = [
            "setpriv",
            "--reuid",
            image.user,
            "--regid",
            image.user,
            "--clear-groups",
            "--no-new-privs",
            *drop,
            "--",
        ]
        return [*user, "env", "-i", "-C", image.workdir, home, *env, *self._options.env]

    @property
    def pid(self) -> int:
        """The number here of its PID 1."""
        pid, deadline = self._process.pid, time.monotonic() + 20
        while time.monotonic() < deadline:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
            if comm not in ("nsenter", "unshare"):
                return pid
            pid = int(children[0]) if children else pid
            time.sleep(0.01)
        raise AssertionError(self.log)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def execute(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """As `docker exec`."""
        argv = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--ipc", "--uts", "--root", "--"]
        argv += [*self._as_user(), *words]
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=timeout_s)

    def healthy(self) -> bool:
        """Whether the image's own check says so."""
        return self.execute(*self._image.health).returncode == 0

    def wait(self, met: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not met():
            assert self._process.poll() is None, f"{what}: the container ended\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"{what} did not come\n{self.log[-4000:]}"
            time.sleep(0.1)

    def ended(self, timeout_s: float) -> int:
        """Its exit status. Raises TimeoutExpired."""
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        """As `docker stop`, but it must not come to the kill: the exit status within ten seconds."""
        os.kill(self.pid, signal.SIGTERM)
        return self.ended(STOP_S)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(20)

"""A Dockerfile, carried out without a container engine: its instructions as this project uses them, any other refused.

Each stage is an overlay over a bare Debian 12 with python3, in place of `python:3.12-slim` (so python is 3.11, at
/usr/bin). All mounts live in one mount namespace, which ends with its holder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

IMAGE = re.compile(r"python:3\.\d+-slim")
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


class Instruction(NamedTuple):
    """One instruction with what follows it, continuation lines joined."""

    name: str
    rest: str


class NotKnown(Exception):
    """An instruction, or a form of one, that this interpreter does not carry out."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a build ends with. `layers` are lower folders of an overlay, topmost first."""

    layers: tuple[Path, ...]
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    workdir: str = "/"
    user: str = "0"
    volumes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    health: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def instructions(text: str) -> Iterator[Instruction]:
    """The file's instructions in order. A comment line within a continued instruction is no part of it."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for joined in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, _, rest = joined.strip().partition(" ")
        yield Instruction(name, rest.strip())


class Space:
    """A mount namespace of its own; `run` runs commands in it as root."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.folder = folder
        self._enter = ["nsenter", "--target", str(pid), "--mount", "--pid", "--"]

    def argv(self, *words: str) -> list[str]:
        """The argv here of a command there."""
        return [*self._enter, *words]

    def run(self, *words: str) -> str:
        """Its output. Raises AssertionError with all it said when it fails."""
        done = subprocess.run(self.argv(*words), check=False, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, (
            f"{shlex.join(words)}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
        return done.stdout

    def overlay(self, root: Path, lower: Sequence[Path], upper: Path | None) -> None:
        """Mount a root; without `upper` it is read-only."""
        layers = ":".join(map(str, lower))
        work = root.with_name(f"{root.name}-work")
        options = f"lowerdir={layers}" if upper is None else f"lowerdir={layers},upperdir={upper},workdir={work}"
        self.run("mkdir", "-p", *map(str, [root, *([upper, work] if upper else [])]))
        self.run("mount", "-t", "overlay", root.name, "-o", options, str(root))

    def bind(self, source: Path, target: Path, how: str) -> None:
        self.run("mount", "--bind", str(source), str(target))
        self.run("mount", "-o", f"remount,bind,{how}", str(target))


@contextmanager
def space(folder: Path) -> Iterator[Space]:
    """A namespace with a tmpfs at `folder`; all that runs or is mounted in it ends with it."""
    folder.mkdir(parents=True)
    argv = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    with subprocess.Popen([*argv, "sleep", "infinity"], stdin=subprocess.DEVNULL) as holder:
        try:
            made = Space(folder, _child(holder.pid))
            made.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder))
            yield made
        finally:
            holder.kill()


def _child(pid: int) -> int:
    """The holder's child once it sleeps: by then its namespaces are made."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found and Path(f"/proc/{found[0]}/comm").read_text().strip() == "sleep":
            return int(found[0])
        time.sleep(0.01)
    raise AssertionError("no namespace was made")


class Build:
    """Carries out a Dockerfile in a space. `environ` and `binds` are given to RUN alone, as an engine's proxies are."""

    def __init__(self, where: Space, base: Path, context: Path, environ: dict[str, str], binds: Sequence[Path]) -> None:
        self._space, self._base, self._context = where, base, context
        self._environ, self._binds = environ, binds
        self._stages: dict[str, Path] = {}
        self._root = Path()
        self._image = Image(())

    def build(self, text: str) -> Image:
        """The last stage. Raises NotKnown for what is not carried out here, AssertionError for a RUN that fails."""
        for instruction in instructions(text):
            step = getattr(self, f"_{instruction.name.lower()}", None)
            if step is None or not instruction.name.isupper():
                raise NotKnown(f"{instruction.name} {instruction.rest}")
            step(instruction.rest)
        return self._image

    def _from(self, rest: str) -> None:
        image, *named = rest.split()
        if not IMAGE.fullmatch(image) or (named and (len(named) != 2 or named[0] != "AS")):
            raise NotKnown(f"FROM {rest}")
        number = len(self._stages)
        self._root = self._space.folder / f"stage-{number}"
        upper = self._space.folder / f"layer-{number}"
        self._space.overlay(self._root, [self._base], upper)
        self._stages[named[1] if named else str(number)] = self._root
        self._image = Image((upper, self._base))

    def _workdir(self, rest: str) -> None:
        self._space.run("mkdir", "-p", str(self._inside(rest)))
        self._image = replace(self._image, workdir=rest)

    def _copy(self, rest: str) -> None:
        words = rest.split()
        source = self._context
        if words[0].startswith("--from="):
            source = self._stages[words.pop(0).removeprefix("--from=")]
        if any(word.startswith("--") or set(word) & set("*?[") for word in words):
            raise NotKnown(f"COPY {rest}")
        *names, target = words
        into = self._inside(target)
        for name in names:
            self._copy_one(source / name.lstrip("/"), into, folder=target.endswith("/") or len(names) > 1)

    def _copy_one(self, source: Path, into: Path, *, folder: bool) -> None:
        copy = ["cp", "-a", "--no-preserve=ownership"]
        if subprocess.run(self._space.argv("test", "-d", str(source)), check=False).returncode == 0:
            self._space.run("mkdir", "-p", str(into))
            self._space.run(*copy, f"{source}/.", str(into))  # a folder's content, not the folder
        else:
            self._space.run("mkdir", "-p", str(into if folder else into.parent))
            self._space.run(*copy, str(source), f"{into}/" if folder else str(into))

    def _run(self, rest: str) -> None:
        if rest.startswith(("[", "--")):
            raise NotKnown(f"RUN {rest}")
        binds = [(path, self._root / str(path)[1:]) for path in self._binds]
        for source, target in binds:
            make = (
                f"mkdir -p {target}"
                if source.is_dir()
                else f"mkdir -p {target.parent}; test -e {target} || touch {target}"
            )
            self._space.run("sh", "-c", make)
            self._space.bind(source, target, "ro")
        self._space.run("mount", "--rbind", "/dev", str(self._root / "dev"))
        env = [f"{name}={value}" for name, value in {"HOME": "/root", **self._environ, **self._image.env}.items()]
        cd = f"cd {shlex.quote(self._image.workdir)}; {rest}"
        inner = ["setpriv", "--reuid", self._image.user, "--regid", self._image.user, "--clear-groups", "--"]
        self._space.run("chroot", str(self._root), *inner, "env", "-i", *env, "/bin/sh", "-c", cd)
        for target in [*(target for _, target in reversed(binds)), self._root / "dev"]:
            self._space.run("umount", "--recursive", str(target))

    def _env(self, rest: str) -> None:
        found = dict(self._image.env)
        for word in shlex.split(rest):
            name, equals, value = word.partition("=")
            if not equals:
                raise NotKnown(f"ENV {rest}")
            found[name] = re.sub(r"\$(\w+)", lambda named: self._image.env.get(named[1], ""), value)
        self._image = replace(self._image, env=found)

    def _user(self, rest: str) -> None:
        if not rest.isdigit():
            raise NotKnown(f"USER {rest}")
        self._image = replace(self._image, user=rest)

    def _volume(self, rest: str) -> None:
        self._image = replace(self._image, volumes=(*self._image.volumes, *rest.split()))

    def _expose(self, rest: str) -> None:
        self._image = replace(self._image, ports=(*self._image.ports, *map(int, rest.split())))

    def _healthcheck(self, rest: str) -> None:
        options, _, command = rest.partition("CMD ")
        if not all(re.fullmatch(r"--(interval|timeout|start-period)=\d+s", word) for word in options.split()):
            raise NotKnown(f"HEALTHCHECK {rest}")
        self._image = replace(self._image, health=tuple(json.loads(command)))

    def _cmd(self, rest: str) -> None:
        self._image = replace(self._image, command=tuple(json.loads(rest)))

    def _inside(self, path: str) -> Path:
        return self._root / os.path.normpath(os.path.join(self._image.workdir, path)).lstrip("/")

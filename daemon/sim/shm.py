"""Shared memory of a simulated host: files, who has them open, and the helper's two answers about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from daemon.sim.frame import USAGE, Refused, Sections
from daemon.sim.processes import SimProcess

_NAMES = re.compile(
    r"(nccl-|cuda\.shm\.|sglang_loads_|sgl_shm_|multi_tokenizer_args_|psm_|torch_|sem\.mp-|sem\.loky-|"
    r"sglang_host_pool_.*\.mmap$)[A-Za-z0-9._-]*"
)
_TARGET = re.compile(r"[A-Za-z0-9._-]{1,200} [0-9]{1,10} [0-9]{1,20} [0-9.]{1,40}")


@dataclass(slots=True)
class ShmFile:
    """One file. `holder` is who has it open or mapped: it holds it as long as it lives."""

    name: str
    uid: int
    user: str
    size: int
    inode: int
    changed: str
    holder: SimProcess | None

    @property
    def held(self) -> bool:
        return self.holder is not None and self.holder.alive

    @property
    def line(self) -> str:
        head = f"{self.name} {self.uid} {self.user} {self.size} {self.inode} {self.changed}"
        return f"{head} {'held' if self.held else 'free'}"


class Shm:
    """All files there; the world makes them."""

    def __init__(self) -> None:
        self.files: dict[str, ShmFile] = {}
        self._inode = 10

    def make(self, name: str, size: int, uid: int, user: str, wall_us: int, holder: SimProcess | None) -> ShmFile:
        self._inode += 1
        changed = f"{wall_us // 1_000_000}.{wall_us % 1_000_000:06d}0000"
        self.files[name] = ShmFile(name, uid, user, size, self._inode, changed, holder)
        return self.files[name]

    def section(self, wall_us: int) -> tuple[int, bytes]:
        """What a look that asks for it is told."""
        now = f"now {wall_us // 1_000_000}.{wall_us % 1_000_000:06d}000 0\n"
        return 0, (now + "".join(f"{one.line}\n" for one in self.files.values() if _NAMES.match(one.name))).encode()

    def sweep(self, targets: Sequence[str]) -> Sections:
        """Takes away those that are still as the request says, and nobody's."""
        for target in targets:
            check(target)
        return {"result": (0, "".join(f"{self._sweep_one(*target.split())}\n" for target in targets).encode())}

    def _sweep_one(self, name: str, uid: str, inode: str, changed: str) -> str:
        found = self.files.get(name)
        if found is None or not _NAMES.match(name):
            return f"{name} gone"
        if (str(found.uid), str(found.inode), found.changed) != (uid, inode, changed) or found.held:
            return f"{name} changed"
        del self.files[name]
        return f"{name} ok"


def check(target: str) -> None:
    """Raises Refused when a target is not one."""
    if not _TARGET.fullmatch(target):
        raise Refused(USAGE, "not a target")

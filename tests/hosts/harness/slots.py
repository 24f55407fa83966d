"""State folders, one a host: what was made for it, so that a later run can take down what a killed run left.

A slot is owned by whoever holds the lock on its `lock` file; the lock goes with the process. Nothing is ended or
removed but what a slot names: processes by pid and start ticks on the same boot, and what is in the slot's own cgroup.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATE = Path("/var/lib/stoker-tests")
SLOTS = 1000
RANGE = "10.231.0.0/16"


@dataclass(frozen=True, slots=True)
class Slot:
    """One host's number and state folder. `lock` is the open descriptor that makes it ours."""

    number: int
    folder: Path
    lock: int

    @property
    def link(self) -> str:
        """The name of the network namespace and of its veth's outer end."""
        return f"stk-{self.number}"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def outer_address(self) -> str:
        return f"10.231.{self.number // 64}.{self.number % 64 * 4 + 1}"

    @property
    def address(self) -> str:
        return f"10.231.{self.number // 64}.{self.number % 64 * 4 + 2}"

    def record(self, **facts: Any) -> None:
        """Adds facts to the slot's state. Takes effect whole or not at all."""
        state = _state(self.folder) | facts
        new = self.folder / "state.new"
        new.write_text(json.dumps(state))
        new.replace(self.folder / "state.json")

    def free(self) -> None:
        """Takes down all that the slot names. May be called twice."""
        with _global_lock():
            take_down(self.folder, self.number)
            with suppress(OSError):
                os.close(self.lock)
            _forget_route()


def claim() -> Slot:
    """A new slot of this process; first takes down what killed runs left."""
    with _global_lock():
        _reap()
        for number in range(SLOTS):
            folder = STATE / "slots" / str(number)
            if folder.exists():
                continue
            folder.mkdir(parents=True, mode=0o755)
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            slot = Slot(number, folder, lock)
            slot.record(owner=identity(os.getpid()), boot=boot_id())
            _quiet(["ip", "route", "add", "unreachable", RANGE, "metric", "9999"])
            return slot
    raise RuntimeError(f"all {SLOTS} test host slots in {STATE} are taken")


def reap() -> None:
    """Takes down every slot whose owner is gone."""
    with _global_lock():
        _reap()
        _forget_route()


def take_down(folder: Path, number: int) -> None:
    """Ends and removes all that one slot names: processes, mounts, network, files, cgroups."""
    state = _state(folder)
    if state.get("boot") == boot_id():
        _end(state, number)
        root = folder / "root"
        while _is_mount(root):
            if _quiet(["umount", "-R", str(root)]).returncode != 0:
                _quiet(["umount", "-R", "-l", str(root)])
        _quiet(["ip", "link", "del", f"stk-{number}"])
        _quiet(["ip", "netns", "del", f"stk-{number}"])
        for group in cgroups(number):
            _remove_cgroup(group)
    shutil.rmtree(folder)


def identity(pid: int) -> list[int]:
    """A pid with its start ticks, which together name one process of this boot. Raises OSError when it is gone."""
    stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return [pid, int(stat[19])]


def is_alive(who: list[int]) -> bool:
    """Whether that very process still runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{who[0]}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return int(stat[19]) == who[1] and stat[0] not in (b"Z", b"X")


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cgroup2() -> Path:
    """Where this machine has its version 2 hierarchy."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            return Path(fields[1])
    raise RuntimeError("this machine has no cgroup2 mount")


def cgroups(number: int) -> list[Path]:
    """A slot's own cgroup in each hierarchy that nspawn uses."""
    roots = [cgroup2(), Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/freezer")]
    return [root / f"stoker-tests-{number}" for root in roots if root.is_dir()]


def _reap() -> None:
    slots = STATE / "slots"
    for folder in slots.iterdir() if slots.is_dir() else []:
        with suppress(FileNotFoundError):
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                take_down(folder, int(folder.name))
            except BlockingIOError:
                continue
            finally:
                os.close(lock)


def _forget_route() -> None:
    if not any((STATE / "slots").iterdir()):
        _quiet(["ip", "route", "del", "unreachable", RANGE, "metric", "9999"])


def _end(state: dict[str, Any], number: int) -> None:
    groups = cgroups(number)
    for group in groups:
        for frozen in group.rglob("freezer.state"):
            frozen.write_text("THAWED")
    named = [who for who in (state.get("init"), state.get("nspawn")) if who]
    for who in named:
        if is_alive(who):
            with suppress(ProcessLookupError):
                os.kill(who[0], signal.SIGKILL)
    kill = groups[0] / "cgroup.kill"
    if kill.exists():
        kill.write_text("1")
    deadline = time.monotonic() + 20
    while any(is_alive(who) for who in named) or _members(groups[0]):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of test host slot {number} do not end: {named} {_members(groups[0])}")
        time.sleep(0.02)


def _members(group: Path) -> list[str]:
    found: list[str] = []
    for procs in group.rglob("cgroup.procs"):
        with suppress(OSError):
            found += procs.read_text().split()
    return found


def _remove_cgroup(group: Path) -> None:
    for path in sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True):
        with suppress(OSError):
            path.rmdir()
    with suppress(FileNotFoundError):
        group.rmdir()


def _is_mount(path: Path) -> bool:
    return any(line.split()[1] == str(path) for line in Path("/proc/self/mounts").read_text().splitlines())


def _state(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def _quiet(argv: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, check=False, capture_output=True)


@contextmanager
def _global_lock() -> Iterator[None]:
    (STATE / "slots").mkdir(parents=True, exist_ok=True)
    with (STATE / "global.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

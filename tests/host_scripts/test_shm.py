"""What engines leave in /dev/shm, seen and taken away by the real script: with real files, mappings and open files."""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon import host
from daemon.probes.report import Answer
from tests.host_scripts.conftest import Box, said

UNIT = "stoker-m.server.service"
LIBC = ctypes.CDLL(None, use_errno=True)
SHM = Path("/dev/shm")
MARK = secrets.token_hex(4)  # other runs on this machine have files of their own there

pytestmark = [pytest.mark.hosts, pytest.mark.strays]  # only root sees everybody's open files
Make = Callable[..., Path]


@pytest.fixture
def make() -> Iterator[Make]:
    """make(name): such a file there, gone after the test."""
    made: list[Path] = []

    def make(name: str, size: int = 4096) -> Path:
        path = SHM / f"{name}{MARK}"
        path.write_bytes(bytes(size))
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def listed(box: Box) -> dict[str, list[str]]:
    """The section's rows by name, as they are; only those of this run."""
    answer = box.ask("observe", "leftovers 1", "limit-ms 20000")
    section = answer.sections["shm"]
    assert section.exit_status == 0, section.text
    rows = [line.split(" ") for line in said(answer, "shm")]
    assert rows[0][0] == "now"
    return {row[0]: row for row in rows[1:] if row[0].endswith(MARK)}


def map_file(path: Path) -> int:
    """Maps it as NCCL does: the file itself is closed again (Python's own mmap would keep it open)."""
    LIBC.mmap.restype = ctypes.c_void_p
    with path.open("rb") as file:
        address = LIBC.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    return int(address)


def target(path: Path) -> str:
    found = path.stat()
    seconds, rest = divmod(found.st_ctime_ns, 10**9)
    return f"target {path.name} {found.st_uid} {found.st_ino} {seconds}.{rest:09d}0"


def sweep(box: Box, *targets: str, state: str = "inactive") -> Answer:
    box.fence()
    box.unit(UNIT, InvocationID="", ActiveState=state)
    return box.change("sweep-shm", f"unit {UNIT}", "ground-invocation -", f"ground-state {state}", *targets)


def test_a_look_that_does_not_ask_has_no_such_section(box: Box) -> None:
    assert "shm" not in box.ask("observe").sections


def test_only_plain_files_of_engines_names_are_listed(box: Box, make: Make) -> None:
    for name in ("nccl-", "psm_", "sem.mp-", "other-", "sem."):
        make(name)
    twice = make("nccl-twice")
    os.link(twice, SHM / f"nccl-second{MARK}")
    (SHM / f"nccl-link{MARK}").symlink_to("/etc/passwd")
    try:
        assert set(listed(box)) == {f"nccl-{MARK}", f"psm_{MARK}", f"sem.mp-{MARK}"}
    finally:
        (SHM / f"nccl-second{MARK}").unlink()
        (SHM / f"nccl-link{MARK}").unlink()


def test_what_somebody_has_open_or_mapped_is_held(box: Box, make: Make) -> None:
    free, opened, mapped = make("nccl-free"), make("nccl-open"), make("nccl-map")
    address = map_file(mapped)
    with opened.open("rb"):
        rows = listed(box)
    LIBC.munmap(ctypes.c_void_p(address), 4096)
    assert {name: row[-1] for name, row in rows.items()} == {
        free.name: "free", opened.name: "held", mapped.name: "held",
    }  # fmt: skip
    assert rows[free.name][1:4] == ["0", "root", "4096"]
    assert {row[-1] for row in listed(box).values()} == {"free"}


def test_what_nobody_holds_is_removed_and_what_changed_is_not(box: Box, make: Make) -> None:
    free, held, again = make("nccl-free"), make("nccl-held"), make("nccl-again")
    targets = [target(path) for path in (free, held, again)]
    again.unlink()
    make("nccl-again")
    with held.open("rb"):
        answer = sweep(box, *targets, f"target nccl-never{MARK} 0 1 1.0")
    assert answer.exit_status == 0, answer.error
    assert said(answer, "result") == [
        f"{free.name} ok", f"{held.name} changed", f"{again.name} changed", f"nccl-never{MARK} gone",
    ]  # fmt: skip
    assert not free.exists()
    assert held.exists()
    assert again.exists()


def test_another_owner_or_another_name_is_never_removed(box: Box, make: Make) -> None:
    theirs, other = make("nccl-theirs"), make("other-")
    line = target(theirs)
    os.chown(theirs, 65534, 65534)
    answer = sweep(box, line, target(theirs).replace(" 65534 ", " 0 "), target(other))
    assert said(answer, "result") == [f"{theirs.name} changed", f"{theirs.name} changed", f"{other.name} gone"]
    assert theirs.exists()
    assert other.exists()


@pytest.mark.parametrize(
    "line", ["target ../etc/passwd 0 1 1.0", "target nccl-x 0 1", "target nccl-x 0 1 1.0 more", ""]
)
def test_what_is_no_target_removes_nothing(box: Box, line: str) -> None:
    assert sweep(box, *([line] if line else [])).exit_status == host.EXIT_USAGE


def test_a_unit_that_came_up_meanwhile_keeps_everything(box: Box, make: Make) -> None:
    free = make("nccl-free")
    box.fence()
    box.unit(UNIT, InvocationID="", ActiveState="active")
    lines = (f"unit {UNIT}", "ground-invocation -", "ground-state inactive", target(free))
    assert box.change("sweep-shm", *lines).exit_status == host.EXIT_GROUND_CHANGED
    assert box.change("sweep-shm", *lines[:2], "ground-state active", target(free)).exit_status == host.EXIT_USAGE
    assert box.ask("sweep-shm", "fence x 1 y", *lines).exit_status == host.EXIT_FENCED
    box.path("hold").write_text("hands off", encoding="utf-8")
    assert box.change("sweep-shm", *lines).exit_status == host.EXIT_HELD
    assert free.exists()

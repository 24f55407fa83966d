"""What /proc said about the candidate processes, made into `Process` values.

Called by `report`. Names and command lines are chosen by whoever runs the process: they are read as bytes, by position
and length, and decoded with replacement at the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import AnyStr

from daemon.domain.observation import Process, ProcessId

_STAT_FIELDS = 20  # of those behind the name; the 20th is the start
_MINOR = re.compile(r"nvidia([0-9]{1,4})")


class Malformed(ValueError):
    """A section does not have the form that its tool gives it."""


def pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    """FILE NUL CONTENT NUL …, as `grep -zZ` and `find -printf` give it. Raises Malformed."""
    parts = data.split(b"\0")
    if len(parts) % 2 == 0 or parts[-1]:
        raise Malformed("an incomplete pair")
    return list(zip(parts[0:-1:2], parts[1:-1:2], strict=True))


def lines_of_files(data: bytes) -> dict[bytes, bytes]:
    """FILE NUL LINE newline …, as `grep -Z` gives it: each file's lines, joined again. Raises Malformed."""
    files: dict[bytes, bytes] = {}
    longer: dict[bytes, list[bytes]] = {}  # joined at the end: a file may have a hundred thousand lines
    if not data:
        return {}
    if data[-1:] != b"\n":
        raise Malformed("an incomplete line")
    for line in data[:-1].split(b"\n"):
        name, nul, content = line.partition(b"\0")
        if not nul:
            raise Malformed("a line of no file")
        if name in files:
            longer.setdefault(name, [files[name]]).append(content)
        else:
            files[name] = content
    return files | {name: b"\n".join(lines) for name, lines in longer.items()}


def text(data: bytes) -> str:
    """Bytes of unknown origin as text."""
    return data.decode("utf-8", "replace")


def whole_lines(content: AnyStr) -> list[AnyStr]:
    """The lines that say anything. Raises Malformed when the last has no end: it was cut and may say something else."""
    end: AnyStr = "\n" if isinstance(content, str) else b"\n"
    if content and not content.endswith(end):
        raise Malformed(f"the last line has no end: {content[-40:]!r}")
    return [line for line in content.split(end) if line]


def whole_number(value: str | bytes) -> int:
    """An unsigned decimal. Raises Malformed."""
    if not value.isdigit() or not value.isascii() or len(value) > 20:
        raise Malformed(f"not a number: {value[:40]!r}")
    return int(value)


def cgroup_path(content: bytes) -> str:
    """The path in systemd's own hierarchy: the unified one where it says anything (v2, hybrid), else the named (v1).

    A container with v2 on a machine with v1 shows both, and the named one is then the machine's.
    """
    named = unified = b""
    for line in content.split(b"\n"):
        _, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        if controllers == b"name=systemd":
            named = path
        if line.startswith(b"0::"):
            unified = path
    chosen = unified if unified not in (b"", b"/") else named or unified
    return text(chosen.removesuffix(b" (deleted)"))


def arguments(cmdline: bytes) -> tuple[str, ...]:
    """argv: each argument ends with a NUL. A process that overwrote its title leaves a tail of NULs: no arguments."""
    if cmdline.endswith(b"\0\0\0"):
        cmdline = cmdline.rstrip(b"\0")
    if not cmdline:
        return ()
    return tuple(text(cmdline.removesuffix(b"\0")).split("\0"))


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything about processes that lies in other sections than their own. `marks` is None when it is unknown."""

    uids: Mapping[int, int]
    users: Mapping[int, str]
    environ: Mapping[int, tuple[tuple[str, str], ...]] | None
    readable: frozenset[int]
    minors: Mapping[int, frozenset[int]] = field(default_factory=dict)


def parse_processes(
    data: bytes, candidates: tuple[int, ...], gone: frozenset[int], facts: Facts
) -> tuple[Process, ...]:
    """Every candidate that is not gone, each with all its parts. Raises Malformed when one lacks a part."""
    files = lines_of_files(data)
    found = []
    for pid in candidates:
        if pid in gone:
            continue
        stat = files.get(b"/proc/%d/stat" % pid)
        group = files.get(b"/proc/%d/cgroup" % pid)
        if stat is None or group is None or pid not in facts.uids:
            raise Malformed(f"process {pid} was not read whole")
        found.append(_process(pid, stat, group, files.get(b"/proc/%d/cmdline" % pid, b""), facts))
    return tuple(found)


def _process(pid: int, stat: bytes, group: bytes, cmdline: bytes, facts: Facts) -> Process:
    head, _, tail = stat.rpartition(b") ")
    fields = tail.split(b" ")
    own, _, comm = head.partition(b" (")
    if len(fields) < _STAT_FIELDS or own != b"%d" % pid:
        raise Malformed(f"stat of process {pid}")
    uid = facts.uids[pid]
    known = facts.environ is not None and pid in facts.readable
    return Process(
        id=ProcessId(pid, whole_number(fields[19])),
        ppid=whole_number(fields[1]),
        pgrp=max(int(fields[2]), 0),
        session=max(int(fields[3]), 0),
        state=text(fields[0]),
        uid=uid,
        comm=text(comm),
        cgroup=cgroup_path(group),
        argv=arguments(cmdline),
        marks=_marks(pid, facts.environ) if known and facts.environ is not None else None,
        nvidia_open=pid in facts.minors,
        nvidia_minors=facts.minors.get(pid, frozenset()),
        user=facts.users.get(uid, ""),
    )


def _marks(pid: int, environ: Mapping[int, tuple[tuple[str, str], ...]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(entry for entry in environ.get(pid, ()) if entry[0].startswith("STOKER_")))


def pid_of(path: bytes) -> int:
    """The pid in `/proc/PID/…`. Raises Malformed."""
    parts = path.split(b"/", 3)
    if len(parts) != 4 or parts[1] != b"proc":
        raise Malformed(f"not a path in /proc: {path[:40]!r}")
    return whole_number(parts[2])


def parse_environ(data: bytes) -> dict[int, tuple[tuple[str, str], ...]]:
    """Environment entries by pid, the first of each name as getenv(3) sees it. Raises Malformed."""
    entries: dict[int, dict[str, str]] = {}
    for path, entry in pairs(data):
        name, equals, value = entry.partition(b"=")
        if equals and name.isascii():
            entries.setdefault(pid_of(path), {}).setdefault(text(name), text(value))
    return {pid: tuple(values.items()) for pid, values in entries.items()}


def parse_links(data: bytes) -> dict[int, dict[str, str]]:
    """Targets of `/proc/PID/cwd` and `/proc/PID/exe` by pid and name. Raises Malformed."""
    links: dict[int, dict[str, str]] = {}
    for path, target in pairs(data):
        links.setdefault(pid_of(path), {})[text(path.rpartition(b"/")[2])] = text(target)
    return links


def parse_uids(data: bytes) -> dict[int, int]:
    """Real uid by pid, out of `/proc/PID/status:Uid:…` lines. Raises Malformed."""
    uids = {}
    for line in whole_lines(data):
        path, _, rest = line.partition(b":Uid:")
        uids[pid_of(path)] = whole_number(rest.split()[0] if rest.split() else b"")
    return uids


def parse_users(data: bytes) -> dict[int, str]:
    """User names by uid, out of passwd lines; a line of another form is no user. Raises Malformed."""
    users: dict[int, str] = {}
    for line in whole_lines(text(data)):
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isascii() and fields[2].isdigit():
            users.setdefault(int(fields[2]), fields[0])
    return users


def parse_nvidia_files(data: bytes) -> dict[int, frozenset[int]]:
    """Minor numbers of open `/dev/nvidiaN` by pid; a pid with other `/dev/nvidia*` alone has none. Raises Malformed."""
    minors: dict[int, set[int]] = {}
    for line in whole_lines(text(data)):
        pid, _, name = line.partition(" ")
        found = _MINOR.fullmatch(name)
        minors.setdefault(whole_number(pid), set()).update([int(found[1])] if found else [])
    return {pid: frozenset(numbers) for pid, numbers in minors.items()}


def values_of(content: str) -> dict[str, str]:
    """Lines `KEY=VALUE`; others say nothing. Raises Malformed."""
    return dict(line.split("=", 1) for line in whole_lines(content) if "=" in line)


def numbers_in(content: str) -> tuple[int, ...]:
    """All numbers of whole lines. Raises Malformed."""
    return numbers_of(" ".join(whole_lines(content)))


def numbers_of(line: str) -> tuple[int, ...]:
    """Numbers between white space. Raises Malformed."""
    return tuple(map(whole_number, line.split()))

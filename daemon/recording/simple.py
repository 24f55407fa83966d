"""What people write by hand, turned into what the helper prints: one reader then reads both.

Called by `answer`. Nothing is made up that could decide whose a process is: what was not given stays unknown.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from daemon.recording.form import MetaForm, ProcessForm, SessionForm, SocketForm, UnitForm

TICKS = 100  # a second, of the boot clock
_YOUNGEST_UPTIME_S = 86_400.0
_FIRST_UID = 1000
_LONGEST_LINE = 65_536  # splitting as a shell does takes a minute for a word of a million characters
_SUB = {"active": "running", "failed": "failed", "activating": "start-pre", "deactivating": "stop-sigterm"}
_RUNS = frozenset({"active", "activating", "reloading", "deactivating", "refreshing"})


@dataclass(frozen=True, slots=True)
class AsDeclared:
    """What Stoker would have written for a unit: its file's text, path, argv, environment and user."""

    text: str
    path: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    user: str = ""


@dataclass(frozen=True, slots=True)
class Hand:
    """Everything of one recording that is in a simple form."""

    meta: MetaForm | None = None
    processes: Sequence[ProcessForm] | None = None
    units: Sequence[UnitForm] | None = None
    sockets: Sequence[SocketForm] | None = None
    sessions: Sequence[SessionForm] | None = None
    card_pids: frozenset[int] = frozenset()
    declared: Mapping[str, AsDeclared] = field(default_factory=dict)

    def sections(self) -> dict[str, bytes]:
        """The helper's sections by name."""
        made = {"meta": _meta(self.meta or MetaForm(), self.uptime_s)}
        if self.processes is not None:
            made |= self._of_processes(self.processes)
        if self.sockets is not None or self.processes is not None:
            made["sockets"] = self._sockets()
        if self.sessions is not None:
            made["sessions"] = "".join(f"{one.id} {one.leader}\n" for one in self.sessions).encode()
        elif self.processes is not None and not any("/session-" in (one.cgroup or "") for one in self.processes):
            made["sessions"] = b""  # no process is in one, so that none of them decides anything
        if self.units is not None:
            made |= self._of_units(self.units)
        return made

    @property
    def uptime_s(self) -> float:
        """As given; else a day, or longer when something is said to be older."""
        if self.meta is not None and self.meta.uptime_s is not None:
            return self.meta.uptime_s
        ages = [one.age_s or 0.0 for one in self.processes or ()] + [one.age_s or 0.0 for one in self.units or ()]
        starts = [(one.start_ticks or 0) / TICKS for one in self.processes or ()]
        return max(_YOUNGEST_UPTIME_S, *(2 * age for age in ages), *(start + 3600 for start in starts), 0.0)

    def ticks(self, age_s: float) -> int:
        """The boot clock that long before the look."""
        return max(0, round((self.uptime_s - age_s) * TICKS))

    def _of_processes(self, processes: Sequence[ProcessForm]) -> dict[str, bytes]:
        uids = _uids(processes)
        pids = " ".join(str(one.pid) for one in processes)
        readable = " ".join(str(one.pid) for one in processes if one.env is not None or self._main(one.pid))
        names = sorted({(uid, name) for name, uid in uids.items()})
        return {
            "candidates": f"{pids}\n\n".encode(),
            "processes": b"".join(self._of_proc(one) for one in processes),
            "uids": "".join(f"/proc/{one.pid}/status:Uid:\t{_uid(one, uids)}\n" for one in processes).encode(),
            "users": "".join(f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for uid, name in names).encode(),
            "environ": b"".join(self._environ(one) for one in processes),
            "environ_ok": f"{readable}\n".encode(),
            "nvfds": "".join(f"{one.pid} {name}\n" for one in processes for name in self._devices(one)).encode(),
            "exe": b"".join(self._links(one) for one in processes),
        }

    def _main(self, pid: int) -> AsDeclared | None:
        """What the process runs when it is the main process of a unit that is as declared."""
        for unit in self.units or ():
            if unit.main_pid == pid and unit.as_declared:
                return self.declared.get(unit.name)
        return None

    def _argv(self, one: ProcessForm) -> list[str]:
        if one.argv is not None:
            return one.argv
        if one.command is not None:
            return _words(one.command)
        main = self._main(one.pid)
        return list(main.argv) if main is not None else []

    def _of_proc(self, one: ProcessForm) -> bytes:
        argv = self._argv(one)
        comm = one.comm if one.comm is not None else (argv[0].rsplit("/", 1)[-1] if argv else "?")
        start = one.start_ticks if one.start_ticks is not None else self.ticks(one.age_s or 0.0)
        group, session = one.pgrp or one.pid, one.session or one.pgrp or one.pid
        stat = f"{one.pid} ({comm[:15]}) {one.state[0]} {one.ppid} {group} {session} 0 -1 {'0 ' * 13}{start} 0"
        files = [("stat", stat.encode()), ("cgroup", f"0::{one.cgroup}".encode() if one.cgroup else b"")]
        if argv:
            files.insert(0, ("cmdline", b"".join(word.encode() + b"\0" for word in argv)))
        return b"".join(
            f"/proc/{one.pid}/{name}".encode() + b"\0" + line + b"\n"
            for name, content in files
            for line in content.split(b"\n")
        )

    def _environ(self, one: ProcessForm) -> bytes:
        main = self._main(one.pid)
        env = dict(main.env) if main is not None else {}
        env |= one.env or {}
        place = f"/proc/{one.pid}/environ".encode()
        return b"".join(place + b"\0" + f"{key}={value}".encode() + b"\0" for key, value in env.items())

    def _devices(self, one: ProcessForm) -> Iterable[str]:
        match one.nvidia:
            case None:
                return ("nvidiactl",) if one.pid in self.card_pids and one.state[0] != "Z" else ()
            case bool():
                return ("nvidiactl",) if one.nvidia else ()
            case minors:
                return ("nvidiactl", *(f"nvidia{number}" for number in minors))

    def _links(self, one: ProcessForm) -> bytes:
        """Of main processes: the reader takes them for the units'."""
        if not any(unit.main_pid == one.pid for unit in self.units or ()):
            return b""
        exe = (self._argv(one) or ["/"])[0]
        return f"/proc/{one.pid}/cwd\0/\0/proc/{one.pid}/exe\0{exe}\0".encode()

    def _sockets(self) -> bytes:
        rows: dict[tuple[int, str], list[int]] = {}
        for one in self.sockets or ():
            rows.setdefault((one.port, _hexadecimal(one.address)), []).extend(one.pids)
        for process in self.processes or ():
            for port in process.ports:
                if not any(known == port and process.pid in pids for (known, _), pids in rows.items()):
                    rows.setdefault((port, "00000000"), []).append(process.pid)
        return "".join(
            f"{port} {address} {','.join(map(str, pids)) or '-'}\n" for (port, address), pids in rows.items()
        ).encode()

    def _of_units(self, units: Sequence[UnitForm]) -> dict[str, bytes]:
        files = [(one, self._file(one)) for one in units]
        loaded = "".join(self._loaded(one) for one in units) + '= manager\n{"type":"as","data":[]}\n'
        return {
            "asked": f"{' '.join(one.name for one in units)}\n\n".encode(),
            "units": "\n".join(self._shown(one) for one in units).encode(),
            "others": b"",
            "loaded": loaded.encode(),
            "paths": "".join(
                f"{one.name} {path} {'absent' if text is None else 'present'}\n"
                for one, (path, text) in files
                if text is not None or self._load(one) == "not-found"
            ).encode(),
            "texts": b"".join(path.encode() + b"\0" + text.encode() + b"\0" for _, (path, text) in files if text),
            "dropins": b"",
        }

    def _file(self, one: UnitForm) -> tuple[str, str | None]:
        declared = self.declared.get(one.name)
        if one.as_declared and declared is not None:
            return declared.path, declared.text
        return f"/etc/systemd/system/{one.name}", one.file

    def _load(self, one: UnitForm) -> str:
        if one.load is not None:
            return one.load
        told = one.as_declared or one.file is not None or one.argv is not None or one.user is not None
        lives = one.active != "inactive" or one.main_pid > 0
        return "loaded" if told or lives or one.enabled is not None else "not-found"

    def _shown(self, one: UnitForm) -> str:
        path, text = self._file(one)
        adopted = path.endswith(".conf")
        runs = one.active in _RUNS
        changed = self.ticks(one.age_s or 0.0) * 10_000 if one.age_s is not None or runs else 0
        enabled = one.enabled if one.enabled is not None else one.as_declared
        state = "" if self._load(one) == "not-found" else ("enabled" if enabled else "disabled")
        values = {
            "Id": one.name,
            "Names": one.name,
            "LoadState": self._load(one),
            "ActiveState": one.active,
            "SubState": one.sub or _SUB.get(one.active, "dead"),
            "Result": one.result,
            "UnitFileState": state,
            "FragmentPath": "" if text is None or adopted else path,
            "DropInPaths": path if adopted and text is not None else "",
            "NeedDaemonReload": "yes" if one.need_daemon_reload else "no",
            "MainPID": one.main_pid,
            "ControlPID": one.control_pid,
            "InvocationID": one.invocation or (f"{changed:032x}" if changed else ""),
            "NRestarts": one.restarts,
            "ExecMainCode": one.exec_main_code,
            "ExecMainStatus": one.exec_main_status,
            "ExecMainStartTimestampMonotonic": changed if one.main_pid else 0,
            "InactiveExitTimestampMonotonic": changed if runs else max(0, changed - 1),
            "ActiveEnterTimestampMonotonic": changed if one.active == "active" else 0,
            "InactiveEnterTimestampMonotonic": 0 if runs else changed,
            "StateChangeTimestampMonotonic": changed,
            "ControlGroup": one.cgroup or (f"/system.slice/{one.name}" if runs else ""),
            "TimeoutStopUSec": one.stop_timeout,
            "Job": 0,
        }
        return "".join(f"{key}={value}\n" for key, value in values.items())

    def _loaded(self, one: UnitForm) -> str:
        if self._load(one) != "loaded" or not one.name.endswith(".service"):
            return ""
        declared = self.declared.get(one.name) if one.as_declared else None
        argv = one.argv if one.argv is not None else list(declared.argv) if declared is not None else []
        env = {**(dict(declared.env) if declared is not None else {}), **one.env}
        user = one.user if one.user is not None else declared.user if declared is not None else ""
        command = [[argv[0], argv, False, 0, 0, 0, 0, 0, 0, 0]] if argv else []
        values: list[tuple[str, object]] = [("a(sasbttttuii)", command)]
        values += [("as", [f"{key}={value}" for key, value in env.items()]), ("s", user), ("s", "")]
        lines = [json.dumps({"type": kind, "data": value}, separators=(",", ":")) for kind, value in values]
        return "\n".join([f"= {one.name}", *lines]) + "\n"


def _meta(meta: MetaForm, uptime_s: float) -> bytes:
    values = {
        "container": meta.container,
        "systemd": meta.systemd,
        "boot_id": meta.boot_id or "00000000-0000-4000-8000-000000000000",
        "machine_id": meta.machine_id or "0" * 32,
        "pid1": "systemd",
        "monotonic_us": f"{round(uptime_s * TICKS)}0000",
        "uptime_s": int(uptime_s),
    }
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def _uids(processes: Sequence[ProcessForm]) -> dict[str, int]:
    """A number for each user named; those without one of their own get the next free, in the order of their names."""
    known = {one.user: one.uid for one in processes if one.user is not None and one.uid is not None}
    known.setdefault("root", 0)
    free = iter(n for n in range(_FIRST_UID, _FIRST_UID + 100_000) if n not in set(known.values()))
    for name in sorted({one.user for one in processes if one.user is not None}):
        if name not in known:
            known[name] = int(name) if name.isascii() and name.isdigit() else next(free)
    return known


def _uid(one: ProcessForm, uids: Mapping[str, int]) -> int:
    return one.uid if one.uid is not None else uids[one.user or "root"]


def _words(command: str) -> list[str]:
    """A command line as a shell would split it; one that no shell would, or a very long one, at its blanks."""
    try:
        return shlex.split(command) if len(command) <= _LONGEST_LINE else command.split()
    except ValueError:
        return command.split()


def _hexadecimal(address: str) -> str:
    """An address as /proc/net/tcp has it: words of 32 bits, little-endian. `*` and `[::]` are as `ss` prints them."""
    plain = {"*": "::", "any": "::"}.get(address, address.strip("[]"))
    raw = ipaddress.ip_address(plain).packed
    return "".join(f"{word:08X}" for word in struct.unpack(f"<{len(raw) // 4}I", raw))

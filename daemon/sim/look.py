"""The verb `observe` of a simulated host: every section, with the bytes that the real tools would have printed."""

from __future__ import annotations

import ipaddress
import json
import re
import struct

from daemon.sim import show
from daemon.sim.disk import DROPIN_FOLDERS, FENCE, HOLD, UNITS
from daemon.sim.frame import Asked, Sections
from daemon.sim.machine import Machine
from daemon.sim.processes import SimProcess
from daemon.sim.units import Units

SHOWN = (
    "Id", "Names", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "FragmentPath", "DropInPaths",
    "NeedDaemonReload", "MainPID", "ControlPID", "InvocationID", "NRestarts", "ExecMainCode", "ExecMainStatus",
    "ExecMainStartTimestampMonotonic", "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic",
    "InactiveEnterTimestampMonotonic", "StateChangeTimestampMonotonic", "ControlGroup", "TimeoutStopUSec", "Job",
)  # fmt: skip
OURS = "50-stoker.conf"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9:_.@-]{1,200}")


class Look:
    """One look: what is asked for decides which processes are candidates."""

    def __init__(self, machine: Machine, units: Units, asked: Asked) -> None:
        self.machine, self.units, self.asked = machine, units, asked
        self.names, self.dropins = self._wanted()
        self.ports = {int(port) for port in asked.ports}
        self.processes = {process.pid: process for process in machine.processes}
        self.chosen = self._choose()
        self.took_ms: dict[str, int] = {}

    def sections(self) -> Sections:
        limit_ms = self.asked.number("limit-ms", 10_000)
        gpus, apps = self.machine.cards.query_gpus(limit_ms), self.machine.cards.query_apps(limit_ms)
        self.took_ms = {"gpus": gpus.ms, "apps": apps.ms, "units": 20}
        others = self._others()
        shown = [show.block(show.properties(self.units, self.units.get(name)), SHOWN) for name in self.names]
        paths, texts = self._files()
        return {
            "meta": (0, self._meta()),
            "hold": self._small_file(HOLD),
            "fence": self._small_file(FENCE),
            "gpus": (gpus.exit_status, gpus.text.encode()),
            "apps": (apps.exit_status, apps.text.encode()),
            **self._health(limit_ms),
            "asked": (0, f"{_spaced(self.names)}\n{_spaced(others)}\n".encode()),
            "units": (0, "\n".join(shown).encode()),
            "loaded": (0, self._loaded()),
            "others": (0, "\n".join(self._other(name) for name in others).encode()),
            "paths": (0, paths),
            "dropins": (0, "".join(f"{name} {path}\n" for name, path in self._dropins()).encode()),
            "texts": (0, texts),
            **self._process_sections(),
            **self._shm(),
        }

    def _health(self, limit_ms: int) -> Sections:
        """What is kept between looks, and how full the disks are."""
        machine = self.machine
        machine.cards.tell(self.asked.unusable)
        health, log = machine.cards.query_health(limit_ms, machine.ticks()), machine.cards.log
        refused = "dmesg: read kernel buffer failed: Operation not permitted\n"
        rows = "".join(f"{figures} {path}\n" for path, figures in machine.cards.room.items())
        return {
            "health": (health.exit_status, health.text.encode()),
            "kernel": (1, refused.encode()) if log is None else (0, "".join(f"{line}\n" for line in log).encode()),
            "space": (0, rows.encode()),
        }

    def _shm(self) -> Sections:
        asked = self.asked.number("leftovers") != 0
        return {"shm": self.machine.shm.section(self.machine.wall_us())} if asked else {}

    # ---- units ----

    def _wanted(self) -> tuple[list[str], set[str]]:
        """The units asked for, and those whose files carry our name; which of them are asked as drop-ins."""
        names, dropins = list(self.asked.units), set(self.asked.dropins)
        found = [path for path in self.machine.disk.below(UNITS, ".service") if path.startswith(f"{UNITS}/stoker-")]
        found += sorted(path for path in self.machine.disk.files if path.endswith(f".service.d/{OURS}"))
        for path in found:
            drop = path.endswith(OURS)
            name = path.split("/")[-2].removesuffix(".d") if drop else path.rpartition("/")[2]
            if name not in names and path in self.machine.disk.files:
                names.append(name)
                dropins |= {name} if drop else set()
        return names, dropins

    def _loaded(self) -> bytes:
        """Of each unit, and then what every unit inherits; nothing at all where no unit was asked for."""
        text = "".join(f"= {name}\n{show.loaded(self.units.get(name))}" for name in self.names)
        inherited = [f"{name}={value}" for name, value in self.units.service.environment.items()]
        line = json.dumps({"type": "as", "data": inherited}, separators=(",", ":"))
        return (f"{text}= manager\n{line}\n" if self.names else "").encode()

    def _dropins(self) -> list[tuple[str, str]]:
        """What lies in the units' own folders, by unit and path."""
        return [
            (name, path)
            for name in self.names
            for folder in (UNITS, *DROPIN_FOLDERS)
            for path in self.machine.disk.below(f"{folder}/{name}.d", ".conf")
            if path in self.machine.disk.files and _PLAIN_NAME.fullmatch(path.rpartition("/")[2])
        ]

    def _files(self) -> tuple[bytes, bytes]:
        paths, texts = [], []
        for name in self.names:
            path = f"{UNITS}/{name}.d/{OURS}" if name in self.dropins else f"{UNITS}/{name}"
            content = self.machine.disk.files.get(path)
            state = "present" if content is not None else "other" if self.machine.disk.exists(path) else "absent"
            paths.append(f"{name} {path} {state}\n")
            if content is not None:
                texts.append(path.encode() + b"\0" + content + b"\0")
        ours = {line.split(" ")[1] for line in paths}
        for path in dict.fromkeys(path for _, path in self._dropins() if path not in ours):
            content = self.machine.disk.files[path]
            texts += [path.encode() + b"\0" + content + b"\0"] if content else []
        return "".join(paths).encode(), b"".join(texts)

    def _others(self) -> list[str]:
        found: list[str] = []
        for process in self.chosen:
            for part in process.cgroup.split("/"):
                if part.endswith((".service", ".scope")) and part not in self.names and part not in found:
                    found.append(part)
        return found

    def _other(self, name: str) -> str:
        unit = self.units.get(name) if name.endswith(".service") else None
        if unit is not None and unit.load_state != "not-found":
            state, load = unit.active, unit.load_state
        else:
            here = any(name in process.cgroup.split("/") for process in self.processes.values())
            lives = here and name not in self.machine.ended
            state, load = ("active", "loaded") if lives else ("inactive", "not-found")
        return f"Id={name}\nLoadState={load}\nActiveState={state}\n"

    # ---- the host ----

    def _meta(self) -> bytes:
        machine = self.machine
        ticks = machine.ticks()
        return (
            f"container=none\nsystemd={machine.systemd}\nboot_id={machine.boot_id}\n"
            f"machine_id={machine.machine_id}\nhostname={machine.name}\npid1=systemd\nmonotonic_us={ticks}0000\n"
            f"uptime_s={ticks // 100}\nmem_available_kib=1971322880\nuid=0\n"
        ).encode()

    def _small_file(self, path: str) -> tuple[int, bytes]:
        content = self.machine.disk.files.get(path)
        return (1, b"") if content is None else (0, content[:4096])

    # ---- processes ----

    def _choose(self) -> list[SimProcess]:
        """Seeds, their descendants and groups, and the ancestors of all these."""
        mains = {unit.main.pid for name in self.names if (unit := self.units.get(name)).main is not None}
        seeds = {pid for pid, process in self.processes.items() if pid in mains or self._is_seed(process)}
        groups = {self.processes[pid].pgrp for pid in seeds if pid > 1 and self.processes[pid].pgrp > 1}
        want = set(seeds)
        for pid in seeds:
            want |= {found.pid for found in self.machine.processes.tree(self.processes[pid])} if pid > 1 else set()
        whole = self.asked.number("whole-table") != 0
        want |= {pid for pid, process in self.processes.items() if whole or process.pgrp in groups}
        for pid in list(want):
            above = self.processes[pid].ppid
            while above in self.processes and above not in want:
                want.add(above)
                above = self.processes[above].ppid
        return [process for pid, process in self.processes.items() if pid in want]

    def _is_seed(self, process: SimProcess) -> bool:
        if process.memory and process.alive:
            return True
        if process.devices or self.ports & process.ports.keys():
            return True
        return any(part in self.names for part in process.cgroup.split("/"))

    def _process_sections(self) -> Sections:
        chosen = self.chosen
        pids = _spaced([str(process.pid) for process in chosen])
        readable = _spaced([str(process.pid) for process in chosen if not process.veiled])
        uids = "".join(f"/proc/{p.pid}/status:Uid:\t{p.uid}\t{p.uid}\t{p.uid}\t{p.uid}\n" for p in chosen)
        lines = [self.machine.users[uid] for uid in dict.fromkeys(p.uid for p in chosen) if uid in self.machine.users]
        mains = [p for p in chosen if any(self.units.get(name).main is p for name in self.names)]
        links = "".join(f"/proc/{p.pid}/cwd\0{p.cwd}\0/proc/{p.pid}/exe\0{p.exe}\0" for p in mains)
        return {
            "candidates": (0, f"{pids}\n\n".encode()),
            "processes": (0, b"".join(_of_proc(process) for process in chosen)),
            "uids": (0, uids.encode()),
            "users": (0, "".join(f"{line}\n" for line in lines).encode()),
            "environ": (0, self._environ(chosen, mains)),
            "environ_ok": (0, f"{readable}\n".encode()),
            "nvfds": (0, "".join(f"{p.pid} {name}\n" for p in chosen for name in p.devices).encode()),
            "sockets": (0, self._sockets(chosen)),
            "sessions": (0, "".join(f"{s} {pid}\n" for s, pid in self._sessions()).encode()),
            "exe": (0, links.encode()),
        }

    def _environ(self, chosen: list[SimProcess], mains: list[SimProcess]) -> bytes:
        marks = [
            (p.pid, key, value) for p in chosen if not p.veiled for key, value in p.environ if key.startswith("STOKER_")
        ]
        prefixes = tuple(self.asked.prefixes)
        names = self.asked.names
        asked = [(p.pid, k, v) for p in mains for k, v in p.environ if k in names or k.startswith(prefixes)]
        return b"".join(
            f"/proc/{pid}/environ\0{key}={value}\0".encode("utf-8", "surrogateescape")
            for pid, key, value in marks + asked
        )

    def _sockets(self, chosen: list[SimProcess]) -> bytes:
        rows: dict[tuple[int, str], list[int]] = {}
        for process in self.processes.values():
            for port, address in process.listens:
                rows.setdefault((port, address), []).append(process.pid)
        wanted = {process.pid for process in chosen}
        return "".join(
            f"{port} {hexadecimal(address)} {','.join(map(str, pids))}\n"
            for (port, address), pids in rows.items()
            if port in self.ports or wanted & set(pids)
        ).encode()

    def _sessions(self) -> list[tuple[str, int]]:
        """Login sessions; the leader is 0 when it is gone."""
        return [(name, pid if pid in self.processes else 0) for name, pid in self.machine.sessions.items()]


def _spaced(names: list[str]) -> str:
    return "".join(f" {name}" for name in names)


def _of_proc(process: SimProcess) -> bytes:
    """cmdline, stat and cgroup as `grep -Z` gives them; an empty cmdline gives no line."""
    pid, cmdline = process.pid, process.cmdline
    head = f"/proc/{pid}/cmdline".encode() + b"\0" + cmdline + b"\n" if cmdline else b""
    stat = (
        f"{pid} ({process.comm}) {process.state} {process.ppid} {process.pgrp} {process.session} 0 -1 4194560 2837 0 4 "
        f"0 7 1 0 0 20 0 1 0 {process.start} 26468352 4674 18446744073709551615 {'0 ' * 26}0"
    )
    return head + f"/proc/{pid}/stat\0{stat}\n/proc/{pid}/cgroup\0".encode() + f"0::{process.cgroup}\n".encode()


def hexadecimal(address: str) -> str:
    """An address as /proc/net/tcp has it: words of 32 bits, little-endian."""
    raw = ipaddress.ip_address(address).packed
    return "".join(f"{word:08X}" for word in struct.unpack(f"<{len(raw) // 4}I", raw))

"""A simulated systemd: which units there are, what is loaded of each, and what `systemctl` does with them.

An inactive unit that nothing refers to is forgotten and read anew when asked for, as systemd collects its garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from daemon.sim.definition import Definition, load
from daemon.sim.disk import NOWHERE, UNIT_FOLDERS, UNITS
from daemon.sim.machine import Machine
from daemon.sim.processes import SimProcess
from daemon.sim.service import Launches, Service
from daemon.sim.unit import SimUnit

Said = tuple[int, str]  # exit status of systemctl and what it printed
OK: Said = (0, "")
FIRST_JOB = 2000
CONTROL_FOLDERS = ("/etc/systemd/system.control", "/run/systemd/system.control")


class Units:
    """`on_change` is told the unit's name whenever its state changes. `jobs` counts the jobs there were."""

    def __init__(self, machine: Machine, launch: Launches) -> None:
        self.machine = machine
        self.on_change: list[Callable[[str], None]] = []
        self.known: dict[str, SimUnit] = {}
        self.service = Service(machine, launch, self._changed, self._live)
        self._pinned: set[str] = set()
        self._searched: tuple[str, ...] = UNIT_FOLDERS
        self._jobs = FIRST_JOB
        machine.processes.ended.append(self._process_ended)

    def _changed(self, name: str) -> None:
        for tell in self.on_change:
            tell(name)

    def _live(self, name: str) -> bool:
        unit = self.known.get(name)
        return unit is not None and unit.active in ("active", "activating", "reloading")

    def _process_ended(self, process: SimProcess, _code: int, _status: int) -> None:
        for unit in list(self.known.values()):
            if process.cgroup == unit.group or process.cgroup.startswith(unit.group + "/"):
                self.service.process_ended(unit)

    # ---- what is loaded ----

    def get(self, name: str) -> SimUnit:
        """The unit as systemd answers for it, loaded if it was not in memory."""
        unit = self.known.get(name)
        if unit is not None and unit.active == "inactive" and unit.job is None and name not in self._pinned:
            unit = None
        if unit is None:
            unit = SimUnit(name)
            self._load(unit)
            self.known[name] = unit
        return unit

    def _load(self, unit: SimUnit) -> None:
        fragment = self.fragment(unit.name)
        unit.signature = self._signature(unit.name)
        if self.machine.disk.links.get(fragment) == NOWHERE:
            dropins = self._dropins(unit.name) if unit.definition.fragment else ()
            unit.load_state, unit.definition = "masked", replace(self._read(unit.name, "", dropins), fragment=fragment)
        elif not fragment:
            unit.load_state = "not-found"
            unit.definition = Definition("", dropins=()) if unit.down else unit.definition
        else:
            unit.definition = self._read(unit.name, fragment, self._dropins(unit.name))
            unit.load_state = "bad-setting" if unit.definition.bad else "loaded"

    def _read(self, name: str, fragment: str, dropins: tuple[str, ...]) -> Definition:
        paths = [*([fragment] if fragment else []), *dropins]
        return load(name, fragment, tuple((path, self.machine.disk.text(path) or "") for path in paths))

    def fragment(self, name: str) -> str:
        """Where the unit's file or link lies, "" when there is none."""
        paths = (f"{folder}/{name}" for folder in UNIT_FOLDERS)
        return next((path for path in paths if self.machine.disk.exists(path)), "")

    def _dropins(self, name: str) -> tuple[str, ...]:
        found: dict[str, str] = {}
        for folder in reversed(self._searched):
            found |= {p.rpartition("/")[2]: p for p in self.machine.disk.below(f"{folder}/{name}.d", ".conf")}
        return tuple(found[key] for key in sorted(found))

    def _signature(self, name: str) -> tuple[object, ...]:
        paths = (self.fragment(name), *self._dropins(name))
        return tuple((path, self.machine.disk.stamps.get(path)) for path in paths)

    def needs_reload(self, unit: SimUnit) -> bool:
        """As systemd compares files with what it loaded; a masked unit with drop-ins always says yes."""
        if unit.load_state == "masked" and unit.definition.dropins:
            return True
        return unit.signature != self._signature(unit.name)

    def file_state(self, unit: SimUnit) -> str:
        """UnitFileState."""
        fragment = self.fragment(unit.name)
        if not fragment:
            return ""
        if self.machine.disk.links.get(fragment) == NOWHERE:
            return "masked"
        if any(link.endswith(f"/{unit.name}") for link in self.machine.disk.links):
            return "enabled"
        if fragment.startswith("/run/systemd/transient"):
            return "transient"
        return "disabled" if self._read(unit.name, fragment, self._dropins(unit.name)).wanted_by else "static"

    # ---- systemctl ----

    def reload(self) -> None:
        """daemon-reload: every definition is read again; what is inactive and unwanted is forgotten."""
        disk, links = self.machine.disk, self.machine.disk.links
        control = [folder for folder in CONTROL_FOLDERS if any(path.startswith(f"{folder}/") for path in disk.files)]
        self._searched = (*control, *UNIT_FOLDERS)  # a folder that was not there at the last reload is not looked into
        self._pinned = {path.rpartition("/")[2] for path in links if ".wants/" in path}
        for name, unit in list(self.known.items()):
            if unit.active == "inactive" and unit.job is None and name not in self._pinned:
                del self.known[name]
            else:
                self._load(unit)
                unit.exec_told = False
                unit.state_change_us = unit.state_change_us or self.machine.mono_us()
        for name in sorted(self._pinned):
            self.get(name)

    def job(self, kind: str, name: str) -> Said:
        """start, stop or restart with --no-block: what systemctl says at once."""
        unit = self.get(name)
        if unit.load_state == "not-found" and unit.down:
            status, why = (5, "not loaded") if kind == "stop" else (5, "not found")
            return status, f"Failed to {kind} {name}: Unit {name} {why}.\n"
        if kind != "stop" and unit.load_state != "loaded":
            why = "is masked" if unit.load_state == "masked" else "has a bad unit file setting"
            more = (
                "" if unit.load_state == "masked" else f"See system logs and 'systemctl status {name}' for details.\n"
            )
            return 1, f"Failed to {kind} {name}: Unit {name} {why}.\n{more}"
        self._jobs += 1
        self._run(unit, kind, self._jobs)
        return OK

    def _run(self, unit: SimUnit, kind: str, number: int) -> None:
        if kind == "stop":
            unit.job, unit.queued = None if unit.down else ("stop", number), False
            self.service.stop(unit)
            if unit.down:
                unit.job = None
        elif kind == "start":
            if unit.down:
                unit.job = ("start", number)
                self.service.begin(unit)
            elif unit.active == "deactivating" or unit.sub == "auto-restart":
                unit.job, unit.queued = ("start", number), unit.active == "deactivating"
        elif unit.down:
            unit.job = ("start", number)
            self.service.begin(unit)
        elif unit.sub == "auto-restart":
            unit.job = ("start", number)
            self.service.stop(unit)
            self.service.begin(unit)
        else:
            unit.job, unit.queued = ("restart", number), True
            self.service.stop(unit)

    def reset_failed(self, name: str) -> None:
        unit = self.known.get(name)
        if unit is None:
            return
        unit.starts.clear()
        if unit.active == "failed":
            unit.result, unit.flush = "success", True
            self.service.enter(unit, "inactive", "dead")

    def enable(self, name: str) -> Said:
        fragment = self.fragment(name)
        if not fragment:
            return 1, f"Failed to enable unit: Unit file {name} does not exist.\n"
        if self.machine.disk.links.get(fragment) == NOWHERE:
            return 1, f"Failed to enable unit: Unit file {fragment} is masked.\n"
        said = ""
        for target in self._read(name, fragment, self._dropins(name)).wanted_by:
            link = f"{UNITS}/{target}.wants/{name}"
            if self.machine.disk.links.get(link) != fragment:
                self.machine.disk.link(link, fragment)
                said += f"Created symlink {link} -> {fragment}.\n"
        self.reload()
        return 0, said

    def disable(self, name: str) -> Said:
        if not self.fragment(name):
            return 1, f"Failed to disable unit: Unit file {name} does not exist.\n"
        links = [path for path in self.machine.disk.links if path.endswith(f"/{name}") and ".wants/" in path]
        for link in links:
            self.machine.disk.remove(link)
        self.reload()
        fragment = self.fragment(name)
        if self.machine.disk.links.get(fragment) == NOWHERE:
            return 0, f"Unit {fragment} is masked, ignoring.\n"
        return 0, "".join(f'Removed "{link}".\n' for link in links)

    def boot(self) -> None:
        """What a boot starts: everything that a target wants."""
        self.known.clear()
        self.reload()
        for name in sorted(self._pinned):
            if self.get(name).load_state == "loaded":
                self.job("start", name)

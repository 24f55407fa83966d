"""The verbs that change a simulated host: hold, fence and ground first, as the real helper looks at them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from daemon.sim.disk import DROPIN_FOLDERS, FENCE, HOLD, STATE, UNITS
from daemon.sim.frame import FENCED, GROUND, HELD, USAGE, Asked, Refused, Sections
from daemon.sim.machine import Machine
from daemon.sim.shm import check
from daemon.sim.units import Said, Units

_FENCE = re.compile(r"[A-Za-z0-9_-]{1,64} +[0-9]{1,15} +[A-Za-z0-9_-]{1,64}")
_DROPIN = re.compile(r"[A-Za-z0-9:_.@-]{1,195}\.conf")
_UNTOUCHABLE = re.compile(r"sshd|sshd-session|sshd-auth|systemd|systemd-.*|dbus-daemon|dbus-broker.*|stoker-host", re.S)
_TARGET = re.compile(r"[1-9][0-9]{0,8} [0-9]{1,20}")


class Changes:
    """Carries one request out. Raises Refused; what was done before that stays done."""

    def __init__(self, machine: Machine, units: Units, asked: Asked) -> None:
        self.machine, self.units, self.asked = machine, units, asked

    # ---- what every change checks ----

    def _lock(self) -> None:
        disk = self.machine.disk
        if disk.exists(HOLD):
            raise Refused(HELD, disk.files.get(HOLD, b"")[:1000].decode("utf-8", "replace").rstrip("\n"))

    def _present(self) -> str:
        return (self.machine.disk.text(FENCE) or "-").partition("\n")[0]

    def _fenced_off(self) -> Refused:
        present = self._present()
        return Refused(FENCED, f"this host is fenced by {present}", {"fence": (0, f"{present}\n".encode())})

    def _may_change(self) -> None:
        self._lock()
        fence = self.asked.value("fence")
        if not _FENCE.fullmatch(fence):
            raise Refused(USAGE, "no fence")
        if fence != self._present():
            raise self._fenced_off()
        if self.asked.value("boot") != self.machine.boot_id:
            raise Refused(GROUND, f"the host was booted since: {self.machine.boot_id}")

    def take_fence(self) -> Sections:
        self._lock()
        fence = self.asked.value("fence")
        if not _FENCE.fullmatch(fence):
            raise Refused(USAGE, "no fence")
        if self.asked.value("expected") != self._present():
            raise self._fenced_off()
        self.machine.disk.write(FENCE, f"{fence}\n".encode())
        return _done(fence)

    # ---- files ----

    def _own_path(self) -> tuple[str, str]:
        unit, path = self.asked.unit, self.asked.value("path")
        if len(self.asked.units) != 1:
            raise Refused(USAGE, "needs one unit")
        if path not in (f"{UNITS}/{unit}", f"{UNITS}/{unit}.d/50-stoker.conf"):
            raise Refused(USAGE, "not a path for this unit")
        return unit, path

    def _check_file(self, path: str) -> None:
        if path in self.machine.disk.links:
            raise Refused(GROUND, f"{path} is a symbolic link")
        if self.machine.disk.digest(path) != self.asked.value("ground"):
            raise Refused(GROUND, f"{path} is not the file this was decided on")

    def put_unit(self) -> Sections:
        unit, path = self._own_path()
        size, gate = self.asked.number("body"), self.asked.number("gate")
        if not 0 < size <= 1048576 or gate > 1048576:
            raise Refused(USAGE, "needs body and gate")
        if len(self.asked.rest) < size + gate:
            raise Refused(USAGE, "the request was cut")
        self._may_change()
        self._check_file(path)
        self.machine.disk.write(f"{STATE}/units/{unit}", self.asked.rest[size : size + gate])
        self.machine.disk.write(path, self.asked.rest[:size])
        self.units.reload()
        if self.units.needs_reload(self.units.get(unit)):
            raise Refused(1, f"{unit} still needs a daemon-reload")
        return _done(f"wrote {path}")

    def set_aside(self) -> Sections:
        unit, path, disk = self.asked.unit, self.asked.value("path"), self.machine.disk
        name = path.rpartition("/")[2]
        if len(self.asked.units) != 1:
            raise Refused(USAGE, "needs one unit")
        folders = [f"{folder}/{unit}.d/{name}" for folder in (UNITS, *DROPIN_FOLDERS)]
        if path not in folders or not _DROPIN.fullmatch(name):
            raise Refused(USAGE, "not a drop-in of this unit")
        self._may_change()
        if disk.digest(path) != self.asked.value("ground"):
            raise Refused(GROUND, f"{path} is not the file this was decided on")
        stamp = datetime.fromtimestamp(self.machine.wall_us() / 1_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        kept = base = f"{STATE}/set-aside/{unit}/{name}.{stamp}"
        number = 0
        while disk.exists(kept):
            number += 1
            kept = f"{base}.{number}"
        disk.write(kept, disk.files[path])
        disk.remove(path)
        self.units.reload()
        return _done(f"moved {path} to {kept}")

    def remove_unit(self) -> Sections:
        unit, path = self._own_path()
        self._may_change()
        self._check_file(path)
        state = self.units.get(unit).active
        if state not in ("inactive", "failed"):
            raise Refused(GROUND, f"{unit} is {state}")
        if state == "failed":
            self.units.reset_failed(unit)
        if path == f"{UNITS}/{unit}" and path in self.machine.disk.files:
            self._step(f"disable -- {unit}", self.units.disable(unit))
        self.machine.disk.remove(path)
        self.machine.disk.remove(f"{STATE}/units/{unit}")
        self.units.reload()
        return _done(f"removed {path}")

    # ---- units ----

    def unit_verb(self, kind: str) -> Sections:
        if len(self.asked.units) != 1:
            raise Refused(USAGE, "needs one unit")
        self._may_change()
        name = self.asked.unit
        unit = self.units.get(name)
        self._unit_ground(name)
        if kind in ("start", "restart"):
            if self.units.needs_reload(unit):
                self.units.reload()
            self.units.reset_failed(name)
        if kind in ("enable", "disable"):
            said = self.units.enable(name) if kind == "enable" else self.units.disable(name)
            return _done(self._step(f"{kind} -- {name}", said))
        return _done(self._step(f"--no-block {kind} -- {name}", self.units.job(kind, name)))

    def _unit_ground(self, name: str) -> None:
        unit = self.units.get(name)
        invocation, state = unit.invocation or "-", unit.active
        if invocation != self.asked.value("ground"):
            raise Refused(GROUND, f"{name} has invocation {invocation} now")
        if state != self.asked.value("state"):
            raise Refused(GROUND, f"{name} is {state} now")

    def _step(self, words: str, said: Said) -> str:
        if said[0] != 0:
            raise Refused(1, f"systemctl {words} (exit status {said[0]}): {said[1].rstrip()}")
        return said[1].rstrip("\n")

    # ---- shared memory ----

    def sweep_shm(self) -> Sections:
        if len(self.asked.units) != 1:
            raise Refused(USAGE, "needs one unit")
        if not self.asked.targets:
            raise Refused(USAGE, "no target")
        for target in self.asked.targets:
            check(target)
        self._may_change()
        self._unit_ground(self.asked.unit)
        if self.asked.value("state") not in ("inactive", "failed"):
            raise Refused(USAGE, f"{self.asked.unit} is to be down")
        return self.machine.shm.sweep(self.asked.targets)

    # ---- signals ----

    def signal(self, told: Callable[[int, str], None]) -> Sections:
        """`told` hears of each target and what came of it."""
        name = self.asked.value("signal")
        if name not in ("TERM", "KILL", "CONT"):
            raise Refused(USAGE, "not a signal of ours")
        if not self.asked.targets:
            raise Refused(USAGE, "no target")
        for target in self.asked.targets:
            if not _TARGET.fullmatch(target):
                raise Refused(USAGE, "not a target")
        groups = self._groups()
        self._may_change()
        lines = []
        for target, group in zip(self.asked.targets, groups, strict=True):
            pid, start = map(int, target.split())
            came = self._signal_one(pid, start, group)
            told(pid, came)
            if came == "ok":
                self.machine.processes.signal(self.machine.processes.by_pid[pid], name)
            lines.append(f"{pid} {came}\n")
        return {"result": (0, "".join(lines).encode())}

    def _groups(self) -> list[bytes | None]:
        """The cgroup that each target was seen in, None where the request does not say."""
        size = self.asked.number("body")
        if size > 1048576:
            raise Refused(USAGE, "too many cgroups")
        if len(self.asked.rest) < size:
            raise Refused(USAGE, "the request was cut")
        if size == 0:
            return [None] * len(self.asked.targets)
        lines = self.asked.rest[:size].split(b"\n")
        if len(lines) != len(self.asked.targets) + 1:
            raise Refused(USAGE, "needs a cgroup for each target")
        return list(lines[:-1])

    def _signal_one(self, pid: int, start: int, group: bytes | None) -> str:
        """What the helper says of this target; "ok" when the signal is to be sent now."""
        process = self.machine.processes.by_pid.get(pid)
        if pid == 1:
            return "protected"
        if process is None or not process.alive:
            return "gone"
        if _UNTOUCHABLE.fullmatch(process.comm):
            return "protected"
        if process.start != start:
            return "changed"
        return "ok" if group is None or group == process.cgroup.encode() else "moved"


def _done(text: str) -> Sections:
    return {"result": (0, f"{text}\n".encode())}

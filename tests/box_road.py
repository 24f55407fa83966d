"""A road to a box: the planner's small host behind the real protocol, so that whole passes can be tested without one.

It answers `observe` with the bytes that `stoker-host` would print, keeps the fence, and carries the verbs out on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from daemon.domain.actions import PutUnit, RemoveUnit, SetAside, Signal, UnitGround, UnitVerb
from daemon.domain.observation import Loaded, ProcessId, Unit
from daemon.domain.status import Reason
from tests.planner.box import BOOT, Box, BoxUnit
from tests.probes.reference import frame

REFUSED = {"ground": 75, "fence": 76, "hold": 77}


@dataclass
class BoxRoad:
    """`asked` are the verbs that came; `before` is called with each verb first and may raise in its place."""

    box: Box
    fence: str = ""
    hold: str | None = None
    asked: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda verb: None
    fails: dict[str, int] = field(default_factory=dict)  # verb → exit status
    told: str = ""  # what is said of the targets of a signal
    used_mib: int = 0  # memory figure beyond the box's own, on every card

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        head, _, rest = stdin.partition(b"\n.\n")
        lines = [tuple(line.split(" ", 1)) for line in head.decode().split("\n")]
        self.asked.append(verb)
        self.before(verb)
        nonce = dict(lines)["nonce"]
        if verb == "observe":
            return frame(self._look([value for key, value in lines if key == "unit"]), verb, nonce=nonce)
        if verb == "journal":
            return frame({"journal": (0, b"a line\n")}, verb, nonce=nonce)
        code = self.fails.get(verb, 0) or self._change(verb, dict(lines), lines, rest)
        name = "error" if code else "result"
        said = self.told if verb == "signal" and not code else f"{verb} {code}\n"
        return frame({name: (0, said.encode())}, verb, code, nonce)

    def changes(self) -> list[str]:
        """The verbs that change something, in order."""
        return [verb for verb in self.asked if verb not in ("observe", "journal", "probe", "take-fence")]

    def _change(self, verb: str, values: dict[str, str], lines: list[tuple[str, ...]], rest: bytes) -> int:
        if self.hold is not None:
            return REFUSED["hold"]
        if verb == "take-fence":
            if values["expected"] != (self.fence or "-"):
                return REFUSED["fence"]
            self.fence = values["fence"]
            return 0
        if values["fence"] != self.fence:
            return REFUSED["fence"]
        if verb == "signal":
            targets = [ProcessId(*map(int, str(line[1]).split())) for line in lines if line[0] == "target"]
            groups = rest[: int(values["body"])].decode().splitlines()
            came = [self._reaches(target, group) for target, group in zip(targets, groups, strict=True)]
            self.told = "".join(f"{target.pid} {word}\n" for target, word in zip(targets, came, strict=True))
            reached = tuple(target for target, word in zip(targets, came, strict=True) if word == "ok")
            self.box.apply(Signal(values["signal"], reached, "", Reason.OK))  # type: ignore[arg-type]
            return 0
        return self._change_unit(verb, values, rest)

    def _reaches(self, target: ProcessId, group: str) -> str:
        proc = self.box.procs.get(target.pid)
        if proc is None:
            return "gone"
        if proc.start != target.start_ticks:
            return "changed"
        return "ok" if proc.cgroup == group else "moved"

    def _change_unit(self, verb: str, values: dict[str, str], rest: bytes) -> int:
        name = values["unit"]
        unit = self.box.units.get(name, BoxUnit())
        if verb in ("put-unit", "remove-unit"):
            found = "-" if unit.file is None else hashlib.sha256(unit.file.encode()).hexdigest()
            if values["ground"] != found:
                return REFUSED["ground"]
            text = rest[: int(values.get("body", "0"))].decode()
            put = PutUnit(name, values["path"], text, "", "", "", Reason.OK)
            self.box.apply(put if verb == "put-unit" else RemoveUnit(name, values["path"], "", "", Reason.OK))
            return 0
        if verb == "set-aside":
            text = unit.dropins.get(values["path"])
            if text is None or values["ground"] != hashlib.sha256(text.encode()).hexdigest():
                return REFUSED["ground"]
            self.box.apply(SetAside(name, values["path"], values["ground"], "", "", Reason.OK))
            return 0
        if (values["ground-invocation"], values["ground-state"]) != (unit.invocation or "-", unit.active):
            return REFUSED["ground"]
        ground = UnitGround(unit.invocation, unit.active)
        self.box.apply(UnitVerb(name, verb.removeprefix("unit-"), ground, "", Reason.OK))  # type: ignore[arg-type]
        return 0

    def _look(self, asked: list[str]) -> dict[str, tuple[int, bytes]]:
        look = self.box.look(0.0, tuple(asked))
        assert isinstance(look.units, tuple)
        assert isinstance(look.other_units, tuple)
        assert isinstance(look.gpus, tuple)
        assert isinstance(look.apps, tuple)
        names = [unit.name for unit in look.units]
        others = [(name, state) for name, state in look.other_units if name not in names]
        gpus = "".join(
            f"{g.index}, {g.uuid}, {g.bus_id}, {g.name}, {g.driver}, {g.memory_total_mib}, "
            f"{(g.memory_used_mib or 0) + self.used_mib}, 90, 36, Disabled\n"
            for g in look.gpus
        )
        apps = "".join(f"{a.gpu_uuid}, {a.pid}, {a.name}, {(a.memory_mib or 0) + self.used_mib}\n" for a in look.apps)
        meta = (
            f"container=none\nsystemd=252\nboot_id={BOOT}\nmachine_id={'m' * 32}\nhostname=a\npid1=systemd\n"
            f"monotonic_us={self.box.ticks}0000\nuptime_s=1\n"
        )
        return {
            "meta": (0, meta.encode()),
            "hold": (1, b"") if self.hold is None else (0, self.hold.encode()),
            "fence": (0, f"{self.fence}\n".encode()) if self.fence else (1, b""),
            "gpus": (0, gpus.encode()),
            "apps": (0, apps.encode()),
            "asked": (0, f"{' '.join(names)}\n{' '.join(name for name, _ in others)}\n".encode()),
            "units": (0, "\n".join(_show(unit) for unit in look.units).encode()),
            "loaded": (0, ("".join(_loaded(unit) for unit in look.units) + _manager(self.box)).encode()),
            "others": (0, "\n".join(f"Id={n}\nActiveState={s}\nLoadState=loaded\n" for n, s in others).encode()),
            **_files(look.units),
            **self._processes(),
        }

    def _processes(self) -> dict[str, tuple[int, bytes]]:
        procs = list(self.box.procs.values())
        mains = {unit.main for unit in self.box.units.values()}
        pids = " ".join(str(p.pid) for p in procs)
        parts = "".join(
            f"/proc/{p.pid}/cmdline\0" + "".join(f"{arg}\0" for arg in p.argv)
            + f"\n/proc/{p.pid}/stat\0{p.pid} (x) {p.state} {p.ppid} {p.pid} {p.pid} 0 -1 4194560 {'7 ' * 12}{p.start} "
            f"{'9 ' * 30}0\n/proc/{p.pid}/cgroup\x000::{p.cgroup}\n"
            for p in procs
        )  # fmt: skip
        env = {p.pid: dict(p.env if p.pid in mains else p.marks) for p in procs}
        environ = "".join(f"/proc/{pid}/environ\0{k}={v}\0" for pid, values in env.items() for k, v in values.items())
        links = "".join(f"/proc/{p.pid}/cwd\0/\0/proc/{p.pid}/exe\0/x\0" for p in procs if p.pid in mains)
        sockets = "".join(f"{port} 00000000 {p.pid}\n" for p in procs for port in p.ports)
        return {
            "candidates": (0, f"{pids}\n\n".encode()),
            "processes": (0, parts.encode()),
            "uids": (0, "".join(f"/proc/{p.pid}/status:Uid:\t{p.uid}\t0\t0\t0\n" for p in procs).encode()),
            "users": (0, b"root:x:0:0::/root:/bin/sh\n"),
            "environ": (0, environ.encode()),
            "environ_ok": (0, f"{pids}\n".encode()),
            "nvfds": (0, "".join(f"{p.pid} nvidiactl\n" for p in procs if p.gpus).encode()),
            "sockets": (0, sockets.encode()),
            "sessions": (0, b""),
            "exe": (0, links.encode()),
        }


def _files(units: tuple[Unit, ...]) -> dict[str, tuple[int, bytes]]:
    paths = texts = ""
    for unit in units:
        assert unit.file is not None
        paths += f"{unit.name} {unit.file.path} {'absent' if unit.file.text is None else 'present'}\n"
        texts += "" if unit.file.text is None else f"{unit.file.path}\0{unit.file.text}\0"
    dropins = "".join(f"{unit.name} {one.path}\n" for unit in units for one in unit.dropins or ())
    texts += "".join(f"{one.path}\0{one.text}\0" for unit in units for one in unit.dropins or ())
    return {"paths": (0, paths.encode()), "dropins": (0, dropins.encode()), "texts": (0, texts.encode())}


def _manager(box: Box) -> str:
    entries = [f"{key}={value}" for key, value in box.manager.items()]
    return "= manager\n" + json.dumps({"type": "as", "data": entries}) + "\n"


def _show(unit: Unit) -> str:
    return "".join(f"{key}={value}\n" for key, value in _properties(unit))


def _properties(unit: Unit) -> Iterator[tuple[str, object]]:
    yield from (("Id", unit.name), ("LoadState", unit.load_state), ("ActiveState", unit.active_state))
    yield from (("SubState", unit.sub_state), ("Result", unit.result), ("UnitFileState", unit.unit_file_state))
    yield from (("NeedDaemonReload", "yes" if unit.need_daemon_reload else "no"), ("MainPID", unit.main_pid))
    yield from (("ControlPID", 0), ("InvocationID", unit.invocation_id), ("NRestarts", unit.restarts))
    yield from (("ExecMainStatus", unit.exec_main_status), ("ControlGroup", unit.control_group))
    yield from (("InactiveExitTimestampMonotonic", unit.inactive_exit_us), ("TimeoutStopUSec", "1min"))
    yield from (("StateChangeTimestampMonotonic", unit.state_change_us), ("DropInPaths", " ".join(unit.dropin_paths)))
    yield "InactiveEnterTimestampMonotonic", unit.inactive_enter_us
    yield "ActiveEnterTimestampMonotonic", unit.active_enter_us


def _loaded(unit: Unit) -> str:
    if not isinstance(unit.loaded, Loaded):
        return ""
    command = [["", list(unit.loaded.argv), False, 1, 2, 3, 4, 5, 0, 0]]
    env = [f"{key}={value}" for key, value in unit.loaded.env]
    values = (command, env, unit.loaded.user, unit.loaded.working_directory)
    return f"= {unit.name}\n" + "".join(json.dumps({"data": value}) + "\n" for value in values)

"""A host as a small state machine: what planner properties act on. It knows nothing of how plans are made."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from daemon.domain.actions import Action, PutUnit, RemoveUnit, SetAside, Signal, SweepShm, UnitVerb
from daemon.domain.observation import (
    DropIn,
    Environment,
    Gpu,
    GpuApp,
    Identity,
    Listener,
    Loaded,
    Observation,
    Process,
    ProcessId,
    Unit,
    UnitFile,
)
from daemon.engines.unit import parse_unit

UUIDS = [f"GPU-00000000-aaaa-4000-8000-{i:012d}" for i in range(8)]
BOOT = "11111111-2222-3333-4444-555555555555"


@dataclass
class Proc:
    pid: int
    start: int
    argv: tuple[str, ...]
    cgroup: str
    uid: int = 0
    ppid: int = 1
    gpus: dict[str, int] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    marks: tuple[tuple[str, str], ...] = ()
    stubborn: bool = False
    state: str = "S"
    truth: str = "engine"
    env: tuple[tuple[str, str], ...] = ()


@dataclass
class BoxUnit:
    file: str | None = None
    loaded: str | None = None
    enabled: bool = False
    active: str = "inactive"
    sub: str = "dead"
    invocation: str = ""
    main: int = 0
    exit_ticks: int = 0
    enter_ticks: int = 0
    failed_status: int = 0
    ever: bool = False
    reload: bool = False
    dropins: dict[str, str] = field(default_factory=dict)
    in_effect: tuple[str, ...] = ()

    def load(self) -> None:
        """daemon-reload: the file and what lies beside it."""
        self.in_effect, self.reload = tuple(sorted(self.dropins)), False
        if self.file is not None:
            self.loaded = "\n".join([self.file, *(self.dropins[path] for path in self.in_effect)])


@dataclass
class Box:
    """`ticks` is the boot clock in 1/100 s. `step` lets systemd do its part."""

    units: dict[str, BoxUnit] = field(default_factory=dict)
    procs: dict[int, Proc] = field(default_factory=dict)
    ticks: int = 10_000
    next_pid: int = 1000
    cards: int = 4
    signalled: list[tuple[str, str]] = field(default_factory=list)
    restarts: int = 0
    loose: dict[str, int] = field(default_factory=dict)  # GPU UUID → MiB in use that no process explains
    manager: dict[str, str] = field(default_factory=dict)  # systemd's own environment
    aside: list[tuple[str, str]] = field(default_factory=list)  # (path, text)

    def spawn(self, argv: tuple[str, ...], cgroup: str, **more: object) -> Proc:
        self.next_pid += 1
        proc = Proc(self.next_pid, self.ticks, argv, cgroup, **more)  # type: ignore[arg-type]
        self.procs[proc.pid] = proc
        return proc

    def group(self, name: str) -> str:
        return f"/system.slice/{name}"

    def step(self, ticks: int = 70) -> None:
        """Time passes; units in the gate start when nobody holds their cards."""
        self.ticks += ticks
        for name, unit in self.units.items():
            if unit.active == "activating" and unit.sub == "start-pre" and not self._held(name, unit):
                self._exec(name, unit)
            elif unit.active == "deactivating":
                self._end(name, unit, "inactive")

    def _held(self, name: str, unit: BoxUnit) -> bool:
        parsed = parse_unit(unit.loaded or "")
        indexes = dict(parsed.env or ()).get("CUDA_VISIBLE_DEVICES", "")
        wanted = {UUIDS[int(i)] for i in indexes.split(",") if i}
        return any(wanted & set(p.gpus) for p in self.procs.values() if p.state != "Z")

    def _exec(self, name: str, unit: BoxUnit) -> None:
        parsed = parse_unit(unit.loaded or "")
        env = {k: v for k, v in {**self.manager, **dict(parsed.env or ())}.items() if k not in parsed.unset}
        cards = {UUIDS[int(i)]: 20_000 for i in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if i}
        port = (parsed.argv or ())[(parsed.argv or ()).index("--port") + 1]
        proc = self.spawn(parsed.argv or (), self.group(name), gpus=cards, ports=(int(port),))
        proc.env = tuple(env.items())
        proc.marks = tuple(sorted((k, v) for k, v in env.items() if k.startswith("STOKER_")))
        unit.main, unit.active, unit.sub, unit.ever = proc.pid, "active", "running", True
        unit.enter_ticks = self.ticks

    def _end(self, name: str, unit: BoxUnit, state: str) -> None:
        for pid in [p.pid for p in self.procs.values() if p.cgroup == self.group(name)]:
            self.die(pid)
        unit.main, unit.active, unit.sub = 0, state, "dead" if state == "inactive" else "failed"

    def die(self, pid: int) -> None:
        """A process ends; what it started has PID 1 as its parent then."""
        del self.procs[pid]
        for proc in self.procs.values():
            proc.ppid = 1 if proc.ppid == pid else proc.ppid

    def crash(self, name: str, *, leave: bool = False) -> None:
        """The main process dies; `leave`: its card holder moved to a cgroup of its own before."""
        unit = self.units[name]
        main = self.procs.get(unit.main)
        if main is not None and leave:
            self.spawn(("sglang::scheduler_TP0",), "/stray", gpus=dict(main.gpus), marks=main.marks, stubborn=True)
        self._end(name, unit, "failed")
        self._begin(name, unit)

    def _begin(self, name: str, unit: BoxUnit) -> None:
        unit.active, unit.sub, unit.exit_ticks = "activating", "start-pre", self.ticks
        unit.invocation = hashlib.md5(f"{name}{self.ticks}".encode()).hexdigest()
        unit.main = 0

    def apply(self, action: Action) -> None:
        """What the real host would do with one command."""
        match action:
            case PutUnit():
                unit = self.units.setdefault(action.unit, BoxUnit())
                unit.file = action.text
                unit.load()
            case SetAside():
                unit = self.units[action.unit]
                text = unit.dropins.pop(action.path)
                assert hashlib.sha256(text.encode()).hexdigest() == action.ground_sha256
                self.aside.append((action.path, text))
                unit.load()
            case RemoveUnit():
                del self.units[action.unit]
            case UnitVerb():
                self._verb(action)
            case SweepShm():
                raise AssertionError("no look of this box shows anything in /dev/shm")
            case Signal():
                for target in action.targets:
                    self._signal(action.signal, target)

    def restart_by_hand(self, name: str) -> None:
        """What a person's `systemctl restart` does, as far as its beginning."""
        self._end(name, self.units[name], "inactive")
        self._begin(name, self.units[name])

    def _verb(self, action: UnitVerb) -> None:
        unit = self.units[action.unit]
        assert (action.ground.invocation_id, action.ground.active_state) == (unit.invocation, unit.active)
        if action.verb in ("start", "restart") and unit.reload:
            unit.load()
        match action.verb:
            case "enable" | "disable":
                unit.enabled = action.verb == "enable"
            case "start":
                if unit.active in ("inactive", "failed"):
                    self._begin(action.unit, unit)
            case "restart":
                self.restarts += 1
                self._end(action.unit, unit, "inactive")
                self._begin(action.unit, unit)
            case "stop":
                unit.active = "deactivating"

    def _signal(self, signal: str, target: ProcessId) -> None:
        proc = self.procs.get(target.pid)
        if proc is None or proc.start != target.start_ticks:
            return
        self.signalled.append((signal, proc.truth))
        if signal == "KILL" or (signal == "TERM" and not proc.stubborn):
            self.die(proc.pid)

    def look(self, at_s: float, asked: tuple[str, ...]) -> Observation:
        names = sorted(set(asked) | set(self.units))
        gpus = tuple(
            Gpu(i, UUIDS[i], f"00000000:00:{i:02x}.0", "NVIDIA H200", "580.159.04", 143771, self._used(UUIDS[i]))
            for i in range(self.cards)
        )
        apps = tuple(
            GpuApp(uuid, p.pid, p.argv[0] if p.argv else "", mib)
            for p in self.procs.values()
            if p.state != "Z"
            for uuid, mib in p.gpus.items()
        )
        homes = {
            part for p in self.procs.values() for part in p.cgroup.split("/") if part.endswith((".service", ".scope"))
        }
        return Observation(
            host="a",
            at_s=at_s,
            identity=Identity("m" * 32, BOOT, "none", 252, 100.0, self.ticks * 10_000),
            gpus=gpus,
            apps=apps,
            processes=tuple(self._process(p) for p in self.procs.values()),
            listeners=tuple(Listener("0.0.0.0", port, (p.pid,)) for p in self.procs.values() for port in p.ports),
            units=tuple(self._unit(name) for name in names),
            other_units=tuple((home, "active") for home in sorted(homes)),
            sessions=(),
            fence=None,
            hold=None,
            inherited=frozenset(self.manager),
        )

    def _used(self, uuid: str) -> int:
        return sum(p.gpus.get(uuid, 0) for p in self.procs.values()) + self.loose.get(uuid, 0)

    def _process(self, p: Proc) -> Process:
        return Process(
            ProcessId(p.pid, p.start), p.ppid, p.pid, p.pid, p.state, p.uid, (p.argv or ("x",))[0][:15], p.cgroup,
            p.argv, p.marks, nvidia_open=bool(p.gpus), user="root" if p.uid == 0 else f"u{p.uid}",
        )  # fmt: skip

    def _unit(self, name: str) -> Unit:
        unit = self.units.get(name, BoxUnit())
        main = self.procs.get(unit.main)
        loaded = None
        if unit.loaded is not None:
            parsed = parse_unit(unit.loaded)
            loaded = Loaded(
                parsed.argv or (), tuple(parsed.env or ()), parsed.user or "", parsed.working_directory or ""
            )
        return Unit(
            name=name,
            load_state="loaded" if unit.file is not None else "not-found",
            active_state=unit.active,
            sub_state=unit.sub,
            result="exit-code" if unit.failed_status else "success",
            unit_file_state="enabled" if unit.enabled else ("disabled" if unit.file is not None else ""),
            fragment_path=f"/etc/systemd/system/{name}" if unit.file is not None else "",
            dropin_paths=unit.in_effect,
            need_daemon_reload=unit.reload,
            main_pid=unit.main,
            control_pid=0,
            invocation_id=unit.invocation,
            restarts=0,
            exec_main_code=1,
            exec_main_status=unit.failed_status,
            exec_main_start_us=main.start * 10_000 if main is not None else 0,
            inactive_exit_us=unit.exit_ticks * 10_000,
            active_enter_us=unit.enter_ticks * 10_000,
            inactive_enter_us=1 if unit.ever else 0,
            control_group=self.group(name) if unit.active not in ("inactive", "failed") else "",
            timeout_stop_us=60_000_000,
            job=0,
            state_change_us=unit.exit_ticks * 10_000,
            loaded=loaded,
            file=UnitFile(
                f"/etc/systemd/system/{name}",
                unit.file,
                hashlib.sha256(unit.file.encode()).hexdigest() if unit.file is not None else None,
            ),
            main=Environment(main.argv, main.env, None, None, main.uid) if main is not None else None,
            dropins=tuple(
                DropIn(path, text, hashlib.sha256(text.encode()).hexdigest()) for path, text in unit.dropins.items()
            ),
        )

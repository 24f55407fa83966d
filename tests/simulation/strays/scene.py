"""One seed's host with everything that was planted on it: births, and what is so about each planted process now.

Only checkers and the run read the truth here. The daemon meets the host through its road alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from daemon.sim.engine import Engine
from daemon.sim.host import SimHost
from daemon.sim.launch import PlainServer
from daemon.sim.processes import Reply, Request, SimProcess
from tests.simulation.specs import Wish
from tests.simulation.strays.shapes import Shape
from tests.simulation.strays.table import Now, Policy, UnitState, owner_of, why_not
from tests.simulation.watch import Schedule

SMALL_MIB = 1024
ADDRESSES = ("0.0.0.0", "::", "192.0.2.1", "127.0.0.1")
OTHER_UID = 1000
HEX = "0123456789abcdef"
MOVING = frozenset({"deactivating", "reloading"})


class Keyed:
    """A server that asks for a key."""

    def http(self, _request: Request) -> Reply:
        return Reply(401, b'{"error": "Unauthorized"}')


@dataclass(slots=True)
class Part:
    """One planted process. `unit` is the unit that it was started by or looks like."""

    process: SimProcess
    shape: Shape
    unit: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One planted file of /dev/shm. Only what a dead engine of `uid` left may go, and only once nobody holds it."""

    kind: str
    uid: int
    holder: SimProcess | None

    @property
    def dead(self) -> bool:
        return self.holder is None or not self.holder.alive


@dataclass(slots=True)
class Birth:
    """What a unit's main process was when it last ran: what orphans and look-alikes are made of."""

    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    uid: int
    title: str


@dataclass(slots=True)
class Scene:
    """`held` is every card and port that an instance of ours has held since boot.

    `asked` are the processes, by pid and start, that a TERM or KILL was ever sent for: a seed is shorter than an hour.
    """

    host: SimHost
    schedule: Schedule
    policy: Policy
    dice: random.Random
    parts: list[Part] = field(default_factory=list)
    births: dict[str, Birth] = field(default_factory=dict)
    held: set[tuple[str, int]] = field(default_factory=set)
    asked: set[tuple[int, int]] = field(default_factory=set)
    segments: dict[str, Segment] = field(default_factory=dict)
    mps: SimProcess | None = None
    _count: int = 0

    # ---- births ----

    def plant(self, shape: Shape, wish: Wish) -> Part:
        """A new process of that shape, made after what `wish` runs. It holds nothing yet."""
        birth, spawn = self.births[wish.unit], self.host.machine.processes.spawn
        uid = birth.uid if shape.own_user else OTHER_UID
        process = spawn(_argv(shape, birth), self._home(shape, wish, uid), "foreign", shape.why, uid=uid)
        part = Part(process, shape, wish.unit)
        self.dress(part, birth)
        return part

    def dress(self, part: Part, birth: Birth) -> None:
        """The rest of what it is: title, environment, parent, and how it takes a signal."""
        process, shape = part.process, part.shape
        process.whose = "foreign" if owner_of(shape, Now()) in ("foreign", "unknown") else "leftover"
        process.why = f"{shape.kind}: {shape.why}"
        process.argv, process.environ = _argv(shape, birth), _environ(shape, birth)
        process.title = {"title": birth.title, "renamed": "python3 worker"}.get(shape.guise)
        process.comm = (process.title or process.argv[0].rpartition("/")[2]).split(" ")[0][:15]
        process.veiled = shape.mark == "veiled"
        process.deaf = shape.fate == "deaf" or shape.kind.endswith("ignores TERM")
        process.state = {"stopped": "T", "stuck": "D", "defunct": "Z"}.get(shape.fate, "S")
        process.ppid = self._parent(shape, process.uid)
        self.parts.append(part)

    def hold_card(self, part: Part, card: int, mib: int) -> None:
        self.host.machine.cards.take(part.process, card, mib)

    def hold_port(self, part: Part, port: int) -> None:
        """Listens beside whoever does already, as SO_REUSEPORT lets it."""
        part.process.ports[port] = self.dice.choice(ADDRESSES)
        if part.shape.serves:
            part.process.serves = Keyed() if part.shape.asks_key else PlainServer(generates=True)
        elif self.dice.random() < 0.5:
            part.process.serves = PlainServer(generates=False)

    def move(self, part: Part, wish: Wish) -> None:
        """Puts a process that is there already into the cgroup of its shape."""
        part.process.cgroup = self._home(part.shape, wish, part.process.uid)

    def remember(self, unit: str) -> None:
        """Notes what runs now, for what is planted later."""
        main, engine = self.host.unit(unit).main, self.host.engine(unit)
        if main is not None:
            title = "VLLM::Worker_TP0" if engine is not None and engine.kind == "vllm" else "sglang::scheduler_TP0"
            self.births[unit] = Birth(main.argv, main.environ, main.uid, title)

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _home(self, shape: Shape, wish: Wish, uid: int) -> str:
        number, long = self._next(), "".join(self.dice.choice(HEX) for _ in range(64))
        scope = f"/system.slice/docker-{long}.scope"
        user = f"/user.slice/user-{OTHER_UID}.slice/user@{OTHER_UID}.service/app.slice"
        match shape.home:
            case "nowhere":
                return self.dice.choice((f"/stray-{number}", "/", "/system.slice", f"/lab/job-{number}"))
            case "managed":
                return f"/system.slice/{wish.unit}"
            case "live-unit":
                return f"/system.slice/other-{number}.service"
            case "dead-unit" | "kept-unit":
                name = "kept.service" if shape.home == "kept-unit" else f"batch-{number}.service"
                self.host.machine.ended.add(name)
                return f"/system.slice/{name}"
            case "user-unit":
                return f"{user}/work-{number}.service"
            case "namesake":
                return f"{user}/{wish.unit}"
            case "docker":
                return scope
            case "dead-docker":
                self.host.machine.ended.add(scope.rpartition("/")[2])
                return scope
            case "podman":
                return f"/machine.slice/libpod-{long}.scope/container"
            case "pod":
                return f"/kubepods.slice/kubepods-pod{number}.slice/cri-containerd-{long}.scope"
            case "lxc":
                return f"/lxc.payload.{number}/system.slice/serve.service"
            case "inner":
                return f"{scope}/system.slice/{wish.unit}"
            case "open-session":
                return self.host.someone(("-bash",), "a person's shell", uid=uid).cgroup
            case "closed-session":
                return self._closed_session(uid)

    def _closed_session(self, uid: int) -> str:
        """A session whose leader is gone; logind may still list it."""
        scope, number = f"/user.slice/user-{uid}.slice/session-c{self._next()}.scope", f"c{self._count}"
        if self.dice.random() < 0.5:
            self.host.machine.sessions[number] = 4_000_000 + self._count
        return scope

    def _parent(self, shape: Shape, uid: int) -> int:
        spawn = self.host.machine.processes.spawn
        argv: tuple[str, ...]
        match shape.parent:
            case "init":
                return 1
            case "shell":
                argv, home = (self.dice.choice(("/bin/sh", "-bash", "/usr/bin/zsh")),), f"/stray-{self._next()}"
            case "session-shell":
                return self.host.someone(("-bash",), "a person's shell", uid=uid).pid
            case "user-manager":
                argv, home = ("/usr/lib/systemd/systemd", "--user"), f"/user.slice/user-{uid}.slice/user@{uid}.service"
            case "supervisor":
                argv, home = ("/usr/bin/python3", "/srv/supervise.py"), f"/lab/job-{self._next()}"
        return spawn(argv, home, "foreign", "stands above a planted one", uid=uid).pid

    # ---- what is so now ----

    def unit_state(self, name: str) -> UnitState:
        """A unit is live when its main process is; one that waits in the gate is not, and does not move."""
        unit = self.host.unit(name)
        if unit.active in MOVING or unit.sub == "auto-restart":
            return "moving"
        return "live" if unit.main is not None else "down"

    def alive(self, part: Part) -> bool:
        return self.host.processes.get(part.process.pid) is part.process and part.process.alive

    def wishes(self) -> Iterator[Wish]:
        """What is to run here now."""
        yield from (wish for wish in self.schedule.wishes.values() if wish.run and not wish.suspend)

    def needed_by(self, process: SimProcess) -> list[Wish]:
        """The specs that need what it holds: a card, the port, or a place in the unit's cgroup."""
        return [
            wish
            for wish in self.wishes()
            if set(wish.gpus) & process.memory.keys()
            or set(wish.ports) & process.ports.keys()
            or process.cgroup == f"/system.slice/{wish.unit}"
        ]

    def why_not(self, part: Part, *, alone: bool = False) -> str:
        """Why it may not be ended now, "" when it may. `alone`: as if nobody shared its port, so that it is known which
        of them serves."""
        process, unit = part.process, self.host.unit(part.unit)
        held = {("card", card) for card in process.memory} | {("port", port) for port in process.ports}
        tree = {port for one in self.host.processes.values() if one.pgrp == process.pgrp for port in one.ports}
        now = Now(
            unit=self.unit_state(part.unit),
            of_this_start=process.start >= unit.inactive_exit_us // 10_000,
            serves=not alone and any(map(self._serves, tree)),
            unsure=not alone and any(map(self._shared, tree)),
            kills=frozenset(wish.kill for wish in self.needed_by(process)),
            held_before=bool(held & self.held),
            mps=self.mps is not None and self.mps.alive,
            spent=not alone
            and len(self.asked) >= self.policy.budget
            and (process.pid, process.start) not in self.asked,
        )
        return why_not(part.shape, now, self.policy)

    def _serves(self, port: int) -> bool:
        """Whether somebody who generates or asks for a key listens there, for all who share it."""
        for process in self.host.processes.values():
            server = process.serves if port in process.ports else None
            if isinstance(server, Keyed | Engine) or (isinstance(server, PlainServer) and server.generates):
                return True
        return False

    def _shared(self, port: int) -> bool:
        """Whether several listen at one address of it (SO_REUSEPORT): who answers there is the kernel's dice."""
        places = [one.ports[port] for one in self.host.processes.values() if one.alive and port in one.ports]
        return len(places) > len(set(places))

    def must_end(self) -> list[Part]:
        """Those that are there, may be ended, and cannot be taken for anything else."""
        return [part for part in self.parts if self.alive(part) and not self.why_not(part)]

    def may_end(self) -> list[Part]:
        """Those that are there and that it is no wrong to end."""
        return [part for part in self.parts if self.alive(part) and not self.why_not(part, alone=True)]

    def in_the_way(self, wish: Wish) -> list[SimProcess]:
        """Everything here that keeps its cards or its port from being clean, by the truth alone."""
        unit = self.host.unit(wish.unit)
        found = []
        for process in self.host.processes.values():
            if not process.alive or (process.cgroup == unit.group and process.whose == "instance"):
                continue
            shares = [mib for card, mib in process.memory.items() if card in wish.gpus]
            if set(wish.ports) & process.ports.keys() or (
                shares and not (max(shares) < SMALL_MIB and self._may_share(process))
            ):
                found.append(process)
        return found

    def _may_share(self, process: SimProcess) -> bool:
        """A member of another live managed instance, or CUDA MPS itself."""
        if process is self.mps:
            return True
        return process.whose == "instance" and any(
            process.cgroup == f"/system.slice/{wish.unit}" and self.unit_state(wish.unit) == "live"
            for wish in self.schedule.wishes.values()
        )


def _argv(shape: Shape, birth: Birth) -> tuple[str, ...]:
    match shape.guise:
        case "python":
            return ("/usr/bin/python3", "-c", "import time; time.sleep(1e6)")
        case "trainer":
            return ("/usr/bin/python3", "train.py", "--model", "/models/m0")
        case "spoken":
            return (
                "/usr/bin/python3",
                "train.py",
                "--log",
                "/var/log/sglang.launch_server.log",
                "--then",
                "vllm serve",
            )
        case "bash":
            return ("-bash",)
        case "exporter":
            return ("/usr/bin/card-exporter", "--interval", "5")
        case "kept":
            return ("/opt/keep/keepme", *birth.argv[1:])
        case "argv" | "title" | "renamed":
            return birth.argv


def _environ(shape: Shape, birth: Birth) -> tuple[tuple[str, str], ...]:
    match shape.mark:
        case "ours" | "veiled":
            return birth.environ
        case "other":
            other = "0badc0de-0000-4000-8000-000000000000"
            return tuple((key, other if key == "STOKER_STORE" else value) for key, value in birth.environ)
        case "none":
            return (("PATH", "/usr/bin:/bin"),)

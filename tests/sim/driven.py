"""A simulated host behind the daemon's own road, and a daemon that turns when told to. Time is a number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from daemon import host as files
from daemon.domain.host import HostSpec
from daemon.domain.observation import Fence, Observation, Unknown
from daemon.memory import HostMemory
from daemon.metrics import Metrics, Sample
from daemon.observe import Wanted, observe
from daemon.planner.world import ProbeFact
from daemon.ready import Prober
from daemon.reconcile import Pass, Reconciler
from daemon.sim.host import SimHost
from daemon.ssh import Finished
from daemon.ssh.road import answered
from daemon.store import Store
from tests.planner.driving import spec

UNIT = "stoker-m.server.service"
PATH = f"/etc/systemd/system/{UNIT}"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Clock:
    """Seconds, moved by the test alone."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class SimRoad:
    """The road to one simulated host, without sockets."""

    host: SimHost

    async def call(self, verb: str, stdin: bytes, timeout_s: float) -> bytes:
        return answered(await self.run((files.HELPER_PATH, verb), stdin, timeout_s))

    async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Finished:
        del timeout_s
        done = self.host.answer(argv, stdin)
        return Finished(done.exit_status, done.stdout, done.stderr)

    async def close(self) -> None:
        return


def sim_host(clock: Clock, *, gpus: int = 2, seed: int = 0) -> SimHost:
    """A host with the helper installed."""
    host = SimHost("a", gpus=gpus, seed=seed, now=clock)
    host.install(files.helper_text(), files.gate_text())
    return host


async def look_at(
    host: SimHost, *units: str, ports: tuple[int, ...] = (30001,), env: tuple[str, ...] = ()
) -> Observation:
    """A look as the daemon takes it, whole."""
    wanted = Wanted(units, ports=ports, env=("CUDA_VISIBLE_DEVICES", *env))
    seen = await observe(SimRoad(host), "a", wanted, at_s=host.machine.clock(), timeout_s=20)
    assert isinstance(seen, Observation), seen
    return seen


def unknowns(seen: Observation) -> list[str]:
    """The parts of a look that the daemon could not read; the kernel log is closed to it as in any container."""
    parts = set(seen.__slots__) - {"kernel"}
    found = [f"{name}: {value}" for name in parts if isinstance(value := getattr(seen, name), Unknown)]
    for unit in () if isinstance(seen.units, Unknown) else seen.units:
        found += [f"{unit.name}: {unit.loaded}"] if isinstance(unit.loaded, Unknown) else []
    return found + [str(warning) for warning in seen.warnings]


@dataclass
class Driven:
    """One simulated host, its store and a daemon that turns when told to, with its own prober."""

    store: Store
    host: SimHost
    clock: Clock
    fence: Fence
    memory: HostMemory = field(default_factory=HostMemory)

    def wall(self) -> datetime:
        return NOON + timedelta(seconds=self.clock())

    async def put(self, name: str = "m", **more: object) -> None:
        said = spec(name, **more).model_dump(mode="json")  # type: ignore[arg-type]
        await self.store.put("ServingSpec", name, said, actor="t", now=NOON)

    async def turn(self, step_s: float = 0.7) -> Pass:
        """A whole pass and what it wanted asked; then time goes on."""
        reconciler = Reconciler(self.store, self._road_to, Metrics(lambda: Sample([], ())), self.fence, self.clock,
                                self.wall)  # fmt: skip
        done = await reconciler.reconcile("a", self.memory)
        assert done is not None
        prober = Prober(SimRoad(self.host))
        by_unit = {desired.unit: desired for desired in done.world.desired}
        for wanted in done.plan.probes:
            ok, reason, text = await prober.generate(by_unit[wanted.unit], wanted.invocation)
            self.memory.probes[wanted.unit] = ProbeFact(
                wanted.invocation, self.clock(), ok, reason, text, 0 if ok else 1
            )
        for question in done.plan.questions:
            serves = await prober.serves(question.ports, question.patience_s)
            if serves is not None:
                self.memory.note_serves(question, serves, self.clock())
        self.clock.now_s += step_s
        return done

    async def until_ready(self, within_s: float = 60.0, name: str = "m") -> None:
        end = self.clock() + within_s
        while await self.ready(name) != "True":
            assert self.clock() < end, f"not ready within {within_s} s: {await self.condition(name)}"
            await self.turn()

    async def settle(self, turns: int = 12) -> None:
        for _ in range(turns):
            await self.turn()

    async def ready(self, name: str = "m") -> str:
        return (await self.condition(name))[0]

    async def condition(self, name: str = "m") -> tuple[str, str, str]:
        """Ready's status, reason and message."""
        found = await self.store.find("ServingSpec", name)
        said = None if found is None else await self.store.status("ServingSpec", found.uid)
        ready = None if said is None else said.condition("Ready")
        return ("none", "", "") if ready is None else (ready.status, str(ready.reason), ready.message)

    def changes(self) -> list[str]:
        """The verbs that changed something and were not refused, in order."""
        quiet = ("observe", "journal", "probe", "version", "take-fence")
        return [deed.verb for deed in self.host.history if deed.verb not in quiet and deed.exit_status == 0]

    async def _road_to(self, name: str, spec: HostSpec) -> SimRoad:
        return SimRoad(self.host)


@asynccontextmanager
async def driven(folder: Path, *, gpus: int = 2, seed: int = 0, strays: str = "orphans") -> AsyncIterator[Driven]:
    """A daemon in `enforce` over one fresh host."""
    clock = Clock()
    async with Store.open(folder / "stoker.db") as store:
        said = {"ssh": {"address": "192.0.2.1"}, "mode": "enforce", "strays": {"limit": strays}}
        declared = HostSpec.model_validate(said)
        await store.put("Host", "a", declared.model_dump(mode="json"), actor="t", now=NOON)
        yield Driven(store, sim_host(clock, gpus=gpus, seed=seed), clock, await store.begin_run(NOON))

"""A world that serves as declared, whose daemon has gone, and a rogue in its place that keeps no law. For tests of
the checkers: each must see what the rogue does.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.domain.errors import StokerError
from daemon.observe import Wanted
from daemon.sim.host import SimHost
from daemon.sim.shm import ShmFile
from daemon.verbs import ask
from tests.simulation.checkers import all_checkers
from tests.simulation.faults import Stage
from tests.simulation.road import SimRoad
from tests.simulation.specs import Wish
from tests.simulation.tape import Tape
from tests.simulation.truth import fence_of, unit_truth
from tests.simulation.watch import Breach, Schedule
from tests.simulation.world import world_of

HOST = "gpu-a"
WISH = Wish("m", HOST, (0, 1), 30001)


@dataclass
class Rogue:
    """Sends commands as a daemon does, with its fence and the right ground, whenever it is told to."""

    stage: Stage
    host: SimHost
    road: SimRoad
    fence: str

    async def look(self) -> None:
        """A look at everything that is declared; an answer that is no whole one is taken all the same."""
        with suppress(StokerError):
            wanted = Wanted(units=(WISH.unit,), ports=(WISH.port,)).lines(5000)
            await ask(self.road, "observe", wanted, timeout_s=20.0)

    async def unit(self, verb: str) -> None:
        """`unit-VERB` on the unit as it is now."""
        unit = unit_truth(self.host, WISH.unit)
        ground = [("ground-invocation", unit.invocation or "-"), ("ground-state", unit.active)]
        await self._change(f"unit-{verb}", [("unit", WISH.unit), *ground])

    async def signal(self, pid: int, name: str = "TERM") -> None:
        start = self.host.processes[pid].start
        await self._change("signal", [("signal", name), ("target", f"{pid} {start}")])

    async def sweep(self, file: ShmFile) -> None:
        """Removes one file of /dev/shm, for the unit as it is now."""
        unit = unit_truth(self.host, WISH.unit)
        ground = [("unit", WISH.unit), ("ground-invocation", unit.invocation or "-"), ("ground-state", unit.active)]
        await self._change("sweep-shm", [*ground, ("target", f"{file.name} {file.uid} {file.inode} {file.changed}")])

    async def _change(self, verb: str, lines: list[tuple[str, str]]) -> None:
        head = [("fence", self.fence), ("boot", self.host.machine.boot_id)]
        with suppress(StokerError):
            await ask(self.road, verb, [*head, *lines], timeout_s=20.0)


@dataclass
class Planted:
    """`names` are the checkers that saw a breach so far."""

    stage: Stage
    rogue: Rogue
    host: SimHost
    tape: Tape
    breaches: list[Breach]

    def names(self) -> set[str]:
        return {breach.checker for breach in self.breaches}


@asynccontextmanager
async def planted(kind: type[SimHost] = SimHost, *, keep_daemon: bool = False) -> AsyncIterator[Planted]:
    """One host of that kind that serves one spec; nothing was breached until here."""
    clock, breaches, tape = asyncio.get_running_loop().time, list[Breach](), Tape()
    hosts = {HOST: kind(HOST, seed=1, now=clock, load_s=3.0)}
    with tempfile.TemporaryDirectory() as folder:
        async with world_of(1, Path(folder), hosts, period_s=5) as world:
            assert world.store is not None
            schedule = Schedule(world.store.uid)
            looks, checkers = all_checkers(hosts, schedule, breaches)
            world.traffic.witnesses += [tape, looks, *checkers]
            stage = Stage(world, schedule, tape, looks, Counter())
            await world.declare_hosts(exclusive=False)
            world.wishes.now[WISH.name] = WISH
            await stage.insist(WISH)
            async with asyncio.timeout(300.0):
                while not looks.is_right(WISH.unit, HOST):
                    await asyncio.sleep(1.0)
            await asyncio.sleep(20.0)
            assert not breaches
            if not keep_daemon:
                await world.stop_daemon()
                world.traffic.run += 1
            rogue = Rogue(stage, hosts[HOST], SimRoad(HOST, world.traffic), fence_of(hosts[HOST]))
            yield Planted(stage, rogue, hosts[HOST], tape, breaches)

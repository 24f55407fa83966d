"""A seed's host with one spec that served, whose daemon has gone, and a rogue in its place that keeps no law.

For tests of the checkers: each must see what the rogue does.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from daemon.sim.disk import STATE
from daemon.sim.host import SimHost
from daemon.sim.processes import SimProcess
from daemon.sim.shm import ShmFile
from tests.simulation.faults import Stage
from tests.simulation.planted import Rogue
from tests.simulation.road import SimRoad
from tests.simulation.specs import Wish
from tests.simulation.strays.checkers import (
    KillBudgetIsKept,
    NoSignalForEver,
    NoStartOnADirtyCard,
    OnlyClearableAreSignalled,
    OnlyDeadSegmentsGo,
)
from tests.simulation.strays.scene import Part, Scene, Segment
from tests.simulation.strays.shapes import FOREIGN, OURS
from tests.simulation.strays.table import Policy
from tests.simulation.strays.trouble import SHM_USERS, Play
from tests.simulation.tape import Tape
from tests.simulation.truth import fence_of
from tests.simulation.watch import Breach, Looks, Schedule
from tests.simulation.world import dice_for, world_of

HOST = "gpu-a"
POLICY = Policy(exclusive=True, limit="orphans", protects=True, budget=2)
WISH = Wish("m", HOST, (0, 1), 30001)


@dataclass
class Planted:
    """`names` are the checkers that saw a breach so far."""

    play: Play
    rogue: Rogue
    breaches: list[Breach]

    @property
    def host(self) -> SimHost:
        return self.play.scene.host

    def plant(self, kind: str, card: int | None = 0) -> Part:
        """One process of that kind, on a card of the spec."""
        part = self.play.scene.plant(next(shape for shape in (*OURS, *FOREIGN) if shape.kind == kind), WISH)
        if card is not None:
            self.play.scene.hold_card(part, card, 9_000)
        return part

    def segment(self, name: str, uid: int, holder: SimProcess | None = None) -> ShmFile:
        """A file of that user in /dev/shm, held by a process or by nobody."""
        self.play.scene.segments[name] = Segment(name, uid, holder)
        return self.host.shm_file(name, user=SHM_USERS[uid], holder=holder)

    def open_the_gate(self) -> None:
        """Whatever it waits for: its manifest names nothing any more."""
        self.host.machine.disk.write(f"{STATE}/units/{WISH.unit}", b"")

    def names(self) -> set[str]:
        return {breach.checker for breach in self.breaches}


@asynccontextmanager
async def planted(*, keep_daemon: bool = False) -> AsyncIterator[Planted]:
    """The spec has served and is stopped by hand; nothing was breached until here."""
    clock, breaches, tape = asyncio.get_running_loop().time, list[Breach](), Tape()
    host = SimHost(HOST, seed=1, now=clock, load_s=2.0)
    with tempfile.TemporaryDirectory() as folder:
        async with world_of(1, Path(folder), {HOST: host}, period_s=5) as world:
            assert world.store is not None
            scene = Scene(host, Schedule(world.store.uid), POLICY, dice_for(1, "scene"))
            looks = Looks({HOST: host}, scene.schedule, breaches)
            own = (OnlyClearableAreSignalled, NoSignalForEver, KillBudgetIsKept, OnlyDeadSegmentsGo)
            world.traffic.witnesses += [tape, looks, *(made(scene, breaches) for made in own)]
            host.on_unit_change.append(NoStartOnADirtyCard(scene, breaches))
            stage = Stage(world, scene.schedule, tape, looks, Counter())
            await world.declare_hosts(POLICY.exclusive)
            await stage.insist(WISH)
            async with asyncio.timeout(300.0):
                while not looks.is_right(WISH.unit, HOST):
                    await asyncio.sleep(1.0)
            scene.remember(WISH.unit)
            assert not breaches
            if not keep_daemon:
                await world.stop_daemon()
                world.traffic.run += 1
                host.hand_stop(WISH.unit)
                await asyncio.sleep(5.0)
            rogue = Rogue(stage, host, SimRoad(HOST, world.traffic), fence_of(host))
            yield Planted(Play(scene, stage, [WISH]), rogue, breaches)

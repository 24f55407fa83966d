"""One seed from its first host to its verdict: specs, faults, the end of faults, convergence, quiet. Printed by `many`.

A run is right when no checker saw a breach, everything declared came to be Ready within the bound after the last fault,
nothing that was acknowledged was lost, and then not one more command changed anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from daemon.sim.host import SimHost
from tests.simulation import loop
from tests.simulation.checkers import all_checkers
from tests.simulation.faults import Stage, trouble
from tests.simulation.ledger import lost
from tests.simulation.seeds import Came
from tests.simulation.tape import Tape
from tests.simulation.truth import unit_truth, units_of
from tests.simulation.watch import Breach, Schedule
from tests.simulation.world import World, dice_for, world_of

CONVERGES_WITHIN_S = 1200.0
QUIET_S = 100.0
STEP_S = 2.0


@dataclass(slots=True)
class Result(Came):
    """How a seed went. `converged_s` is counted from the end of the faults, None when it did not."""

    changes: Counter[str] = field(default_factory=Counter)
    converged_s: float | None = None


async def run(seed: int, folder: Path, tape: Tape) -> Result:
    """The whole of one seed, with what it keeps in that folder."""
    dice, clock = dice_for(seed, "scenario"), asyncio.get_running_loop().time
    names = [f"gpu-{letter}" for letter in "abc"[: dice.randint(2, 3)]]
    load_s = dice.choice((3.0, 8.0, 20.0, 60.0))
    hosts = {name: SimHost(name, seed=seed * 10 + at, now=clock, load_s=load_s) for at, name in enumerate(names)}
    result, breaches = Result(seed), list[Breach]()
    async with world_of(seed, folder, hosts, period_s=dice.choice((5, 10, 20, 20))) as world:
        assert world.store is not None
        schedule = Schedule(world.store.uid)
        looks, checkers = all_checkers(hosts, schedule, breaches)
        world.traffic.witnesses += [tape, looks, *checkers]
        stage = Stage(world, schedule, tape, looks, result.faults)
        await _declare(stage, exclusive=dice.random() < 0.5)
        await trouble(stage, dice)
        result.converged_s = await _converge(stage, result)
        if result.converged_s is not None:
            await stay_quiet(stage, tape, result)
        assert world.store is not None
        result.wrong += [line async for line in _failed_passes(world)]
        result.wrong += [
            *map(str, breaches),
            *[line async for line in lost(world.store, world.acknowledged, world.deleting)],
            *map(repr, world.ended),
        ]
        await _events(world, tape)
    result.changes, result.signals, result.calls = tape.changes, tape.signals, tape.calls
    result.virtual_s, result.digest = clock() - loop.BEGINS_AT_S, tape.digest
    return result


async def _declare(stage: Stage, *, exclusive: bool) -> None:
    await stage.world.declare_hosts(exclusive)
    for wish in stage.world.wishes.draw():
        await stage.declare(wish)


async def _converge(stage: Stage, result: Result) -> float | None:
    """Wait until all is as declared, by the truth and by what the daemon says; how long that took."""
    begun = stage.world.now_s()
    while stage.world.now_s() - begun < CONVERGES_WITHIN_S:
        if not await amiss(stage):
            return stage.world.now_s() - begun
        await asyncio.sleep(STEP_S)
    result.wrong += [f"not converged in {CONVERGES_WITHIN_S:.0f} s: {line}" for line in await amiss(stage)]
    return None


async def stay_quiet(stage: Stage, tape: Tape, result: Result) -> None:
    begun = stage.world.now_s()
    await asyncio.sleep(QUIET_S)
    if tape.last_change_s >= begun:
        result.wrong.append(f"a command at {tape.last_change_s:.3f} s, after it had converged at {begun:.3f} s")
    result.wrong += [f"no longer converged: {line}" for line in await amiss(stage)]


async def amiss(stage: Stage) -> list[str]:
    """What is not yet as it should be, in words; empty when all is."""
    if found := [*_units_amiss(stage), *_left(stage)]:  # what the daemon says matters once all is so
        return found
    for name, wish in sorted(stage.world.wishes.now.items()):
        if name not in stage.world.acknowledged:
            found.append(f"{name} is not acknowledged")
            continue
        uid, _ = stage.world.acknowledged[name]
        ready, generation = await stage.world.said(uid, "Ready")
        declared = next((item for item in await stage.world.objects() if item.uid == uid), None)
        if ready != "True" or declared is None or declared.generation != generation:
            found.append(f"{name} on {wish.host}: Ready {ready} of generation {generation}")
    names = set(stage.world.wishes.now)
    return found + [f"{item.name} is not gone" for item in await stage.world.objects() if item.name not in names]


def _units_amiss(stage: Stage) -> Iterator[str]:
    looks = stage.looks
    for unit, host in stage.schedule.wishes:
        if not looks.is_right(unit, host):
            yield f"{unit} on {host}: {unit_truth(stage.world.hosts[host], unit)}"


def _left(stage: Stage) -> Iterator[str]:
    """Units of ours that nobody wishes any more."""
    for name, host in stage.world.hosts.items():
        for unit in units_of(host):
            if (unit, name) not in stage.schedule.wishes:
                yield f"{unit} is still on {name}"


async def _failed_passes(world: World) -> AsyncIterator[str]:
    """What the worker's edge had to catch: a bug, whatever else went well."""
    assert world.store is not None
    for event in await world.store.events(limit=5000):
        if event.reason == "ReconcileFailed":
            yield f"ReconcileFailed on {event.name}: {event.message}"


async def _events(world: World, tape: Tape) -> None:
    """What was told belongs to the trace too."""
    assert world.store is not None
    for event in await world.store.events(limit=1000):
        tape.note(f"{event.last_seen} {event.kind} {event.name} {event.reason} x{event.count} {event.message}")

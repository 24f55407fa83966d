"""One seed from its host to its verdict: specs that serve, trouble, what is cleared, what blocks, the end.

Right is a run in which no checker saw a breach, everything that may be ended and can die is gone in bounded time, the
rest blocks with its reason, and once the others have left by themselves every spec serves.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from daemon.sim.host import SimHost
from daemon.sim.processes import SimProcess
from tests.simulation import loop
from tests.simulation.checkers import NothingOutOfAnUnknown, NothingUnderForeignRule, OnePlanInFlight, OneStartAtATime
from tests.simulation.faults import Stage
from tests.simulation.seeds import Came
from tests.simulation.specs import Wish
from tests.simulation.strays.checkers import (
    KillBudgetIsKept,
    NoSignalForEver,
    NoStartOnADirtyCard,
    OnlyClearableAreSignalled,
    OnlyDeadSegmentsGo,
)
from tests.simulation.strays.scene import Scene
from tests.simulation.strays.table import Policy
from tests.simulation.strays.trouble import PidReuse, Play, before_it_is_declared, mps, segments, trouble
from tests.simulation.tape import Tape
from tests.simulation.watch import Breach, Looks, Schedule, Watcher
from tests.simulation.world import World, dice_for, world_of

HOST = "gpu-a"
CLEARED_WITHIN_S = 240.0  # a silent port is asked three times, with patience for somebody else's server under load
SERVES_WITHIN_S = 300.0
QUIET_S = 5.0
STEP_S = 1.0


@dataclass(slots=True)
class Result(Came):
    """How a seed went. Figures are counts of what was planted, done and found."""

    kinds: Counter[str] = field(default_factory=Counter)
    holds: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    swept: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    cleared_s: float | None = None


async def run(seed: int, folder: Path, tape: Tape) -> Result:
    """The whole of one seed, with what it keeps in that folder."""
    dice, clock = dice_for(seed, "strays"), asyncio.get_running_loop().time
    host = SimHost(HOST, seed=seed, now=clock, load_s=2.0)
    limit = ("orphans",) * 5 + ("any", "report")
    budget = dice_for(seed, "budget").choice((64,) * 8 + (3, 1))
    policy = Policy(dice.random() < 0.5, dice.choice(limit), dice.random() < 0.6, budget)
    result, breaches = Result(seed), list[Breach]()
    async with world_of(seed, folder, {HOST: host}, period_s=20) as world:
        assert world.store is not None
        schedule = Schedule(world.store.uid)
        scene = Scene(host, schedule, policy, dice_for(seed, "scene"))
        looks = Looks({HOST: host}, schedule, breaches)
        stage = Stage(world, schedule, tape, looks, result.faults)
        play = Play(
            scene,
            stage,
            _wishes(dice, second=dice_for(seed, "nccl").random() < 0.3),
            kinds=result.kinds,
            holds=result.holds,
        )
        starts = NoStartOnADirtyCard(scene, breaches)
        segments = OnlyDeadSegmentsGo(scene, breaches)
        host.on_unit_change.append(starts)
        world.traffic.witnesses += [tape, looks, PidReuse(play, dice_for(seed, "pids")), segments]
        world.traffic.witnesses += _checkers(scene, looks)
        await _acts(play, dice, result)
        result.broken += Counter(breach.checker for breach in breaches)
        result.wrong += [*map(str, breaches), *map(repr, world.ended), *[line async for line in _failed(world)]]
    _count(scene, result)
    result.starts, result.signals, result.calls = starts.starts, tape.signals, tape.calls
    result.swept = segments.removed
    result.virtual_s, result.digest = clock() - loop.BEGINS_AT_S, tape.digest
    return result


def _checkers(scene: Scene, looks: Looks) -> list[Watcher]:
    hosts, breaches = looks.hosts, looks.breaches
    apart = (OnePlanInFlight(hosts, scene.schedule, breaches), OneStartAtATime(hosts, scene.schedule, breaches))
    own = [made(scene, breaches) for made in (OnlyClearableAreSignalled, NoSignalForEver, KillBudgetIsKept)]
    return [*apart, NothingUnderForeignRule(looks), NothingOutOfAnUnknown(looks), *own]


def _wishes(dice: random.Random, *, second: bool) -> list[Wish]:
    """One or two specs beside each other, run by one user; with `second`, a SGLang binds a port for NCCL as well."""
    user = dice.choice(("", "", "serve"))
    found = [
        Wish(
            f"m{number}", HOST, tuple(range(3 * number, 3 * number + dice.choice((1, 2, 2)))), 30001 + number,
            engine=dice.choice(("sglang", "vllm")), user=user, kill=dice.choice(("orphans",) * 6 + ("report",)),
            grace_s=dice.choice((1, 3, 6)),
        )
        for number in range(dice.choice((1, 1, 2)))
    ]  # fmt: skip
    return [replace(one, nccl=one.port + 100) if one.engine == "sglang" and second else one for one in found]


async def _acts(play: Play, dice: random.Random, result: Result) -> None:
    """The five acts: declared and serving, trouble, cleared and said, the others leave, all serve."""
    play.arrivals = {wish.name for wish in play.wishes if dice.random() < 0.2}
    await _declare(play, dice)
    await trouble(play, dice)
    begun = play.stage.world.now_s()
    if not await _within(CLEARED_WITHIN_S, lambda: uncleared(play), result):
        result.broken["missed"] += sum(not part.process.stuck for part in play.scene.must_end())
        return
    result.cleared_s = play.stage.world.now_s() - begun
    left = _leave(play, result)
    if await _within(SERVES_WITHIN_S, lambda: unserved(play), result):
        await asyncio.sleep(QUIET_S)
        result.wrong += [*vanished(play.scene, left)]


async def _declare(play: Play, dice: random.Random) -> None:
    world, policy = play.stage.world, play.scene.policy
    rules = [{"command": "keepme"}, {"unit": "kept.service"}] if policy.protects else []
    await world.declare_hosts(
        policy.exclusive, {"strays": {"limit": policy.limit, "budget": policy.budget}, "protect": rules}
    )
    for wish in play.wishes:
        if wish.name in play.arrivals:
            before_it_is_declared(play, wish, dice_for(world.seed, f"arrival {wish.name}"))
        await play.stage.declare(wish)
    if dice.random() < 0.06:
        mps(play, play.wishes[0])
    async with asyncio.timeout(300.0):
        for wish in play.wishes:
            while wish.name not in play.arrivals and not play.stage.looks.is_right(wish.unit, HOST):
                await asyncio.sleep(STEP_S)
            play.scene.remember(wish.unit)
            segments(play, wish, dice_for(world.seed, f"segments {wish.name}"))


async def _within(limit_s: float, amiss: Any, result: Result) -> bool:
    """Wait until nothing is amiss; else say what was."""
    async with asyncio.timeout(None) as late:
        late.reschedule(asyncio.get_running_loop().time() + 10 * limit_s)
        begun = asyncio.get_running_loop().time()
        while found := await amiss():
            if asyncio.get_running_loop().time() - begun > limit_s:
                result.wrong += [f"after {limit_s:.0f} s: {line}" for line in found]
                return False
            await asyncio.sleep(STEP_S)
    return True


# ---- recall, and what is said ----


async def uncleared(play: Play) -> list[str]:
    """Orphans that may be ended, can die, and are still there; and what blocks without being named."""
    scene = play.scene
    scene.host.advance()
    found = [
        f"pid {part.process.pid} ({part.shape.kind}) is there: {part.process.memory} {part.process.ports}"
        for part in scene.must_end()
        if not part.process.stuck
    ]
    if found:
        return found
    return [line for wish in play.wishes async for line in _unsaid(play, wish)]


async def _unsaid(play: Play, wish: Wish) -> AsyncIterator[str]:
    """What keeps a spec from starting and is not said: the first in its Ready condition, each in the list of strays."""
    scene, world = play.scene, play.stage.world
    blocking = scene.in_the_way(wish)
    if scene.unit_state(wish.unit) != "down":
        if scene.unit_state(wish.unit) == "moving":
            yield f"{wish.unit} is {scene.host.unit(wish.unit).active}"
        return
    if not blocking and not scene.host.machine.cards.ghosts:
        yield f"{wish.unit} is down and nothing is in its way"
    assert world.store is not None
    status = await world.store.status("ServingSpec", world.acknowledged[wish.name][0])
    ready = None if status is None else status.condition("Ready")
    if ready is None or ready.status != "False":
        yield f"{wish.unit} is down, and Ready is {ready}"
        return
    if blocking and not any(f"pid {process.pid} (" in ready.message for process in blocking):
        yield f"{wish.unit} is blocked, and Ready names nobody of those who do: {ready.reason} {ready.message}"
    listed = world.controller.strays.list(HOST)["items"] if world.controller is not None else None
    told = {
        item["pid"]: f"{item['owner']}, {item['proof']}; {item['verdict']}: {item['detail']}" for item in listed or ()
    }
    for process in blocking:
        words, text = _words(scene, process), told.get(process.pid, "nothing")
        if not any(word in text for word in words):
            yield f"pid {process.pid} ({process.why}) is listed as {text!r}, without any of {words}"


def _words(scene: Scene, process: SimProcess) -> tuple[str, ...]:
    """What a person must read beside the pid of what blocks: whose it is, and why it is not cleared."""
    part = next((part for part in scene.parts if part.process is process), None)
    why = "foreign" if part is None else scene.why_not(part)
    if why == "" and process.stuck:
        return ("survived KILL",)
    return {
        "foreign": ("foreign", "unknown"),
        "unknown": ("unknown", "foreign"),
        "protected": ("protect", "report"),
        "under MPS": ("MPS",),
        "policy says report": ("report",),
        "likely, and the host is not exclusive": ("exclusive",),
        "the budget of the hour is spent": ("budget",),
    }.get(why, ("pid",))


# ---- the end ----


def _leave(play: Play, result: Result) -> set[int]:
    """What blocks and is not Stoker's to end goes by itself; D ends. Gives the pids of those that were asked to.

    Where the budget of the hour is small all go: who is known to be an orphan only now may be one too many for it.
    """
    scene, left, tight = play.scene, set[int](), play.scene.policy.budget < 64
    scene.host.advance()
    scene.host.machine.cards.ghosts.clear()
    for part in scene.parts:
        if scene.alive(part) and scene.needed_by(part.process):
            why = scene.why_not(part)
            result.ends[why or "in state D"] += 1
            left.add(part.process.pid)
            scene.host.machine.processes.wake(part.process)
            if (why or tight) and scene.alive(part):
                scene.host.leave(part.process)
    for process in list(scene.host.processes.values()):
        if process.why == "has a reused pid":
            left.add(process.pid)
    return left


async def unserved(play: Play) -> list[str]:
    """Specs that do not serve yet, by the truth and by what is said."""
    found = []
    for wish in play.wishes:
        engine = play.scene.host.engine(wish.unit)
        uid, _ = play.stage.world.acknowledged[wish.name]
        ready, _ = await play.stage.world.said(uid, "Ready")
        if engine is None or engine.api.status != "up" or ready != "True":
            blocking = [f"{p.pid} {p.why}" for p in play.scene.in_the_way(wish)]
            found.append(f"{wish.unit}: {play.scene.host.unit(wish.unit).active}, Ready {ready}, blocked by {blocking}")
    return found


def vanished(scene: Scene, left: set[int]) -> Iterator[str]:
    """Somebody else's processes that nobody asked to leave and that are gone."""
    for part in scene.parts:
        if part.process.whose == "foreign" and part.process.pid not in left and not scene.alive(part):
            yield f"pid {part.process.pid} ({part.shape.kind}) is gone"


def _count(scene: Scene, result: Result) -> None:
    gone = sum(scene.host.processes.get(part.process.pid) is not part.process for part in scene.parts)
    result.ends["stayed"] = len(scene.parts) - gone
    result.ends["cleared"] = gone - sum(count for end, count in result.ends.items() if end not in ("stayed",))


async def _failed(world: World) -> AsyncIterator[str]:
    """What the worker's edge had to catch: a bug, whatever else went well."""
    assert world.store is not None
    for event in await world.store.events(limit=5000):
        if event.reason == "ReconcileFailed":
            yield f"ReconcileFailed on {event.name}: {event.message}"

"""One host, once: observe → drift → plan → execute → conditions → store. Read this first.

`Reconciler.reconcile` never waits for a load, a drain, a grace or a generation (law 2): it notes what it needs and says
when it wants to be called again. Probes run as tasks of their own; their result is a fact for the next pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from daemon.asked import settle
from daemon.declared import HostDeclaration, declaration
from daemon.domain.actions import PutUnit, Signal, SweepShm, UnitVerb, kind_of
from daemon.domain.errors import Conflict, TransportError
from daemon.domain.host import HostSpec
from daemon.domain.observation import Fence, Observation, Unknown
from daemon.domain.status import Reason
from daemon.domain.text import duration_s
from daemon.execute import Done, execute
from daemon.lease import hold_fence
from daemon.memory import HostMemory
from daemon.metrics import SIGNAL_RESULTS, Metrics
from daemon.observe import Wanted, Weighed, observe, with_leftovers
from daemon.planner.clearing import LOOK_GOOD_S, helped_by
from daemon.planner.desired import listens_on, place, unit_name
from daemon.planner.drift import file_sha256
from daemon.planner.environment import WATCHED
from daemon.planner.holders import Holders
from daemon.planner.plan import Plan, decide
from daemon.planner.waits import step
from daemon.planner.world import Declared, Desired, Retired, Unplaced, World
from daemon.record import end_deletion, finish_retired, note_action, note_held_up, note_started, write_states
from daemon.remember import (
    adopt,
    cleared_before,
    corrected,
    count,
    note_cleared,
    note_held,
    recall,
    remember,
    restarts,
    returned,
    stamp,
)
from daemon.signalled import kills, note_signalled, recall_survivors, survivors, tell_survivors
from daemon.store import Store
from daemon.turns import Turns
from daemon.verbs import Asks

AGAIN_SOON_S = 0.3
SYSTEMD_AT_LEAST = 249


class RoadTo(Protocol):
    """Gives the road to a host, connected and with a current helper; raises TransportError."""

    async def __call__(self, name: str, spec: HostSpec) -> Asks: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one pass, in seconds. A look that outlasts both `old_s` and the host's period makes things unknown."""

    look_s: float = 20.0
    action_s: float = 20.0
    pass_s: float = 10.0
    old_s: float = 5.0  # a shorter period must not make a busy host's slow answers unknown


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass leaves: when to come again (None: at the host's period), and what tasks beside it are to ask."""

    wake_in_s: float | None
    plan: Plan
    world: World
    acted: bool = False
    road: Asks | None = None


class Reconciler:
    """The main loop's body. One instance a daemon; calls for different hosts may run side by side, for one never."""

    def __init__(
        self,
        store: Store,
        road_to: RoadTo,
        metrics: Metrics,
        fence: Fence,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        limits: Limits = Limits(),
    ) -> None:
        self._store = store
        self._road_to = road_to
        self._metrics = metrics
        self._fence = fence
        self._clock = clock
        self._wall = wall
        self._limits = limits
        self._turns = Turns(store, metrics, clock, wall)

    async def reconcile(self, name: str, memory: HostMemory) -> Pass | None:
        """One pass over the host of that name; None when it is not declared any more."""
        declared = await declaration(self._store, name)
        if declared is None:
            return None
        await self._forget_vanished(declared)
        await recall(self._store, declared, memory, self._wall(), self._clock())
        look, road = await self._look(declared, memory)
        # A look can take seconds: what is decided from it is decided for what is declared now.
        declared = await declaration(self._store, name)
        if declared is None:
            return None
        world = await self._world(declared, look, road, memory)
        plan = decide(world)
        memory.look, memory.plan, memory.world, memory.rows = look, plan, world, declared.rows
        await self._turns.note(world, memory, road)
        await settle(self._store, world, plan, memory, self._wall())
        await self._tell_waits(world, plan, memory)
        await tell_survivors(self._store, world, plan, memory, self._wall())
        acted = await self._act(world, plan, road, memory)
        await write_states(self._store, declared, world, plan, self._wall())
        if world.withheld is None:
            await finish_retired(self._store, world, plan, self._wall())
        backed_off = memory.wait_s(self._clock()) if world.withheld is None else None
        waits = [wait for wait in (plan.wake_in_s, backed_off) if wait is not None]
        wake = AGAIN_SOON_S if acted else min(waits, default=None)
        return Pass(wake, plan, world, acted, road)

    async def _tell_waits(self, world: World, plan: Plan, memory: HostMemory) -> None:
        if isinstance(world.observation, Unknown):
            return  # what was held up may be so still
        held_up = {unit: blocked.since for unit, blocked in plan.blocked.items() if blocked.since}
        memory.waits, due = step(memory.waits, held_up, self._clock())
        if world.withheld is None:
            await note_held_up(self._store, world, plan, due, self._wall())

    async def _forget_vanished(self, declared: HostDeclaration) -> None:
        """Rows of specs that are gone and never wrote a unit here."""
        for row in declared.vanished:
            await self._store.remove_instance(row.spec_uid, row.role, row.host)
            await end_deletion(self._store, row.spec_uid, self._wall())

    async def _look(self, declared: HostDeclaration, memory: HostMemory) -> tuple[Observation | Unknown, Asks | None]:
        """The look. When it has not answered within one more period, what the last one said is claimed no longer."""
        if isinstance(memory.look, Unknown):
            return await self._look_once(declared, memory)
        patience_s = max(duration_s(declared.spec.period), self._limits.old_s)
        try:
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(self._look_once(declared, memory))
                done, _ = await asyncio.wait({looking}, timeout=patience_s)
                if not done:
                    await self._say_old(declared.object.name, memory, patience_s)
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        return looking.result()

    async def _say_old(self, name: str, memory: HostMemory, waited_s: float) -> None:
        """Write everything as unknown, while the look goes on: it may still answer within its own limit."""
        declared = await declaration(self._store, name)
        if declared is None:
            return
        look = Unknown(Reason.OBSERVATION_OLD, f"the look that was due has not answered for {waited_s:g} s")
        world = await self._world(declared, look, None, memory)
        await write_states(self._store, declared, world, decide(world), self._wall())

    async def _look_once(
        self, declared: HostDeclaration, memory: HostMemory
    ) -> tuple[Observation | Unknown, Asks | None]:
        name = declared.object.name
        try:
            road = await self._road_to(name, declared.spec)
        except TransportError as error:
            return Unknown(Reason(error.reason), error.message), None
        at_s = self._clock()
        weighed = Weighed(road, self._clock)
        to_run = [d for d in declared.declared if d.view.run and not d.view.suspend]
        due = [unit_name(d.spec_name, d.role, d.view.unit) for d in to_run]
        asked = with_leftovers(wanted(declared.declared, declared.retired, memory.unusable), memory.look, due)
        look = await observe(weighed, name, asked, at_s=at_s, timeout_s=self._limits.look_s)
        if isinstance(look, Unknown):
            memory.failures += 1
        else:
            memory.failures = 0
            memory.see(look, self._clock())
            memory.looked_at_s = at_s
            memory.look_took_s, memory.look_bytes = weighed.took_s, weighed.size
            self._metrics.look_seconds.observe(weighed.took_s)
        return look, road

    async def _world(
        self, declared: HostDeclaration, look: Observation | Unknown, road: Asks | None, memory: HostMemory
    ) -> World:
        withheld = await self._withheld(declared, look, road, memory)
        counted = await corrected(self._store, declared.object.name, self._wall())
        await recall_survivors(self._store, memory, look, declared.object.name)
        placed = [place(d, look, self._store.uid, declared.peers.get(d.spec_uid, ())) for d in declared.declared]
        desired = tuple(p for p in placed if isinstance(p, Desired))
        for one in desired:
            unit = look.unit(one.unit) if isinstance(look, Observation) else None
            if unit is not None and not isinstance(unit, Unknown) and memory.note_seen(one, unit):
                await note_cleared(self._store, declared.object.name, memory.boot_id, [one])
        if isinstance(look, Observation):
            memory.cleared |= cleared_before(declared.rows, memory.boot_id)
            await note_held(self._store, declared, desired, look, memory)
        return World(
            name=declared.object.name,
            host=declared.spec,
            store_uid=self._store.uid,
            now_s=self._clock(),
            observation=look,
            desired=desired,
            unplaced=tuple(p for p in placed if isinstance(p, Unplaced)),
            retired=declared.retired,
            strays=dict(memory.strays),
            probes=dict(memory.probes),
            probing=frozenset(memory.probing),
            corrections=restarts(counted, self._wall()),
            returned=returned(counted, declared),
            own=dict(memory.own),
            effective=dict(memory.effective),
            known_gpus=memory.known_gpus,
            held_before=frozenset(memory.held_before),
            asked={identity: asked.by for identity, asked in memory.asked.items()},
            cleared=frozenset(memory.cleared),
            cards=dict(memory.cards),
            waits=dict(memory.waits),
            wall=stamp(self._wall()),
            kills=kills(counted, memory.boot_id, self._wall()),
            unkillable=survivors(memory, look),
            withheld=withheld,
        )

    async def _withheld(
        self, declared: HostDeclaration, look: Observation | Unknown, road: Asks | None, memory: HostMemory
    ) -> Reason | None:
        """Why nothing may be changed on this host now; None when the way is free. Takes the fence last."""
        if isinstance(look, Unknown) or road is None:
            return look.reason if isinstance(look, Unknown) else Reason.UNREACHABLE
        if (why := await self._identity(declared, look, memory)) is not None:
            return why
        if look.identity.systemd < SYSTEMD_AT_LEAST:
            return Reason.SYSTEMD_TOO_OLD if look.identity.systemd > 0 else Reason.NOT_SYSTEMD
        if declared.spec.mode == "observe":
            return Reason.OBSERVE_ONLY
        if await self._store.paused() is not None:
            return Reason.PAUSED
        if look.hold is not None:
            return look.hold.reason if isinstance(look.hold, Unknown) else Reason.HELD
        return await hold_fence(road, look, self._fence, self._store.knows_run)

    async def _identity(self, declared: HostDeclaration, look: Observation, memory: HostMemory) -> Reason | None:
        """Note who the host is at first sight; a later change or a second object for one machine stops all action."""
        now = look.identity
        uuids = () if isinstance(look.gpus, Unknown) else tuple(gpu.uuid for gpu in look.gpus)
        if not now.machine_id:
            return Reason.UNPARSABLE
        try:
            kept = await self._store.note_identity(
                declared.object.uid, now.machine_id, now.container, uuids, self._wall()
            )
        except Conflict:
            return Reason.HOST_IDENTITY_TAKEN
        memory.known_gpus = kept.gpu_uuids
        same = (kept.machine_id, kept.container) == (now.machine_id, now.container)
        return None if same else Reason.HOST_IDENTITY_CHANGED

    async def _act(self, world: World, plan: Plan, road: Asks | None, memory: HostMemory) -> bool:
        """Carry the plan out as far as it goes within the pass; whether anything was tried.

        What fails for one unit ends what follows for that unit; what the road or the host refuses to all ends the plan.
        """
        if world.withheld is not None or road is None or isinstance(world.observation, Unknown):
            return False
        await adopt(self._store, world, plan)
        boot_id = world.observation.identity.boot_id
        due = memory.due(plan.actions, self._clock())
        stuck = set[str]()
        for at, action in enumerate(due):
            late = self._clock() - world.observation.at_s > LOOK_GOOD_S
            if late or (at and self._clock() > world.now_s + self._limits.pass_s) or await self._store.paused():
                break
            if not isinstance(action, Signal | SweepShm) and action.unit in stuck:
                continue
            memory.note_try(action, self._clock())
            await self._before(world, plan.holders, action, boot_id)
            done = await execute(road, action, self._fence, boot_id, self._limits.action_s)
            self._after(world, done, memory)
            await count(self._store, world, done, self._wall())
            retired = {r.record.unit: r.spec_name for r in world.retired}
            await note_action(self._store, world, world.desired, retired, done, self._wall())
            await note_started(self._store, world, done)
            if done.result == "unknown" or done.reason in (Reason.HELD, Reason.FENCED_OFF):
                break
            if done.result != "ok" and not isinstance(action, Signal | SweepShm):
                stuck.add(action.unit)
        return bool(due)

    async def _before(self, world: World, holders: Holders | Unknown, action: object, boot_id: str) -> None:
        """What must be known before an action is tried, in case this daemon dies within it (law 7, case G05)."""
        if isinstance(action, Signal):
            await note_signalled(self._store, world, action, self._wall())
            helped = helped_by(world, holders, action.targets)
            given_up = [desired for desired in world.desired if desired.unit in helped]
            await note_cleared(self._store, world.name, boot_id, given_up)
        elif isinstance(action, PutUnit):
            desired = next(d for d in world.desired if d.unit == action.unit)
            await remember(self._store, world, desired, file_sha256(action.text))
        elif isinstance(action, UnitVerb) and action.verb in ("restart", "stop"):
            kind = kind_of(action)
            await self._store.note_correction(action.unit, kind, str(action.reason), self._wall(), host=world.name)

    def _after(self, world: World, done: Done, memory: HostMemory) -> None:
        self._metrics.actions.labels(kind_of(done.action), done.result).inc()
        if done.result == "refused":
            self._metrics.refusals.labels(done.reason).inc()
        match done.action:
            case Signal() if done.result == "ok":  # one that may have been lost is sent again: no KILL without a TERM
                self._signalled(world, done, done.action, memory)
            case UnitVerb(verb="restart") if done.result == "ok":
                self._metrics.restarts.labels("LaunchChanged").inc()
                memory.restarts[done.action.unit] = memory.restarts.get(done.action.unit, 0) + 1
                memory.ours.add(done.action.unit)
            case UnitVerb(verb="start") if done.result == "ok":
                memory.ours.add(done.action.unit)
                memory.cleared.discard(done.action.unit)
            case _:
                pass

    def _signalled(self, world: World, done: Done, action: Signal, memory: HostMemory) -> None:
        for _, word in done.told:
            self._metrics.signals.labels(action.signal, word if word in SIGNAL_RESULTS else "failed").inc()
        reached = {pid for pid, word in done.told if word == "ok"}
        targets = [target for target in action.targets if target.pid in reached]
        memory.note_signal(action.signal, targets, self._clock())
        if memory.plan is not None:
            memory.cleared |= helped_by(world, memory.plan.holders, targets)


def wanted(
    declared: Iterable[Declared], retired: Iterable[Retired] = (), unusable: tuple[str, ...] | None = None
) -> Wanted:
    """What a look at a host with these has to include, and what it tells the gates there."""
    units, dropins, ports, env = set[str](), set[str](), set[int](), set[str]()
    for one in declared:
        unit = unit_name(one.spec_name, one.role, one.view.unit)
        (dropins if one.view.unit is not None else units).add(unit)
        ports.update(listens_on(one))
        env |= set(one.view.env)
    for gone in retired:
        (dropins if gone.record.path.endswith(".conf") else units).add(gone.record.unit)
    env |= {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SPT_NOENV"}
    asked = Wanted(tuple(sorted(units)), tuple(sorted(dropins)), tuple(sorted(ports)), tuple(sorted(env)), WATCHED)
    return asked if unusable is None else replace(asked, unusable=unusable)

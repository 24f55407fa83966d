"""What must outlive this daemon beside what it says: whose file it is, whose variables, and how often drift came back.

Called by `reconcile` around the actions of a pass; decides nothing. A spec's change counts anew, since a person's word
is no drift: corrections are kept under the generation that they were made for.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from daemon.declared import HostDeclaration
from daemon.domain.actions import RemoveUnit, Signal, SweepShm
from daemon.domain.errors import NotFound
from daemon.domain.observation import Observation, Unit, Unknown
from daemon.execute import Done
from daemon.memory import HostMemory
from daemon.planner.cards import Card
from daemon.planner.desired import unit_name
from daemon.planner.drift import launch_mark
from daemon.planner.environment import first_seen
from daemon.planner.plan import Plan
from daemon.planner.waits import Wait, taken_up
from daemon.planner.world import Desired, World
from daemon.store import Store
from daemon.store.rows import Correction, StoredInstance, StoredObject

CONTESTED_WITHIN = timedelta(hours=24)
AHEAD = timedelta(hours=1)


async def corrected(store: Store, host: str, now: datetime) -> tuple[Correction, ...]:
    """Everything counted on that host as far back as anything looks.

    What a clock that was set back since has put far ahead would count for as long as that clock was wrong.
    """
    found = await store.corrections(since=now - CONTESTED_WITHIN, host=host)
    return tuple(one for one in found if one.at <= now + AHEAD)


def restarts(counted: Sequence[Correction], now: datetime) -> dict[str, int]:
    """Restarts of the last hour that we ordered, by unit: what the budget counts."""
    since = now - timedelta(hours=1)
    return Counter(one.instance_key for one in counted if one.kind == "unit-restart" and one.at >= since)


def returned(counted: Sequence[Correction], declared: HostDeclaration) -> dict[tuple[str, str], int]:
    """How often each drift was taken back within a day, since its spec was last changed, by unit and `Drift.key`."""
    marks = {unit_name(d.spec_name, d.role, d.view.unit): _mark(d.generation) for d in declared.declared}
    split = [(one.instance_key, one.kind.partition(" ")) for one in counted]
    return Counter((unit, key) for unit, (mark, _, key) in split if mark == marks.get(unit))


async def count(store: Store, world: World, done: Done, now: datetime) -> None:
    """What was taken back from somebody else counts once it was done: a command that was cut on the way is no turn.

    What such a command may have done to a serving process is bounded by the budget, which counts before it is sent.
    """
    action = done.action
    if isinstance(action, Signal | RemoveUnit | SweepShm) or done.result != "ok":
        return
    generation = next((d.declared.generation for d in world.desired if d.unit == action.unit), 0)
    for key in action.cures:
        kind = f"{_mark(generation)} {key}"
        await store.note_correction(action.unit, kind, str(action.reason), now, host=world.name)


def _mark(generation: int) -> str:
    return f"drift:{generation}"


async def adopt(store: Store, world: World, plan: Plan) -> None:
    """A file that already says what is declared is ours from now on, as it is; so is what the host always gave."""
    for desired in world.desired:
        one, names = desired.declared, plan.accepted.get(desired.unit)
        if names is not None and one.record is not None:
            await store.change_instance(one.spec_uid, one.role, world.name, _accepting(names))
        digest = plan.adopted.get(desired.unit)
        if digest is not None:
            await remember(store, world, desired, digest)


async def remember(store: Store, world: World, desired: Desired, digest: str) -> None:
    """The unit, its cards and what its file is from now on; what others noted of the instance stays."""
    one, given, seen = desired.declared, _given(desired, world), _seen_at(world)
    new = StoredInstance(spec_uid=one.spec_uid, role=one.role, host=world.name, unit=desired.unit, path=desired.path)

    def written(row: StoredInstance) -> StoredInstance:
        known = row.extra.get("written") if row.written_launch == desired.launch_hash else None
        return replace(
            row if given is None else _accepting(given)(row),
            unit=desired.unit,
            path=desired.path,
            gpus=desired.gpus,
            written_sha256=digest,
            written_launch=desired.launch_hash,
        ).noting(written=known or seen)

    await store.change_instance(one.spec_uid, one.role, world.name, written, new=new)


def _seen_at(world: World) -> list[Any]:
    """The boot and its instant, in microseconds, after which what starts is of what is written now."""
    look = world.observation
    return [] if isinstance(look, Unknown) else [look.identity.boot_id, look.identity.monotonic_us]


def _given(desired: Desired, world: World) -> tuple[str, ...] | None:
    """What the host gives every unit from the start, where that is not noted yet and can be seen."""
    look = world.observation
    unit = look.unit(desired.unit) if not isinstance(look, Unknown) else None
    if isinstance(look, Unknown) or unit is None or isinstance(unit, Unknown):
        return None
    return first_seen(desired, unit, look.inherited)


def _accepting(names: tuple[str, ...]) -> Callable[[StoredInstance], StoredInstance]:
    """The row that takes these variables as the host's own."""

    def accepted(row: StoredInstance) -> StoredInstance:
        known = tuple(row.extra.get("inherited", ()))
        return row.noting(inherited=sorted({*known, *names}))

    return accepted


async def recall(store: Store, declared: HostDeclaration, memory: HostMemory, wall: datetime, now_s: float) -> None:
    """What an earlier daemon knew and wrote down, before this one's first look at the host."""
    if memory.plan is None and not memory.cards:
        memory.cards = await _baselines(store, declared.object)
        memory.waits = _held_up_before(declared.rows, wall, now_s)


async def note_held(
    store: Store, declared: HostDeclaration, desired: Iterable[Desired], look: Observation, memory: HostMemory
) -> None:
    """The cards and ports that an instance of ours has held since boot.

    In the store as well: an instance may be down when the next daemon comes.
    """
    boot_id = look.identity.boot_id
    rows = {(row.spec_uid, row.role): row for row in declared.rows}
    memory.held_before |= frozenset[str]().union(*(_held_since(boot_id, row) for row in rows.values()))
    for one in desired:
        unit, row = look.unit(one.unit), rows.get((one.declared.spec_uid, one.declared.role))
        if unit is None or isinstance(unit, Unknown) or (row is not None and one.holds <= _held_since(boot_id, row)):
            continue
        if not (_runs(one, unit) or (row is not None and _ran(one, unit, row, boot_id))):
            continue
        memory.note_held(one)
        with contextlib.suppress(NotFound):  # deleted meanwhile
            await store.change_instance(
                one.declared.spec_uid, one.declared.role, declared.object.name, _held(boot_id, one.holds)
            )


async def note_cleared(store: Store, host: str, boot_id: str, given_up: Iterable[Desired]) -> None:
    """What kept these from starting is being taken away: they are started once more, also by the next daemon."""
    for one in given_up:
        with contextlib.suppress(NotFound):  # deleted meanwhile
            await store.change_instance(
                one.declared.spec_uid, one.declared.role, host, lambda row: row.noting(cleared=boot_id)
            )


def cleared_before(rows: Iterable[StoredInstance], boot_id: str) -> set[str]:
    """Units of which that was noted on this boot, and which were not started since."""
    return {row.unit for row in rows if row.extra.get("cleared") == boot_id}


def _runs(one: Desired, unit: Unit) -> bool:
    """What runs is of the declared launch, not of another one on other cards or another port."""
    return unit.running and launch_mark(unit) == one.launch_hash


def _ran(one: Desired, unit: Unit, row: StoredInstance, boot_id: str) -> bool:
    """Nobody saw it run, perhaps, but systemd says that it did since the declared launch was written."""
    if row.written_launch != one.launch_hash or not row.extra.get("written"):
        return False
    boot, written_us = row.extra["written"]
    return unit.active_enter_us > (written_us if boot == boot_id else 0)


def _held_since(boot_id: str, row: StoredInstance) -> frozenset[str]:
    boot, *things = row.extra.get("held", [""])
    return frozenset(things) if boot == boot_id else frozenset()


def _held(boot_id: str, things: frozenset[str]) -> Callable[[StoredInstance], StoredInstance]:
    def held(row: StoredInstance) -> StoredInstance:
        return row.noting(held=[boot_id, *sorted(things | _held_since(boot_id, row))])

    return held


async def _baselines(store: Store, host: StoredObject) -> dict[str, Card]:
    """The idle baselines as an earlier daemon wrote them down; another boot or driver makes them void."""
    said = await store.status("Host", host.uid)
    gpus = said.status.get("gpus") if said is not None else None
    boot_id = str(said.status.get("identity", {}).get("bootId", "")) if said is not None else ""
    rows = [row for row in gpus if row.get("idleMib") is not None] if isinstance(gpus, list) else []
    return {row["uuid"]: Card(boot_id, row["driver"], row["idleMib"]) for row in rows}


def _held_up_before(rows: Iterable[StoredInstance], wall: datetime, now_s: float) -> dict[str, Wait]:
    """Since when starts are held up, as an earlier daemon wrote it down."""
    said = {row.unit: row.extra.get("state", {}).get("held_since", "") for row in rows}
    waited_s = {unit: (wall - datetime.fromisoformat(text)).total_seconds() for unit, text in said.items() if text}
    return {unit: taken_up(said[unit], max(0.0, waited), now_s) for unit, waited in waited_s.items()}


def stamp(at: datetime) -> str:
    """An instant as conditions say it: it does not change while the thing lasts."""
    return at.astimezone(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")

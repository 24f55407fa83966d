"""Who was signalled, and who survived: counted and told so that the next daemon knows it as well.

Called by `reconcile` around its plan and its signals. Processes are kept by boot, pid and start among the corrections,
30 days long: a daemon that comes still later sends TERM and KILL to a survivor once more, and tells of it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from daemon.domain.actions import Signal
from daemon.domain.observation import Observation, ProcessId, Unknown
from daemon.domain.status import Event, Reason
from daemon.memory import HostMemory
from daemon.planner.clearing import Verdict
from daemon.planner.plan import Plan
from daemon.planner.world import Kills, World
from daemon.store import Store
from daemon.store.rows import Correction

SIGNALLED, SURVIVED = "signalled", "survived"
BUDGET_OF = timedelta(hours=1)


def kills(counted: Sequence[Correction], boot_id: str, now: datetime) -> Kills:
    """Which processes were signalled within the last hour; a TERM and a KILL of one count once."""
    keys = {one.instance_key for one in counted if one.kind == SIGNALLED and one.at >= now - BUDGET_OF}
    return Kills(len(keys), frozenset(_of_boot(keys, boot_id)))


async def note_signalled(store: Store, world: World, action: Signal, now: datetime) -> None:
    """Count whom this signals, before it is sent; CONT ends nobody, and a person's word is no part of the budget."""
    look = world.observation
    if action.signal == "CONT" or isinstance(look, Unknown):
        return
    boot_id, known = look.identity.boot_id, world.kills.known | world.asked.keys()
    new = [(_key(boot_id, target), action.signal) for target in action.targets if target not in known]
    await store.note_corrections(new, SIGNALLED, now, host=world.name)


async def recall_survivors(store: Store, memory: HostMemory, look: Observation | Unknown, host: str) -> None:
    """Who was told by an earlier daemon to have survived KILL on this boot, with the cards it held then. Read once."""
    if isinstance(look, Unknown) or memory.recalled_boot == look.identity.boot_id:
        return
    boot_id = look.identity.boot_id
    noted = {one.instance_key: one.reason for one in await store.corrections(kind=SURVIVED, host=host)}
    for process in _of_boot(noted, boot_id):
        memory.unkillable.setdefault(process, frozenset(noted[_key(boot_id, process)].split()))
    memory.recalled_boot = boot_id


def survivors(memory: HostMemory, look: Observation | Unknown) -> dict[ProcessId, frozenset[str]]:
    """Who was told to have survived KILL and is there still, with the cards it held then; unknown is not gone."""
    if isinstance(look, Unknown):
        return {}
    if isinstance(look.processes, Unknown):
        return dict(memory.unkillable)
    here = {process.id for process in look.processes}
    return {process: cards for process, cards in memory.unkillable.items() if process in here}


async def tell_survivors(store: Store, world: World, plan: Plan, memory: HostMemory, now: datetime) -> None:
    """An event for each that survived KILL, once; noted after it, since told twice is better than never."""
    for verdict in plan.clearing.verdicts:
        process = verdict.holder.process.id
        if verdict.reason is Reason.UNKILLABLE_PROCESS and process not in memory.unkillable:
            cards = frozenset(uuid for uuid, _, _ in verdict.holder.gpus)
            await store.add_event(_told(world, verdict), now)
            memory.unkillable[process] = cards
            await _note(store, world, process, cards, now)


def _told(world: World, verdict: Verdict) -> Event:
    text = f"{verdict.holder.describe()}: {verdict.detail}; no instance is started on what it holds"
    return Event(Reason.UNKILLABLE_PROCESS, text[:2000], "Host", world.name, severity="Warning")


async def _note(store: Store, world: World, process: ProcessId, cards: frozenset[str], now: datetime) -> None:
    if not isinstance(world.observation, Unknown):
        key = _key(world.observation.identity.boot_id, process)
        await store.note_corrections([(key, " ".join(sorted(cards)))], SURVIVED, now, host=world.name)


def _key(boot_id: str, process: ProcessId) -> str:
    return f"{boot_id}:{process.pid}:{process.start_ticks}"


def _of_boot(keys: Iterable[str], boot_id: str) -> Iterable[ProcessId]:
    for key in keys:
        boot, _, identity = key.partition(":")
        pid, _, ticks = identity.partition(":")
        if boot == boot_id and pid.isdigit() and ticks.isdigit():
            yield ProcessId(int(pid), int(ticks))

"""The clean barrier: what keeps an instance from being started now, and what a person is told of it.

Before a start no process but the instance's own holds one of its cards or ports, and the memory is back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from daemon.domain.observation import Gpu, Observation, Process, Unit, Unknown
from daemon.domain.status import Reason
from daemon.engines.takes import memory_share
from daemon.planner.cards import Card, limit_of, loose_mib
from daemon.planner.clearing import SURVIVES_KILL_S, may_clear
from daemon.planner.degraded import FULL_PCT, ROOMY_MIB, SHM
from daemon.planner.holders import (
    LINE_CHARS,
    SMALL_SHARE_MIB,
    Holder,
    Holders,
    command_of,
    in_container,
    ledger_of,
    unseen_listeners,
)
from daemon.planner.ownership import attribute
from daemon.planner.protect import is_mps_server, mps_runs
from daemon.planner.world import Desired, World

UNEXPLAINED_WAIT_S = 120.0  # real drivers took up to 75 s (case B17); a card that never comes back costs this once
STILL_S = 60.0  # without a fall for so long, memory is not on its way back any more
_STUCK = frozenset({Reason.UNKILLABLE_PROCESS, Reason.STRAY_UNDER_MPS, Reason.KILL_BUDGET_EXHAUSTED})

Held = tuple[Reason, str]


def blockers(desired: Desired, holders: Holders | Unknown, look: Observation, world: World) -> tuple[Held, ...]:
    """What keeps an instance from starting on clean cards, worst first; empty when the way is clear."""
    if isinstance(holders, Unknown):
        return ((holders.reason, f"holders are not known: {holders.detail}"),)
    if desired.gpus and isinstance(look.apps, Unknown):
        return ((look.apps.reason, f"GPU processes are not known: {look.apps.detail}"),)
    found = [_blocker(h, world, look) for h in _in_the_way(desired, holders)]
    found += [
        (Reason.GHOST_GPU_PROCESS, f"the driver names pid {pid} on {uuid}, which is nobody here")
        for uuid, pid, _ in holders.ghosts
        if uuid in desired.gpu_uuids
    ]
    found += [
        (Reason.PORT_IN_USE, f"port {port} is taken, by whom cannot be seen")
        for port in unseen_listeners(look, desired.ports)
    ]
    found += _survivors(desired, holders, look, world)
    found += _full(desired, look)
    found += _cordoned(desired, holders, world)
    if not found:
        found = [*_memory(desired, look, world)]
        if found:  # held by a thread perhaps whose process is defunct
            found = [_blocker(h, world, look) for h in holders.all if _defunct(h, desired)] or found
    return tuple(found)


def strangers(desired: Desired, holders: Holders | Unknown, look: Observation, world: World) -> tuple[Held, ...]:
    """Who would keep a unit that runs from coming up again, so that a restart would only take it down.

    Other instances are none: one of them may itself be about to make room. Nor is what memory alone tells, nor what the
    unit itself left elsewhere: that is an orphan as soon as the unit is down.
    """
    if isinstance(holders, Unknown):
        return ((holders.reason, f"holders are not known: {holders.detail}"),)
    if desired.gpus and isinstance(look.apps, Unknown):
        return ((look.apps.reason, f"GPU processes are not known: {look.apps.detail}"),)
    others = [
        h for h in _in_the_way(desired, holders) if h.ownership.owner != "managed" and h.unit_group != desired.unit
    ]
    return tuple(_blocker(h, world, look) for h in others if not _cleared_once_down(h, desired, world, look))


def _cleared_once_down(holder: Holder, desired: Desired, world: World, look: Observation) -> bool:
    """Whether it carries the mark of this very unit, and may be ended when that no longer runs."""
    if holder.ownership.unit != desired.unit or isinstance(look.units, Unknown):
        return False
    units = tuple(_down(unit) if unit.name == desired.unit else unit for unit in look.units)
    then = attribute(holder.process, ledger_of(world, replace(look, units=units)))
    verdict = may_clear(replace(holder, ownership=then), world, look, mps_runs(look))
    return then.orphan and verdict.reason in (Reason.OK, Reason.NOT_OBSERVED_YET)


def _down(unit: Unit) -> Unit:
    return replace(unit, active_state="inactive", sub_state="dead", main_pid=0, control_pid=0, control_group="")


def advice(reason: Reason) -> str:
    """What a person can do about what holds a start up, "" where it ends by itself or its detail says so."""
    return _ADVICE.get(reason, "")


_ADVICE = {
    Reason.FOREIGN_HOLDER: "it is not Stoker's to end: stop it, or give the spec other GPUs",
    Reason.PORT_IN_USE: "end what listens there, or give the spec another port",
    Reason.GHOST_GPU_PROCESS: "look for it in other containers and on the hypervisor",
    Reason.WAITING_FOR_MEMORY: "nothing, the start follows by itself",
    Reason.SHARED_MEMORY_FULL: (
        "see who uses it (`fuser -v /dev/shm/*`), remove what nobody does, or make it larger "
        "(`mount -o remount,size=… /dev/shm`)"
    ),
    Reason.UNATTRIBUTED_GPU_MEMORY: (
        "find its holder (`fuser -v /dev/nvidia*`, also in containers and on the hypervisor), or reset the card "
        "(`nvidia-smi --gpu-reset`) or reboot"
    ),
}


def _in_the_way(desired: Desired, holders: Holders) -> Iterable[Holder]:
    """Holders of its cards or port, and leftovers in its own cgroup, but small shares of other live instances.

    A defunct leftover holds nothing that can be seen: its parent may never reap it.
    """
    here = holders.on(desired.gpu_uuids, desired.ports)
    for holder in holders.all:
        leftover = (
            holder.unit_group == desired.unit and holder.ownership.owner != "managed" and not _defunct(holder, desired)
        )
        if holder not in here and not leftover:
            continue
        if holder.ownership.owner == "managed" and holder.unit_group == desired.unit:
            continue
        on_ours = [mib for uuid, _, mib in holder.gpus if uuid in desired.gpu_uuids]
        small = all(mib is not None and mib < SMALL_SHARE_MIB for mib in on_ours)
        sharing = holder.ownership.owner == "managed" or is_mps_server(holder.process)
        if sharing and small and not leftover and not set(desired.ports) & set(holder.ports):
            continue
        yield holder


def _defunct(holder: Holder, desired: Desired) -> bool:
    return holder.process.state == "Z" and holder.unit_group == desired.unit


def _blocker(holder: Holder, world: World, look: Observation) -> Held:
    match holder.ownership.owner:
        case "unknown":
            return Reason.OWNERSHIP_UNKNOWN, holder.describe()
        case "orphan-proven" | "orphan-likely":
            if holder.process.state == "Z":
                return Reason.DEFUNCT_PROCESS, holder.waits_for()
            verdict = may_clear(holder, world, look, mps_runs(look))
            reason = verdict.reason if verdict.reason in _STUCK else Reason.ORPHAN_WORKERS
            going = verdict.reason in (Reason.OK, Reason.NOT_OBSERVED_YET)
            return reason, holder.describe() if going else f"{holder.describe()}; {verdict.detail}"
        case "managed" | "foreign":
            reason = Reason.FOREIGN_HOLDER if holder.gpus else Reason.PORT_IN_USE
            return reason, holder.describe()


def _survivors(desired: Desired, holders: Holders, look: Observation, world: World) -> Iterator[Held]:
    """What was killed, or is ours and cannot be, and has a card open that the driver no longer lists it on (B07)."""
    told = {holder.process.id for holder in holders.all}
    indexes = {index for index, _ in desired.gpus}
    for process in () if isinstance(look.processes, Unknown) else look.processes:
        here = process.nvidia_open if in_container(look) else bool(indexes & process.nvidia_minors)
        if not here or not desired.gpus or process.id in told | world.unkillable.keys() or process.state == "Z":
            continue
        fact = world.strays.get(process.id)
        killed_s = None if fact is None or fact.kill_at_s is None else world.now_s - fact.kill_at_s
        if killed_s is not None or _ours_in_d(process, world):
            stuck = killed_s is None or killed_s > SURVIVES_KILL_S
            reason = Reason.UNKILLABLE_PROCESS if stuck else Reason.ORPHAN_WORKERS
            command = command_of(process, LINE_CHARS)
            end = "does not end; reboot the host" if stuck else "is ending"
            yield reason, f"pid {process.id.pid} ({command}) in state {process.state} has a card open and {end}"


def _cordoned(desired: Desired, holders: Holders, world: World) -> Iterator[Held]:
    """Cards that a process held when it was told to have survived KILL, for as long as it is there."""
    shown = {holder.process.id for holder in holders.on(desired.gpu_uuids, ())}
    for process, uuids in sorted(world.unkillable.items(), key=lambda entry: entry[0].pid):
        if process not in shown and uuids & desired.gpu_uuids:
            yield Reason.UNKILLABLE_PROCESS, f"pid {process.pid} survived KILL while it held a GPU; reboot the host"


def _ours_in_d(process: Process, world: World) -> bool:
    return process.state == "D" and dict(process.marks or ()).get("STOKER_STORE") == world.store_uid


def _full(desired: Desired, look: Observation) -> Iterator[Held]:
    """A full /dev/shm makes a passing crash a crash loop: no NCCL start succeeds beside it (case B10)."""
    for space in () if isinstance(look.space, Unknown) or not desired.gpus else look.space:
        small = space.free_mib < ROOMY_MIB
        if space.path == SHM and small and space.used_pct is not None and space.used_pct > FULL_PCT:
            yield Reason.SHARED_MEMORY_FULL, f"{SHM} is more than {FULL_PCT} % full"


def _memory(desired: Desired, look: Observation, world: World) -> Iterator[Held]:
    """Memory that nobody explains: on its way back, or standing and too much for a start."""
    for gpu, card in _unexplained(desired, look, world):
        text = _loose_text(gpu, card)
        if not _given_up(desired, card, look, world):
            yield Reason.WAITING_FOR_MEMORY, text
        elif not _enough(desired, gpu):
            need = f"{memory_need(desired):.0%} of it has to be free for the start"
            yield Reason.UNATTRIBUTED_GPU_MEMORY, f"{text}; {need}"


def unclean(desired: Desired, look: Observation, world: World) -> str:
    """On what a start that nothing blocks is nevertheless not clean, "" when it is."""
    return "; ".join(_loose_text(gpu, card) for gpu, card in _unexplained(desired, look, world))


def _loose_text(gpu: Gpu, card: Card) -> str:
    return f"GPU {gpu.index} shows {card.low_mib} MiB that nobody seen holds"  # a figure that moves in steps


def memory_need(desired: Desired) -> float:
    """The share of each of its cards that has to be free for its start."""
    engine = desired.declared.view.engine
    return memory_share(engine.name, engine.version, desired.launch.argv)


def _unexplained(desired: Desired, look: Observation, world: World) -> Iterator[tuple[Gpu, Card]]:
    for gpu in () if isinstance(look.gpus, Unknown) else look.gpus:
        loose = loose_mib(gpu, look)
        if gpu.uuid in desired.gpu_uuids and loose is not None and loose > limit_of(world.cards, gpu.uuid):
            unseen = Card(look.identity.boot_id, gpu.driver, loose_since_s=world.now_s, low_mib=loose)
            card = world.cards.get(gpu.uuid, unseen)
            yield gpu, card if card.loose_since_s is not None else unseen


def _given_up(desired: Desired, card: Card, look: Observation, world: World) -> bool:
    """It has not come back in time, and does not fall any more."""
    if card.fell_at_s is not None and world.now_s - card.fell_at_s < STILL_S:
        return False
    since_s = world.now_s if card.loose_since_s is None else card.loose_since_s
    # Where the driver names no process at all, as in a container, only the unit's own end tells since when.
    return min(world.now_s - since_s, _down_for_s(desired, look)) >= UNEXPLAINED_WAIT_S


def _enough(desired: Desired, gpu: Gpu) -> bool:
    """Whether a start may succeed beside what is in use; a card that does not tell its size is in nobody's way."""
    if gpu.memory_total_mib is None or gpu.memory_used_mib is None:
        return True
    return gpu.memory_total_mib - gpu.memory_used_mib >= memory_need(desired) * gpu.memory_total_mib


def _down_for_s(desired: Desired, look: Observation) -> float:
    """Since when the instance's own unit is down; without end when it never ran."""
    unit = look.unit(desired.unit)
    if unit is None or isinstance(unit, Unknown) or unit.inactive_enter_us <= 0:
        return math.inf
    return max(0.0, (look.identity.monotonic_us - unit.inactive_enter_us) / 1_000_000)

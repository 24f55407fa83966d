"""The clean barrier: what keeps an instance from being started now, and what a person is told of it.

Before a start no process but the instance's own holds one of its cards or ports, and the memory is back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from daemon.domain.observation import Observation, Unknown
from daemon.domain.status import Reason
from daemon.planner.clearing import may_clear
from daemon.planner.holders import SMALL_SHARE_MIB, Holder, Holders, unseen_listeners
from daemon.planner.protect import is_mps_server, mps_runs
from daemon.planner.world import Desired, World

UNEXPLAINED_MIB = 1024
UNEXPLAINED_WAIT_S = 120.0
_STUCK = frozenset({Reason.UNKILLABLE_PROCESS, Reason.STRAY_UNDER_MPS})


def blockers(
    desired: Desired, holders: Holders | Unknown, look: Observation, world: World
) -> tuple[tuple[Reason, str], ...]:
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
    if not found:
        found = [*_unexplained(desired, holders, look, world)]
    return tuple(found)


def _in_the_way(desired: Desired, holders: Holders) -> Iterable[Holder]:
    """Holders of its cards or port, and leftovers in its own cgroup, but small shares of other live instances."""
    here = holders.on(desired.gpu_uuids, desired.ports)
    for holder in holders.all:
        leftover = holder.unit_group == desired.unit and holder.ownership.owner != "managed"
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


def _blocker(holder: Holder, world: World, look: Observation) -> tuple[Reason, str]:
    match holder.ownership.owner:
        case "unknown":
            return Reason.OWNERSHIP_UNKNOWN, holder.describe()
        case "orphan-proven" | "orphan-likely":
            if holder.process.state == "Z":
                return (
                    Reason.DEFUNCT_PROCESS,
                    f"{holder.describe()}; its parent, pid {holder.process.ppid}, must reap it",
                )
            verdict = may_clear(holder, world, look, mps_runs(look))
            reason = verdict.reason if verdict.reason in _STUCK else Reason.ORPHAN_WORKERS
            going = verdict.reason in (Reason.OK, Reason.NOT_OBSERVED_YET)
            return reason, holder.describe() if going else f"{holder.describe()}; {verdict.detail}"
        case "managed" | "foreign":
            reason = Reason.FOREIGN_HOLDER if holder.gpus else Reason.PORT_IN_USE
            return reason, holder.describe()


def _unexplained(desired: Desired, holders: Holders, look: Observation, world: World) -> Iterable[tuple[Reason, str]]:
    """Memory nobody explains blocks for a bounded time: it may be on its way back, or unseen by a broken baseline."""
    if isinstance(look.gpus, Unknown):
        return
    explained = {uuid for holder in holders.all for uuid, _, _ in holder.gpus}
    for gpu in look.gpus:
        if gpu.uuid not in desired.gpu_uuids or gpu.uuid in explained or (gpu.memory_used_mib or 0) <= UNEXPLAINED_MIB:
            continue
        # Where the driver names no process at all, as in a container, only the unit's own end tells since when.
        since_s = min(world.now_s - world.memory_since.get(gpu.uuid, world.now_s), _down_for_s(desired, look))
        if since_s < UNEXPLAINED_WAIT_S:
            yield (
                Reason.WAITING_FOR_MEMORY,
                f"GPU {gpu.index} still shows {gpu.memory_used_mib} MiB, held by nobody seen",
            )


def _down_for_s(desired: Desired, look: Observation) -> float:
    """Since when the instance's own unit is down; without end when it never ran."""
    unit = look.unit(desired.unit)
    if unit is None or isinstance(unit, Unknown) or unit.inactive_enter_us <= 0:
        return math.inf
    return max(0.0, (look.identity.monotonic_us - unit.inactive_enter_us) / 1_000_000)

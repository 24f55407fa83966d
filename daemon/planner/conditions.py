"""What Stoker says: the conditions of specs and hosts. Pure; written only when it changes.

A spec's conditions are computed from the states of its instances on all hosts, each with the reason of the worst.
"""

from __future__ import annotations

from collections.abc import Sequence

from daemon.domain.observation import Observation, Unknown
from daemon.domain.status import Condition, Drift, Reason, Truth
from daemon.planner.barrier import STILL_S, UNEXPLAINED_WAIT_S
from daemon.planner.cards import limit_of, loose_mib
from daemon.planner.degraded import degraded
from daemon.planner.desired import binding_problem, unusable
from daemon.planner.holders import Holder, Holders, described, in_container
from daemon.planner.plan import Plan
from daemon.planner.protect import is_mps_server
from daemon.planner.states import InstanceState
from daemon.planner.world import World


def spec_conditions(
    generation: int, states: Sequence[InstanceState], *, deleting: bool = False
) -> tuple[Condition, ...]:
    """Conditions of a spec out of all its instances; without any it is `NotPlaced`."""
    worst = _worst(states)
    if deleting:
        waits = worst is not None and worst.reason not in _MOVING | {Reason.GENERATED}
        reason = worst.reason if worst is not None and waits else Reason.TERMINATING
        ready: tuple[Truth, Reason, str] = ("False", reason, worst.message if worst else "being deleted")
    elif worst is None:
        ready = ("Unknown", Reason.NOT_OBSERVED_YET, "no host has been looked at for it yet")
    else:
        ready = (worst.ready, worst.reason, worst.message)
    stalled = [s for s in states if s.reason in _STALLED]
    drifted = [d for s in states for d in s.drift]
    made = [
        Condition("Ready", *ready, generation),
        Condition("Available", _all([s.available for s in states]), ready[1], "", generation),
        Condition("Loaded", _all([s.loaded for s in states]), ready[1], "", generation),
        Condition("Progressing", _progressing(states), ready[1], "", generation),
        Condition("Drifted", *_drifted(drifted, states), generation),
        Condition(
            "Stalled",
            "True" if stalled else "False",
            stalled[0].reason if stalled else Reason.OK,
            stalled[0].message if stalled else "",
            generation,
        ),
        Condition("Degraded", *_degraded(states), generation),
    ]
    return tuple(made)


def observed_generation(generation: int, states: Sequence[InstanceState]) -> int:
    """Of which generation the conditions speak: the oldest that an instance was last judged by. A spec may be declared
    anew while a pass over one of its hosts goes on, and what is told of the one before proves nothing of that."""
    return min([generation, *(state.generation for state in states)])


def _degraded(states: Sequence[InstanceState]) -> tuple[Truth, Reason, str]:
    """Whether something that runs is not as it should be, though it may serve."""
    bad = next((s for s in states if s.degraded), None)
    if bad is not None:
        return "True", Reason.STARTED_ON_UNCLEAN_MEMORY, f"{bad.unit} on {bad.host}: {bad.degraded}"
    if not states or any(s.active == "" for s in states):
        return "Unknown", Reason.NOT_OBSERVED_YET, ""
    return "False", Reason.OK, ""


_STALLED = frozenset(
    {
        Reason.INVALID_LAUNCH_ARGS,
        Reason.START_LIMIT_HIT,
        Reason.UNIT_MASKED,
        Reason.UNIT_BAD_SETTING,
        Reason.GPU_MISSING,
        Reason.GPU_BINDING_CHANGED,
        Reason.BUDGET_EXHAUSTED,
    }
)
_MOVING = frozenset(
    {
        Reason.STARTING,
        Reason.PROBE_PENDING,
        Reason.UNIT_RESTARTING,
        Reason.UNIT_STOPPING,
        Reason.WAITING_IN_GATE,
        Reason.WAITING_FOR_MEMORY,
        Reason.ORPHAN_WORKERS,
        Reason.CONNECTION_REFUSED,
        Reason.ARGV_MISMATCH,
    }
)


def _worst(states: Sequence[InstanceState]) -> InstanceState | None:
    order = {"False": 0, "Unknown": 1, "True": 2}
    return min(states, key=lambda s: (order[s.ready], s.role != "router", s.unit), default=None)


def _all(truths: Sequence[Truth]) -> Truth:
    if not truths or "Unknown" in truths:
        return "False" if "False" in truths else "Unknown"
    return "False" if "False" in truths else "True"


def _progressing(states: Sequence[InstanceState]) -> Truth:
    return "True" if any(s.ready == "False" and s.reason in _MOVING for s in states) else "False"


def _drifted(drift: Sequence[Drift], states: Sequence[InstanceState]) -> tuple[Truth, Reason, str]:
    if drift:
        first = drift[0]
        fields = "1 field" if len(drift) == 1 else f"{len(drift)} fields, the first"
        text = f"{fields}: {first.layer} {first.field}: {first.observed} instead of {first.declared}"
        left_alone = next((s.contested for s in states if s.contested), "")
        reason = Reason.DRIFT_CONTESTED if left_alone else Reason.UNIT_DRIFT
        return "True", reason, f"{text}. {left_alone}" if left_alone else text
    if not states or any(s.active == "" for s in states):
        return "Unknown", Reason.NOT_OBSERVED_YET, ""
    if hidden := sorted({layer for s in states for layer in s.unseen}):
        return "Unknown", Reason.LOOK_INCOMPLETE, f"nothing is known of {', '.join(hidden)}"
    return "False", Reason.CONVERGED, ""


# The command was cut, which may pass (case F03); and what the host itself answered.
_MAYBE_REACHED = frozenset({Reason.LOOK_INCOMPLETE, Reason.TRANSPORT_LOST, Reason.TRUNCATED, Reason.OBSERVATION_OLD})
_REACHED = frozenset(
    {Reason.SUDO_DENIED, Reason.UNSUPPORTED_LOGIN_SHELL, Reason.HELPER_MISSING, Reason.HELPER_OUTDATED}
)


def host_conditions(world: World, plan: Plan, generation: int) -> tuple[Condition, ...]:
    """Conditions of a host out of one look."""
    look = world.observation
    if isinstance(look, Unknown):
        reachable: Truth = "Unknown" if look.reason in _MAYBE_REACHED else "False"
        if look.reason in _REACHED:
            reachable = "True"
        return (
            Condition("Reachable", reachable, look.reason, look.detail, generation),
            Condition("Observed", "False", look.reason, look.detail, generation),
            Condition("GPUsReady", "Unknown", look.reason, "", generation),
            Condition("Clean", "Unknown", look.reason, "", generation),
            Condition("Degraded", "Unknown", look.reason, "", generation),
        )
    return (
        Condition("Reachable", "True", Reason.OK, "", generation),
        Condition("Observed", "True", Reason.OK, "", generation),
        _gpus_ready(world, look, generation),
        _clean(world, look, plan, generation),
        degraded(look, generation),
    )


def _gpus_ready(world: World, look: Observation, generation: int) -> Condition:
    def said(truth: Truth, reason: Reason, text: str = "") -> Condition:
        return Condition("GPUsReady", truth, reason, text, generation)

    if isinstance(look.gpus, Unknown):
        surely = look.gpus.reason in (Reason.GPU_LOST, Reason.DEVICE_HANDLE_ERROR, Reason.DRIVER_NOT_LOADED)
        return said("False" if surely else "Unknown", look.gpus.reason, look.gpus.detail)
    for gpu in look.gpus:
        if gpu.fault is not None:
            return said("False", gpu.fault, unusable(gpu, look.ailments))
    expected = world.host.gpus.count if world.host.gpus is not None else None
    if expected is not None and len(look.gpus) < expected:
        return said("False", Reason.GPU_MISSING, f"{len(look.gpus)} of {expected} GPUs")
    for desired in world.desired:
        if (bad := binding_problem(desired.gpus, look.gpus, look.ailments)) is not None:
            return said("False", *bad)
    return said("True", Reason.OK)


def _clean(world: World, look: Observation, plan: Plan, generation: int) -> Condition:
    def said(truth: Truth, reason: Reason, text: str = "") -> Condition:
        return Condition("Clean", truth, reason, text, generation)

    holders = plan.holders
    if isinstance(holders, Unknown):
        return said("Unknown", holders.reason, holders.detail)
    if isinstance(look.apps, Unknown):
        return said("Unknown", look.apps.reason, look.apps.detail)
    for reason in (Reason.UNKILLABLE_PROCESS, Reason.STRAY_UNDER_MPS, Reason.KILL_BUDGET_EXHAUSTED):
        stuck = next((v for v in plan.clearing.verdicts if v.reason is reason), None)
        if stuck is not None:
            return said("False", reason, f"{stuck.holder.describe()}: {stuck.detail}")
    for owner, reason in (("orphan", Reason.ORPHAN_WORKERS), ("foreign", Reason.FOREIGN_HOLDER)):
        found = [h for h in holders.all if h.ownership.owner.startswith(owner) and _lives(h)]
        if found:
            return said("False", reason, described([h.describe() for h in found]))
    ghost = next((g for g in holders.ghosts if not _may_be_ours(g[0], world, look)), None)
    if ghost is not None:
        uuid, pid, _ = ghost
        return said("False", Reason.GHOST_GPU_PROCESS, f"pid {pid} on {uuid} is nobody here")
    defunct = next((h for h in holders.all if h.ownership.orphan and h.process.state == "Z"), None)
    if defunct is not None:
        return said("False", Reason.DEFUNCT_PROCESS, defunct.waits_for())
    if any(h.ownership.owner == "unknown" for h in holders.all):
        first = next(h for h in holders.all if h.ownership.owner == "unknown")
        return said("Unknown", Reason.OWNERSHIP_UNKNOWN, first.describe())
    if (unseen := _unattributed(world, look, holders)) is not None:
        return said(*unseen)
    return said("True", Reason.CLEAN)


def _lives(holder: Holder) -> bool:
    return holder.process.state != "Z" and not is_mps_server(holder.process)


def _may_be_ours(uuid: str, world: World, look: Observation) -> bool:
    """A running instance of ours has that card, and the driver's pids are of another namespace than the host's."""
    return in_container(look) and uuid in _live_cards(world, look)


def _live_cards(world: World, look: Observation) -> frozenset[str]:
    """Cards of instances whose main process exists."""
    units = [(desired, look.unit(desired.unit)) for desired in world.desired]
    live = [d.gpu_uuids for d, unit in units if unit is not None and not isinstance(unit, Unknown) and unit.running]
    return frozenset[str]().union(*live)


def _unattributed(world: World, look: Observation, holders: Holders) -> tuple[Truth, Reason, str] | None:
    """Memory of a needed card that nobody seen holds: for a while it may be on its way back (cases B09, B17)."""
    explained = {uuid for holder in holders.all for uuid, _, _ in holder.gpus} | _live_cards(world, look)
    needed = frozenset[str]().union(*(desired.gpu_uuids for desired in world.desired)) - explained
    for gpu in () if isinstance(look.gpus, Unknown) else look.gpus:
        card = world.cards.get(gpu.uuid)
        loose = loose_mib(gpu, look)
        if gpu.uuid not in needed or loose is None or loose <= limit_of(world.cards, gpu.uuid):
            continue
        since_s = world.now_s if card is None or card.loose_since_s is None else card.loose_since_s
        falls = card is not None and card.fell_at_s is not None and world.now_s - card.fell_at_s < STILL_S
        if falls or world.now_s - since_s < UNEXPLAINED_WAIT_S:
            return "Unknown", Reason.WAITING_FOR_MEMORY, f"GPU {gpu.index}: memory of a process that is gone"
        text = f"GPU {gpu.index}: more than {limit_of(world.cards, gpu.uuid)} MiB, held by nobody seen"
        return "False", Reason.UNATTRIBUTED_GPU_MEMORY, text
    return None

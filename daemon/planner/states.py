"""The state of each instance, as one look and one plan show it; `conditions` makes those of specs out of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daemon.domain.observation import Unit, Unknown
from daemon.domain.spec import Role
from daemon.domain.status import Drift, Reason, Truth
from daemon.planner.drift import behind_mask, launch_drift, unseen
from daemon.planner.environment import is_extra
from daemon.planner.plan import Plan
from daemon.planner.world import Desired, ProbeFact, Record, Retired, Unplaced, World

MISSES_BEFORE_NOT_READY = 2
_NOT_OURS = frozenset({Reason.STALE_PROCESS_SERVING, Reason.ARGV_MISMATCH, Reason.WRONG_MODEL})  # no slow answers

_NOT_KNOWN = frozenset({Reason.PROBE_UNAUTHORIZED, Reason.TRANSPORT_LOST})


@dataclass(frozen=True, slots=True)
class InstanceState:
    """One instance as seen now. `available` is True when whatever revision runs has generated and still may."""

    unit: str
    role: Role
    host: str
    generation: int
    ready: Truth
    reason: Reason
    message: str = ""
    loaded: Truth = "Unknown"
    available: Truth = "Unknown"
    invocation: str = ""
    main_pid: int = 0
    active: str = ""
    drift: tuple[Drift, ...] = ()
    contested: str = ""  # what came back too often and is left alone now
    unseen: tuple[str, ...] = ()  # layers of which nothing is known now
    degraded: str = ""  # what is wrong with how it runs
    held_since: str = ""  # since when its start waits for what it needs
    effective: str = ""  # why the engine does not tell what is in effect, "" when it does or was not asked


def instance_state(desired: Desired, plan: Plan, world: World) -> InstanceState:
    """The state of one placed instance."""
    look = world.observation
    unit = look if isinstance(look, Unknown) else look.unit(desired.unit)
    if unit is None or isinstance(unit, Unknown):
        reason, detail = (unit.reason, unit.detail) if unit is not None else (Reason.NOT_OBSERVED_YET, "")
        return _state(desired, world, None, plan, "Unknown", reason, detail)
    drift = tuple(d for d in plan.drift if d.unit == desired.unit)
    ready, reason, message = _ready(desired, unit, drift, plan, world)
    return _state(desired, world, unit, plan, ready, reason, message)


def unplaced_state(unplaced: Unplaced, world: World) -> InstanceState:
    """The state of an instance that could not be rendered."""
    declared = unplaced.declared
    truth: Truth = "Unknown" if isinstance(world.observation, Unknown) else "False"
    return InstanceState(
        unplaced.unit, declared.role, world.name, declared.generation, truth, unplaced.reason, unplaced.message
    )


def coming_state(unit: str, role: Role, host: str, generation: int) -> InstanceState:
    """The state of an instance that no pass over its host has judged yet."""
    text = f"{host} has not been looked at for it yet"
    return InstanceState(unit, role, host, generation, "Unknown", Reason.NOT_OBSERVED_YET, text)


def retired_state(retired: Retired, before: InstanceState, world: World) -> InstanceState:
    """The state of an instance that is being taken away: what it waits for, if anything."""
    look = world.observation
    if isinstance(look, Unknown):
        reason, text = Reason.HOST_UNREACHABLE, f"{world.name} cannot be reached ({look.reason}); it ends when it can"
    elif world.withheld is not None:
        reason, text = world.withheld, f"nothing may be changed on {world.name}"
    elif isinstance(unit := look.unit(retired.record.unit), Unit) and behind_mask(unit, retired.record.path):
        reason, text = Reason.UNIT_MASKED, f"{unit.name} is masked by a person; it is removed once it is unmasked"
    else:
        reason, text = Reason.TERMINATING, f"{retired.record.unit} is being stopped and removed"
    told = replace(before, generation=max(before.generation, retired.generation), reason=reason, message=text)
    return replace(told, ready="False", loaded="False", available="Unknown", drift=())


def _ready(
    desired: Desired, unit: Unit, drift: tuple[Drift, ...], plan: Plan, world: World
) -> tuple[Truth, Reason, str]:
    view = desired.declared.view
    if view.suspend:
        return "Unknown", Reason.SUSPENDED, "suspended: nothing is changed or healed"
    if not view.run:
        return "False", Reason.STOPPED if not unit.running else Reason.UNIT_STOPPING, "run is false"
    running = [d for d in drift if d.layer == "running" and d.launch and not is_extra(d)]
    running = running or list(launch_drift(desired, unit))
    blocked = plan.blocked.get(unit.name)
    if unit.active_state == "active" and running:
        text = f"{running[0].field}: runs {running[0].observed}, declared {running[0].declared}"
        if blocked is not None and blocked.reason is not Reason.DRIFT_CONTESTED:  # told as drift
            text = f"{text}; not restarted: {blocked.reason}: {blocked.detail}"
        return "False", Reason.ARGV_MISMATCH, text
    if unit.active_state != "active":
        if blocked is not None:
            return "False", blocked.reason, blocked.detail
        return _down(unit, world)
    return _generated(unit, world.probes.get(unit.name), desired.declared.record)


def _down(unit: Unit, world: World) -> tuple[Truth, Reason, str]:
    """A unit that is being brought up; or what it is, where nothing may be changed."""
    text = f"the unit is {unit.active_state}/{unit.sub_state}"
    if world.withheld is None or unit.active_state not in ("inactive", "failed"):
        return "False", Reason.STARTING, text
    down = Reason.UNIT_FAILED if unit.active_state == "failed" else Reason.UNIT_INACTIVE
    reason = Reason.UNIT_NOT_FOUND if unit.load_state == "not-found" else down
    return "False", reason, f"{text}; nothing is changed: {world.withheld}"


def _generated(unit: Unit, fact: ProbeFact | None, record: Record | None) -> tuple[Truth, Reason, str]:
    """Ready by a generation of this invocation: of now, or as stored (a daemon restart costs no new one)."""
    proven = _proven(unit, record)
    silent = proven and record is not None and record.silent_invocation == unit.invocation_id
    if fact is None or fact.invocation != unit.invocation_id:
        if silent:
            return "False", Reason.PROBE_PENDING, "did not generate when it was last asked"
        return (
            ("True", Reason.GENERATED, "") if proven else ("False", Reason.PROBE_PENDING, "not asked to generate yet")
        )
    if fact.ok or (proven and not silent and not disproves(fact)):
        return "True", Reason.GENERATED, ""
    if fact.reason in _NOT_KNOWN:
        return "Unknown", fact.reason, fact.message
    return "False", fact.reason, fact.message


def disproves(fact: ProbeFact) -> bool:
    """Whether that its invocation has generated once does not stand against this answer."""
    return not fact.ok and (fact.failures >= MISSES_BEFORE_NOT_READY or fact.reason in _NOT_OURS)


def found_silent(fact: ProbeFact) -> bool:
    """Whether it is known from this answer that its invocation does not generate."""
    return disproves(fact) and fact.reason not in _NOT_KNOWN


def _proven(unit: Unit, record: Record | None) -> bool:
    """This invocation has generated, as stored."""
    return record is not None and bool(unit.invocation_id) and record.ready_invocation == unit.invocation_id


def _state(
    desired: Desired, world: World, unit: Unit | None, plan: Plan, ready: Truth, reason: Reason, message: str
) -> InstanceState:
    record = desired.declared.record
    proven = unit is not None and unit.running and _proven(unit, record)
    available: Truth = "True" if ready == "True" or proven else "False"
    if unit is None or (ready == "Unknown" and unit.running and not proven):
        available = "Unknown"
    alone = desired.declared.role not in ("prefill", "decode")
    loaded = available if alone and ready != "True" else ready
    return InstanceState(
        unit=desired.unit,
        role=desired.declared.role,
        host=world.name,
        generation=desired.declared.generation,
        ready=ready,
        reason=reason,
        message=message,
        loaded=loaded,
        available=available,
        invocation=unit.invocation_id if unit is not None else "",
        main_pid=unit.main_pid if unit is not None else 0,
        active=f"{unit.active_state}/{unit.sub_state}" if unit is not None else "",
        drift=tuple(d for d in plan.drift if d.unit == desired.unit),
        contested=_contested(plan, desired),
        unseen=unseen(desired, unit) if unit is not None else (),
        degraded=record.unclean if record is not None and unit is not None and unit.running else "",
        held_since=_held_since(plan, desired),
        effective=_untold(world, desired, unit),
    )


def _contested(plan: Plan, desired: Desired) -> str:
    blocked = plan.blocked.get(desired.unit)
    return blocked.detail if blocked is not None and blocked.reason is Reason.DRIFT_CONTESTED else ""


def _held_since(plan: Plan, desired: Desired) -> str:
    blocked = plan.blocked.get(desired.unit)
    return "" if blocked is None else blocked.since


def _untold(world: World, desired: Desired, unit: Unit | None) -> str:
    fact = world.effective.get(desired.unit)
    if fact is None or unit is None or fact.invocation != unit.invocation_id:
        return ""
    return f"{fact.claims.reason}: {fact.claims.detail}" if isinstance(fact.claims, Unknown) else ""

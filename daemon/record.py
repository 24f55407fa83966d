"""Writes down what one pass saw and did: instance rows, statuses, conditions and events. Writes only what differs.

Called by `reconcile` and by the probe tasks; decides nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from daemon.declared import HostDeclaration
from daemon.domain.actions import Action, Signal, UnitVerb, kind_of
from daemon.domain.errors import NotFound
from daemon.domain.observation import Identity, Observation, Unknown
from daemon.domain.spec import Role, ServingSpec
from daemon.domain.status import Condition, Drift, Event, Reason
from daemon.execute import Done
from daemon.planner.conditions import host_conditions, observed_generation, spec_conditions
from daemon.planner.desired import unit_name
from daemon.planner.plan import Plan
from daemon.planner.states import InstanceState, coming_state, instance_state, retired_state, unplaced_state
from daemon.planner.strays import judged
from daemon.planner.world import Declared, Desired, Retired, Unplaced, World
from daemon.store import Store
from daemon.store.rows import JsonObject, Leftovers, StoredInstance, StoredObject

SHOWN_STRAYS = 200


def plan_json(actions: Sequence[Action]) -> list[JsonObject]:
    """The plan as status shows it: what would be run, in order, and why."""
    return [
        {
            "action": kind_of(action),
            "target": ", ".join(str(t.pid) for t in action.targets) if isinstance(action, Signal) else action.unit,
            "reason": str(action.reason),
            "why": action.why[:1000],
        }
        for action in actions
    ]


async def write_states(store: Store, declaration: HostDeclaration, world: World, plan: Plan, now: datetime) -> None:
    """Instance rows, then the status of every spec concerned, then the host's."""
    states = [instance_state(desired, plan, world) for desired in world.desired]
    states += [unplaced_state(unplaced, world) for unplaced in world.unplaced]
    specs: dict[str, str] = {d.spec_uid: d.spec_name for d in declaration.declared}
    for state in states:
        declared = next(d for d in declaration.declared if d.role == state.role and _unit_of(d, world) == state.unit)
        with contextlib.suppress(NotFound):  # deleted meanwhile: there is nothing left to say about it
            await _write_instance(store, declaration, declared.spec_uid, declared.spec_name, state, world, now)
    for retired in world.retired:
        specs.setdefault(retired.spec_uid, retired.spec_name)
        await _write_retired(store, retired, world)
    for uid in specs:
        await write_spec_status(store, uid, now)
    await _write_host(store, declaration, world, plan, now)


async def _write_retired(store: Store, retired: Retired, world: World) -> None:
    for row in await store.instances(world.name, retired.spec_uid):
        if row.unit == retired.record.unit and "state" in row.extra:
            state = retired_state(retired, state_from_json(row.extra["state"]), world)
            await store.change_instance(row.spec_uid, row.role, row.host, _with("state", state_json(state)))


def _with(key: str, value: object) -> Callable[[StoredInstance], StoredInstance]:
    """One thing noted beside the rest, which probe tasks change at the same time."""
    return lambda row: row.noting(**{key: value})


def _unit_of(declared: Declared, world: World) -> str:
    placed: tuple[Desired | Unplaced, ...] = (*world.desired, *world.unplaced)
    for one in placed:
        if one.declared is declared:
            return one.unit
    return ""


async def _write_instance(
    store: Store,
    declaration: HostDeclaration,
    spec_uid: str,
    spec_name: str,
    state: InstanceState,
    world: World,
    now: datetime,
) -> None:
    row = declaration.row(spec_uid, state.role)
    path = next((d.path for d in world.desired if d.unit == state.unit), "")
    if row is None:
        row = StoredInstance(spec_uid=spec_uid, role=state.role, host=world.name, unit=state.unit, path=path)
    current = next((r for r in await store.instances(world.name, spec_uid) if r.role == state.role), row)
    before = current.extra.get("state", {})
    said = state_json(state)
    await store.change_instance(spec_uid, state.role, world.name, _with("state", said), new=row)
    for told in drift_events(spec_name, f"{state.unit} on {world.name}", before, said):
        await store.add_event(told, now)
    if (before.get("ready"), before.get("reason")) != (said["ready"], said["reason"]):
        good = state.ready == "True"
        text = f"{state.unit} on {world.name}: Ready {state.ready}, {state.reason}"
        event = Event(
            reason=state.reason,
            message=f"{text}: {state.message}" if state.message else text,
            kind="ServingSpec",
            name=spec_name,
            severity="Normal" if good or state.ready == "Unknown" else "Warning",
        )
        await store.add_event(event, now)


def state_json(state: InstanceState) -> JsonObject:
    """An instance's state as stored and shown."""
    said = asdict(state)
    said["reason"] = str(state.reason)
    said["drift"] = [_drift_json(d) for d in state.drift]
    said["unseen"] = list(state.unseen)
    return said


def _drift_json(drift: Drift) -> JsonObject:
    return {key: value for key, value in asdict(drift).items() if key != "unit"}


def state_from_json(said: JsonObject) -> InstanceState:
    """The state back from a stored row of this or another host."""
    drift = tuple(Drift(unit=said["unit"], **d) for d in said.get("drift", ()))
    unseen = tuple(said.get("unseen", ()))
    return InstanceState(**{**said, "reason": Reason(said["reason"]), "drift": drift, "unseen": unseen})


def drift_events(spec: str, where: str, before: JsonObject, said: JsonObject) -> list[Event]:
    """What differs now and did not before; that all is as declared again; and what is left alone from now on."""
    found = _drift_turns("ServingSpec", spec, where, before.get("drift", ()), said["drift"] if said["active"] else None)
    if said["contested"] and said["contested"] != before.get("contested", ""):
        text = f"{where}: {said['contested']}"
        found.append(Event(Reason.DRIFT_CONTESTED, text[:2000], "ServingSpec", spec, "Warning"))
    return found


def _drift_turns(
    kind: Literal["Host", "ServingSpec"],
    name: str,
    where: str,
    before: Iterable[JsonObject],
    now: Sequence[JsonObject] | None,
) -> list[Event]:
    """Rows that are new, and the end of the last one; nothing when it is not known (None)."""
    old = {(d["layer"], d["field"]) for d in before}
    new = [] if now is None else [d for d in now if (d["layer"], d["field"]) not in old]
    if new:
        listed = [f"{d['layer']} {d['field']}: {d['observed']} instead of {d['declared']}" for d in new[:8]]
        more = f"; and {len(new) - 8} more" if len(new) > 8 else ""
        reason = Reason.UNIT_DRIFT if kind == "ServingSpec" else Reason.GPU_INVENTORY_CHANGED
        return [Event(reason, f"{where}: {'; '.join(listed)}{more}"[:2000], kind, name, "Warning")]
    if old and now is not None and not now:
        return [Event(Reason.CONVERGED, f"{where}: nothing differs from the declaration any more", kind, name)]
    return []


async def write_spec_status(store: Store, uid: str, now: datetime) -> None:
    """Conditions of one spec out of all its instances on all hosts, which are passed over side by side."""
    async with store.telling(uid):
        await _write_spec_status(store, uid, now)


async def _write_spec_status(store: Store, uid: str, now: datetime) -> None:
    spec = await store.by_uid(uid)
    if spec is None:
        return
    rows = await store.instances(spec_uid=uid)
    states = await _counted(store, spec, [state_from_json(row.extra["state"]) for row in rows if "state" in row.extra])
    observed = observed_generation(spec.generation, states)
    conditions = spec_conditions(observed, states, deleting=spec.deleted_at is not None)
    status: JsonObject = {
        "observedGeneration": observed,
        "instances": [row.extra["state"] for row in rows if "state" in row.extra],
    }
    await store.put_status("ServingSpec", uid, status, conditions, now)


async def _counted(store: Store, spec: StoredObject, told: list[InstanceState]) -> list[InstanceState]:
    """Those that the conditions are made of: one for each place, also where no pass was yet, and those that are being
    taken away; but not what was left on a host that is forgotten, since nobody will ever look at that again."""
    if spec.deleted_at is not None:
        return told
    declared = ServingSpec.model_validate(spec.spec)
    seats: dict[tuple[Role, str], str] = {}
    for role in declared.role_names():
        view = declared.role_view(role)
        if view.placement is not None:
            seats[role, view.placement.host] = unit_name(spec.name, role, view.unit)
    counted = [s for s in told if (s.role, s.host) in seats or await store.find("Host", s.host) is not None]
    for state in counted:
        seats.pop((state.role, state.host), None)
    return counted + [coming_state(unit, *seat, spec.generation) for seat, unit in seats.items()]


async def _write_host(store: Store, declaration: HostDeclaration, world: World, plan: Plan, now: datetime) -> None:
    host = declaration.object
    conditions = list(host_conditions(world, plan, host.generation))
    if world.withheld is not None:
        conditions.append(Condition("Acting", "False", world.withheld, why_not(world), host.generation))
    else:
        conditions.append(Condition("Acting", "True", Reason.OK, "", host.generation))
    await _host_events(store, host, conditions, now)
    shown = _host_json(host, world, plan)
    said = await store.status("Host", host.uid)
    known = None if isinstance(world.observation, Unknown) else shown["drift"]
    for told in _drift_turns("Host", host.name, host.name, said.status.get("drift", ()) if said else (), known):
        await store.add_event(told, now)
    await store.put_status("Host", host.uid, shown, conditions, now)


def why_not(world: World) -> str:
    """Why nothing may be changed on this host, for a person."""
    look = world.observation
    if world.withheld is Reason.HELD and not isinstance(look, Unknown) and isinstance(look.hold, str):
        return f"/etc/stoker/hold: {look.hold.strip()[:500] or '(no reason given)'}"
    return _WITHHELD.get(world.withheld or Reason.OK, "").format(host=world.name)


_WITHHELD = {
    Reason.OBSERVE_ONLY: "mode is observe: the plan is shown, nothing is changed; set mode: enforce to act",
    Reason.PAUSED: "paused by a person: `stoker resume` lets it act again",
    Reason.FENCED_OFF: "another store's daemon holds this host; `stoker takeover {host}` takes it over",
    Reason.HOST_IDENTITY_CHANGED: "this is another machine than at first sight; `stoker takeover {host}` confirms it",
    Reason.HOST_IDENTITY_TAKEN: "another Host object is this machine: delete one of the two",
    Reason.SYSTEMD_TOO_OLD: "systemd 249 or newer is needed to act; the host is only observed",
    Reason.NOT_SYSTEMD: "PID 1 is not systemd; the host is only observed",
}


async def _host_events(store: Store, host: StoredObject, conditions: Iterable[Condition], now: datetime) -> None:
    said = await store.status("Host", host.uid)
    for condition in conditions:
        before = said.condition(condition.type) if said is not None else None
        if before is not None and (before.status, before.reason) == (condition.status, str(condition.reason)):
            continue
        well = "False" if condition.type == "Degraded" else "True"
        if before is None and condition.status == well:
            continue
        text = f"{condition.type} {condition.status}, {condition.reason}"
        event = Event(
            reason=condition.reason,
            message=f"{text}: {condition.message}" if condition.message else text,
            kind="Host",
            name=host.name,
            severity="Normal" if condition.status in (well, "Unknown") else "Warning",
        )
        await store.add_event(event, now)


def _host_json(host: StoredObject, world: World, plan: Plan) -> JsonObject:
    look = world.observation
    status: JsonObject = {
        "observedGeneration": host.generation,
        "mode": world.host.mode,
        "plan": plan_json(plan.actions),
        "withheld": str(world.withheld) if world.withheld is not None else None,
        "unclaimed": list(plan.unclaimed),
        "blocked": {unit: {"reason": str(b.reason), "detail": b.detail} for unit, b in sorted(plan.blocked.items())},
        "strays": _strays_json(world, plan),
        "drift": [_drift_json(d) for d in plan.drift if not d.unit],
    }
    if not isinstance(look, Unknown):
        status["identity"] = _identity_json(look.identity)
        status["gpus"] = _gpus_json(look, world)
        status["unread"] = _unread_json(look)
    return status


def _unread_json(look: Observation) -> JsonObject:
    """Where nothing is known of the cards' health, and why: that is not the same as nothing wrong."""
    parts = {"health": look.health, "kernelLog": look.kernel, "space": look.space}
    return {name: f"{part.reason}: {part.detail}" for name, part in parts.items() if isinstance(part, Unknown)}


def _identity_json(identity: Identity) -> JsonObject:
    return {
        "machineId": identity.machine_id,
        "bootId": identity.boot_id,
        "container": identity.container,
        "systemd": identity.systemd,
    }


def _gpus_json(look: Observation, world: World) -> Any:
    """Without figures that move: a steady host writes nothing."""
    if isinstance(look.gpus, Unknown):
        return {"unknown": str(look.gpus.reason), "detail": look.gpus.detail}
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "product": gpu.name,
            "driver": gpu.driver,
            "fault": gpu.fault and str(gpu.fault),
            "idleMib": world.cards[gpu.uuid].idle_mib if gpu.uuid in world.cards else None,
            "warning": gpu.warning and str(gpu.warning),
            "ailments": [one.detail for one in look.ailments if one.uuid == gpu.uuid],
        }
        for gpu in look.gpus
    ]


def _strays_json(world: World, plan: Plan) -> list[JsonObject] | None:
    """Without figures that move, as above: memory, ages and states are in the live list (`daemon.strays`)."""
    if isinstance(plan.holders, Unknown):
        return None
    return [
        {
            "pid": verdict.holder.process.id.pid,
            "startTicks": verdict.holder.process.id.start_ticks,
            "owner": verdict.holder.ownership.owner,
            "proof": verdict.holder.ownership.proof,
            "unit": verdict.holder.ownership.unit,
            "what": verdict.holder.describe(),
            "verdict": str(verdict.reason),
        }
        for verdict in judged(world, plan)[:SHOWN_STRAYS]
        if verdict.holder.ownership.owner != "managed"
    ]


async def note_action(
    store: Store, world: World, desired: Sequence[Desired], retired: dict[str, str], done: Done, now: datetime
) -> None:
    """The event of one action: on its spec when it concerns a unit, on the host for signals."""
    action = done.action
    spec = None
    if not isinstance(action, Signal):
        spec = next((d.declared.spec_name for d in desired if d.unit == action.unit), retired.get(action.unit))
    kind = kind_of(action)
    target = ", ".join(str(t.pid) for t in action.targets) if isinstance(action, Signal) else action.unit
    text = f"{kind} {target} on {world.name}: {action.why}"
    event = Event(
        reason=Reason(done.reason) if done.reason else action.reason,
        message=text if done.result == "ok" else f"{text} — {done.result}",
        kind="Host" if spec is None else "ServingSpec",
        name=world.name if spec is None else spec,
        severity="Normal" if done.result == "ok" else "Warning",
        evidence=done.evidence,
        action=kind,
        result=done.result,
    )
    await store.add_event(event, now)


async def note_started(store: Store, world: World, done: Done) -> None:
    """Remember which launch was started (a failure of it is its own, one of an earlier launch is not), or our stop."""
    action = done.action
    if done.result != "ok" or not isinstance(action, UnitVerb) or action.verb not in ("start", "restart", "stop"):
        return
    desired = next((d for d in world.desired if d.unit == action.unit), None)
    if desired is None:
        return
    started = "" if action.verb == "stop" else desired.launch_hash
    unclean = action.why if action.reason is Reason.STARTED_ON_UNCLEAN_MEMORY else ""
    for row in await store.instances(world.name, desired.declared.spec_uid):
        if row.unit == desired.unit:
            with contextlib.suppress(NotFound):  # deleted meanwhile
                await store.change_instance(row.spec_uid, row.role, row.host, _as_started(started, unclean))


def _as_started(launch: str, unclean: str) -> Callable[[StoredInstance], StoredInstance]:
    def started(row: StoredInstance) -> StoredInstance:
        return row.noting(started=launch, unclean=unclean, cleared="")

    return started


async def note_held_up(store: Store, world: World, plan: Plan, due: Iterable[str], now: datetime) -> None:
    """A start that has waited long is said again, as a warning."""
    names = {desired.unit: desired.declared.spec_name for desired in world.desired}
    for unit in sorted(due):
        blocked = plan.blocked[unit]
        text = f"{unit} on {world.name} is still not started: {blocked.detail}"
        await store.add_event(Event(blocked.reason, text[:2000], "ServingSpec", names[unit], "Warning"), now)


async def finish_retired(store: Store, world: World, plan: Plan, now: datetime) -> None:
    """Forget retired instances of which nothing is left; end the deletion of specs that have none any more."""
    for retired in plan.finished:
        for row in await store.instances(world.name, retired.spec_uid):
            if row.unit == retired.record.unit:
                await store.remove_instance(row.spec_uid, row.role, row.host)
        await end_deletion(store, retired.spec_uid, now)


async def end_deletion(store: Store, uid: str, now: datetime) -> bool:
    """End a deletion when no instance is left; whether it did."""
    found = await store.by_uid(uid)
    if found is None or found.deleted_at is None or await store.instances(spec_uid=uid):
        return False
    await store.finish_delete("ServingSpec", uid, Leftovers(), now=now)
    return True

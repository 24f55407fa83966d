"""What to do next on one host: short, ordered, and safe to stop after any action.

`decide` is pure. Law 1: nothing destructive follows from an unknown. Law 2: a plan never waits; what must wait is a
`wake_in_s`. Law 5: only a difference in the launch restarts what serves, and only after file and loaded are right.
"""

from __future__ import annotations

from dataclasses import replace

from daemon.domain.actions import Action, PutUnit, RemoveUnit, SetAside, Signal, SweepShm, UnitVerb
from daemon.domain.observation import Observation, Unit, UnitFile, Unknown
from daemon.domain.status import Drift, Reason
from daemon.domain.text import duration_s
from daemon.planner.barrier import advice, blockers, strangers, unclean
from daemon.planner.clearing import clear_strays, left_of
from daemon.planner.decision import Blocked, Plan, ProbeWanted, add, block, contested, hands_off, hold_up, verb, wake
from daemon.planner.desired import binding_problem
from daemon.planner.drift import behind_mask, drift_of, launch_drift, launch_mark, masked
from daemon.planner.environment import first_seen, is_extra, own_doing, refused
from daemon.planner.facts import effective_drift, inventory_drift, placement_drift
from daemon.planner.holders import described, holders_of, ledger_of
from daemon.planner.leftovers import sweep
from daemon.planner.settle import settle_enabled, settle_file
from daemon.planner.world import Desired, Record, Retired, World

__all__ = ["Blocked", "Plan", "ProbeWanted", "decide", "destructive"]


def decide(world: World) -> Plan:
    """The plan for one look; an unknown look gives an empty plan."""
    look = world.observation
    if isinstance(look, Unknown):
        return Plan(holders=look)
    holders = holders_of(world, look, ledger_of(world, look))
    clearing = clear_strays(world, look, holders)
    plan = Plan(
        actions=clearing.actions,
        holders=holders,
        clearing=clearing,
        unclaimed=_unclaimed(world, look),
        questions=clearing.questions,
        drift=inventory_drift(world.host.gpus, world.known_gpus, look),
        wake_in_s=clearing.wake_in_s,
    )
    for retired in world.retired:
        plan = _retire(plan, retired, look, world.host.strays.limit)
    for desired in world.desired:
        plan = _converge(plan, desired, world, look)
    return plan


def _unclaimed(world: World, look: Observation) -> tuple[str, ...]:
    """Marked unit files on the host that this store neither declares nor retires: shown, left alone (law 7)."""
    if isinstance(look.units, Unknown):
        return ()
    known = {d.unit for d in world.desired} | {r.record.unit for r in world.retired} | {u.unit for u in world.unplaced}
    return tuple(
        sorted(
            unit.name
            for unit in look.units
            if unit.name not in known and unit.file is not None and "STOKER_STORE=" in (unit.file.text or "")
        )
    )


def _retire(plan: Plan, retired: Retired, look: Observation, limit: str) -> Plan:
    """Stop, then remove a unit whose spec is gone; finished when neither unit nor file nor process is left.

    A process beyond its cgroup is waited for only where it may be cleared: no policy keeps a deletion for ever.
    """
    unit = look.unit(retired.record.unit)
    if unit is None or isinstance(unit, Unknown) or unit.file is None:
        return plan
    if not _still_ours(retired, unit.file):
        return replace(plan, finished=(*plan.finished, retired))
    if unit.file.text is None and not unit.running:
        if behind_mask(unit, retired.record.path):
            return plan
        still = _waits_for_left(plan, retired, limit)
        return plan if still else replace(plan, finished=(*plan.finished, retired))
    if unit.active_state in ("inactive", "failed"):
        return add(plan, _remove(retired, unit))
    if unit.active_state == "deactivating":
        return wake(plan, 1.0)
    return add(plan, verb(unit, "stop", Reason.TERMINATING, f"{retired.spec_name} was deleted"))


def _waits_for_left(plan: Plan, retired: Retired, limit: str) -> bool:
    """Whether something of it is still there that is being cleared, or of which it is not known yet."""
    if isinstance(plan.holders, Unknown):
        return True
    going = {v.holder.process.id for v in plan.clearing.verdicts if v.reason in (Reason.OK, Reason.NOT_OBSERVED_YET)}
    for holder in plan.holders.all:
        if holder.process.state == "Z":
            continue  # nobody can end it, and it holds nothing that a removed unit needs
        if holder.unit_group == retired.record.unit or (left_of(holder, retired) and holder.process.id in going):
            return True
        marks = dict(holder.process.marks or ())
        asked = holder.ownership.owner == "unknown" and marks.get("STOKER_SPEC") == retired.spec_uid
        if asked and limit != "report" and retired.clears:
            return True
    return False


def _still_ours(retired: Retired, file: UnitFile) -> bool:
    """A file that somebody or another spec put in place of ours is theirs: neither stopped nor removed."""
    return (
        file.text is None
        or file.sha256 == retired.record.written_sha256
        or f"STOKER_SPEC={retired.spec_uid}" in file.text
    )


def _remove(retired: Retired, unit: Unit) -> RemoveUnit:
    sha = unit.file.sha256 if unit.file is not None else None
    return RemoveUnit(unit.name, retired.record.path, sha or "", f"{retired.spec_name} was deleted", Reason.TERMINATING)


def _converge(plan: Plan, desired: Desired, world: World, look: Observation) -> Plan:
    """One step for one declared instance."""
    unit = look.unit(desired.unit)
    if desired.declared.view.suspend:
        return block(plan, desired, Reason.SUSPENDED, "suspended: whatever runs goes on running")
    if unit is None or isinstance(unit, Unknown):
        reason = unit.reason if isinstance(unit, Unknown) else Reason.NOT_OBSERVED_YET
        return block(plan, desired, reason, unit.detail if isinstance(unit, Unknown) else "not looked at yet")
    plan, desired = _accept(plan, desired, unit, world, look)
    drift = drift_of(desired, unit, look.inherited)
    plan = replace(plan, drift=(*plan.drift, *drift, *_reported(plan, desired, unit, world, look)))
    if masked(unit):
        plan = block(plan, desired, Reason.UNIT_MASKED, f"{unit.name} is masked by a person; unmask it to go on")
        if unit.active_state == "active" and not desired.declared.view.run:
            return add(plan, verb(unit, "stop", Reason.STOPPED, "run is false"))
        return _probe(plan, desired, unit, world) if unit.active_state == "active" else plan
    if unit.file is None:
        return block(plan, desired, Reason.NOT_OBSERVED_YET, "its file could not be read")
    if not desired.declared.view.run:
        return _stand_down(plan, unit)
    plan, settled = settle_file(plan, desired, unit, drift, world, look)
    plan = settle_enabled(plan, desired, unit, drift, world)
    return _bring_up(plan, desired, unit, world, look, settled)


def _accept(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation) -> tuple[Plan, Desired]:
    """Note what the host gives from the start, and what a process of our own start gives itself."""
    names = first_seen(desired, unit, look.inherited)
    record = desired.declared.record
    if names is None and record is not None and (_own_start(unit, world) or _first_start(desired, unit, record)):
        names = own_doing(desired, unit, look.inherited) or None
    if names is None:
        return plan, desired
    plan = replace(plan, accepted={**plan.accepted, unit.name: names})
    if record is None or record.inherited is None:
        return plan, desired  # judged from the next look on, when it is stored
    known = replace(record, inherited=(*record.inherited, *names))
    return plan, replace(desired, declared=replace(desired.declared, record=known))


def _own_start(unit: Unit, world: World) -> bool:
    return world.own.get(unit.name) == unit.invocation_id


def _first_start(desired: Desired, unit: Unit, record: Record) -> bool:
    """The start that we ordered of this launch, which has not generated yet; a daemon that died since forgot it."""
    ordered = record.started_launch == desired.launch_hash == launch_mark(unit)
    return ordered and not record.ready_invocation


def _reported(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation) -> tuple[Drift, ...]:
    """Layers that nobody corrects."""
    record = desired.declared.record
    loaded = record is not None and unit.running and record.ready_invocation == unit.invocation_id
    return (
        *effective_drift(desired, unit, world.effective.get(unit.name)),
        *placement_drift(desired, unit, plan.holders, look, loaded=loaded),
    )


def _stand_down(plan: Plan, unit: Unit) -> Plan:
    if unit.unit_file_state == "enabled":
        plan = add(plan, verb(unit, "disable", Reason.STOPPED, "run is false"))
    if unit.active_state in ("active", "activating", "reloading"):
        return add(plan, verb(unit, "stop", Reason.STOPPED, "run is false"))
    return plan


def _bring_up(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation, rewritten: bool) -> Plan:
    match unit.active_state:
        case "active" | "reloading":
            return _keep(plan, desired, unit, world, look, rewritten)
        case "activating":
            if unit.waits_in_gate:
                bad = _binding(desired, world)
                held = (*((bad,) if bad is not None else ()), *blockers(desired, plan.holders, look, world))
                if not held:
                    return wake(block(plan, desired, Reason.WAITING_IN_GATE, "opens by itself"), 1.0)
                return wake(hold_up(plan, desired, Reason.WAITING_IN_GATE, _held_text(held), world), 1.0)
            return wake(block(plan, desired, Reason.UNIT_RESTARTING, f"{unit.sub_state}"), 2.0)
        case "deactivating":
            return wake(block(plan, desired, Reason.UNIT_STOPPING, "stopping"), 1.0)
        case _:
            return _start(plan, desired, unit, world, look, rewritten)


def _keep(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation, rewritten: bool) -> Plan:
    """A unit that runs: restart it only for a launch that differs, else ask for a generation when one is due."""
    running = [d for d in plan.drift if d.unit == unit.name and d.layer == "running" and d.launch]
    running = running or (list(launch_drift(desired, unit)) if rewritten else [])
    if unit.main is None or not unit.main.argv:
        return wake(block(plan, desired, Reason.NOT_OBSERVED_YET, "its main process could not be read"), 1.0)
    if running:
        incurable = None if rewritten else _incurable(plan, desired, unit, world, look)
        if incurable is not None:
            return block(plan, desired, *incurable)
        return _restart(plan, desired, unit, world, look, running)
    return _probe(plan, desired, unit, world)


def _probe(plan: Plan, desired: Desired, unit: Unit, world: World) -> Plan:
    """Ask for a generation when one is due, else come back when it is: a host's period may be much longer."""
    if unit.name in world.probing:
        return plan
    fact = world.probes.get(unit.name)
    if fact is not None and fact.invocation == unit.invocation_id:
        period_s = duration_s(desired.declared.view.readiness.period)
        left_s = fact.at_s + (period_s if fact.ok else min(period_s, 5.0)) - world.now_s
        if left_s > 0:
            return wake(plan, left_s)
    return replace(plan, probes=(*plan.probes, ProbeWanted(unit.name, unit.invocation_id)))


def _incurable(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation) -> tuple[Reason, str] | None:
    """Why a restart would not bring the declared launch: what systemd would start is not it, or the process was it."""
    if isinstance(unit.loaded, Unknown):
        return unit.loaded.reason, f"what systemd has loaded is not known: {unit.loaded.detail}"
    known = plan.blocked.get(unit.name)
    if known is not None and known.reason is Reason.DRIFT_CONTESTED:
        return known.reason, known.detail
    if any(d.unit == unit.name and d.launch and d.layer in ("file", "loaded") for d in plan.drift):
        return Reason.DRIFT_CONTESTED, "what systemd has loaded is not what Stoker wrote; it runs on as it is"
    running = [d for d in plan.drift if d.unit == unit.name and d.layer == "running" and d.launch]
    extras = {d.field.removeprefix("env.") for d in running if is_extra(d)}
    inherits = False
    if len(extras) == len(running) and isinstance(look.inherited, Unknown):
        return look.inherited.reason, f"what systemd gives to every unit is not known: {look.inherited.detail}"
    if len(extras) == len(running) and not isinstance(look.inherited, Unknown):
        kept_out = extras & refused(unit)  # by our text; a start of our own that has it all the same would again
        inherits = extras <= look.inherited and not (kept_out and _own_start(unit, world))
    if launch_mark(unit) == desired.launch_hash and not inherits and _by_itself(unit, world):
        return Reason.DRIFT_CONTESTED, "started as declared, but changed its own arguments or environment since"
    return None


def _by_itself(unit: Unit, world: World) -> bool:
    """A process of our own start, or one with a title where systemd would have put an absolute path."""
    argv = unit.main.argv if unit.main is not None else ()
    return _own_start(unit, world) or not argv or not argv[0].startswith("/")


def _restart(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation, running: list[Drift]) -> Plan:
    budget = desired.declared.view.restart.budget
    record = desired.declared.record
    by_person = record is None or record.started_launch != desired.launch_hash  # declared anew, not come back
    if not by_person and world.corrections.get(unit.name, 0) >= budget:
        return block(plan, desired, Reason.BUDGET_EXHAUSTED, f"{budget} restarts in the last hour; next in 30 min")
    if not by_person and (back := contested(world, running)):
        return block(plan, desired, Reason.DRIFT_CONTESTED, hands_off(world, back))
    if (bad := _binding(desired, world)) is not None:
        return block(plan, desired, *bad)
    if held := strangers(desired, plan.holders, look, world):
        return wake(block(plan, desired, held[0][0], f"it runs on as it is: {_held_text(held)}"), 1.0)
    why = ", ".join(f"{d.field}: {d.observed} is to be {d.declared}" for d in running[:3])
    return add(plan, verb(unit, "restart", Reason.LAUNCH_CHANGED, why, () if by_person else running))


def _start(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation, rewritten: bool) -> Plan:
    """A unit that is down: start it when its cards are the bound ones and nobody else holds what it needs."""
    if (bad := _binding(desired, world)) is not None:
        return block(plan, desired, *bad)
    if unit.load_state == "bad-setting" and not rewritten:
        return block(plan, desired, Reason.UNIT_BAD_SETTING, "systemd refuses the unit; see its file and drop-ins")
    if not rewritten and (stalled := _stalled(desired, unit, world)) is not None:
        return block(plan, desired, *stalled)
    held = blockers(desired, plan.holders, look, world)
    left = sweep(desired, unit, look) if all(reason is Reason.SHARED_MEMORY_FULL for reason, _ in held) else None
    plan = plan if left is None else add(plan, left)
    if held:
        plan = hold_up(plan, desired, held[0][0], _held_text(held), world)
        return wake(plan, _again_in_s(desired, held[0][0], world))
    down = f"{unit.name} is {unit.active_state}"
    if dirt := unclean(desired, look, world):
        why = f"{down}; {dirt}, it did not come back, and enough is free"
        return add(plan, verb(unit, "start", Reason.STARTED_ON_UNCLEAN_MEMORY, why))
    return add(plan, verb(unit, "start", _down_reason(desired, unit), down))


def _held_text(held: tuple[tuple[Reason, str], ...]) -> str:
    """Who or what is in the way, and what a person can do about the first of it."""
    text = described([detail for _, detail in held])
    what = advice(held[0][0])
    return f"{text}. To do: {what}" if what else text


def _again_in_s(desired: Desired, reason: Reason, world: World) -> float:
    """A driver gives memory back within about 0.3 s of the last process: looked for at once, then each second."""
    cards = [world.cards[uuid].loose_since_s for uuid in desired.gpu_uuids if uuid in world.cards]
    fresh = world.now_s - min((since for since in cards if since is not None), default=world.now_s) < 3.0
    return 0.1 if reason is Reason.WAITING_FOR_MEMORY and fresh else 1.0


def _binding(desired: Desired, world: World) -> tuple[Reason, str] | None:
    look = world.observation
    if isinstance(look, Unknown):
        return look.reason, look.detail
    if desired.gpus and isinstance(look.gpus, Unknown):
        return look.gpus.reason, f"GPUs are not known: {look.gpus.detail}"
    return None if isinstance(look.gpus, Unknown) else binding_problem(desired.gpus, look.gpus, look.ailments)


def _stalled(desired: Desired, unit: Unit, world: World) -> tuple[Reason, str] | None:
    """A failure that another start would only repeat: refused arguments, or systemd's limit (cases D02, D23, E01).

    What failed before the declared launch was ever started says nothing about it: a daemon may have died after
    writing it, or its start was refused.
    """
    record = desired.declared.record
    if unit.name in world.cleared or record is None or record.started_launch != desired.launch_hash:
        return None
    if unit.active_state == "failed" and unit.exec_main_status == 2 and unit.result == "exit-code":
        return Reason.INVALID_LAUNCH_ARGS, "the engine refused its arguments (exit status 2); change the spec"
    if unit.result == "start-limit-hit":
        last = _last_exit(unit)
        return Reason.START_LIMIT_HIT, f"{unit.restarts} restarts, {last}; fix the cause, then `systemctl reset-failed`"
    return None


def _last_exit(unit: Unit) -> str:
    """How the last main process ended: exit status 0 is no success of a server (case D23)."""
    how = {2: "killed by signal", 3: "dumped core on signal"}.get(unit.exec_main_code, "exited with status")
    return f"the last process {how} {unit.exec_main_status}"


def _down_reason(desired: Desired, unit: Unit) -> Reason:
    record = desired.declared.record
    if unit.active_state == "failed":
        return Reason.UNIT_FAILED
    if unit.inactive_enter_us > 0 and not (record is not None and record.stopped):
        return Reason.STOPPED_BY_HAND
    return Reason.UNIT_INACTIVE


def destructive(action: Action) -> bool:
    """Whether an action can end something that runs: used by the properties that hold law 1."""
    match action:
        case Signal() | RemoveUnit() | SweepShm():
            return True
        case UnitVerb(verb=verb):
            return verb in ("stop", "restart", "disable")
        case PutUnit() | SetAside():
            return False

"""What to do next on one host: short, ordered, and safe to stop after any action.

`decide` is pure. Law 1: nothing destructive follows from an unknown. Law 2: a plan never waits; what must wait is a
`wake_in_s`. Law 5: only a difference in the launch restarts what serves, and only after file and loaded are right.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from daemon.domain.actions import Action, PutUnit, RemoveUnit, Signal, UnitGround, UnitVerb, Verb
from daemon.domain.observation import Observation, Unit, UnitFile, Unknown
from daemon.domain.status import Drift, Reason
from daemon.domain.text import duration_s
from daemon.planner.desired import binding_problem
from daemon.planner.drift import drift_of, inventory_drift, launch_drift, launch_mark
from daemon.planner.holders import Holders, holders_of, ledger_of
from daemon.planner.strays import Clearing, ServeQuestion, blockers, clear_strays
from daemon.planner.world import Desired, Retired, World

# Other states (static, indirect, generated …) are not changed by `systemctl enable`.
_TO_ENABLE = frozenset({"", "disabled", "linked", "linked-runtime"})


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why an instance is not brought further now; `detail` says who, since when and what a person can do."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class ProbeWanted:
    """A generation is asked of this unit's present invocation."""

    unit: str
    invocation: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision. `blocked` and `drift` are by unit; `finished` are retired units of which nothing is left.

    `adopted` maps units whose file already says what is declared, though we did not write it, to that file's hash.
    """

    actions: tuple[Action, ...] = ()
    blocked: dict[str, Blocked] = field(default_factory=dict)
    drift: tuple[Drift, ...] = ()
    holders: Holders | Unknown = field(default_factory=lambda: Holders((), ()))
    clearing: Clearing = field(default_factory=Clearing)
    probes: tuple[ProbeWanted, ...] = ()
    questions: tuple[ServeQuestion, ...] = ()
    finished: tuple[Retired, ...] = ()
    unclaimed: tuple[str, ...] = ()
    adopted: dict[str, str] = field(default_factory=dict)
    wake_in_s: float | None = None


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
        drift=inventory_drift(world.host.gpus.count if world.host.gpus else None, look),
        wake_in_s=clearing.wake_in_s,
    )
    for retired in world.retired:
        plan = _retire(plan, retired, look)
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


def _retire(plan: Plan, retired: Retired, look: Observation) -> Plan:
    """Stop, then remove a unit whose spec is gone; finished when neither unit nor file nor process is left."""
    unit = look.unit(retired.record.unit)
    if unit is None or isinstance(unit, Unknown) or unit.file is None:
        return plan
    if not _still_ours(retired, unit.file):
        return replace(plan, finished=(*plan.finished, retired))
    left = () if isinstance(plan.holders, Unknown) else plan.holders.all
    if unit.file.text is None and not unit.running:
        still = isinstance(plan.holders, Unknown) or any(h.unit_group == unit.name for h in left)
        return plan if still else replace(plan, finished=(*plan.finished, retired))
    if unit.active_state in ("inactive", "failed"):
        return _add(plan, _remove(retired, unit))
    if unit.active_state == "deactivating":
        return _wake(plan, 1.0)
    return _add(plan, _verb(unit, "stop", Reason.TERMINATING, f"{retired.spec_name} was deleted"))


def _still_ours(retired: Retired, file: UnitFile) -> bool:
    """A file that somebody put in place of ours, without any mark of Stoker, is theirs: neither stopped nor removed."""
    return file.text is None or file.sha256 == retired.record.written_sha256 or "STOKER_SPEC=" in file.text


def _remove(retired: Retired, unit: Unit) -> RemoveUnit:
    sha = unit.file.sha256 if unit.file is not None else None
    return RemoveUnit(unit.name, retired.record.path, sha or "", f"{retired.spec_name} was deleted", Reason.TERMINATING)


def _converge(plan: Plan, desired: Desired, world: World, look: Observation) -> Plan:
    """One step for one declared instance."""
    unit = look.unit(desired.unit)
    if desired.declared.view.suspend:
        return _block(plan, desired, Reason.SUSPENDED, "suspended: whatever runs goes on running")
    if unit is None or isinstance(unit, Unknown):
        reason = unit.reason if isinstance(unit, Unknown) else Reason.NOT_OBSERVED_YET
        return _block(plan, desired, reason, unit.detail if isinstance(unit, Unknown) else "not looked at yet")
    drift = drift_of(desired, unit)
    plan = replace(plan, drift=(*plan.drift, *drift))
    if unit.load_state == "masked":
        return _block(plan, desired, Reason.UNIT_MASKED, f"{unit.name} is masked by a person; unmask it to go on")
    if unit.file is None:
        return _block(plan, desired, Reason.NOT_OBSERVED_YET, "its file could not be read")
    if not desired.declared.view.run:
        return _stand_down(plan, unit)
    plan, settled = _settle_file(plan, desired, unit, drift)
    if unit.unit_file_state in _TO_ENABLE:
        plan = _add(plan, _verb(unit, "enable", Reason.UNIT_DRIFT, "starts by itself after a reboot"))
    return _bring_up(plan, desired, unit, world, look, settled)


def _stand_down(plan: Plan, unit: Unit) -> Plan:
    if unit.unit_file_state == "enabled":
        plan = _add(plan, _verb(unit, "disable", Reason.STOPPED, "run is false"))
    if unit.active_state in ("active", "activating", "reloading"):
        return _add(plan, _verb(unit, "stop", Reason.STOPPED, "run is false"))
    return plan


def _settle_file(plan: Plan, desired: Desired, unit: Unit, drift: tuple[Drift, ...]) -> tuple[Plan, bool]:
    """Write the file where it differs (or waits for a reload); the flag says whether the launch was written anew."""
    wrong = [d for d in drift if d.layer in ("file", "loaded") and d.field != "enabled"]
    if not wrong:
        record = desired.declared.record
        if (record is None or not record.written_sha256) and unit.file is not None and unit.file.sha256:
            plan = replace(plan, adopted={**plan.adopted, unit.name: unit.file.sha256})
        return plan, False
    if (others := _others_dropins(desired, unit)) and not unit.need_daemon_reload and _file_is_right(wrong):
        return _block(plan, desired, Reason.DRIFT_CONTESTED, f"{others} changes what Stoker wrote; remove it"), False
    launch = any(d.launch for d in wrong)
    absent = unit.file is not None and unit.file.text is None
    why = "does not exist" if absent else "differs: " + ", ".join(f"{d.layer} {d.field}" for d in wrong[:4])
    reason = Reason.LAUNCH_CHANGED if launch else Reason.UNIT_DRIFT
    put = PutUnit(
        unit=unit.name,
        path=desired.path,
        text=desired.text,
        gate=desired.gate,
        ground_sha256=(unit.file.sha256 if unit.file is not None else None) or "",
        why=why,
        reason=Reason.UNIT_NOT_FOUND if absent else reason,
    )
    return _add(plan, put), launch


def _file_is_right(wrong: list[Drift]) -> bool:
    """Then writing it once more changes nothing."""
    return all(d.layer == "loaded" for d in wrong)


def _others_dropins(desired: Desired, unit: Unit) -> str:
    return ", ".join(path for path in unit.dropin_paths if path != desired.path)[:300]


def _bring_up(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation, rewritten: bool) -> Plan:
    match unit.active_state:
        case "active" | "reloading":
            return _keep(plan, desired, unit, world, rewritten)
        case "activating":
            if unit.waits_in_gate:
                holders = blockers(desired, plan.holders, look, world)
                detail = "; ".join(detail for _, detail in holders) or "opens by itself"
                return _wake(_block(plan, desired, Reason.WAITING_IN_GATE, detail), 1.0)
            return _wake(_block(plan, desired, Reason.UNIT_RESTARTING, f"{unit.sub_state}"), 2.0)
        case "deactivating":
            return _wake(_block(plan, desired, Reason.UNIT_STOPPING, "stopping"), 1.0)
        case _:
            return _start(plan, desired, unit, world, look, rewritten)


def _keep(plan: Plan, desired: Desired, unit: Unit, world: World, rewritten: bool) -> Plan:
    """A unit that runs: restart it only for a launch that differs, else ask for a generation when one is due."""
    running = [d for d in plan.drift if d.unit == unit.name and d.layer == "running" and d.launch]
    running = running or (list(launch_drift(desired, unit)) if rewritten else [])
    if unit.main is None or not unit.main.argv:
        return _wake(_block(plan, desired, Reason.NOT_OBSERVED_YET, "its main process could not be read"), 1.0)
    if running:
        contested = None if rewritten else _incurable(plan, desired, unit)
        if contested is not None:
            return _block(plan, desired, *contested)
        return _restart(plan, desired, unit, world, running)
    fact = world.probes.get(unit.name)
    due = fact is None or fact.invocation != unit.invocation_id
    if not due and fact is not None:
        from_text = desired.declared.view.readiness.period
        due = world.now_s - fact.at_s >= (duration_s(from_text) if fact.ok else min(duration_s(from_text), 5.0))
    if due and unit.name not in world.probing:
        plan = replace(plan, probes=(*plan.probes, ProbeWanted(unit.name, unit.invocation_id)))
    return plan


def _incurable(plan: Plan, desired: Desired, unit: Unit) -> tuple[Reason, str] | None:
    """Why a restart would not bring the declared launch: what systemd would start is not it, or the process was it."""
    if isinstance(unit.loaded, Unknown):
        return unit.loaded.reason, f"what systemd has loaded is not known: {unit.loaded.detail}"
    if any(d.unit == unit.name and d.launch and d.layer in ("file", "loaded") for d in plan.drift):
        return Reason.DRIFT_CONTESTED, "what systemd has loaded is not what Stoker wrote; it runs on as it is"
    if launch_mark(unit) == desired.launch_hash:
        return Reason.DRIFT_CONTESTED, "started as declared, but changed its own arguments or environment since"
    return None


def _restart(plan: Plan, desired: Desired, unit: Unit, world: World, running: list[Drift]) -> Plan:
    budget = desired.declared.view.restart.budget
    record = desired.declared.record
    by_person = record is None or record.started_launch != desired.launch_hash  # declared anew, not come back
    if not by_person and world.corrections.get(unit.name, 0) >= budget:
        return _block(plan, desired, Reason.BUDGET_EXHAUSTED, f"{budget} restarts in the last hour; next in 30 min")
    if (bad := _binding(desired, world)) is not None:
        return _block(plan, desired, *bad)
    why = ", ".join(f"{d.field}: {d.observed} is to be {d.declared}" for d in running[:3])
    return _add(plan, _verb(unit, "restart", Reason.LAUNCH_CHANGED, why))


def _start(plan: Plan, desired: Desired, unit: Unit, world: World, look: Observation, rewritten: bool) -> Plan:
    """A unit that is down: start it when its cards are the bound ones and nobody else holds what it needs."""
    if (bad := _binding(desired, world)) is not None:
        return _block(plan, desired, *bad)
    if unit.load_state == "bad-setting" and not rewritten:
        return _block(plan, desired, Reason.UNIT_BAD_SETTING, "systemd refuses the unit; see its file and drop-ins")
    if not rewritten and (stalled := _stalled(desired, unit, world)) is not None:
        return _block(plan, desired, *stalled)
    held = blockers(desired, plan.holders, look, world)
    if held:
        plan = _block(plan, desired, held[0][0], "; ".join(detail for _, detail in held))
        return _wake(plan, _again_in_s(desired, held[0][0], world))
    return _add(plan, _verb(unit, "start", _down_reason(desired, unit), f"{unit.name} is {unit.active_state}"))


def _again_in_s(desired: Desired, reason: Reason, world: World) -> float:
    """A driver gives memory back within about 0.3 s of the last process: looked for at once, then each second."""
    since = [world.memory_since[uuid] for uuid in desired.gpu_uuids if uuid in world.memory_since]
    fresh = world.now_s - min(since, default=world.now_s) < 3.0
    return 0.1 if reason is Reason.WAITING_FOR_MEMORY and fresh else 1.0


def _binding(desired: Desired, world: World) -> tuple[Reason, str] | None:
    look = world.observation
    if isinstance(look, Unknown):
        return look.reason, look.detail
    if desired.gpus and isinstance(look.gpus, Unknown):
        return look.gpus.reason, f"GPUs are not known: {look.gpus.detail}"
    return None if isinstance(look.gpus, Unknown) else binding_problem(desired.gpus, look.gpus)


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


def _verb(unit: Unit, verb: Verb, reason: Reason, why: str) -> UnitVerb:
    ground = UnitGround(unit.invocation_id, unit.active_state)
    return UnitVerb(unit.name, verb, ground, why, reason)


def _add(plan: Plan, action: Action) -> Plan:
    return replace(plan, actions=(*plan.actions, action))


def _block(plan: Plan, desired: Desired, reason: Reason, detail: str) -> Plan:
    return replace(plan, blocked={**plan.blocked, desired.unit: Blocked(reason, detail)})


def _wake(plan: Plan, in_s: float) -> Plan:
    return replace(plan, wake_in_s=in_s if plan.wake_in_s is None else min(plan.wake_in_s, in_s))


def destructive(action: Action) -> bool:
    """Whether an action can end something that runs: used by the properties that hold law 1."""
    match action:
        case Signal() | RemoveUnit():
            return True
        case UnitVerb(verb=verb):
            return verb in ("stop", "restart", "disable")
        case PutUnit():
            return False

"""Law 5's order for one unit's file and what systemd has loaded: the lowest layer first, and nothing here restarts.

Drop-ins are set aside, the file is written, systemd reloaded; what has come back too often is left alone.
"""

from __future__ import annotations

from dataclasses import replace

from daemon.domain.actions import PutUnit
from daemon.domain.observation import Observation, Unit
from daemon.domain.status import Drift, Reason
from daemon.engines.unit import with_unset
from daemon.planner.decision import Plan, add, block, contested, hands_off, keys, verb
from daemon.planner.drift import TO_ENABLE
from daemon.planner.dropins import beyond_reach, is_dropin, set_aside
from daemon.planner.environment import refused, to_refuse
from daemon.planner.world import Desired, World


def settle_file(
    plan: Plan, desired: Desired, unit: Unit, drift: tuple[Drift, ...], world: World, look: Observation
) -> tuple[Plan, bool]:
    """The plan, and whether a start after its actions is of the declared launch though it is not so now."""
    wrong = [d for d in drift if d.layer in ("file", "loaded") and d.field not in ("enabled", "masked")]
    if not wrong:
        return _adopt(plan, desired, unit), False
    if back := contested(world, wrong):
        return block(plan, desired, Reason.DRIFT_CONTESTED, hands_off(world, back)), False
    added = [d for d in wrong if is_dropin(d)]
    rest = [d for d in wrong if not is_dropin(d)]
    plan = add(plan, *dict.fromkeys(action for d in added for action in set_aside(unit, d)))
    refuses = to_refuse(desired, look.inherited)
    text_is_right = all(d.layer == "loaded" for d in rest) and refuses <= refused(unit)
    far = beyond_reach(desired, unit)
    if text_is_right and not unit.need_daemon_reload and far and any(d.launch for d in rest):
        others = ", ".join(far)[:300]
        return block(plan, desired, Reason.DRIFT_CONTESTED, f"{others} changes what Stoker wrote; remove it"), False
    launch = any(d.launch for d in rest) or unit.load_state == "bad-setting"
    if not rest or (added and text_is_right):  # the reload that ends setting aside is all it takes
        return plan, launch
    return add(plan, _put(desired, unit, rest, refuses)), launch


def _adopt(plan: Plan, desired: Desired, unit: Unit) -> Plan:
    record = desired.declared.record
    if (record is None or not record.written_sha256) and unit.file is not None and unit.file.sha256:
        return replace(plan, adopted={**plan.adopted, unit.name: unit.file.sha256})
    return plan


def _put(desired: Desired, unit: Unit, wrong: list[Drift], refuses: frozenset[str]) -> PutUnit:
    absent = unit.file is not None and unit.file.text is None
    launch = any(d.launch for d in wrong)
    why = "does not exist" if absent else "differs: " + ", ".join(d.key for d in wrong[:4])
    reason = Reason.LAUNCH_CHANGED if launch else Reason.UNIT_DRIFT
    return PutUnit(
        unit=unit.name,
        path=desired.path,
        text=with_unset(desired.text, refuses),
        gate=desired.gate,
        ground_sha256=(unit.file.sha256 if unit.file is not None else None) or "",
        why=why,
        reason=Reason.UNIT_NOT_FOUND if absent else reason,
        cures=keys(_named(wrong)) if _by_others(desired, unit, wrong) else (),
    )


def _named(wrong: list[Drift]) -> list[Drift]:
    """A reload that is needed is told by what waits for it, where that is seen."""
    return [d for d in wrong if d.field != "reload"] or wrong


def _by_others(desired: Desired, unit: Unit, wrong: list[Drift]) -> bool:
    """Whether somebody else made the difference: our text is not there any more, or it is and yet not in effect."""
    record = desired.declared.record
    if record is None or not record.written_sha256 or unit.file is None:
        return False
    return unit.file.sha256 != record.written_sha256 or all(d.layer == "loaded" for d in wrong)


def settle_enabled(plan: Plan, desired: Desired, unit: Unit, drift: tuple[Drift, ...], world: World) -> Plan:
    """Enabled again without a restart; the first time, at its placement, is no correction."""
    wrong = [d for d in drift if (d.layer, d.field) == ("loaded", "enabled")]
    if unit.unit_file_state not in TO_ENABLE:
        return plan
    if back := contested(world, wrong):
        known = plan.blocked.get(unit.name)
        return plan if known is not None else block(plan, desired, Reason.DRIFT_CONTESTED, hands_off(world, back))
    record = desired.declared.record
    cures = wrong if record is not None and record.started_launch == desired.launch_hash else []
    return add(plan, verb(unit, "enable", Reason.UNIT_DRIFT, "starts by itself after a reboot", cures))

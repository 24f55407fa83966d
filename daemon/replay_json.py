"""A replay as JSON: documented, with keys in a fixed order. Called by `stoker replay` and the golden tests.

An unknown value is `{"unknown": REASON, "detail": TEXT}` wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from pydantic.alias_generators import to_camel

from daemon.domain.actions import Action, Signal, kind_of
from daemon.domain.observation import Observation, Process, ProcessId, Unknown
from daemon.domain.status import Condition, Drift
from daemon.planner.clearing import Verdict
from daemon.planner.conditions import host_conditions, spec_conditions
from daemon.planner.holders import Holder, ledger_of
from daemon.planner.ownership import Ledger, Ownership, attribute
from daemon.planner.plan import Plan
from daemon.planner.world import World
from daemon.replay import Replayed

Json = dict[str, Any]
_PAIRS = frozenset({"marks", "env", "other_units"})


def as_json(done: Replayed) -> Json:
    """All of it."""
    world, plan = done.world, done.plan
    return {
        "replay": "stoker/v1",
        "host": world.name,
        "looks": done.looks,
        "store": world.store_uid,
        "notes": list(done.notes),
        "ownership": ownership(world, plan),
        "unseen": [{"pid": pid, "uuid": uuid, "memoryMib": mib} for uuid, pid, mib in _ghosts(plan)],
        "conditions": _conditions(done),
        "drift": [_drift(one) for one in plan.drift],
        "blocked": [
            {"unit": unit, "reason": str(why.reason), "detail": why.detail}
            for unit, why in sorted(plan.blocked.items())
        ],
        "questions": [{"pid": one.process.pid, "ports": list(one.ports)} for one in plan.questions],
        "plan": [_action(one) for one in plan.actions],
        "withheld": None if world.withheld is None else str(world.withheld),
        "observation": plain(world.observation),
    }


def plain(value: Any) -> Any:
    """A frozen value of ours as JSON."""
    match value:
        case Unknown():
            return {"unknown": str(value.reason), "detail": value.detail}
        case Enum():
            return str(value.value)
        case frozenset():
            return sorted(value)
        case tuple() | list():
            return [plain(one) for one in value]
        case _ if is_dataclass(value):
            return {to_camel(one.name): _field(one.name, getattr(value, one.name)) for one in fields(value)}
        case _:
            return value


def _field(name: str, value: Any) -> Any:
    """Names with values are an object."""
    return dict(value) if name in _PAIRS and isinstance(value, tuple) else plain(value)


def ownership(world: World, plan: Plan) -> Any:
    """Every process of the look: whose it is, by what proof, what it holds, and what would be done with it."""
    look = world.observation
    if isinstance(look, Unknown) or isinstance(look.processes, Unknown):
        return plain(look if isinstance(look, Unknown) else look.processes)
    holders = {} if isinstance(plan.holders, Unknown) else {one.process.id: one for one in plan.holders.all}
    verdicts = {one.holder.process.id: one for one in plan.clearing.verdicts}
    ledger = ledger_of(world, look)
    return [
        _process(
            process,
            look,
            holders.get(process.id),
            _owner(process, ledger, plan),
            verdicts.get(process.id),
            _signals(process.id, plan.actions),
        )
        for process in sorted(look.processes, key=lambda one: one.id.pid)
    ]


def _owner(process: Process, ledger: Ledger, plan: Plan) -> Ownership:
    """Without every input of the decision it is nobody's for sure."""
    if isinstance(plan.holders, Unknown):
        return Ownership("unknown", f"{plan.holders.reason}: {plan.holders.detail}")
    return attribute(process, ledger)


def _process(
    process: Process,
    look: Observation,
    holder: Holder | None,
    owner: Ownership,
    verdict: Verdict | None,
    signals: list[str],
) -> Json:
    return {
        "pid": process.id.pid,
        "startTicks": process.id.start_ticks,
        "ageS": round(max(0.0, look.identity.monotonic_us / 1_000_000 - process.id.start_ticks / 100), 2),
        "ppid": process.ppid,
        "user": process.user or str(process.uid),
        "state": process.state,
        "command": " ".join(process.argv) or f"[{process.comm}]",
        "cgroup": process.cgroup,
        "class": owner.owner,
        "proof": owner.proof,
        "unit": owner.unit,
        "gpus": [] if holder is None else [_held(row) for row in holder.gpus],
        "ports": [] if holder is None else list(holder.ports),
        "does": signals,
        "reason": None if verdict is None else str(verdict.reason),
        "detail": None if verdict is None else verdict.detail,
    }


def _held(row: tuple[str, int, int | None]) -> Json:
    uuid, index, mib = row
    return {"index": index, "uuid": uuid, "memoryMib": mib}


def _signals(identity: ProcessId, actions: Iterable[Action]) -> list[str]:
    return [kind_of(one) for one in actions if isinstance(one, Signal) and identity in one.targets]


def _ghosts(plan: Plan) -> tuple[tuple[str, int, int | None], ...]:
    return () if isinstance(plan.holders, Unknown) else plan.holders.ghosts


def _conditions(done: Replayed) -> list[Json]:
    world = done.world
    said = [(f"host/{world.name}", one) for one in host_conditions(world, done.plan, 1)]
    for name in dict.fromkeys(one.spec_name for one in done.specs):
        generation = max(one.generation for one in done.specs if one.spec_name == name)
        units = {one.unit for one in world.desired if one.declared.spec_name == name}
        units |= {one.unit for one in world.unplaced if one.declared.spec_name == name}
        states = [state for state in done.states if state.unit in units]
        said += [(f"spec/{name}", one) for one in spec_conditions(generation, states)]
    return [_condition(of, one) for of, one in said]


def _condition(of: str, one: Condition) -> Json:
    return {"of": of, "type": one.type, "status": one.status, "reason": str(one.reason), "message": one.message}


def _drift(one: Drift) -> Json:
    named = ("unit", "layer", "field", "declared", "observed", "launch")
    return {name: getattr(one, name) for name in named}


def _action(one: Action) -> Json:
    targets = [target.pid for target in one.targets] if isinstance(one, Signal) else []
    unit = "" if isinstance(one, Signal) else one.unit
    return {"action": kind_of(one), "unit": unit, "pids": targets, "reason": str(one.reason), "why": one.why}

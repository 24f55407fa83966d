"""Drives a box with plans, as `reconcile` would: keeps facts between looks, and can lose them as a dead daemon does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from daemon.domain.actions import Action, PutUnit, SetAside, Signal, UnitVerb
from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation, ProcessId
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Reason
from daemon.planner import cards
from daemon.planner.cards import Card
from daemon.planner.desired import place
from daemon.planner.holders import answered
from daemon.planner.plan import Plan, decide
from daemon.planner.world import Declared, Desired, ProbeFact, Record, Retired, StrayFact, World
from tests.planner.box import Box

STORE = "store-uid"
HOST = HostSpec.model_validate({"ssh": {"address": "192.0.2.1"}, "mode": "enforce"})


def spec(name: str = "m", gpus: Sequence[int] = (0, 1), port: int = 30001, **more: object) -> ServingSpec:
    declared = {
        "engine": {"name": "sglang", "python": "/opt/venv/bin/python"},
        "model": {"path": f"/models/{name}"},
        "parallelism": {"tensor": max(1, len(gpus))},
        "placement": {"host": "a", "gpus": list(gpus)},
        "port": port,
    }
    return ServingSpec.model_validate({**declared, **more})


def listening(world: World) -> tuple[int, ...]:
    """Every port that somebody listens on."""
    listeners = getattr(world.observation, "listeners", ())
    return tuple(listener.port for listener in listeners) if isinstance(listeners, tuple) else ()


@dataclass
class Driver:
    """The daemon's side: what the store keeps (`records`, `specs`) and what only memory holds (`facts`, `probes`)."""

    box: Box
    specs: dict[str, ServingSpec] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    retired: dict[str, Retired] = field(default_factory=dict)
    facts: dict[ProcessId, StrayFact] = field(default_factory=dict)
    probes: dict[str, ProbeFact] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    host: HostSpec = HOST
    own: dict[str, str] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)
    returned: dict[tuple[str, str], int] = field(default_factory=dict)
    cards: dict[str, Card] = field(default_factory=dict)
    counts: bool = False  # whether drift that comes back is counted, as the store does for a day

    @property
    def now_s(self) -> float:
        return self.box.ticks / 100

    def die(self) -> None:
        self.facts.clear()
        self.probes.clear()
        self.held.clear()
        self.cards.clear()
        self.own.clear()
        self.ours.clear()

    def world(self, look: Observation | None = None) -> World:
        asked = tuple(f"stoker-{name}.server.service" for name in self.specs)
        asked += tuple(r.record.unit for r in self.retired.values())
        seen = look or self.box.look(self.now_s, asked)
        self.cards = cards.seen(self.cards, seen, self.now_s)
        here = {p.id for p in seen.processes} if isinstance(seen.processes, tuple) else set(self.facts)
        for identity in here - set(self.facts):
            self.facts[identity] = StrayFact(self.now_s)
        for identity in set(self.facts) - here:
            del self.facts[identity]
        desired = []
        for name, one in self.specs.items():
            declared = Declared(name, f"uid-{name}", 1, "server", one, one.role_view("server"), self.records.get(name))
            placed = place(declared, seen, STORE)
            assert isinstance(placed, Desired), placed
            desired.append(placed)
            unit = seen.unit(placed.unit)
            if getattr(unit, "running", False):
                self.held |= placed.gpu_uuids | {f"port:{p}" for p in placed.ports}
        return World(
            name="a", host=self.host, store_uid=STORE, now_s=self.now_s, observation=seen, desired=tuple(desired),
            retired=tuple(self.retired.values()), strays=dict(self.facts), probes=dict(self.probes),
            held_before=frozenset(self.held), own=self._own(seen),
            returned=dict(self.returned) if self.counts else {}, cards=dict(self.cards),
        )  # fmt: skip

    def turn(self, upto: int | None = None, look: Observation | None = None) -> Plan:
        """One pass: decide, carry out the first `upto` actions, then time passes."""
        world = self.world(look)
        plan = decide(world)
        by_unit = {d.unit: d for d in world.desired}
        self._accept(plan, by_unit)
        for action in plan.actions[:upto]:
            if isinstance(action, PutUnit):
                self._remember(by_unit[action.unit], action.text, plan)
            self.box.apply(action)
            self._count(action)
            if isinstance(action, UnitVerb) and action.verb in ("start", "restart"):
                self._started(by_unit[action.unit])
            if isinstance(action, Signal):
                self._note(action)
        for question in plan.questions:
            self.facts[question.process] = answered(
                self.facts[question.process], question.ports, False, self.now_s, marked=question.marked
            )
        for wanted in plan.probes:
            self.probes[wanted.unit] = ProbeFact(wanted.invocation, self.now_s, True, Reason.GENERATED, "")
        for gone in plan.finished:
            self.retired.pop(gone.spec_name, None)
        self.box.step()
        return plan

    def _own(self, seen: Observation) -> dict[str, str]:
        for unit in seen.units if isinstance(seen.units, tuple) else ():
            if unit.name in self.ours and unit.invocation_id:
                self.own[unit.name] = unit.invocation_id
                self.ours.discard(unit.name)
        return dict(self.own)

    def _accept(self, plan: Plan, by_unit: dict[str, Desired]) -> None:
        for unit, names in plan.accepted.items():
            name = by_unit[unit].declared.spec_name
            if (record := self.records.get(name)) is not None:
                known = record.inherited or ()
                self.records[name] = replace(record, inherited=tuple(sorted({*known, *names})))

    def _count(self, action: Action) -> None:
        for key in action.cures if isinstance(action, PutUnit | SetAside | UnitVerb) else ():
            self.returned[action.unit, key] = self.returned.get((action.unit, key), 0) + 1

    def _remember(self, desired: Desired, text: str, plan: Plan) -> None:
        digest = hashlib.sha256(text.encode()).hexdigest()
        name = desired.declared.spec_name
        record = self.records.get(name) or Record(desired.unit, desired.path, inherited=plan.accepted.get(desired.unit))
        self.records[name] = replace(
            record,
            unit=desired.unit,
            path=desired.path,
            gpus=desired.gpus,
            written_sha256=digest,
            written_launch=desired.launch_hash,
        )

    def _started(self, desired: Desired) -> None:
        name = desired.declared.spec_name
        self.ours.add(desired.unit)
        if name in self.records:
            self.records[name] = replace(self.records[name], started_launch=desired.launch_hash)

    def _note(self, action: Signal) -> None:
        for target in action.targets:
            fact = self.facts[target]
            if action.signal == "TERM":
                self.facts[target] = replace(fact, term_at_s=self.now_s)
            elif action.signal == "KILL":
                self.facts[target] = replace(fact, kill_at_s=self.now_s)

    def delete(self, name: str) -> None:
        self.specs.pop(name)
        record = self.records.get(name)
        if record is not None:
            self.retired[name] = Retired(name, f"uid-{name}", record)

    def settle(self, turns: int = 120) -> Plan:
        """Turns until nothing is left to do, or fails after `turns`."""
        plan = Plan()
        quiet = 0
        for _ in range(turns):
            plan = self.turn()
            quiet = 0 if plan.actions or plan.blocked or plan.probes else quiet + 1
            if quiet >= 2:
                return plan
        raise AssertionError(f"not settled: {plan.actions} {plan.blocked}")

    def serves(self, name: str) -> bool:
        """The declared process runs: the hidden truth of the box against the spec."""
        unit = self.box.units.get(f"stoker-{name}.server.service")
        if unit is None or unit.main not in self.box.procs or unit.active != "active":
            return False
        desired = next(d for d in self.world().desired if d.declared.spec_name == name)
        return self.box.procs[unit.main].argv == desired.launch.argv

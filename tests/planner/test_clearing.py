"""What is done about orphans: policy, the order of signals, the budget, survivors, and the defunct."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from daemon.domain.actions import Signal
from daemon.domain.host import HostSpec
from daemon.domain.observation import ProcessId
from daemon.domain.status import Reason
from daemon.planner.barrier import blockers
from daemon.planner.conditions import host_conditions
from daemon.planner.holders import Holders, answered
from daemon.planner.plan import Plan, decide
from daemon.planner.world import Kills, StrayFact, World
from tests.planner.box import UUIDS, Box, Proc
from tests.planner.driving import Driver, listening, spec
from tests.planner.test_field_cases import GROUP, MARKS, UNIT, down, known, look_of, signalled, verbs, vllm_tree

pytestmark = pytest.mark.strays


def host(limit: str = "orphans", **more: Any) -> HostSpec:
    strays = {"limit": limit, **more.pop("strays", {})}
    return HostSpec.model_validate({"ssh": {"address": "192.0.2.1"}, "mode": "enforce", "strays": strays, **more})


def driver(limit: str = "orphans", kill: str = "orphans", **more: Any) -> Driver:
    found = Driver(Box(), {"m": spec(strays={"kill": kill})}, host=host(limit, **more))
    found.settle()
    found.box._end(UNIT, found.box.units[UNIT], "failed")
    found.held.clear()  # as if nothing of ours had run since boot
    return found


def clean(world: World) -> tuple[str, Reason, str]:
    found = next(c for c in host_conditions(world, decide(world), 1) if c.type == "Clean")
    return found.status, found.reason, found.message


class TestPolicy:
    """A spec may ask for less than its host, never for more."""

    @pytest.mark.parametrize(
        ("limit", "kill", "proven", "likely"),
        [
            ("report", "report", False, False),
            ("report", "orphans", False, False),
            ("report", "any", False, False),
            ("orphans", "report", False, False),
            ("orphans", "orphans", True, False),
            ("orphans", "any", True, False),
            ("any", "report", False, False),
            ("any", "orphans", True, False),
            ("any", "any", True, True),
        ],
    )
    def test_the_lesser_of_host_and_spec_holds(self, limit: str, kill: str, proven: bool, likely: bool) -> None:
        for marks, expected in ((MARKS, proven), ((), likely)):
            d = driver(limit, kill)
            left = d.box.spawn(("VLLM::EngineCore",), "/gone", gpus={UUIDS[0]: 9000}, marks=marks)
            assert (signalled(decide(known(d.world()))) == [left.pid]) is expected

    def test_who_is_only_reported_is_looked_at_no_more_often(self) -> None:
        for limit, expected in (("report", None), ("orphans", 0.6)):
            d = driver(limit)
            d.box.spawn(("VLLM::EngineCore",), "/gone", gpus={UUIDS[0]: 9000}, marks=MARKS)
            assert decide(known(d.world())).clearing.wake_in_s == expected

    def test_of_two_specs_on_one_card_the_more_careful_one_holds(self) -> None:
        d = driver("any", "any")
        d.specs["n"] = spec("n", gpus=(1,), port=30002, strays={"kill": "report"})
        d.box.spawn(("VLLM::EngineCore",), "/gone", gpus={UUIDS[1]: 9000}, marks=MARKS)
        assert not signalled(decide(known(d.world())))

    @pytest.mark.parametrize(
        "more",
        [
            {"cgroup": "/system.slice/docker-4be1.scope"},
            {"cgroup": "/system.slice/theirs.service"},
            {"cgroup": "/lxc/129/ns/init.scope"},
            {"uid": 1000},
            {"ppid": 4242},
            {"argv": ("python3", "train.py")},
        ],
    )
    def test_any_is_no_word_about_what_is_foreign(self, more: dict[str, Any]) -> None:
        d = driver("any", "any", exclusive=True)
        d.box.procs[4242] = Proc(4242, 1, ("/usr/bin/supervisor",), "/gone")
        d.box.spawn(**{"argv": ("VLLM::EngineCore",), "cgroup": "/gone", "gpus": {UUIDS[0]: 9000}, **more})
        assert not signalled(decide(known(d.world())))

    def test_a_serving_one_is_left_under_any_as_well(self) -> None:
        d = driver("any", "any")
        d.box.spawn(("VLLM::EngineCore",), "/gone", gpus={UUIDS[0]: 9000}, ports=(9000,))
        world = d.world()
        facts = {i: StrayFact(world.now_s - 5, serves=True, asked_at_s=world.now_s) for i in world.strays}
        assert not signalled(decide(replace(world, strays=facts)))


class TestServing:
    """How long an answer to "does its tree serve" is good for, and what stands until the next one is there."""

    def stray(self, serves: bool, age_s: float) -> Plan:
        d = driver("any", "any")
        d.box.spawn(("VLLM::EngineCore",), "/gone", gpus={UUIDS[0]: 9000}, ports=(9000,))
        world = d.world()
        fact = StrayFact(world.now_s - 600, serves=serves, asked_at_s=world.now_s - age_s, ports=listening(world))
        return decide(replace(world, strays=dict.fromkeys(world.strays, fact)))

    @pytest.mark.parametrize("age_s", [0.0, 29.0, 30.0, 60.0, 89.0])
    def test_what_was_seen_to_serve_is_foreign_until_the_next_answer_is_there(self, age_s: float) -> None:
        plan = self.stray(True, age_s)
        assert owners(plan) == ["foreign"]
        assert bool(plan.questions) is (age_s >= 30)
        assert not signalled(plan)

    @pytest.mark.parametrize(("serves", "age_s"), [(True, 90.0), (True, 1e6), (False, 30.0), (False, 89.0)])
    def test_an_answer_past_its_time_is_none_and_ends_nobody(self, serves: bool, age_s: float) -> None:
        plan = self.stray(serves, age_s)
        assert owners(plan) == ["unknown"]
        assert len(plan.questions) == 1
        assert not signalled(plan)

    def test_a_tree_that_was_asked_and_does_not_serve_is_an_orphan(self) -> None:
        plan = self.stray(False, 29.0)
        assert owners(plan) == ["orphan-likely"]
        assert signalled(plan)

    def test_that_it_does_not_serve_is_said_of_the_ports_that_were_asked(self) -> None:
        """Loading: only its workers' own port is open; then it begins to serve on another."""
        d = driver("any", "any")
        left = d.box.spawn(("VLLM::EngineCore",), "/gone", gpus={UUIDS[0]: 9000}, ports=(29500,))
        world = at(d.world())
        assert signalled(decide(world)) == [left.pid]
        left.ports = (29500, 8000)
        plan = decide(replace(d.world(), strays=world.strays))
        assert owners(plan) == ["unknown"]
        assert [question.ports for question in plan.questions] == [(8000, 29500)]
        assert not signalled(plan)
        left.ports = (29500,)
        assert signalled(decide(replace(d.world(), strays=world.strays))) == [left.pid]

    def test_a_busy_server_is_not_ended_for_one_silence_nor_for_two(self) -> None:
        ports, fact = (9000,), StrayFact(0.0)
        silences = [(True, True), (False, True), (False, True), (True, True)]
        silences += [(False, True), (False, True), (False, False), (False, False), (True, True), (False, True)]
        for at_s, (serves, believed) in enumerate(silences):
            fact = answered(fact, ports, serves, float(at_s), marked=True)
            assert (fact.serves, fact.asked_at_s, fact.ports) == (believed, at_s, ports)

    def test_what_is_ours_and_never_served_is_believed_at_its_first_silence(self) -> None:
        assert answered(StrayFact(0.0), (9000,), False, 1.0, marked=True).serves is False

    def test_of_anybodys_server_the_third_silence_in_a_row_is_the_first_that_tells(self) -> None:
        """A hand-started server under full load is silent the first time that this daemon asks it."""
        fact, told = StrayFact(0.0), []
        for at_s in range(4):
            fact = answered(fact, (9000,), False, float(at_s), marked=False)
            told.append(fact.serves)
        assert told == [None, None, False, False]
        fact = answered(fact, (9000, 9001), False, 4.0, marked=False)  # it opened another port meanwhile
        assert fact.serves is None
        assert answered(fact, (9000, 9001), True, 5.0, marked=False).serves is True

    @pytest.mark.parametrize("words", [("--uds", "/run/e.sock"), ("--ssl-keyfile=/k",), ("--ssl-certfile", "/c")])
    def test_a_server_that_cannot_be_asked_over_plain_http_is_nobodys_to_end(self, words: tuple[str, ...]) -> None:
        for ports in ((), (9000,)):
            d = driver("any", "any")
            d.box.spawn(("vllm", "serve", "/models/x", *words), "/gone", gpus={UUIDS[0]: 9000}, ports=ports)
            plan = decide(at(d.world()))
            assert owners(plan) == ["unknown"]
            assert not signalled(plan)
            assert not plan.questions

    def test_a_server_by_hand_stays_foreign_while_it_is_asked_again_and_again(self) -> None:
        """Answers come some looks late: what is said of it does not turn meanwhile."""
        d = driver("any", "any")
        left = d.box.spawn(("VLLM::EngineCore",), "/gone", gpus={UUIDS[0]: 9000}, ports=(9000,))
        said, asked = set[str](), 0
        for turn in range(400):
            world = d.world()
            plan = decide(world)
            said |= set(owners(plan)) if turn else set()
            asked += bool(plan.questions)
            if plan.questions and turn % 5 == 0:
                (identity,) = (question.process for question in plan.questions)
                d.facts[identity] = replace(d.facts[identity], serves=True, asked_at_s=d.now_s)
            d.box.step()
        assert said == {"foreign"}
        assert asked > 8
        assert left.pid in d.box.procs


def owners(plan: Plan) -> list[str]:
    assert isinstance(plan.holders, Holders)
    return [holder.ownership.owner for holder in plan.holders.all]


def at(world: World, **facts: Any) -> World:
    """Every process was seen a minute ago, with this known of it."""
    fact = StrayFact(world.now_s - 60, serves=False, asked_at_s=world.now_s, ports=listening(world))
    fact = replace(fact, **facts)
    return replace(world, strays=dict.fromkeys(world.strays, fact))


class TestOrder:
    """B01: the engine is ended first; what it leaves is asked once, and killed when its grace is over."""

    def timeline(self, d: Driver, turns: int) -> list[tuple[float, str, tuple[int, ...]]]:
        began, found = d.now_s, []
        for _ in range(turns):
            now = d.now_s - began
            plan = d.turn()
            found += [(now, a.signal, tuple(t.pid for t in a.targets)) for a in plan.actions if isinstance(a, Signal)]
        return found

    def test_workers_of_an_engine_that_does_not_end_follow_within_its_grace(self) -> None:
        d = down("inactive")
        tree = vllm_tree(d.box, GROUP, stubborn=True)
        core, workers = tree[0].pid, tuple(p.pid for p in tree[1:])
        sent = self.timeline(d, 60)
        assert [(signal, pids) for _, signal, pids in sent] == [
            ("TERM", (core,)), ("TERM", workers), ("KILL", (core, *workers)),
        ]  # fmt: skip
        term, asked, kill = (when for when, _, _ in sent)
        assert 5 <= asked - term <= 6
        assert 20 <= kill - term <= 21
        assert not d.box.procs.keys() & {p.pid for p in tree}

    def test_workers_are_asked_at_once_when_their_engine_is_gone(self) -> None:
        d = down("inactive")
        tree = vllm_tree(d.box, GROUP)
        sent = self.timeline(d, 12)
        assert [(signal, pids) for _, signal, pids in sent] == [
            ("TERM", (tree[0].pid,)), ("TERM", tuple(p.pid for p in tree[1:])),
        ]  # fmt: skip
        assert sent[1][0] - sent[0][0] < 1

    def test_an_engine_that_cannot_act_is_not_waited_for(self) -> None:
        d = down("inactive")
        tree = vllm_tree(d.box, GROUP)
        tree[0].state = "D"
        assert signalled(decide(known(d.world()))) == [p.pid for p in tree]

    def test_a_parent_that_is_not_cleared_is_not_waited_for(self) -> None:
        d = down("inactive")
        supervisor = d.box.spawn(("/usr/bin/supervisor",), "/system.slice/s.service")
        tree = vllm_tree(d.box, GROUP, supervisor.pid)
        d.host = host(protect=[{"command": "VLLM::EngineCore"}])
        assert signalled(decide(known(d.world()))) == [p.pid for p in tree[1:]]

    @pytest.mark.parametrize("state", ["T", "t"])
    def test_a_stopped_process_gets_cont_with_term_and_later_kill(self, state: str) -> None:
        d = down("inactive")
        left = d.box.spawn(("VLLM::EngineCore",), GROUP, gpus={UUIDS[0]: 9000}, state=state)
        world = d.world()
        sent = [(a.signal, a.targets[0].pid) for a in decide(known(world)).actions if isinstance(a, Signal)]
        assert sent == [("TERM", left.pid), ("CONT", left.pid)]
        assert signalled(decide(at(world, term_at_s=world.now_s - 21)), "KILL") == [left.pid]

    def test_each_target_takes_its_cgroup_along(self) -> None:
        d = down("inactive")
        a = d.box.spawn(("VLLM::EngineCore",), GROUP, gpus={UUIDS[0]: 9000})
        b = d.box.spawn(("VLLM::EngineCore",), "/gone", gpus={UUIDS[1]: 9000}, marks=MARKS)
        sent = next(x for x in decide(known(d.world())).actions if isinstance(x, Signal))
        assert dict(zip((t.pid for t in sent.targets), sent.cgroups, strict=True)) == {a.pid: GROUP, b.pid: "/gone"}


class TestBudget:
    """So many processes an hour and no more, whoever runs."""

    def strays(self, d: Driver, count: int) -> list[Proc]:
        return [d.box.spawn(("VLLM::Worker",), "/gone", gpus={UUIDS[0]: 10}, marks=MARKS) for _ in range(count)]

    def test_no_more_than_what_is_left_is_signalled_at_once(self) -> None:
        d = driver(strays={"budget": 5})
        left = self.strays(d, 9)
        world = replace(known(d.world()), kills=Kills(2))
        assert signalled(decide(world)) == [p.pid for p in left[:3]]

    def test_beyond_it_is_a_condition_that_says_what_to_do(self) -> None:
        d = driver(strays={"budget": 5})
        left = self.strays(d, 1)[0]
        world = replace(known(d.world()), kills=Kills(5))
        plan = decide(world)
        assert not signalled(plan)
        assert plan.blocked[UNIT].reason is Reason.KILL_BUDGET_EXHAUSTED
        status, reason, text = clean(world)
        assert (status, reason) == ("False", Reason.KILL_BUDGET_EXHAUSTED)
        assert f"stoker strays clear a --pid {left.pid}" in text
        assert "strays.budget" in text

    def test_who_was_asked_already_is_killed_all_the_same(self) -> None:
        d = driver(strays={"budget": 1})
        left = self.strays(d, 1)[0]
        world = d.world()
        world = replace(
            at(world, term_at_s=world.now_s - 21), kills=Kills(1, frozenset([ProcessId(left.pid, left.start)]))
        )
        assert signalled(decide(world), "KILL") == [left.pid]

    def test_a_person_acts_outside_of_it(self) -> None:
        d = driver(strays={"budget": 1})
        left = self.strays(d, 3)
        world = replace(known(d.world()), kills=Kills(1), asked={ProcessId(left[1].pid, left[1].start): "ada"})
        assert signalled(decide(world)) == [left[1].pid]

    def test_a_parent_that_is_held_back_by_it_keeps_nobody_waiting(self) -> None:
        d = driver(strays={"budget": 2})
        tree = vllm_tree(d.box, "/gone", marks=MARKS)
        world = replace(known(d.world()), kills=Kills(2, frozenset(ProcessId(p.pid, p.start) for p in tree[1:])))
        assert signalled(decide(world)) == [p.pid for p in tree[1:]]

    def test_the_budget_covers_three_engines_of_eight_cards(self) -> None:
        assert host().strays.budget == 64


class TestSurvivors:
    """B07: told once, its cards kept free of starts, never signalled again, and a way back."""

    def told(self, d: Driver, left: Proc, cards: tuple[str, ...] = (UUIDS[0],)) -> World:
        return replace(known(d.world()), unkillable={ProcessId(left.pid, left.start): frozenset(cards)})

    def test_a_new_daemon_does_not_signal_it_again(self) -> None:
        d = down()
        left = d.box.spawn(("VLLM::EngineCore",), GROUP, gpus={UUIDS[0]: 9000}, state="D")
        plan = decide(self.told(d, left))
        assert not plan.actions
        assert plan.blocked[UNIT].reason is Reason.UNKILLABLE_PROCESS

    def test_its_card_stays_shut_when_it_shows_on_it_no_more(self) -> None:
        """Caught in its own end it has no file open and no row of the driver; other cards are free."""
        d = down()
        left = d.box.spawn((), "/gone", state="D")
        world = self.told(d, left)
        assert "start" not in verbs(decide(world))
        assert decide(world).blocked[UNIT].reason is Reason.UNKILLABLE_PROCESS
        assert f"pid {left.pid}" in decide(world).blocked[UNIT].detail
        assert "start" in verbs(decide(self.told(d, left, (UUIDS[3],))))

    def test_when_it_is_gone_the_start_follows(self) -> None:
        d = down()
        left = d.box.spawn((), "/gone", state="D")
        assert "start" not in verbs(decide(self.told(d, left)))
        del d.box.procs[left.pid]
        assert "start" in verbs(decide(known(d.world())))

    def test_it_is_counted_for_any_instance_that_wants_the_card(self) -> None:
        d = down()
        left = d.box.spawn((), "/gone", state="D")
        d.specs["n"] = spec("n", gpus=(0,), port=30002)
        world = self.told(d, left)
        for desired in world.desired:
            reasons = {reason for reason, _ in blockers(desired, decide(world).holders, look_of(world), world)}
            assert Reason.UNKILLABLE_PROCESS in reasons


class TestDefunct:
    """Nobody can signal a zombie: it goes when its parent reaps it or ends."""

    def zombie(self, d: Driver, parent: Proc) -> Proc:
        return d.box.spawn((), GROUP, ppid=parent.pid, state="Z")

    def plan(self, d: Driver) -> Plan:
        return decide(known(d.world()))

    def test_a_parent_that_is_itself_an_orphan_is_ended(self) -> None:
        d = down()
        parent = d.box.spawn(("sglang::launcher",), "/gone", marks=MARKS)
        self.zombie(d, parent)
        assert signalled(self.plan(d)) == [parent.pid]

    @pytest.mark.parametrize("argv", [("/usr/bin/supervisor",), ("python3", "x.py"), ("-bash",)])
    def test_any_other_parent_is_named_and_left(self, argv: tuple[str, ...]) -> None:
        d = down()
        parent = d.box.spawn(argv, "/system.slice/s.service")
        zombie = self.zombie(d, parent)
        world = known(d.world())
        assert not signalled(decide(world))
        status, reason, text = clean(world)
        assert (status, reason) == ("False", Reason.DEFUNCT_PROCESS)
        assert f"pid {zombie.pid}" in text
        assert f"pid {parent.pid}, must reap it" in text

    def test_an_orphan_that_holds_nothing_but_a_living_child_is_left(self) -> None:
        d = down()
        parent = d.box.spawn(("sglang::launcher",), "/gone", marks=MARKS)
        d.box.spawn(("python3",), "/system.slice/s.service", ppid=parent.pid)
        assert not signalled(self.plan(d))

    def test_a_likely_orphan_is_not_ended_for_its_defunct_child_on_a_shared_host(self) -> None:
        d = down()
        d.held.clear()
        parent = d.box.spawn(("sglang::launcher",), "/gone")
        self.zombie(d, parent)
        assert not signalled(self.plan(d))

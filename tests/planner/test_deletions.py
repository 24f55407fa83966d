"""Deletions with processes that left the unit's cgroup: cleared where that is allowed, and never a wait without end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.domain.host import HostSpec
from daemon.planner.plan import Plan, decide
from tests.planner.box import UUIDS, Box, Proc
from tests.planner.driving import Driver, spec
from tests.planner.test_drift import UNIT, done, seen, settled

pytestmark = pytest.mark.fleet


def left(driver: Driver, ports: tuple[int, ...] = ()) -> Proc:
    """A rank of the unit in another cgroup."""
    main = driver.box.procs[driver.box.units[UNIT].main]
    return driver.box.spawn(("sglang::scheduler_TP0",), "/stray", gpus={UUIDS[0]: 20000}, marks=main.marks, ports=ports)


def turns(driver: Driver, number: int) -> None:
    for _ in range(number):
        driver.turn()


@pytest.mark.parametrize("ports", [(), (29500,)])
def test_a_rank_that_was_left_is_cleared(ports: tuple[int, ...]) -> None:
    driver = settled()
    rank = left(driver, ports)
    driver.delete("m")
    turns(driver, 60)
    assert not driver.retired
    assert rank.pid not in driver.box.procs


class Slow(Driver):
    """Whether a process serves is answered after some looks, as over a real road."""

    waits = 6

    def turn(self, *args: object, **more: object) -> Plan:
        before = {one: (fact.serves, fact.asked_at_s) for one, fact in self.facts.items()}
        plan = super().turn(*args, **more)  # type: ignore[arg-type]
        asked = {question.process for question in plan.questions}
        self.waits -= bool(asked)
        if self.waits > 0:
            for one in asked & set(self.facts):
                serves, at_s = before.get(one, (None, 0.0))
                self.facts[one] = replace(self.facts[one], serves=serves, asked_at_s=at_s)
        return plan


def test_a_rank_of_which_it_is_asked_whether_it_serves_is_waited_for() -> None:
    driver = Slow(Box(), {"m": spec()}, counts=True)
    driver.settle()
    rank = left(driver, (29500,))
    driver.delete("m")
    turns(driver, 60)
    assert not driver.retired
    assert rank.pid not in driver.box.procs


def test_a_protected_one_keeps_no_deletion_for_ever() -> None:
    driver = settled()
    protect = [{"user": "root"}]
    driver.host = HostSpec.model_validate({"ssh": {"address": "192.0.2.1"}, "mode": "enforce", "protect": protect})
    left(driver)
    driver.delete("m")
    turns(driver, 400)
    assert not driver.retired
    assert driver.box.signalled == []


def test_one_beside_an_mps_server_keeps_no_deletion_for_ever() -> None:
    driver = settled()
    left(driver)
    driver.box.spawn(("nvidia-cuda-mps-server",), "/system.slice/mps.service", gpus={UUIDS[3]: 30})
    driver.delete("m")
    turns(driver, 400)
    assert not driver.retired


def test_one_that_survives_kill_keeps_no_deletion_for_ever() -> None:
    driver = settled()
    rank = left(driver)
    rank.state = "D"
    driver.delete("m")
    turns(driver, 400)
    assert not driver.retired


def test_a_masked_unit_that_shall_not_run_is_stopped() -> None:
    driver = settled()
    driver.specs["m"] = spec(run=False)
    look = seen(
        driver, lambda u: replace(u, load_state="masked", file=replace(u.file, text=None, sha256=None, link=True))
    )
    plan = decide(driver.world(look))
    assert done(plan) == ["stop"], plan.blocked

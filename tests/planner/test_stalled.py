"""A failure that another start would only repeat stalls the launch that failed, and no other."""

from __future__ import annotations

from daemon.domain.actions import kind_of
from daemon.domain.status import Reason
from daemon.planner.plan import Plan
from tests.planner.box import Box
from tests.planner.driving import Driver, spec

UNIT = "stoker-m.server.service"


def refuse_arguments(box: Box) -> None:
    """The engine exits 2, and systemd does not restart it."""
    unit = box.units[UNIT]
    box._end(UNIT, unit, "failed")
    unit.failed_status = 2


def driver() -> Driver:
    made = Driver(Box(), {"m": spec(args={"bad": True})})
    made.turn()
    refuse_arguments(made.box)
    return made


def kinds(plan: Plan) -> list[str]:
    return [kind_of(action) for action in plan.actions]


def test_refused_arguments_are_not_tried_again() -> None:
    one = driver()
    for _ in range(3):
        plan = one.turn()
        assert plan.actions == ()
        assert plan.blocked[UNIT].reason is Reason.INVALID_LAUNCH_ARGS
        one.die()


def test_mended_arguments_are_written_and_started() -> None:
    one = driver()
    one.specs["m"] = spec()
    assert kinds(one.turn()) == ["put-unit", "unit-start"]


def test_mended_arguments_are_started_when_the_daemon_died_after_writing_them() -> None:
    one = driver()
    one.specs["m"] = spec()
    one.turn(upto=1)
    one.die()
    assert kinds(one.turn()) == ["unit-start"]
    refuse_arguments(one.box)
    assert one.turn().blocked[UNIT].reason is Reason.INVALID_LAUNCH_ARGS

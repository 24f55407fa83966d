"""What the demo tells of a fault comes from the daemon's events and stamps, and from nothing else."""

from __future__ import annotations

from datetime import datetime

from api.cli.demo_director import Director
from api.cli.demo_story import Chapter
from tests.cli.demo_stage import BEGAN, at, event, fault, fleet, said

DOWN = said("Ready", "False", 0.3, "UnitRestarting")
UP = said("Ready", "True", 14.2, "Generated")
OLD = event(1, -30, "Generated", "Ready True, Generated")
TURN = event(2, 0.3, "UnitRestarting", "Ready False, UnitRestarting")
CRASH = event(3, 5.4, "EngineCrashed", "was restarted, not by Stoker (1 times by systemd)")
AGAIN = event(4, 14.2, "Generated", "Ready True, Generated")


def chapter(**more: object) -> Chapter:
    return Chapter(1, fault(**more), BEGAN, {1: 1})


def test_found_and_healed_are_the_stamps_of_the_daemon_not_the_times_of_reading() -> None:
    one = chapter()
    one.take(fleet(OLD, TURN, ready=DOWN), at(3))
    one.take(fleet(OLD, TURN, CRASH, ready=DOWN), at(9))
    steps = one.take(fleet(OLD, TURN, CRASH, AGAIN, ready=UP), at(20))
    assert one.outcome == "healed"
    assert one.found is not None
    assert (one.found.after_s, one.found.reason) == (5.4, "EngineCrashed")  # not by what came of it first
    assert one.healed_s == 14.2
    assert one.by_systemd
    assert one.actions == []
    assert [step.kind for step in steps] == ["told", "healed"]


def test_a_reading_from_before_the_daemons_look_heals_nothing() -> None:
    one = chapter()
    one.take(fleet(OLD), at(0.1))
    # The events were read after the objects: the objects are those of before the fault.
    one.take(fleet(OLD, TURN), at(0.4))
    assert one.outcome == "open"
    one.take(fleet(OLD, TURN, ready=DOWN), at(0.8))
    one.take(fleet(OLD, TURN, CRASH, ready=UP), at(15))
    assert one.outcome == "healed"


def test_nothing_is_healed_while_a_field_differs_or_a_stray_holds_a_card() -> None:
    for more in ({"drift": [{"field": "argv"}]}, {"clean": said("Clean", "False", 2, "OrphanWorkers")}):
        one = chapter()
        one.take(fleet(OLD, TURN, CRASH, ready=UP, **more), at(20))
        assert one.outcome == "open"


def test_an_event_that_was_told_before_counts_only_when_it_is_told_again() -> None:
    one = chapter()
    assert one.take(fleet(OLD), at(1)) == []
    (step,) = one.take(fleet(OLD | {"count": 2, "lastTimestamp": at(6).isoformat()}, ready=DOWN), at(7))
    assert step.after_s == 6


def test_a_fault_that_the_daemon_never_told_by_its_own_reason_is_not_found() -> None:
    one = chapter()
    one.take(fleet(OLD, TURN, AGAIN, ready=UP), at(20))
    assert one.found is None
    assert one.outcome == "open"


def test_other_hosts_events_are_not_the_faults() -> None:
    one = chapter()
    assert one.take(fleet(TURN | {"name": "other"}, TURN | {"id": 9, "kind": "Host", "name": "gpu-2"}), at(1)) == []
    assert one.found is None


def test_what_was_done_is_what_has_an_action() -> None:
    one = chapter()
    done = {"action": "signal-term", "result": "ok", "kind": "Host", "name": "gpu-1"}
    one.take(fleet(TURN, event(3, 1, "OrphanWorkers", "signal-term 614, 615 on gpu-1: …", **done), ready=DOWN), at(2))
    assert one.actions == ["signal-term"]


def test_a_fault_that_lasts_is_healed_only_after_its_end_and_measured_from_it() -> None:
    one = chapter(end=lambda: "it ends", hold_s=10)
    one.take(fleet(TURN, CRASH, ready=said("Ready", "True", 5)), at(6))
    assert one.outcome == "open"
    one.lift(at(10), "it ends")
    one.take(fleet(TURN, CRASH, ready=UP), at(15))
    assert one.outcome == "healed"
    assert one.healed_s is not None
    assert round(one.healed_s, 3) == 4.2


def test_a_fault_that_is_not_healed_in_its_time_is_said_to_be_so() -> None:
    one = chapter(limit_s=30)
    one.take(fleet(TURN, ready=DOWN), at(29))
    assert one.outcome == "open"
    (step,) = one.take(fleet(TURN, ready=DOWN), at(31))
    assert (one.outcome, step.kind, one.healed_s) == ("late", "late", None)


class Clock:
    def __init__(self) -> None:
        self.seconds = -100.0

    def __call__(self) -> datetime:
        return at(self.seconds)


def test_faults_come_one_at_a_time_after_the_fleet_was_quiet_for_the_gap() -> None:
    clock, begun = Clock(), list[float]()

    def begin() -> str:
        begun.append(clock.seconds)
        return "done"

    from dataclasses import replace

    director = Director([replace(fault(), begin=begin), replace(fault(), begin=begin)], clock, gap_s=5)
    for seconds, reading in (
        (-20.0, fleet(ready=DOWN)),
        (-10.0, fleet()),
        (-6.0, fleet(ready=DOWN)),
        (-5.0, fleet()),
        (-0.5, fleet()),
        (0.0, fleet()),
        (1.0, fleet(TURN, ready=DOWN)),
        (15.0, fleet(TURN, CRASH, AGAIN, ready=UP)),
        (16.0, fleet(TURN, CRASH, AGAIN, ready=UP)),
        (20.0, fleet(TURN, CRASH, AGAIN, ready=UP)),
    ):
        clock.seconds = seconds
        director.tick(reading)
    assert begun == [0.0]
    clock.seconds = 21.0
    director.tick(fleet(TURN, CRASH, AGAIN, ready=UP))
    assert begun == [0.0, 21.0]
    assert not director.over
    assert director.served_at == at(-10)

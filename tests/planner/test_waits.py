"""A start that is held up is said again after 2 min, 15 min, an hour, then once a day: never a flood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.planner.waits import TOLD_AT_S, Wait, step, taken_up

pytestmark = pytest.mark.strays


def told_at(gaps_s: list[float]) -> list[float]:
    """At which ages it was said again, when passes come after these gaps."""
    waits: dict[str, Wait] = {}
    now_s, found = 100.0, []
    for gap_s in gaps_s:
        now_s += gap_s
        waits, due = step(waits, {"u": "noon"}, now_s)
        found += [now_s - waits["u"].since_s] * len(due)
    return found


def test_it_is_said_again_at_each_age_and_then_daily() -> None:
    found = told_at([1.0] * 200_000)
    assert found == [120.0, 900.0, 3600.0, 90_000.0, 176_400.0]


@given(st.lists(st.floats(0.1, 5_000), max_size=200))
def test_however_passes_come_it_is_said_at_most_once_for_each_age(gaps_s: list[float]) -> None:
    found = told_at(gaps_s)
    age_s = sum(gaps_s[1:])
    assert len(found) <= sum(age_s >= at for at in TOLD_AT_S) + max(0, (age_s - TOLD_AT_S[-1]) // 86_400)
    assert found == sorted(found)


def test_a_wait_ends_with_what_held_it_up_and_another_one_begins_anew() -> None:
    waits, _ = step({}, {"u": "noon"}, 0.0)
    waits, _ = step(waits, {}, 200.0)
    assert waits == {}
    waits, due = step(waits, {"u": "later"}, 300.0)
    assert (waits["u"].since, due) == ("later", frozenset())


@given(st.floats(0, 1e6))
def test_a_new_daemon_goes_on_where_the_last_one_was(waited_s: float) -> None:
    wait = taken_up("noon", waited_s, 5_000.0)
    assert wait.since_s == 5_000.0 - waited_s
    assert wait.due_s() > waited_s
    assert wait.told == 0 or Wait("noon", 0.0, wait.told - 1).due_s() <= waited_s

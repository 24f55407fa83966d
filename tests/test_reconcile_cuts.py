"""Whole passes: a bad link is nobody's drift, a report stays a report, and a wrong clock of once counts for nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from daemon.domain.errors import TransportError
from daemon.domain.status import Reason
from tests.planner.box import UUIDS
from tests.test_reconcile import NOON, UNIT, Stage, stage

__all__ = ["stage"]  # the fixture


def cut(stage: Stage, verb: str, times: int) -> None:
    """The next commands of that verb are lost on the way, and nobody knows whether they arrived."""
    left = [times]

    def before(asked: str) -> None:
        if asked == verb and left[0] > 0:
            left[0] -= 1
            raise TransportError(Reason.TRANSPORT_LOST, "cut", maybe_done=True)

    stage.road.before = before


@pytest.mark.parametrize("times", [3, 5])
async def test_a_first_placement_whose_commands_are_cut_comes_to_serve(stage: Stage, times: int) -> None:
    cut(stage, "put-unit", times)
    for _ in range(200):
        done = await stage.turn()
    assert await stage.ready() == "True", done.plan.blocked


@pytest.mark.parametrize("times", [3, 5])
async def test_a_changed_spec_whose_commands_are_cut_is_written(stage: Stage, times: int) -> None:
    await stage.settle()
    await stage.put(contextLength=4096)
    cut(stage, "put-unit", times)
    for _ in range(200):
        done = await stage.turn()
    assert "4096" in (stage.box.units[UNIT].file or ""), done.plan.blocked


@pytest.mark.parametrize("times", [3, 4])
async def test_a_unit_whose_enabling_was_cut_is_enabled(stage: Stage, times: int) -> None:
    await stage.settle()
    stage.box.units[UNIT].enabled = False
    cut(stage, "unit-enable", times)
    for _ in range(200):
        done = await stage.turn()
    assert stage.box.units[UNIT].enabled, done.plan.blocked


async def test_what_a_spec_only_reports_is_not_cleared_by_its_deletion(stage: Stage) -> None:
    await stage.put(strays={"kill": "report"})
    await stage.settle()
    main = stage.box.procs[stage.box.units[UNIT].main]
    stage.box.spawn(("sglang::scheduler_TP0",), "/stray", gpus={UUIDS[0]: 20000}, marks=main.marks)
    for _ in range(5):
        await stage.turn()
    await stage.store.delete("ServingSpec", "m", actor="t", now=NOON)
    for _ in range(80):
        await stage.turn()
    assert stage.box.signalled == []
    assert await stage.store.find("ServingSpec", "m") is None


async def test_corrections_dated_far_ahead_by_a_wrong_clock_count_for_nothing(stage: Stage) -> None:
    await stage.settle()
    far = NOON + timedelta(days=3000)
    for _ in range(3):
        await stage.store.note_correction(UNIT, "drift:1 loaded enabled", "x", far, host="a")
    stage.box.units[UNIT].enabled = False
    done = await stage.turn()
    assert stage.box.units[UNIT].enabled, done.plan.blocked

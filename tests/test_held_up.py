"""Whole passes over a start that is held up: what is said, when again, what a new daemon still knows, how it ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from daemon.domain.status import Reason
from daemon.memory import HostMemory
from daemon.observe import Wanted, with_leftovers
from daemon.planner.cards import NORMAL_MIB
from tests.planner.box import UUIDS
from tests.test_reconcile import NOON, UNIT, Stage, size, stage

__all__ = ["stage"]

pytestmark = pytest.mark.strays
TRAINER = ("python3", "train.py")
THEIRS = "/system.slice/train.service"


async def condition(stage: Stage, type_: str) -> tuple[str, str, str]:
    said = await stage.store.status("ServingSpec", (await stage.store.get("ServingSpec", "m")).uid)
    found = said.condition(type_) if said is not None else None
    assert found is not None
    return found.status, found.reason, found.message


async def told_again(stage: Stage) -> list[str]:
    events = await stage.store.events(limit=1000)
    return [event.message for event in events if "is still not started" in event.message]


async def pass_time(stage: Stage, seconds: int, step_s: int = 5) -> None:
    for _ in range(seconds // step_s):
        await stage.turn(step=step_s * 100)


async def test_a_start_that_is_held_up_is_dated_and_said_again_three_times_in_an_hour(stage: Stage) -> None:
    stage.box.spawn(TRAINER, THEIRS, gpus={UUIDS[0]: 30_000})
    await pass_time(stage, 20)
    status, reason, text = await condition(stage, "Ready")
    assert (status, reason) == ("False", "ForeignHolder")
    assert "train.py" in text
    assert "stop it, or give the spec other GPUs" in text
    since = (NOON + timedelta(seconds=100)).isoformat().replace("+00:00", "Z")
    assert f"(since {since})" in text
    for seconds, often in ((80, 0), (40, 1), (700, 1), (100, 2), (2_600, 2), (200, 3), (7_200, 3)):
        await pass_time(stage, seconds, 20)
        assert len(await told_again(stage)) == often, seconds
    assert (await condition(stage, "Ready"))[2] == text


async def test_a_start_that_is_held_up_writes_nothing_while_nothing_changes(stage: Stage) -> None:
    stage.box.spawn(TRAINER, THEIRS, gpus={UUIDS[0]: 30_000})
    stage.box.loose = {UUIDS[1]: 20_000}
    await pass_time(stage, 300)
    before = await size(stage.store)
    for figure in range(20):
        stage.road.used_mib = figure
        await stage.turn(step=500)
    assert await size(stage.store) == before


async def test_a_new_daemon_goes_on_with_the_same_date_and_says_nothing_twice(stage: Stage) -> None:
    stage.box.spawn(TRAINER, THEIRS, gpus={UUIDS[0]: 30_000})
    await pass_time(stage, 200)
    before = await condition(stage, "Ready")
    assert len(await told_again(stage)) == 1
    stage.memory = HostMemory()
    await pass_time(stage, 200)
    assert await condition(stage, "Ready") == before
    assert len(await told_again(stage)) == 1


async def test_a_hold_up_ends_with_its_cause_and_another_one_has_its_own_date(stage: Stage) -> None:
    trainer = stage.box.spawn(TRAINER, THEIRS, gpus={UUIDS[0]: 30_000})
    await pass_time(stage, 100)
    del stage.box.procs[trainer.pid]
    await stage.settle()
    assert await stage.ready() == "True"
    assert stage.memory.waits == {}
    stage.box.spawn(TRAINER, THEIRS, gpus={UUIDS[0]: 30_000})
    stage.box._end(UNIT, stage.box.units[UNIT], "inactive")
    begun = stage.wall()
    await pass_time(stage, 20)
    assert stage.memory.waits[UNIT].since == begun.replace(microsecond=0).isoformat().replace("+00:00", "Z")


async def test_memory_that_never_comes_back_costs_two_minutes_and_is_told(stage: Stage) -> None:
    """A wrong baseline must not keep production dark."""
    stage.box.loose = {UUIDS[0]: 9_000}
    await pass_time(stage, 110)
    assert (await condition(stage, "Ready"))[1] == "WaitingForMemory"
    await pass_time(stage, 60)
    assert await stage.ready() == "True"
    status, reason, text = await condition(stage, "Degraded")
    assert (status, reason) == ("True", "StartedOnUncleanMemory")
    assert "GPU 0 shows 9000 MiB that nobody seen holds" in text
    events = await stage.store.events(limit=1000)
    started = [e for e in events if e.reason == str(Reason.STARTED_ON_UNCLEAN_MEMORY)]
    assert [(e.action, e.result) for e in started] == [("unit-start", "ok")]
    stage.box.loose = {}
    stage.box._end(UNIT, stage.box.units[UNIT], "inactive")
    await stage.settle()
    assert await stage.ready() == "True"
    assert (await condition(stage, "Degraded"))[0] == "False"


async def test_memory_that_leaves_too_little_for_the_spec_holds_the_start_up_until_it_is_free(stage: Stage) -> None:
    stage.box.loose = {UUIDS[0]: 60_000}
    await pass_time(stage, 400)
    status, reason, text = await condition(stage, "Ready")
    assert (status, reason) == ("False", "UnattributedGPUMemory")
    assert "90% of it has to be free" in text
    assert "unit-start" not in stage.road.changes()
    stage.box.loose = {UUIDS[0]: 40_000}  # it falls after all
    await stage.turn()
    await stage.turn()
    assert (await condition(stage, "Ready"))[1] == "WaitingForMemory"
    stage.box.loose = {}
    await stage.settle()
    assert await stage.ready() == "True"
    assert (await condition(stage, "Degraded"))[0] == "False"


async def test_a_baseline_outlives_the_daemon_and_no_boot(stage: Stage) -> None:
    stage.box.loose = dict.fromkeys(UUIDS, 700)
    await pass_time(stage, 200)
    assert stage.memory.cards[UUIDS[3]].idle_mib == 700
    assert stage.memory.cards[UUIDS[3]].limit_mib > NORMAL_MIB
    stage.memory = HostMemory()
    await stage.turn()
    assert stage.memory.cards[UUIDS[3]].idle_mib == 700
    said = await stage.store.status("Host", (await stage.store.get("Host", "a")).uid)
    assert said is not None
    await stage.store.put_status("Host", said.uid, {**said.status, "identity": {"bootId": "another"}}, (), stage.wall())
    stage.memory = HostMemory()
    await stage.turn()
    assert stage.memory.cards[UUIDS[3]].idle_mib is None


@pytest.mark.parametrize(
    ("helper", "run", "down", "asks"),
    [(3, True, True, True), (2, True, True, False), (3, False, True, False), (3, True, False, False)],
)
async def test_leftovers_are_asked_for_only_of_a_helper_that_knows_them_for_a_unit_that_is_to_run_and_is_down(
    stage: Stage, helper: int, run: bool, down: bool, asks: bool
) -> None:
    await stage.settle()
    if down:
        stage.box._end(UNIT, stage.box.units[UNIT], "inactive")
    before = replace(stage.box.look(0, (UNIT,)), helper=helper)
    assert with_leftovers(Wanted((UNIT,)), before, [UNIT] if run else []).leftovers == asks

"""Whole passes over a simulated host whose card becomes unusable: nothing is stopped, nothing is started on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.domain.status import Reason
from tests.sim.driven import UNIT, Driven, driven

pytestmark = pytest.mark.strays
LOADED = "[    9.100001] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Driven]:
    async with driven(tmp_path) as made:
        made.host.machine.cards.log = [LOADED]
        await made.put()
        await made.until_ready()
        yield made


def xid(stage: Driven, code: int = 119) -> None:
    """The driver writes an error of card 0."""
    cards, seconds = stage.host.machine.cards, stage.host.machine.ticks() / 100
    assert cards.log is not None
    cards.log.append(f"[{seconds:.6f}] NVRM: Xid (PCI:{cards.all[0].bus[4:-2]}): {code}, pid=1, name=x, told")
    cards.all[0].advice = "Reset"


def well(stage: Driven) -> None:
    """A person reset it."""
    stage.host.machine.cards.all[0].advice = "None"


def engines(stage: Driven) -> bool:
    return stage.host.unit(UNIT).main is not None


async def host_says(stage: Driven, type_: str) -> tuple[str, str]:
    found = await stage.store.find("Host", "a")
    said = None if found is None else await stage.store.status("Host", found.uid)
    condition = None if said is None else said.condition(type_)
    assert condition is not None
    return condition.status, str(condition.reason)


async def test_what_serves_on_a_card_that_became_unusable_goes_on_and_it_is_told(stage: Driven) -> None:
    before, changes = stage.host.unit(UNIT).invocation, len(stage.changes())
    xid(stage)
    await stage.settle(60)
    assert (stage.host.unit(UNIT).invocation, len(stage.changes())) == (before, changes)
    assert await stage.ready() == "True"
    assert await host_says(stage, "GPUsReady") == ("False", "GPUNeedsReset")
    assert await host_says(stage, "Degraded") == ("True", "GPUNeedsReset")


async def test_a_crash_on_an_unusable_card_is_followed_by_no_start_until_it_is_well(stage: Driven) -> None:
    xid(stage)
    await stage.settle(3)
    stage.host.crash(UNIT)
    for _ in range(150):
        await stage.turn()
        assert not engines(stage)
    assert stage.host.unit(UNIT).active == "activating"
    status, reason, message = await stage.condition()
    assert (status, reason) == ("False", str(Reason.WAITING_IN_GATE))
    assert "Xid 119" in message
    well(stage)
    await stage.until_ready(120)
    assert await host_says(stage, "GPUsReady") == ("True", "OK")


async def test_a_unit_that_is_down_is_started_by_itself_when_its_card_is_well_again(stage: Driven) -> None:
    xid(stage, 79)
    await stage.settle(3)
    stage.host.hand_stop(UNIT)
    await stage.settle(90)
    assert not engines(stage)
    assert (await stage.condition())[1] in (str(Reason.GPU_LOST), str(Reason.GPU_NEEDS_RESET))
    assert "unit-start" not in stage.changes()[3:]
    well(stage)
    await stage.until_ready(120)


async def test_a_steady_host_with_an_unusable_card_writes_nothing(stage: Driven) -> None:
    xid(stage)
    await stage.settle(60)
    found = await stage.store.find("Host", "a")
    assert found is not None
    before = await stage.store.status("Host", found.uid)
    await stage.settle(60)
    assert await stage.store.status("Host", found.uid) == before

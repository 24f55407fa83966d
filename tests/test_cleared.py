"""What was in the way is gone: a unit that gave up over it is started once more, also by the next daemon."""

from __future__ import annotations

import pytest

from tests.planner.box import UUIDS, Box
from tests.test_reconcile import NOON, UNIT
from tests.test_signalled import Host, host

__all__ = ["host"]

pytestmark = pytest.mark.strays


def gave_up(box: Box) -> None:
    """systemd does not start it again: to the daemon its last launch failed."""
    box._end(UNIT, box.units[UNIT], "failed")
    box.units[UNIT].failed_status = 2


async def test_a_unit_whose_strays_were_cleared_is_started_by_the_daemon_that_comes_next(host: Host) -> None:
    await host.turns(12)
    gave_up(host.box)
    left = host.orphan()
    while left.pid in host.box.procs:
        await host.turns(1)
    assert host.stage.road.changes().count("unit-start") == 1
    await host.new_daemon()
    await host.turns(12)
    assert host.stage.road.changes().count("unit-start") == 2
    assert await host.stage.ready() == "True"


async def test_once_started_it_has_to_give_a_reason_of_its_own(host: Host) -> None:
    await test_a_unit_whose_strays_were_cleared_is_started_by_the_daemon_that_comes_next(host)
    gave_up(host.box)
    for _ in range(2):
        await host.turns(12)
        assert host.stage.road.changes().count("unit-start") == 2
        await host.new_daemon()


async def test_without_strays_it_stays_down(host: Host) -> None:
    await host.turns(12)
    gave_up(host.box)
    await host.turns(12)
    await host.new_daemon()
    await host.turns(12)
    assert host.stage.road.changes().count("unit-start") == 1


async def test_a_unit_that_gave_up_on_a_bad_card_is_started_by_the_daemon_that_comes_next(host: Host) -> None:
    """The card is well again while nothing may be changed."""
    await host.turns(12)
    gave_up(host.box)
    await host.stage.store.set_paused(True, "ada", NOON)
    host.stage.memory.unwell = {UUIDS[0]}
    await host.turns(2)
    await host.new_daemon()
    await host.turns(2)
    assert host.stage.road.changes().count("unit-start") == 1
    await host.stage.store.set_paused(False, "ada", NOON)
    await host.turns(12)
    assert host.stage.road.changes().count("unit-start") == 2

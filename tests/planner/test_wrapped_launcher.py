"""A launcher that sets a watched variable by itself serves as declared: no look at a bad moment makes it restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daemon.domain.observation import Unknown
from daemon.domain.status import Reason
from tests.planner.box import UUIDS, Box, BoxUnit
from tests.planner.driving import Driver, spec
from tests.planner.test_drift import UNIT, done, seen

pytestmark = pytest.mark.fleet


class Wrapped(Box):
    """The launcher exports LD_LIBRARY_PATH and execs: it is in /proc/PID/environ of every start."""

    def _exec(self, name: str, unit: BoxUnit) -> None:
        super()._exec(name, unit)
        main = self.procs[unit.main]
        main.env = (*main.env, ("LD_LIBRARY_PATH", "/opt/venv/lib"))


@pytest.fixture
def wrapped() -> Driver:
    return Driver(Wrapped(), {"m": spec()}, counts=True)


def started(driver: Driver) -> Driver:
    """Until its first start was asked for."""
    for _ in range(10):
        if "start" in done(driver.turn()):
            return driver
    raise AssertionError("no start")


def forget(driver: Driver) -> None:
    """As after an upgrade from a version that remembered nothing of the host's variables."""
    driver.records["m"] = replace(driver.records["m"], inherited=None)
    driver.die()


def test_it_is_started_once(wrapped: Driver) -> None:
    wrapped.settle()
    assert wrapped.box.restarts == 0


def test_a_daemon_that_dies_between_the_start_and_the_first_look_restarts_nothing(wrapped: Driver) -> None:
    started(wrapped).die()
    wrapped.settle()
    assert wrapped.box.restarts == 0


def test_an_upgrade_while_the_unit_waits_in_the_gate_restarts_nothing(wrapped: Driver) -> None:
    wrapped.settle()
    forget(wrapped)
    blocker = wrapped.box.spawn(("python3", "train.py"), "/system.slice/train.service", gpus={UUIDS[0]: 9000})
    wrapped.box.crash(UNIT)
    for _ in range(3):
        wrapped.turn()
    del wrapped.box.procs[blocker.pid]
    wrapped.settle()
    assert wrapped.box.restarts == 0


def test_a_first_look_without_a_process_table_restarts_nothing(wrapped: Driver) -> None:
    wrapped.settle()
    forget(wrapped)
    wrapped.turn(look=seen(wrapped, lambda u: replace(u, main=None), processes=Unknown(Reason.TOOL_TIMED_OUT)))
    wrapped.settle()
    assert wrapped.box.restarts == 0


def test_an_engine_that_crashes_before_it_was_seen_running_is_not_restarted_again(wrapped: Driver) -> None:
    started(wrapped).box.ticks += 1
    wrapped.box.crash(UNIT)
    wrapped.box.step()
    wrapped.settle()
    assert wrapped.box.restarts == 0

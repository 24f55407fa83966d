"""Orphans inside a system container that the daemon enters: its own pids count, whatever the driver says."""

from __future__ import annotations

import pytest
from harness import TestHost, leftovers
from harness.nested import Nested

from tests.hosts.running import Daemon
from tests.hosts.strays import STRAY, Ground

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
OURS = "carries our mark and its unit is not live"


def test_an_orphan_in_a_container_whose_driver_shows_the_machines_pids(
    daemon: Daemon, pve: TestHost, inside: Nested
) -> None:
    ground = Ground(daemon, inside, reached=pve, via={"proxmoxContainer": inside.number})
    inside.gpu_mode("offset 3000000")
    lane = ground.lane(env=STRAY)
    before = lane.up()
    other = leftovers.in_no_unit(inside, title="sglang::scheduler")
    rank = lane.kill_launcher()
    assert inside.outer_pid(rank.pid) != rank.pid
    lane.attributed(rank, "orphan-proven", OURS)
    lane.cleared(rank, "orphan-proven", OURS, ["term", "kill"])
    assert lane.serves_on_a_clean_card(rank)["invocation"] != before["invocation"]
    assert f"waits for pid {rank.pid} " in inside.journal(lane.unit)
    lane.left_alone(other)
    assert lane.stray(other) is None

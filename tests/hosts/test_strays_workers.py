"""Orphans of engines on a real host: each is attributed with its proof, ended as far as needed, and told; then serves.

Where a person started it (likely an orphan), it is cleared since an instance of ours has held that card or port.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import leftovers

from tests.hosts.strays import STRAY, Lane, unreadable

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
MakeLane = Callable[..., Lane]
HELD_LANES = 6
OURS = "carries our mark and its unit is not live"
NOBODYS = "an engine's process that nobody attends"


def test_the_core_of_a_server_whose_launcher_was_killed(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    core = leftovers.core_of_a_killed_server(lane.host, gpu=lane.gpu, port=31001)
    assert lane.attributed(core, "orphan-likely", NOBODYS)["verdict"] == "ReportOnly"
    lane.left_alone(core, during=2)  # nothing that is to run needs the card
    lane.run()
    lane.cleared(core, "orphan-likely", NOBODYS, ["term"])
    lane.serves_on_a_clean_card(core)


def test_workers_that_a_living_shell_took_over(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    core, shell = leftovers.core_under_a_shell(lane.host, gpu=lane.gpu, port=31002)
    assert lane.host.sh(f"ps -o ppid= -p {core.pid}").stdout.strip() == str(shell.pid)
    lane.attributed(core, "orphan-likely", NOBODYS)
    lane.run()
    lane.cleared(core, "orphan-likely", NOBODYS, ["term"])
    lane.serves_on_a_clean_card(core)
    lane.left_alone(shell)


def test_a_worker_in_another_cgroup_that_ignores_term(make_lane: MakeLane) -> None:
    lane = make_lane(env=STRAY)
    before = lane.up()
    rank = lane.kill_launcher()
    assert "\n0::/stray-" in lane.host.sh(f"cat /proc/{rank.pid}/cgroup").stdout
    lane.attributed(rank, "orphan-proven", OURS)
    lane.cleared(rank, "orphan-proven", OURS, ["term", "kill"])
    assert lane.serves_on_a_clean_card(rank)["invocation"] != before["invocation"]
    assert f"waits for pid {rank.pid} " in lane.host.journal(lane.unit)


def test_a_worker_in_a_pid_namespace_of_its_own(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    worker = leftovers.in_a_pid_namespace(lane.host, gpu=lane.gpu, env=lane.marks())
    lane.attributed(worker, "orphan-proven", OURS)
    lane.run()
    lane.cleared(worker, "orphan-proven", OURS, ["term", "kill"])  # number 1 of a namespace gets no TERM
    lane.serves_on_a_clean_card(worker)


def test_a_worker_with_another_title_is_known_by_our_mark(make_lane: MakeLane) -> None:
    lane = make_lane(env={**STRAY, "STANDIN_TITLE": "python3 train.py --epochs 9"})
    lane.up()
    rank = lane.kill_launcher()
    said = lane.attributed(rank, "orphan-proven", OURS)
    assert f"pid {rank.pid} (python3 train.py --epochs 9) of root holds GPU {lane.gpu}" in said["what"]
    lane.cleared(rank, "orphan-proven", OURS, ["term", "kill"])
    lane.serves_on_a_clean_card(rank)


def test_a_worker_whose_environment_cannot_be_read_is_nobodys_to_kill(make_lane: MakeLane) -> None:
    lane = make_lane(env=STRAY)
    lane.up()
    rank = lane.kill_launcher()
    with unreadable(rank, "environ"):
        lane.attributed(rank, "unknown", "its environment could not be read")
        lane.blocked("WaitingInGate", f"pid {rank.pid} (", "its environment could not be read")
        lane.left_alone(rank)
        lane.told("WaitingInGate", f"pid {rank.pid} (")
    lane.cleared(rank, "orphan-proven", OURS, ["term", "kill"])
    lane.serves_on_a_clean_card(rank)


def test_a_stopped_worker_is_let_go_on_so_that_it_can_end(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    core = leftovers.core_of_a_killed_server(lane.host, gpu=lane.gpu, port=31003)
    lane.host.sh(f"kill -STOP {core.pid}")
    lane.host.wait_until(f"grep -q '^State:.T' /proc/{core.pid}/status")
    lane.attributed(core, "orphan-likely", NOBODYS)
    lane.run()
    lane.cleared(core, "orphan-likely", NOBODYS, ["term", "cont"])
    lane.serves_on_a_clean_card(core)


def test_strays_of_a_closed_session_that_hold_only_a_port(make_lane: MakeLane) -> None:
    """The dark production: two units, and two launchers of an experiment that hold their ports and no card."""
    lanes = [make_lane(held=True), make_lane(held=True)]
    strays = [leftovers.over_ssh(lane.host, port=lane.port) for lane in lanes]
    for lane, stray in zip(lanes, strays, strict=True):
        assert "session-" in lane.host.sh(f"cat /proc/{stray.pid}/cgroup").stdout
        said = lane.attributed(stray, "orphan-likely", NOBODYS)
        assert f"holds port {lane.port}: " in said["what"]
        assert lane.holders() == []
    for lane in lanes:
        lane.run()
    for lane, stray in zip(lanes, strays, strict=True):
        lane.cleared(stray, "orphan-likely", NOBODYS, ["term"])
        lane.serves_on_a_clean_card(stray)


def test_the_same_on_the_day_stoker_arrives_is_reported_until_the_host_is_declared_exclusive(
    make_lane: MakeLane,
) -> None:
    lane = make_lane()
    stray = leftovers.over_ssh(lane.host, port=lane.port)
    lane.run()
    said = lane.attributed(stray, "orphan-likely", NOBODYS)
    assert said["verdict"] == "ReportOnly"
    lane.blocked("OrphanWorkers", f"pid {stray.pid} (", "this host is not exclusive")
    lane.left_alone(stray)
    lane.told("OrphanWorkers", f"pid {stray.pid} (", "this host is not exclusive")
    lane.daemon.put_host("a", lane.host, period="1s", exclusive=True)
    try:
        lane.cleared(stray, "orphan-likely", NOBODYS, ["term"])
        lane.serves_on_a_clean_card(stray)
    finally:
        lane.daemon.put_host("a", lane.host, period="1s")

"""What is somebody else's on a real host: named with its proof, in the way of a start, told, and never touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import bystanders, leftovers
from harness.bystanders import Bystander
from harness.engines import generate

from tests.hosts.strays import HOST, STRAY, Lane

pytestmark = [pytest.mark.hosts, pytest.mark.strays]
MakeLane = Callable[..., Lane]
HELD_LANES = 7
SERVES = "a port of its tree serves"
ADDRESSES = ["0.0.0.0", "::", "127.0.0.1"]


def in_the_way(lane: Lane, other: Bystander, reason: str, proof: str) -> None:
    """It is foreign by that proof, keeps the spec from starting for that reason, is told, and lives on untouched."""
    lane.attributed(other, "foreign", proof)
    lane.run()
    lane.blocked(reason, f"pid {other.pid} (", proof)
    lane.left_alone(other)
    assert lane.told(reason, f"pid {other.pid} (", proof)["severity"] == "Warning"
    assert lane.show("ActiveState") == "inactive"


def gone(lane: Lane, other: Bystander) -> None:
    """Its owner ends it, and the spec serves."""
    lane.host.sh(f"kill -KILL {other.pid}")
    lane.host.wait_until(f"! test -e /proc/{other.pid}")
    lane.serves_on_a_clean_card(other)
    assert lane.signals(other) == []


# ---- ports ----


def squat(lane: Lane, address: str, user: str = "alice") -> Bystander:
    return leftovers.over_ssh(lane.host, port=lane.port, address=address, title=None, user=user, more=("--reuseport",))


def test_squatters_that_share_the_port_keep_the_units_down(make_lane: MakeLane) -> None:
    """One unit for each address that a port can be held on."""
    lanes = [make_lane() for _ in ADDRESSES]
    others = [squat(lane, address) for lane, address in zip(lanes, ADDRESSES, strict=True)]
    for lane in lanes:
        lane.run(run=False)
    for lane, other in zip(lanes, others, strict=True):
        in_the_way(lane, other, "PortInUse", "not started by Stoker")
        assert f"of alice holds port {lane.port}: " in lane.blocked("PortInUse")
    for lane, other in zip(lanes, others, strict=True):
        gone(lane, other)


def test_squatters_beside_serving_engines_end_readiness_and_nothing_else(make_lane: MakeLane) -> None:
    """vLLM listens with SO_REUSEPORT, so that whoever is of its user may join; on 127.0.0.1 he gets every probe."""
    lanes = [make_lane(engine={"name": "vllm", "python": "/opt/venv/bin/python"}) for _ in ADDRESSES]
    for lane in lanes:
        lane.run()
    before = [lane.daemon.ready(lane.name, 60) for lane in lanes]
    others = [squat(lane, address, user="root") for lane, address in zip(lanes, ADDRESSES, strict=True)]
    for lane, other in zip(lanes, others, strict=True):
        lane.attributed(other, "foreign", "not started by Stoker")
        said = lane.daemon.reason(lane.name, "StaleProcessServing", 60)
        assert str(other.pid) in said["message"]
        lane.told("StaleProcessServing", str(other.pid))
    lanes[0].left_alone(*others)
    for lane, other, instance in zip(lanes, others, before, strict=True):
        lane.host.sh(f"kill -KILL {other.pid}")
        after = lane.daemon.ready(lane.name, 60)
        assert (after["invocation"], after["main_pid"]) == (instance["invocation"], instance["main_pid"])


def test_a_server_started_by_hand_that_still_generates(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    other = bystanders.by_hand(lane.host, port=lane.port, gpus=(lane.gpu,))
    rank = bystanders.process(lane.host, *lane.holders())
    in_the_way(lane, other, "PortInUse", SERVES)
    lane.attributed(rank, "foreign", SERVES)
    lane.left_alone(rank)
    assert generate(lane.host, lane.port, model="/models/theirs").status == 200
    lane.host.sh(f"kill -TERM {other.pid}")
    lane.serves_on_a_clean_card(rank)
    assert lane.signals(other) == lane.signals(rank) == []


def test_a_server_under_a_persons_open_session(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    other = bystanders.by_hand(lane.host, port=31100, gpus=(lane.gpu,), stay=True)
    rank = bystanders.process(lane.host, *lane.holders())
    in_the_way(lane, rank, "ForeignHolder", "with a living leader")
    lane.left_alone(other)
    other.hang_up()
    lane.host.sh(f"kill -TERM {other.pid}")
    lane.serves_on_a_clean_card(rank)
    assert lane.signals(other) == lane.signals(rank) == []


# ---- cards ----


def test_a_foreign_trainer_on_the_orphans_card_and_a_python_beside_it(make_lane: MakeLane) -> None:
    lane = make_lane(env={**STRAY, "STANDIN_STRAY_PORT": "1"})
    lane.up()
    beside = [bystanders.unrelated(lane.host), leftovers.over_ssh(lane.host, title=None)]
    trainer = bystanders.unrelated(lane.host, gpu=lane.gpu)
    rank = next(bystanders.process(lane.host, pid) for pid in lane.holders() if pid != trainer.pid)
    lane.host.sh(f"kill -KILL {lane.show('MainPID')}")
    ours = "carries our mark and its unit is not live"
    lane.attributed(rank, "orphan-proven", ours)
    lane.attributed(trainer, "foreign", "in the cgroup of live unit bystander-")
    lane.cleared(rank, "orphan-proven", ours, ["term", "kill"])
    lane.blocked("WaitingInGate", f"pid {trainer.pid} (", "in the cgroup of live unit bystander-")
    lane.left_alone(trainer, *beside)
    assert [holder for holder in lane.holders()] == [trainer.pid]
    assert all(lane.stray(other) is None for other in beside)
    assert lane.daemon.condition("host", HOST, "Clean")["reason"] == "ForeignHolder"
    gone(lane, trainer)
    lane.left_alone(*beside)


def test_an_unmarked_process_with_a_title_of_its_own_is_not_an_engines(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    other = leftovers.over_ssh(lane.host, gpu=lane.gpu, title="python3 train.py --model sglang")
    in_the_way(lane, other, "ForeignHolder", "not started by Stoker")
    gone(lane, other)


def test_an_engine_in_a_live_docker_scope_and_in_its_pid_namespace(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    other = leftovers.engine_in_docker(lane.host, gpu=lane.gpu)
    in_the_way(lane, other, "ForeignHolder", f"in container group /system.slice/docker-{lane.gpu:064x}.scope")
    gone(lane, other)


def test_another_users_engine_left_behind(make_lane: MakeLane) -> None:
    lane = make_lane(held=True)
    other = bystanders.other_user(lane.host, gpu=lane.gpu)
    in_the_way(lane, other, "ForeignHolder", "not as the unit's user")
    gone(lane, other)


# ---- pids of another namespace ----


@pytest.mark.parametrize("number", ["of an innocent process here", "of nobody here"])
def test_a_pid_that_the_driver_takes_from_another_namespace_is_nobody_here(make_lane: MakeLane, number: str) -> None:
    """The innocent looks like an engine's core, but has no card open."""
    lane = make_lane(held=True)
    innocent = leftovers.over_ssh(lane.host, title="VLLM::EngineCore")
    pid = innocent.pid if "innocent" in number else 3_999_999
    lane.host.gpu_mode(f"row {lane.gpu} {pid} 20480")
    # The host is a container: one row of nobody makes those of others nobody's as well.
    lane.daemon.wait(lambda: ghosts(lane) >= 1, "the row is seen", 60)
    lane.run()
    lane.blocked("GhostGPUProcess", f"the driver names pid {pid} on ", "nobody here")
    lane.left_alone(innocent)
    assert lane.stray(innocent) is None
    lane.told("GhostGPUProcess", f"pid {pid} ")
    lane.host.gpu_mode()
    lane.daemon.ready(lane.name, 60)
    lane.left_alone(innocent)


def ghosts(lane: Lane) -> float:
    return lane.daemon.metric("stoker_strays", host=HOST, kind="ghost")

"""Whole passes of the daemon over a simulated host: what it declares serves, and what befalls it is healed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sim.driven import UNIT, Driven, driven, look_at, unknowns

pytestmark = pytest.mark.fleet
VLLM = {"engine": {"name": "vllm", "python": "/opt/venv/bin/python"}}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Driven]:
    async with driven(tmp_path) as made:
        await made.put()
        yield made


async def test_a_declared_spec_is_written_started_and_ready(stage: Driven) -> None:
    await stage.until_ready()
    assert [verb for verb in stage.changes() if verb != "signal"] == ["put-unit", "unit-enable", "unit-start"]
    seen = await look_at(stage.host, UNIT)
    assert unknowns(seen) == []
    before = len(stage.changes())
    await stage.settle(40)
    assert len(stage.changes()) == before
    assert await stage.ready() == "True"


async def test_a_declared_vllm_is_ready(tmp_path: Path) -> None:
    async with driven(tmp_path) as stage:
        await stage.put(**VLLM)
        await stage.until_ready()


async def test_a_crash_is_restarted_by_systemd_and_found_ready_again(stage: Driven) -> None:
    await stage.until_ready()
    before = stage.host.unit(UNIT).invocation
    stage.host.crash(UNIT)
    await stage.turn()
    assert await stage.ready() != "True"
    await stage.until_ready()
    assert stage.host.unit(UNIT).invocation != before
    assert stage.changes() == ["put-unit", "unit-enable", "unit-start"]


async def test_ranks_that_outlive_their_launcher_are_cleared_and_the_gate_opens(stage: Driven) -> None:
    await stage.until_ready()
    left = stage.host.kill_launcher(UNIT, deaf=True)
    assert len(left) == 2
    await stage.turn()
    await stage.until_ready(120)
    assert not set(left) & stage.host.processes.keys()
    signalled = [(deed.verb, deed.whose) for deed in stage.host.history if deed.verb.startswith("signal-")]
    assert {"signal-term", "signal-kill"} == {verb for verb, _ in signalled}
    assert {whose for _, whose in signalled} == {"leftover"}


async def test_a_trainer_on_a_declared_card_is_left_alone_and_waited_for(stage: Driven) -> None:
    trainer = stage.host.foreign_trainer(0, 60_000)
    await stage.settle(60)
    assert await stage.ready() == "False"
    assert trainer.pid in stage.host.processes
    assert not [deed for deed in stage.host.history if deed.verb.startswith("signal")]
    stage.host.leave(trainer)
    await stage.until_ready()


async def test_a_crash_at_the_first_request_is_never_ready(stage: Driven) -> None:
    stage.host.first_request_crash(UNIT)
    for _ in range(80):
        await stage.turn()
        assert await stage.ready() != "True"
    stage.host.first_request_crash(UNIT, on=False)
    await stage.until_ready(200)


async def test_a_process_keeps_the_build_that_it_loaded_when_another_is_put_in_place(stage: Driven) -> None:
    stage.host.first_request_crash(UNIT)
    while (engine := stage.host.engine(UNIT)) is None:
        await stage.turn()
    stage.host.first_request_crash(UNIT, on=False)
    await stage.until_ready(200)
    now = stage.host.engine(UNIT)
    assert now is not None
    assert now.main.pid != engine.main.pid
    assert stage.host.unit(UNIT).restarts == 1


async def test_a_wrong_flag_ends_the_unit_with_its_reason(tmp_path: Path) -> None:
    async with driven(tmp_path) as stage:
        await stage.put(args={"bad-flag": "1"})
        await stage.settle(10)
        unit = stage.host.unit(UNIT)
        assert (unit.active, unit.exec_status, unit.result) == ("failed", 2, "exit-code")
        assert (await stage.condition())[0] == "False"


@pytest.mark.strays
async def test_what_a_dead_engine_left_in_shared_memory_is_removed_before_the_next_start(stage: Driven) -> None:
    """B10: the dead one's files go, those of anybody who lives, of another user or made since stay."""
    await stage.until_ready()
    main = stage.host.unit(UNIT).main
    for name, user, holder in (
        ("nccl-dead", "root", main), ("psm_dead", "root", main), ("nccl-live", "root", stage.host.processes[1]),
        ("nccl-alice", "alice", None), ("data", "root", None),
    ):  # fmt: skip
        stage.host.shm_file(name, user=user, holder=holder)
    await stage.settle(2)
    trainer = stage.host.foreign_trainer(1, 5_000)
    stage.host.hand_stop(UNIT)
    while stage.host.unit(UNIT).active != "inactive":
        await stage.turn()
    await stage.settle(4)
    stage.host.shm_file("nccl-young")
    await stage.settle(4)
    assert "sweep-shm" not in stage.changes()
    stage.host.leave(trainer)
    await stage.until_ready()
    assert stage.changes()[-2:] == ["sweep-shm", "unit-start"]
    assert stage.changes().count("sweep-shm") == 1
    assert set(stage.host.machine.shm.files) == {"nccl-live", "nccl-alice", "data", "nccl-young"}
    said = [event for event in await stage.store.events(limit=100) if event.reason == "SharedMemoryLeft"]
    assert [(event.action, event.result) for event in said] == [("sweep-shm", "ok")]


async def test_a_reboot_brings_the_enabled_unit_back_by_itself(stage: Driven) -> None:
    await stage.until_ready()
    stage.host.reboot()
    stage.clock.now_s += 21
    await stage.until_ready()
    assert stage.changes() == ["put-unit", "unit-enable", "unit-start"]


async def test_prefill_decode_and_router_are_ready_by_a_generation_through_the_router(tmp_path: Path) -> None:
    roles = {
        "prefill": {"placement": {"host": "a", "gpus": [0, 1]}, "port": 30001, "bootstrapPort": 8998},
        "decode": {"placement": {"host": "a", "gpus": [2, 3]}, "port": 30002},
        "router": {"placement": {"host": "a"}, "port": 30080},
    }
    async with driven(tmp_path, gpus=4) as stage:
        stage.host.neighbours["192.0.2.1"] = stage.host
        await stage.put(roles=roles, placement=None, port=None)
        await stage.until_ready(120)
        router = stage.host.unit("stoker-m.router.service").main
        assert router is not None
        assert router.title == "sglang::router"
        stage.host.crash("stoker-m.decode.service")
        await stage.turn()
        assert await stage.ready() != "True"
        await stage.until_ready(120)

"""Commands over a live connection: what comes back whole, what is thrown away, and what a failure leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from daemon.domain.status import Reason
from tests.ssh.stage import fails, pool, serve, spec_of, until

SLEEP = ("sh", "-c", "echo part; exec sleep 30")


async def test_bytes_go_in_and_come_out_unchanged_with_the_exit_status() -> None:
    async with serve() as sshd, pool() as roads:
        road = roads.road("a", spec_of(sshd))
        done = await road.run(("sh", "-c", "cat; printf 'caf\\351' >&2; exit 3"), b"\x00\xff\n" * 1000, 5)
        assert (done.exit_status, done.stdout, done.stderr) == (3, b"\x00\xff\n" * 1000, b"caf\xe9")


async def test_fifteen_commands_at_once_share_one_connection_five_at_a_time() -> None:
    async with serve() as sshd, pool() as roads:
        road = roads.road("a", spec_of(sshd))
        runs = (road.run(("sh", "-c", f"sleep 0.05; echo {number}"), b"", 10) for number in range(15))
        done = await asyncio.gather(*runs)
        assert [one.stdout for one in done] == [b"%d\n" % number for number in range(15)]
        assert (len(sshd.connections), sshd.most_running) == (1, 5)


async def test_a_refused_channel_is_waited_for_on_the_same_connection() -> None:
    async with serve() as sshd, pool() as roads:
        sshd.sessions_max = 2
        road = roads.road("a", spec_of(sshd))
        done = await asyncio.gather(*(road.run(("sh", "-c", "sleep 0.05; echo ok"), b"", 10) for _ in range(8)))
        assert {one.stdout for one in done} == {b"ok\n"}
        assert (len(sshd.connections), sshd.most_running) == (1, 2)


async def test_channels_refused_to_the_end_are_no_started_command() -> None:
    async with serve() as sshd, pool() as roads:
        sshd.sessions_max = 0
        with fails(Reason.TRANSPORT_LOST):
            await roads.road("a", spec_of(sshd)).run(("true",), b"", 0.3)


async def test_a_connection_cut_in_mid_command_is_lost_and_maybe_done() -> None:
    async with serve() as sshd, pool() as roads:
        road = roads.road("a", spec_of(sshd))
        async with asyncio.TaskGroup() as group:
            run = group.create_task(_lost(road.run(SLEEP, b"", 20)))
            await until(lambda: sshd.running == 1)
            sshd.cut()
        assert run.result() is None
        assert (await road.run(("echo", "again"), b"", 5)).stdout == b"again\n"


async def _lost(run: asyncio.Future[object]) -> None:
    with fails(Reason.TRANSPORT_LOST, maybe_done=True):
        await run


async def test_a_missing_exit_status_throws_the_output_away() -> None:
    async with serve() as sshd, pool() as roads:
        sshd.no_exit_status = True
        with fails(Reason.TRANSPORT_LOST, maybe_done=True):
            await roads.road("a", spec_of(sshd)).run(("echo", "whole"), b"", 5)


async def test_a_command_killed_by_a_signal_has_no_exit_status() -> None:
    async with serve() as sshd, pool() as roads:
        sshd.die_by_signal = True
        with fails(Reason.TRANSPORT_LOST, maybe_done=True) as caught:
            await roads.road("a", spec_of(sshd)).run(("echo", "whole"), b"", 5)
        assert "SIGKILL" in caught.value.message


async def test_a_peer_frozen_before_the_command_times_out_and_is_not_maybe_done() -> None:
    async with serve() as sshd, pool() as roads:
        road = roads.road("a", spec_of(sshd))
        await road.run(("true",), b"", 5)
        sshd.freeze()
        with fails(Reason.TRANSPORT_LOST):
            await road.run(("true",), b"", 0.2)
        assert (await road.run(("echo", "remade"), b"", 5)).stdout == b"remade\n"
        assert sshd.logins == 2


async def test_keepalive_ends_a_command_on_a_frozen_peer() -> None:
    async with serve() as sshd, pool(keepalive_s=0.05, keepalive_count=1) as roads:
        road = roads.road("a", spec_of(sshd))
        async with asyncio.TaskGroup() as group:
            group.create_task(_lost(road.run(SLEEP, b"", 20)))
            await until(lambda: sshd.running == 1)
            sshd.freeze()


async def test_one_time_out_remakes_the_connection_and_spares_its_other_commands() -> None:
    async with serve() as sshd, pool() as roads:
        road = roads.road("a", spec_of(sshd))
        async with asyncio.TaskGroup() as group:
            other = group.create_task(road.run(("sh", "-c", "read x; echo $x"), b"spared\n", 10))
            slow = group.create_task(road.run(("sh", "-c", "sleep 0.6; echo slow"), b"", 10))
            with fails(Reason.TRANSPORT_LOST, maybe_done=True):
                await road.run(SLEEP, b"", 0.3)
        assert (other.result().stdout, slow.result().stdout) == (b"spared\n", b"slow\n")
        assert (await road.run(("echo", "new"), b"", 5)).stdout == b"new\n"
        assert sshd.logins == 2
        await until(lambda: sshd.open_connections == 1)


async def test_waiting_for_a_place_too_long_keeps_the_connection() -> None:
    async with serve() as sshd, pool(commands_at_once=1) as roads:
        road = roads.road("a", spec_of(sshd))
        async with asyncio.TaskGroup() as group:
            first = group.create_task(road.run(("sh", "-c", "sleep 0.5; echo first"), b"", 10))
            await until(lambda: sshd.running == 1)
            with fails(Reason.TRANSPORT_LOST):
                await road.run(("true",), b"", 0.1)
        assert first.result().stdout == b"first\n"
        await road.run(("true",), b"", 5)
        assert sshd.logins == 1


async def test_a_cancelled_command_leaves_no_channel_behind() -> None:
    async with serve() as sshd, pool() as roads:
        road = roads.road("a", spec_of(sshd))
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await road.run(SLEEP, b"", 20)
        assert (await road.run(("echo", "fine"), b"", 5)).stdout == b"fine\n"
        await until(lambda: sshd.open_connections == 1)


async def test_too_much_output_is_truncated_and_the_connection_stays_good() -> None:
    async with serve() as sshd, pool(output_limit_bytes=100_000) as roads:
        road = roads.road("a", spec_of(sshd))
        with fails(Reason.TRUNCATED, maybe_done=True):
            await road.run(("head", "-c", "50000000", "/dev/zero"), b"", 5)
        done = await road.run(("head", "-c", "100000", "/dev/zero"), b"", 5)
        assert len(done.stdout) == 100_000
        assert sshd.logins == 1
        await until(lambda: sshd.running == 0)


async def test_an_idle_connection_that_died_unnoticed_is_remade_within_the_call() -> None:
    async with serve() as sshd, pool() as roads:
        road = roads.road("a", spec_of(sshd))
        await road.run(("true",), b"", 5)
        sshd.cut()
        assert (await road.run(("echo", "still"), b"", 5)).stdout == b"still\n"
        assert sshd.logins == 2


async def test_a_command_that_does_not_read_its_input_is_no_failure() -> None:
    async with serve() as sshd, pool() as roads:
        done = await roads.road("a", spec_of(sshd)).run(("echo", "deaf"), b"x" * 3_000_000, 5)
        assert done.stdout == b"deaf\n"


async def test_a_missing_helper_is_named() -> None:
    async with serve() as sshd, pool() as roads:
        with fails(Reason.HELPER_MISSING):
            await roads.road("a", spec_of(sshd)).call("no-such-verb", b"", 5)


async def test_closing_the_pool_ends_commands_under_way_in_time() -> None:
    async with serve() as sshd, pool() as roads:
        road = roads.road("a", spec_of(sshd))
        async with asyncio.TaskGroup() as group:
            group.create_task(_lost(road.run(SLEEP, b"", 20)))
            await until(lambda: sshd.running == 1)
            sshd.freeze()
            async with asyncio.timeout(3):
                await roads.close()
        with fails(Reason.TRANSPORT_LOST):
            await road.run(("true",), b"", 5)

"""The road to this machine: the same manners as over SSH."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from daemon.domain.status import Reason
from daemon.ssh import LocalRoad, Wrap
from tests.ssh.stage import fails, until


def road_here(**changes: int) -> LocalRoad:
    return LocalRoad(Wrap(), confined=lambda: None, **changes)


async def test_bytes_go_in_and_come_out_unchanged_with_the_exit_status() -> None:
    done = await road_here().run(("sh", "-c", "cat; printf 'caf\\351' >&2; exit 3"), b"\x00\xff" * 100_000, 5)
    assert (done.exit_status, done.stdout, done.stderr) == (3, b"\x00\xff" * 100_000, b"caf\xe9")


async def test_inside_a_container_it_is_refused() -> None:
    road = LocalRoad(Wrap(), confined=lambda: "docker")
    with fails(Reason.NOT_SYSTEMD) as caught:
        await road.run(("true",), b"", 5)
    assert "docker" in caught.value.message


async def test_a_command_runs_in_a_session_of_its_own() -> None:
    done = await road_here().run(("sh", "-c", "cut -d' ' -f1,6 /proc/self/stat; echo $$"), b"", 5)
    _, session, shell = done.stdout.split()
    assert session == shell


async def test_a_command_killed_by_a_signal_has_no_exit_status() -> None:
    with fails(Reason.TRANSPORT_LOST, maybe_done=True):
        await road_here().run(("sh", "-c", "kill -9 $$"), b"", 5)


async def test_too_much_output_is_truncated() -> None:
    with fails(Reason.TRUNCATED, maybe_done=True):
        await road_here(output_limit_bytes=1000).run(("head", "-c", "100000000", "/dev/zero"), b"", 5)


async def test_a_missing_helper_is_named() -> None:
    with fails(Reason.HELPER_MISSING):
        await road_here().call("no-such-verb", b"", 5)


async def test_a_time_out_cuts_a_command_off_but_never_kills_it_half_way(tmp_path: Path) -> None:
    file = tmp_path / "done"
    script = 'trap \'\' HUP PIPE; read go; sleep 0.3; echo lost; echo whole > "$1.new"; mv "$1.new" "$1"'
    with fails(Reason.TRANSPORT_LOST, maybe_done=True):
        await road_here().run(("sh", "-c", script, "sh", str(file)), b"go\n", 0.1)
    await until(file.exists)
    assert file.read_text() == "whole\n"


async def test_a_time_out_ends_a_command_that_does_not_insist(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with fails(Reason.TRANSPORT_LOST, maybe_done=True):
        await road_here().run(("sh", "-c", 'echo $$ > "$1"; exec sleep 30', "sh", str(file)), b"", 0.2)
    process = Path("/proc", file.read_text().strip())
    await until(lambda: not process.exists())


async def test_a_cancelled_command_frees_its_place() -> None:
    road = road_here(commands_at_once=1)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await road.run(("sleep", "30"), b"", 20)
    assert (await road.run(("echo", "free"), b"", 5)).stdout == b"free\n"


async def test_a_command_that_does_not_read_its_input_is_no_failure() -> None:
    assert (await road_here().run(("echo", "deaf"), b"x" * 3_000_000, 5)).stdout == b"deaf\n"


async def test_a_closed_road_runs_nothing() -> None:
    road = road_here()
    await road.close()
    await road.close()
    with fails(Reason.TRANSPORT_LOST):
        await road.run(("true",), b"", 5)

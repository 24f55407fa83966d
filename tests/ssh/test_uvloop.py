"""The daemon runs on uvloop, whose pipes and transports differ from asyncio's: both roads work on it too."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from queue import Queue

import uvloop

from daemon.domain.status import Reason
from daemon.ssh import LocalRoad, Wrap
from tests.ssh.stage import Sshd, fails, pool, serve, spec_of


@contextlib.contextmanager
def servers() -> Iterator[tuple[Sshd, Sshd]]:
    """A jump host and a host behind it, in a thread of their own on asyncio's loop."""
    up: Queue[tuple[Sshd, Sshd, asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def serve_both() -> None:
        async with serve() as jump, serve() as target:
            stop = asyncio.Event()
            up.put((jump, target, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve_both(),), daemon=True)
    thread.start()
    jump, target, loop, stop = up.get(timeout=10)
    try:
        yield jump, target
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=10)


async def local() -> None:
    road = LocalRoad(Wrap(), confined=lambda: None)
    runs = (road.run(("echo", "deaf"), b"x" * 1_000_000, 5) for _ in range(10))
    assert {done.stdout for done in await asyncio.gather(*runs)} == {b"deaf\n"}
    done = await road.run(("sh", "-c", "cat; exit 3"), b"\xff" * 1_000_000, 5)
    assert (done.exit_status, len(done.stdout)) == (3, 1_000_000)
    with fails(Reason.TRANSPORT_LOST, maybe_done=True):
        await road.run(("sleep", "30"), b"", 0.1)


async def through(jump: Sshd, target: Sshd) -> None:
    async with pool({"jump": spec_of(jump)}) as roads:
        road = roads.road("target", spec_of(target, jump="jump"))
        done = await road.run(("sh", "-c", "cat; exit 3"), b"\xff" * 1_000_000, 5)
        assert (done.exit_status, len(done.stdout)) == (3, 1_000_000)
        with fails(Reason.TRANSPORT_LOST, maybe_done=True):
            await road.run(("sleep", "30"), b"", 0.3)
        assert (await road.run(("echo", "deaf"), b"x" * 1_000_000, 5)).stdout == b"deaf\n"


def test_the_local_road_works_on_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(local())


def test_the_ssh_road_works_on_uvloop_through_a_jump_host() -> None:
    with servers() as (jump, target), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(through(jump, target))

"""The virtual loop: time jumps, threads' work happens in place, and a wait without end is told."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.simulation import loop

pytestmark = pytest.mark.fleet


def test_hours_pass_at_once_and_in_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, for_s: float) -> None:
        await asyncio.sleep(for_s)
        seen.append((name, asyncio.get_running_loop().time() - loop.BEGINS_AT_S))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("late", 7200.0))
            group.create_task(sleeper("soon", 0.5))

    begun = time.monotonic()
    loop.run(main())
    assert seen == [("soon", 0.5), ("late", 7200.0)]
    assert time.monotonic() - begun < 60.0


def test_no_time_passes_while_a_thread_would_work() -> None:
    async def main() -> float:
        before = asyncio.get_running_loop().time()
        await asyncio.to_thread(sum, range(1_000_000))
        return asyncio.get_running_loop().time() - before

    assert loop.run(main()) == 0.0


def test_what_work_raises_reaches_who_waits_for_it() -> None:
    async def main() -> None:
        await asyncio.to_thread(int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        loop.run(main())


def test_a_timeout_ends_what_would_hang() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time() - loop.BEGINS_AT_S

    assert loop.run(main()) == pytest.approx(30.0)


def test_a_wait_without_end_is_told() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(loop.Stuck):
        loop.run(main())


def test_an_error_in_a_callback_is_not_only_logged() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1.0, int, "x")
        await asyncio.sleep(2.0)

    with pytest.raises(ValueError, match="invalid literal"):
        loop.run(main())


def test_a_loop_that_spins_is_told() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(loop.Spins):
        loop.run(main())

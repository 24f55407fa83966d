"""The queue, case by case. Time is a fake clock; nothing sleeps."""

from __future__ import annotations

import asyncio

import pytest

from daemon.workqueue import WorkQueue
from tests.workqueue_clock import FakeClock, queue_of, taken


async def turn() -> None:
    """Let every woken task run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_keys_come_in_order_of_arrival_and_once() -> None:
    queue = queue_of(FakeClock())
    for key in "abacab":
        queue.add(key)
    assert await taken(queue) == ["a", "b", "c"]
    assert len(queue) == 0


async def test_key_added_while_worked_on_comes_again_after_done_and_only_then() -> None:
    queue = queue_of(FakeClock())
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await taken(queue) == ["a"]


async def test_key_added_again_queues_behind_those_that_wait() -> None:
    queue = queue_of(FakeClock())
    queue.add("busy")
    assert await queue.get() == "busy"
    queue.add("busy")
    queue.add("quiet")
    queue.done("busy")
    assert await taken(queue) == ["quiet", "busy"]


@pytest.mark.parametrize(("first", "second"), [(5.0, 60.0), (60.0, 5.0)])
async def test_earliest_wakeup_wins(first: float, second: float) -> None:
    clock = FakeClock()
    queue = queue_of(clock)
    queue.add_after("a", first)
    queue.add_after("a", second)
    assert clock.pending == 1
    clock.advance(4.999)
    assert len(queue) == 0
    clock.advance(0.001)
    assert await taken(queue) == ["a"]
    clock.advance(100)
    assert len(queue) == 0


async def test_wakeup_survives_an_add_before_it() -> None:
    clock = FakeClock()
    queue = queue_of(clock)
    queue.add_after("a", 5)
    queue.add("a")
    assert await taken(queue) == ["a"]
    clock.advance(5)
    assert await taken(queue) == ["a"]


async def test_wakeup_that_falls_due_while_worked_on_is_not_lost() -> None:
    clock = FakeClock()
    queue = queue_of(clock)
    queue.add("a")
    assert await queue.get() == "a"
    queue.add_after("a", 1)
    clock.advance(2)
    queue.done("a")
    assert await taken(queue) == ["a"]


async def test_delay_of_nothing_is_an_add_and_no_number_is_refused() -> None:
    queue = queue_of(FakeClock())
    queue.add_after("a", 0)
    queue.add_after("b", -3)
    assert await taken(queue) == ["a", "b"]
    with pytest.raises(ValueError, match="number"):
        queue.add_after("a", float("nan"))


@pytest.mark.parametrize(
    ("dice", "delays"), [(1.0, [1, 2, 4, 8, 16, 32, 60, 60]), (0.0, [0.5, 1, 2, 4, 8, 16, 30, 30])]
)
async def test_backoff_doubles_to_its_cap_until_forgotten(dice: float, delays: list[float]) -> None:
    clock = FakeClock()
    queue = queue_of(clock, dice)
    for delay in delays:
        assert queue.add_rate_limited("a") == delay
        clock.advance(delay)
        assert await taken(queue) == ["a"]
    assert queue.failures("a") == len(delays)
    queue.forget("a")
    assert queue.add_rate_limited("a") == delays[0]


async def test_backoff_of_ten_thousand_failures_is_still_the_cap() -> None:
    queue = queue_of(FakeClock())
    assert {queue.add_rate_limited("a") for _ in range(10_000)} >= {60.0}
    assert queue.add_rate_limited("a") == 60.0


async def test_dropped_key_is_gone_everywhere() -> None:
    clock = FakeClock()
    queue = queue_of(clock)
    queue.add("a")
    queue.add_rate_limited("a")
    queue.drop("a")
    clock.advance(100)
    assert len(queue) == 0
    assert queue.failures("a") == 0
    assert clock.pending == 0


async def test_key_dropped_while_worked_on_does_not_come_again_unless_added_again() -> None:
    queue = queue_of(FakeClock())
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.drop("a")
    queue.done("a")
    assert len(queue) == 0
    queue.add("a")
    assert await taken(queue) == ["a"]


async def test_done_of_a_key_that_nobody_has_is_refused() -> None:
    queue = queue_of(FakeClock())
    with pytest.raises(ValueError, match="'a'"):
        queue.done("a")


async def test_cancelled_get_takes_nothing_even_in_the_instant_of_its_waking() -> None:
    queue = queue_of(FakeClock())
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await turn()
    queue.add("a")
    first.cancel()
    await turn()
    assert first.cancelled()
    assert second.result() == "a"


async def test_get_cancelled_before_an_add_leaves_the_key_to_the_next() -> None:
    queue = queue_of(FakeClock())
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await turn()
    first.cancel()
    queue.add("a")
    await turn()
    assert second.result() == "a"


async def test_shutdown_wakes_every_worker_and_takes_nothing_more() -> None:
    clock = FakeClock()
    queue = queue_of(clock)
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    queue.add_after("a", 1)
    await turn()
    queue.shutdown()
    queue.shutdown()
    queue.add("b")
    queue.add_after("c", 0)
    clock.advance(10)
    await turn()
    assert [worker.result() for worker in workers] == [None] * 3
    assert await queue.get() is None
    assert clock.pending == 0


async def test_key_may_be_given_back_after_shutdown() -> None:
    queue = queue_of(FakeClock())
    queue.add("a")
    assert await queue.get() == "a"
    queue.shutdown()
    queue.done("a")


async def test_oldest_wait_is_of_the_first_in_the_queue() -> None:
    clock = FakeClock()
    queue = queue_of(clock)
    assert queue.oldest_wait_s == 0.0
    queue.add("a")
    clock.advance(2)
    queue.add("b")
    assert queue.oldest_wait_s == 2.0


async def test_event_loop_is_a_clock() -> None:
    queue: WorkQueue[str] = WorkQueue(asyncio.get_running_loop(), lambda: 0.5)
    queue.add_after("a", 1e-6)
    assert await asyncio.wait_for(queue.get(), 10) == "a"

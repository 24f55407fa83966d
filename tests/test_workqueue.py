"""The queue: one worker a key, nothing lost, earliest wake-up wins, fair. Time is a fake clock; nothing sleeps."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.workqueue import WorkQueue


class FakeWakeup:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time that moves only by `advance`, calling what falls due on the way, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._calls: list[tuple[float, int, Callable[[], object], FakeWakeup]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], /) -> FakeWakeup:
        wakeup = FakeWakeup()
        heapq.heappush(self._calls, (when, next(self._order), callback, wakeup))
        return wakeup

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._calls and self._calls[0][0] <= end:
            self.now, _, callback, wakeup = heapq.heappop(self._calls)
            if not wakeup.cancelled:
                callback()
        self.now = end

    @property
    def pending(self) -> int:
        return sum(not wakeup.cancelled for *_, wakeup in self._calls)


def queue_of(clock: FakeClock, dice: float = 1.0) -> WorkQueue[str]:
    return WorkQueue(clock, lambda: dice, backoff_base_s=1.0, backoff_cap_s=60.0)


async def turn() -> None:
    """Let every woken task run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def taken(queue: WorkQueue[str]) -> list[str]:
    """All keys that wait now, taken and given back."""
    keys = []
    while len(queue):
        key = await queue.get()
        assert key is not None
        keys.append(key)
    for key in keys:
        queue.done(key)
    return keys


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


keys = st.sampled_from("abcde")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), keys),
        st.tuples(st.just("after"), keys, st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0])),
        st.tuples(st.just("limited"), keys),
        st.tuples(st.just("forget"), keys),
        st.tuples(st.just("drop"), keys),
        st.tuples(st.just("take")),
        st.tuples(st.just("give"), st.integers(0, 4)),
        st.tuples(st.just("advance"), st.sampled_from([0.1, 0.5, 1.0, 5.0])),
    ),
    max_size=60,
)


class Model:
    """What must be true of the queue, said without its data structures: for each key when it is next owed a round."""

    def __init__(self) -> None:
        self.owed: dict[str, float] = {}  # since when a round is owed, by arrival
        self.wakeups: dict[str, float] = {}
        self.working: list[str] = []
        self.failures: dict[str, int] = {}

    def add(self, key: str, now: float) -> None:
        self.owed.setdefault(key, now)

    def after(self, key: str, delay_s: float, now: float) -> None:
        if delay_s <= 0:
            self.add(key, now)
        else:
            self.wakeups[key] = min(self.wakeups.get(key, float("inf")), now + delay_s)

    def advance(self, now: float) -> None:
        for key, when in sorted(self.wakeups.items(), key=lambda item: item[1]):
            if when <= now:
                del self.wakeups[key]
                self.add(key, when)

    def drop(self, key: str) -> None:
        self.owed.pop(key, None)
        self.wakeups.pop(key, None)
        self.failures.pop(key, None)

    @property
    def ready(self) -> set[str]:
        return set(self.owed) - set(self.working)


async def play(plan: list[tuple[object, ...]]) -> None:
    clock = FakeClock()
    queue = queue_of(clock)
    model = Model()
    for step in plan:
        match step:
            case ("add", str(key)):
                queue.add(key)
                model.add(key, clock.now)
            case ("after", str(key), float(delay)):
                queue.add_after(key, delay)
                model.after(key, delay, clock.now)
            case ("limited", str(key)):
                failures = model.failures.get(key, 0)
                assert queue.add_rate_limited(key) == min(60.0, 2.0**failures)
                model.failures[key] = failures + 1
                model.after(key, min(60.0, 2.0**failures), clock.now)
            case ("forget", str(key)):
                queue.forget(key)
                model.failures.pop(key, None)
            case ("drop", str(key)):
                queue.drop(key)
                model.drop(key)
            case ("take",) if model.ready:
                got = await queue.get()
                assert got is not None
                assert got not in model.working, "one key in two workers"
                assert got in model.owed, "a round that nobody asked for"
                del model.owed[got]
                model.working.append(got)
            case ("give", int(which)) if model.working:
                key = model.working.pop(which % len(model.working))
                queue.done(key)
            case ("advance", float(seconds)):
                clock.advance(seconds)
                model.advance(clock.now)
        assert len(queue) == len(model.ready)
        assert {key: queue.failures(key) for key in model.failures} == model.failures
    await drain(queue, clock, model)


async def drain(queue: WorkQueue[str], clock: FakeClock, model: Model) -> None:
    """Nothing added is lost: with workers free and time passing every owed round comes."""
    for key in model.working:
        queue.done(key)
    model.working.clear()
    clock.advance(1000)
    model.advance(clock.now)
    assert sorted(await taken(queue)) == sorted(model.owed)
    assert clock.pending == 0


@given(steps)
@settings(deadline=None, max_examples=300)
def test_queue_keeps_its_promises_in_any_order_of_calls(plan: list[tuple[object, ...]]) -> None:
    asyncio.run(play(plan))


@given(st.lists(keys, min_size=1, max_size=40), st.integers(1, 3))
@settings(deadline=None)
def test_no_key_is_overtaken_twice_by_another(plan: list[str], workers: int) -> None:
    """Fair: while a key waits, no other key is handed out twice."""

    async def check() -> None:
        queue = queue_of(FakeClock())
        since: dict[str, list[str]] = {}
        working: list[str] = []
        for key in plan:
            queue.add(key)
            if key not in working:
                since.setdefault(key, [])
            if len(working) == workers:
                done = working.pop(0)
                queue.done(done)
            while len(working) < workers and len(queue):
                got = await queue.get()
                assert got is not None
                since.pop(got, None)
                for overtakers in since.values():
                    assert got not in overtakers
                    overtakers.append(got)
                working.append(got)

    asyncio.run(check())


@given(st.lists(st.tuples(keys, st.integers(0, 3)), max_size=40), st.integers(1, 4))
@settings(deadline=None)
def test_workers_side_by_side_never_share_a_key_and_finish_all(plan: list[tuple[str, int]], workers: int) -> None:
    async def check() -> None:
        queue = queue_of(FakeClock())
        working: set[str] = set()
        last_round: dict[str, int] = {}

        async def work() -> None:
            while (key := await queue.get()) is not None:
                assert key not in working
                working.add(key)
                seen = latest[key]
                for _ in range(3):
                    await asyncio.sleep(0)
                last_round[key] = seen
                working.remove(key)
                queue.done(key)

        latest: dict[str, int] = {}
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())
            for number, (key, pauses) in enumerate(plan):
                latest[key] = number
                queue.add(key)
                for _ in range(pauses):
                    await asyncio.sleep(0)
            while len(queue) or working:
                await asyncio.sleep(0)
            queue.shutdown()
        assert last_round == latest, "a worker's last look must come after the last add"

    asyncio.run(check())

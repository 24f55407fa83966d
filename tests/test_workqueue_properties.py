"""The queue's promises in any order of calls: one worker a key, nothing lost, earliest wake-up wins, fair."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.workqueue import WorkQueue
from tests.workqueue_clock import FakeClock, queue_of, taken

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

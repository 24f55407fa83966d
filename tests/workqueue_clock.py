"""A clock that moves only when told, a queue on it, and how to empty that queue."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

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

"""The queue of keys (host names) that wait for a worker, now or later.

Called by `controller` and its workers. It holds names and nothing else: what to do is always read afresh. It never has
one key in two workers, and a key added while it is worked on comes again afterwards. One event loop; clock and dice are
handed in.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

# Beyond this power of two every back-off is at its cap; the exponent must not overflow.
_MAX_DOUBLINGS = 30


class Wakeup(Protocol):
    """A call that is to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time of this run in seconds, and calls at a time. An asyncio event loop is one."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Wakeup: ...


class WorkQueue(Generic[K]):
    """See the module. `dice` gives numbers in [0, 1): a back-off is between half of its full length and all of it."""

    def __init__(
        self, clock: Clock, dice: Callable[[], float], *, backoff_base_s: float = 1.0, backoff_cap_s: float = 60.0
    ) -> None:
        self._clock = clock
        self._dice = dice
        self._base_s = backoff_base_s
        self._cap_s = backoff_cap_s
        self._ready: dict[K, float] = {}  # in order of arrival; since when it waits
        self._working: set[K] = set()
        self._again: set[K] = set()  # added while worked on
        self._later: dict[K, tuple[float, Wakeup]] = {}
        self._failures: dict[K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """How many keys wait for a worker now."""
        return len(self._ready)

    @property
    def oldest_wait_s(self) -> float:
        """How long the first key has been waiting for a worker, 0 when none is."""
        return max(0.0, self._clock.time() - next(iter(self._ready.values()))) if self._ready else 0.0

    def add(self, key: K) -> None:
        """Hand the key to the next free worker; to one more round when it is worked on now. A wake-up set stays set."""
        if self._closed:
            return
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = self._clock.time()
            self._wake_one()

    def add_after(self, key: K, delay_s: float) -> None:
        """Add the key in `delay_s`; of several such wishes the earliest wins and the others are forgotten."""
        if math.isnan(delay_s):
            raise ValueError("a delay must be a number")
        if self._closed:
            return
        if delay_s <= 0:
            self.add(key)
            return
        when = self._clock.time() + delay_s
        if (planned := self._later.get(key)) is not None:
            if planned[0] <= when:
                return
            planned[1].cancel()
        self._later[key] = (when, self._clock.call_at(when, lambda: self._due(key)))

    def add_rate_limited(self, key: K) -> float:
        """Add the key after a back-off that doubles with each call until `forget`; gives that delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        full_s = min(self._cap_s, self._base_s * 2.0 ** min(failures, _MAX_DOUBLINGS))
        delay_s = full_s * (0.5 + 0.5 * self._dice())
        self.add_after(key, delay_s)
        return delay_s

    def failures(self, key: K) -> int:
        """Calls of `add_rate_limited` since the last `forget`."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """The key's work went well: its next back-off starts small. Wake-ups stay."""
        self._failures.pop(key, None)

    def drop(self, key: K) -> None:
        """The key is gone: not handed out until it is added again. A worker that has it must still call `done`."""
        self._ready.pop(key, None)
        self._again.discard(key)
        self._failures.pop(key, None)
        if (planned := self._later.pop(key, None)) is not None:
            planned[1].cancel()

    async def get(self) -> K | None:
        """The key that waits longest, the caller's until it calls `done`; waits for one. None after shutdown.

        A cancelled get takes nothing.
        """
        while not self._closed and not self._ready:
            await self._wait()
        if self._closed:
            return None
        key = next(iter(self._ready))
        del self._ready[key]
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Give a key back. ValueError when no worker has it."""
        if key not in self._working:
            raise ValueError(f"{key!r} is not being worked on")
        self._working.remove(key)
        if key in self._again:
            self._again.remove(key)
            self.add(key)

    def shutdown(self) -> None:
        """Hand out nothing more, take nothing more, wake every waiting worker. May be called twice."""
        self._closed = True
        for _, wakeup in self._later.values():
            wakeup.cancel()
        self._later.clear()
        self._ready.clear()
        self._again.clear()
        while self._waiters:
            self._wake_one()

    def _due(self, key: K) -> None:
        del self._later[key]
        self.add(key)

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # Woken and cancelled in the same instant: the key is somebody else's to take.
            if waiter.done() and not waiter.cancelled():
                self._wake_one()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

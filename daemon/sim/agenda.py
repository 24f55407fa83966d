"""What is still to happen on a simulated host, in order of time. Used by every other part of the machine."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timer:
    """One thing to come. Cancelling twice, or after it happened, is no error."""

    __slots__ = ("at", "cancelled", "do")

    def __init__(self, at: float, do: Callable[[], None]) -> None:
        self.at, self.do, self.cancelled = at, do, False

    def cancel(self) -> None:
        self.cancelled = True


class Agenda:
    """Timers by their instant, and among equals by the order in which they were set: one seed, one trace."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def at(self, when: float, do: Callable[[], None]) -> Timer:
        timer = Timer(when, do)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, timer))
        return timer

    def due(self) -> float | None:
        """The instant of the next thing to come."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, until: float) -> Timer | None:
        """The next one that is due at `until`, taken off."""
        due = self.due()
        return None if due is None or due > until else heapq.heappop(self._heap)[2]

    def clear(self) -> None:
        """Forgets everything, as a reboot does."""
        self._heap.clear()

"""When which fault of the demo begins, ends and is over: one at a time, each after the fleet was quiet for a while.

Called by the demo with each reading of the fleet; it waits for nothing itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from api.cli.demo_fleet import Fleet
from api.cli.demo_story import Chapter, Step
from daemon.sim.faults import Fault

GAP_S = 4.0


class Director:
    """The faults in order. `now` is the wall clock that the daemon's stamps are compared with."""

    def __init__(self, faults: Sequence[Fault], now: Callable[[], datetime], gap_s: float = GAP_S) -> None:
        self.chapters: list[Chapter] = []
        self.served_at: datetime | None = None
        self._waiting = deque(faults)
        self._now = now
        self._gap_s = gap_s
        self._since: datetime | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        return self.served_at is not None and not self._waiting and self._open() is None

    @property
    def unhealed(self) -> int:
        """Faults that were not healed in their time."""
        return sum(chapter.outcome == "late" for chapter in self.chapters)

    def tick(self, fleet: Fleet) -> list[Step]:
        """Go on by what this reading shows; the new steps of the fault that is open."""
        one = self._open()
        if one is not None:
            return self._go_on(one, fleet)
        if fleet.quiet() and self.served_at is None:
            self.served_at = self._now()
        late = bool(self.chapters) and self.chapters[-1].outcome == "late"
        if self.served_at is None or not (fleet.quiet() or late):
            self._since = None
            return []
        self._since = self._since or self._now()
        if not self._waiting or (self._now() - self._since).total_seconds() < self._gap_s:
            return []
        return self._begin(self._waiting.popleft(), fleet)

    def note(self, fleet: Fleet | None) -> str:
        """What the demo is waiting for, for a person."""
        one = self._open()
        if fleet is None or self.served_at is None:
            ready = sum(map(fleet.serves, fleet.specs)) if fleet is not None else 0
            return f"First start: {ready} of {len(fleet.specs) if fleet is not None else 0} specs generate."
        if one is not None:
            return f"Fault {one.number}: {one.fault.title}."
        if self._waiting:
            return f"Next: {self._waiting[0].title}."
        return "All faults were shown. The fleet goes on: ask it." if self.chapters else "No faults: a quiet fleet."

    def _open(self) -> Chapter | None:
        return self.chapters[-1] if self.chapters and self.chapters[-1].outcome == "open" else None

    def _begin(self, fault: Fault, fleet: Fleet) -> list[Step]:
        seen = {event["id"]: event["count"] for event in fleet.events}
        one = Chapter(len(self.chapters) + 1, fault, self._now(), seen)
        self.chapters.append(one)
        one.note(one.began, fault.begin())
        self._since = None
        return list(one.steps)

    def _go_on(self, one: Chapter, fleet: Fleet) -> list[Step]:
        now, end = self._now(), one.fault.end
        fresh = one.take(fleet, now)
        if end is not None and one.lifted is None and (now - one.began).total_seconds() >= one.fault.hold_s:
            one.lift(now, end())
            fresh.append(one.steps[-1])
        return fresh

"""One fault of the demo as it goes: what was done, and what the daemon then said and did, with measured times.

Called by the demo with each reading of the fleet. Every step is an event of the daemon's own; every time is the
difference between its stamp and the instant of the fault, on this machine's one clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from api.cli.demo_fleet import Fleet, condition, instant
from daemon.sim.faults import Fault

_BY_SYSTEMD = re.compile(r"not by Stoker \([1-9]\d* times by systemd\)")
Kind = Literal["told", "did", "fault", "healed", "late"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened `after_s` seconds after the fault. `reason` is the daemon's word, empty for ours."""

    after_s: float
    kind: Kind
    reason: str
    text: str


@dataclass(slots=True)
class Chapter:
    """One fault and its steps so far. `seen` counts the events that were told before it."""

    number: int
    fault: Fault
    began: datetime
    seen: dict[int, int]
    steps: list[Step] = field(default_factory=list)
    lifted: datetime | None = None
    outcome: Literal["open", "healed", "late"] = "open"

    @property
    def found(self) -> Step | None:
        """The first thing by which the daemon told this fault."""
        return next((step for step in self.steps if step.reason in self.fault.tells), None)

    @property
    def healed_s(self) -> float | None:
        """From the fault, or from its end where it has one, to the last of it."""
        last = next((step for step in reversed(self.steps) if step.kind == "healed"), None)
        return None if last is None else last.after_s - self._lifted_s()

    @property
    def actions(self) -> list[str]:
        """What Stoker did, in order, each kind once."""
        return list(dict.fromkeys(step.text.split(" ", 1)[0] for step in self.steps if step.kind == "did"))

    @property
    def by_systemd(self) -> bool:
        """Whether the daemon told of a restart that systemd made by itself."""
        return any(step.kind == "told" and _BY_SYSTEMD.search(step.text) for step in self.steps)

    def note(self, now: datetime, text: str) -> None:
        """Something that the demo itself did."""
        self.steps.append(Step(self._after(now), "fault", "", text))

    def lift(self, now: datetime, text: str) -> None:
        """The fault itself ended."""
        self.lifted = now
        self.note(now, text)

    def take(self, fleet: Fleet, now: datetime) -> list[Step]:
        """What is new in this reading; ends the chapter when all is well again, or its time is over."""
        told = [self._step(event) for event in reversed(fleet.events) if self._is_new(event)]
        fresh = sorted((step for step in told if step is not None), key=lambda step: step.after_s)
        self.steps += fresh
        if self.outcome == "open" and (last := self._ending(fleet, now)) is not None:
            self.steps.append(last)
            self.outcome = "healed" if last.kind == "healed" else "late"
            fresh.append(last)
        return fresh

    def _after(self, when: datetime) -> float:
        return (when - self.began).total_seconds()

    def _lifted_s(self) -> float:
        return self._after(self.lifted) if self.lifted is not None else 0.0

    def _is_new(self, event: dict[str, Any]) -> bool:
        """Said, or said again, since the last reading."""
        if self.seen.get(event["id"]) == event["count"]:
            return False
        self.seen[event["id"]] = event["count"]
        return True

    def _step(self, event: dict[str, Any]) -> Step | None:
        if (event["kind"], event["name"]) not in (("Host", self.fault.host), ("ServingSpec", self.fault.spec)):
            return None
        after_s = self._after(instant(event["lastTimestamp"]))
        if after_s < 0:
            return None
        return Step(after_s, "did" if event["action"] else "told", event["reason"], event["message"])

    def _ending(self, fleet: Fleet, now: datetime) -> Step | None:
        lifted = self.fault.end is None or self.lifted is not None
        # A reading from before the daemon's look shows the good state of before the fault: no condition turned since.
        turns = [turned for turned in self._turns(fleet) if turned >= (self.lifted or self.began)]
        if self.found is not None and lifted and turns and fleet.quiet():
            return Step(self._after(max(turns)), "healed", "", "every spec is Ready and as declared again")
        if self._after(now) - self._lifted_s() > self.fault.limit_s:
            return Step(self._after(now), "late", "", f"not healed within {self.fault.limit_s:g} s")
        return None

    def _turns(self, fleet: Fleet) -> list[datetime]:
        """When the conditions that say that all is well last turned."""
        spec, host = fleet.specs.get(self.fault.spec), fleet.hosts.get(self.fault.host)
        said = [condition(spec, "Ready"), condition(spec, "Drifted"), condition(host, "Clean")]
        return [instant(its["lastTransitionTime"]) for its in said if its.get("lastTransitionTime")]

"""What checkers share: breaches, the schedule of what was declared when, and the last look of each daemon at each host.

Apart from the world and the daemon: built from the commands as they pass and from the hosts' hidden truth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from daemon.sim.host import SimHost
from tests.simulation.road import Call
from tests.simulation.specs import Wish
from tests.simulation.truth import leftovers, runs_as, unit_truth, written_argv

UNIT_VERBS = frozenset({"unit-start", "unit-stop", "unit-restart", "unit-enable", "unit-disable"})
CHANGES = UNIT_VERBS | {"put-unit", "remove-unit", "signal", "set-aside", "sweep-shm"}

_SECTION = re.compile(rb"@[0-9a-f]{32} section ([a-z0-9_]+) exit=(\d+) ms=\d+ bytes=(\d+)\n")
_END = re.compile(rb"\n?@[0-9a-f]{32} end exit=0\n@[0-9a-f]{32} sum [0-9a-f]{64}\n\Z")


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing that must never be."""

    at_s: float
    checker: str
    host: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:.3f} s, {self.host}: {self.checker}: {self.what}"


@dataclass(slots=True)
class Schedule:
    """What was declared when, by unit and host, as the seed's person did it."""

    store_uid: str = ""
    wishes: dict[tuple[str, str], Wish] = field(default_factory=dict)
    turned_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def declare(self, wish: Wish, now_s: float) -> None:
        """From now on this is what is wanted; on another host than before, nothing is wanted there any more."""
        self.drop(wish.unit, now_s)
        self.wishes[wish.unit, wish.host] = wish
        self.turned_s[wish.unit, wish.host] = now_s

    def drop(self, unit: str, now_s: float) -> None:
        """Deleted, or about to be declared anew."""
        for key in [key for key in self.wishes if key[0] == unit]:
            self.turned_s[key] = now_s
            del self.wishes[key]

    def turned_since(self, unit: str, host: str, at_s: float) -> bool:
        return self.turned_s.get((unit, host), -1.0) >= at_s


@dataclass(slots=True)
class Look:
    """One look: when its sender asked, whether it came whole, and what the host truly was when it was taken.

    `failed` are its sections that brought no answer; `rule` is who forbids changes; `right` are the units on which
    nothing is to be done; `strays` counts what is left over.
    """

    call: Call
    whole: bool = False
    failed: frozenset[str] = frozenset()
    rule: str = ""
    right: frozenset[str] = frozenset()
    strays: int = 0


class Watcher:
    """A witness of the road; a checker overrides the moments it needs."""

    def __init__(self, hosts: dict[str, SimHost], schedule: Schedule, breaches: list[Breach]) -> None:
        self.hosts = hosts
        self.schedule = schedule
        self.breaches = breaches

    def sent(self, call: Call) -> None:
        """A daemon sends it."""

    def before(self, call: Call) -> None:
        """It arrived; nothing happened yet."""

    def after(self, call: Call) -> None:
        """It had its effect."""

    def returned(self, call: Call) -> None:
        """Its sender has the answer, or none."""

    def breach(self, call: Call, what: str) -> None:
        when = call.sent_s if call.arrived_s is None else call.arrived_s
        self.breaches.append(Breach(when, type(self).__name__, call.host, f"{call.verb} {call.value('unit')}: {what}"))


class Looks(Watcher):
    """Keeps the last look at each host; stands before the checkers that read it. Breaks nothing itself."""

    def __init__(self, hosts: dict[str, SimHost], schedule: Schedule, breaches: list[Breach]) -> None:
        super().__init__(hosts, schedule, breaches)
        self.last: dict[str, Look] = {}
        self.written: dict[tuple[str, str], str] = {}

    def sent(self, call: Call) -> None:
        if call.verb == "observe" and not call.by_person:
            self.last[call.host] = Look(call)

    def after(self, call: Call) -> None:
        if call.verb == "put-unit" and call.exit_status == 0:
            self.written[call.value("unit"), call.host] = call.body[: int(call.value("body"))].decode()
        look = self.last.get(call.host)
        if look is not None and look.call is call:
            look.right = frozenset(self._right(call.host))
            look.strays = len(leftovers(self.hosts[call.host]))

    def returned(self, call: Call) -> None:
        look = self.last.get(call.host)
        if look is None or look.call is not call or call.outcome != "whole":
            return
        sections = dict(sections_of(call.answer))
        look.whole = _END.search(call.answer) is not None
        look.failed = frozenset(name for name, (code, _) in sections.items() if code != 0)
        look.rule = rule_in(sections, self.schedule.store_uid)

    def is_right(self, unit: str, host: str) -> bool:
        """By the truth: the unit is as it is wished in every layer, so nothing is to be done about it."""
        wish = self.schedule.wishes.get((unit, host))
        found = unit_truth(self.hosts[host], unit)
        if wish is None or found.masked:
            return False
        if wish.suspend:
            return True
        if not wish.run:
            return found.active in ("inactive", "failed") and not found.enabled
        same = found.text == self.written.get((unit, host)) and not found.stale and not found.dropins and found.enabled
        return same and found.active == "active" and self.serves_as_declared(unit, host)

    def serves_as_declared(self, unit: str, host: str) -> bool:
        """By the truth: a live process with the very launch that is wished, and that Stoker wrote."""
        wish = self.schedule.wishes.get((unit, host))
        found = unit_truth(self.hosts[host], unit)
        written = written_argv(self.written.get((unit, host)))
        return wish is not None and wish.run and runs_as(wish, found) and found.argv == written

    def _right(self, host: str) -> Iterator[str]:
        for unit, where in list(self.schedule.wishes):
            if where == host and self.is_right(unit, host):
                yield unit


def sections_of(answer: bytes) -> Iterator[tuple[str, tuple[int, bytes]]]:
    """Name, exit status and data of each section, by the frames' own lengths."""
    at = answer.find(b"\n") + 1
    while (found := _SECTION.match(answer, at)) is not None:
        end = found.end() + int(found[3])
        yield found[1].decode(), (int(found[2]), answer[found.end() : end])
        at = end + 1


def rule_in(sections: dict[str, tuple[int, bytes]], store_uid: str) -> str:
    """Who forbids changes, as the look showed it: a person's hold or another store's fence; "" when nobody does."""
    if sections.get("hold", (1, b""))[0] == 0:
        return "hold"
    code, fence = sections.get("fence", (1, b""))
    return "" if code != 0 or fence.startswith(store_uid.encode()) else f"fence {fence.decode().strip()}"

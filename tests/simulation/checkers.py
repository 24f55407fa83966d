"""What must hold at every moment of every run: each law is one witness of the road, with the hosts' truth before it.

They see every command as it passes and what was declared when, never what the daemon thinks. A breach fails the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from daemon.sim.host import SimHost
from tests.simulation.road import Call
from tests.simulation.truth import fence_of, hold_of, runs_as, unit_truth
from tests.simulation.watch import CHANGES, UNIT_VERBS, Breach, Looks, Schedule, Watcher

LOOK_GOOD_S = 30.0
LATE_S = 1.0  # a command decided at the last moment is still on its way
BUDGET = 5
HOUR_S = 3600.0
BESIDE = frozenset({"probe"})  # tasks of their own, beside the passes

# Without these sections of a look nothing can be said about what a verb changes.
_UNITS = frozenset({"units", "loaded", "paths", "texts"})
_PROCESSES = frozenset({"candidates", "processes", "uids", "sockets", "units", "others", "environ_ok"})


class OnlyLeftoversAreSignalled(Watcher):
    """Law 3: whatever is signalled is left over from us, by the truth that no host prints."""

    def before(self, call: Call) -> None:
        for pid, start in targets_of(call):
            found = self.hosts[call.host].processes.get(pid)
            if found is not None and found.start == start and found.whose != "leftover":
                self.breach(call, f"pid {pid} is {found.whose}: {found.why}")


class NothingUnderForeignRule(Watcher):
    """Laws 6 and 9: under a hold or another store's fence nothing changes; once seen, nothing is even asked."""

    def __init__(self, looks: Looks) -> None:
        super().__init__(looks.hosts, looks.schedule, looks.breaches)
        self._looks = looks
        self._rule = ""

    def sent(self, call: Call) -> None:
        look = self._looks.last.get(call.host)
        if call.verb in CHANGES and look is not None and look.rule:
            self.breach(call, f"asked for though the look had shown {look.rule}")

    def before(self, call: Call) -> None:
        host = self.hosts[call.host]
        fence = fence_of(host)
        foreign = bool(fence) and not fence.startswith(self.schedule.store_uid)
        self._rule = "hold" if hold_of(host) else f"fence {fence}" if foreign else ""

    def after(self, call: Call) -> None:
        changes = call.verb in CHANGES or (call.verb == "take-fence" and not call.by_person)
        if changes and call.exit_status == 0 and self._rule:
            self.breach(call, f"carried out under {self._rule}")


class OnePlanInFlight(Watcher):
    """Law 6: one reconcile a host at a time, so none of its commands is sent before the one before it is answered."""

    def __init__(self, hosts: dict[str, SimHost], schedule: Schedule, breaches: list[Breach]) -> None:
        super().__init__(hosts, schedule, breaches)
        self._waiting: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)

    def sent(self, call: Call) -> None:
        if call.verb in BESIDE or call.by_person:
            return
        waiting = self._waiting[call.host, call.run]
        for other in waiting.values():
            self.breach(call, f"sent while {other.verb} of {other.sent_s:.3f} s is under way")
        waiting[call.number] = call

    def returned(self, call: Call) -> None:
        self._waiting[call.host, call.run].pop(call.number, None)


class NothingOutOfAnUnknown(Watcher):
    """Law 1: a change was decided out of a whole, fresh look in which nothing that it rests on was missing."""

    def __init__(self, looks: Looks) -> None:
        super().__init__(looks.hosts, looks.schedule, looks.breaches)
        self._looks = looks

    def sent(self, call: Call) -> None:
        if call.verb not in CHANGES:
            return
        look = self._looks.last.get(call.host)
        if look is None or look.call.run != call.run or not look.whole:
            self.breach(call, "the last look did not come whole")
        elif call.sent_s - look.call.sent_s > LOOK_GOOD_S + LATE_S:
            self.breach(call, f"the last look is {call.sent_s - look.call.sent_s:.0f} s old")
        elif missing := sorted(look.failed & self._needed(call)):
            self.breach(call, f"the look had no {', '.join(missing)}")

    def _needed(self, call: Call) -> frozenset[str]:
        if call.verb == "unit-restart":
            return _UNITS | {"gpus"}
        if call.verb != "signal":
            return _UNITS
        holds_cards_only = any(self._only_by_card(call.host, pid) for pid, _ in targets_of(call))
        return _PROCESSES | ({"apps"} if holds_cards_only else set())

    def _only_by_card(self, host: str, pid: int) -> bool:
        found = self.hosts[host].processes.get(pid)
        return found is not None and not found.ports and "/stoker-" not in found.cgroup


class BudgetIsKept(Watcher):
    """Law 5: at most five stops and restarts an hour of what serves or loads, beside those that a person declared."""

    def __init__(self, looks: Looks) -> None:
        super().__init__(looks.hosts, looks.schedule, looks.breaches)
        self._corrections: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._turned: dict[tuple[str, str], float | None] = {}
        self._up = self._right = False

    def before(self, call: Call) -> None:
        if call.verb in UNIT_VERBS:
            unit = unit_truth(self.hosts[call.host], call.value("unit"))
            wish = self.schedule.wishes.get((call.value("unit"), call.host))
            self._up = unit.active == "active"
            self._right = wish is not None and wish.run and runs_as(wish, unit)

    def after(self, call: Call) -> None:
        if call.verb not in ("unit-restart", "unit-stop") or call.exit_status != 0 or not self._up:
            return
        key, now_s = (call.value("unit"), call.host), call.arrived_s or 0.0
        turned = self.schedule.turned_s.get(key)
        if not self._right and self._turned.get(key) != turned:  # the one that carries a person's change out
            self._turned[key] = turned
            return
        recent = [at_s for at_s in self._corrections[key] if at_s > now_s - HOUR_S]
        self._corrections[key] = [*recent, now_s]
        if len(recent) >= BUDGET:
            self.breach(call, f"the {len(recent) + 1}th within the hour")


class NoCommandWithoutDrift(Watcher):
    """Law 5: a unit that was right in every layer when it was looked at is left alone, and so is a suspended one."""

    def __init__(self, looks: Looks) -> None:
        super().__init__(looks.hosts, looks.schedule, looks.breaches)
        self._looks = looks

    def sent(self, call: Call) -> None:
        look, unit = self._looks.last.get(call.host), call.value("unit")
        if look is None or call.verb not in CHANGES or look.call.arrived_s is None:
            return
        if call.verb == "signal":
            if look.strays == 0:
                self.breach(call, "nothing is left over there")
        elif unit in look.right and not self.schedule.turned_since(unit, call.host, look.call.sent_s):
            self.breach(call, "it was as declared")


class WhatServesIsLeftAlone(Watcher):
    """Law 5: a live process with the declared launch is neither restarted nor stopped, whatever else differs."""

    def __init__(self, looks: Looks) -> None:
        super().__init__(looks.hosts, looks.schedule, looks.breaches)
        self._looks = looks
        self._served = False

    def before(self, call: Call) -> None:
        if call.verb not in ("unit-restart", "unit-stop"):
            return
        unit, look = call.value("unit"), self._looks.last.get(call.host)
        turned = look is None or self.schedule.turned_since(unit, call.host, look.call.sent_s)
        self._served = not turned and self._looks.serves_as_declared(unit, call.host)

    def after(self, call: Call) -> None:
        if call.verb in ("unit-restart", "unit-stop") and call.exit_status == 0 and self._served:
            self.breach(call, "it ran as declared")


class OneStartAtATime(Watcher):
    """A unit that is starting or runs is not started again, and no second start of it is sent while one is out."""

    def __init__(self, hosts: dict[str, SimHost], schedule: Schedule, breaches: list[Breach]) -> None:
        super().__init__(hosts, schedule, breaches)
        self._out: dict[tuple[str, str], Call] = {}
        self._state = ""

    def sent(self, call: Call) -> None:
        if call.verb not in ("unit-start", "unit-restart"):
            return
        key = (call.value("unit"), call.host)
        if key in self._out:
            self.breach(call, f"a {self._out[key].verb} of {self._out[key].sent_s:.3f} s is still out")
        self._out[key] = call

    def returned(self, call: Call) -> None:
        key = (call.value("unit"), call.host)
        if self._out.get(key) is call:
            del self._out[key]

    def before(self, call: Call) -> None:
        if call.verb == "unit-start":
            self._state = unit_truth(self.hosts[call.host], call.value("unit")).active

    def after(self, call: Call) -> None:
        if call.verb == "unit-start" and call.exit_status == 0 and self._state in ("active", "activating"):
            self.breach(call, f"it was {self._state}")


def all_checkers(hosts: dict[str, SimHost], schedule: Schedule, breaches: list[Breach]) -> tuple[Looks, list[Watcher]]:
    """Every checker of a run, and what they read, which must be told first."""
    looks = Looks(hosts, schedule, breaches)
    apart = (OnlyLeftoversAreSignalled, OnePlanInFlight, OneStartAtATime)
    reading = (
        NothingUnderForeignRule,
        NothingOutOfAnUnknown,
        BudgetIsKept,
        NoCommandWithoutDrift,
        WhatServesIsLeftAlone,
    )
    return looks, [*(made(hosts, schedule, breaches) for made in apart), *(made(looks) for made in reading)]


def targets_of(call: Call) -> Iterator[tuple[int, int]]:
    """Pid and start ticks of each process that a signal is for."""
    for key, value in call.lines if call.verb == "signal" else ():
        if key == "target":
            pid, _, start = value.partition(" ")
            yield int(pid), int(start)

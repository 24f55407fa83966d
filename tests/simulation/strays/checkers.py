"""What must hold at every moment: nobody else's process is signalled, no start on a dirty GPU, no signal for ever.

And no more processes than the budget of an hour allows; of /dev/shm nothing goes but what dead engines left.
"""

from __future__ import annotations

from collections import Counter

from daemon.sim.processes import SimProcess
from tests.simulation.checkers import HOUR_S, targets_of
from tests.simulation.road import Call
from tests.simulation.specs import CARDS
from tests.simulation.strays.scene import Scene
from tests.simulation.watch import Breach, Watcher


class OnlyClearableAreSignalled(Watcher):
    """Law 3 by the hidden truth: what is signalled could be cleared when its sender last looked, and is that very one.

    Units move between a look and the signal that it led to; whose a process is does not.
    """

    def __init__(self, scene: Scene, breaches: list[Breach]) -> None:
        super().__init__({scene.host.name: scene.host}, scene.schedule, breaches)
        self._scene = scene
        self._seen: dict[int, list[SimProcess]] = {}
        self._targets: dict[int, SimProcess] = {}

    def before(self, call: Call) -> None:
        if call.verb != "signal":
            return
        self._targets = {}
        for pid, start in targets_of(call):
            found = self.hosts[call.host].processes.get(pid)
            if found is None:
                continue
            self._targets[pid] = found
            if found.start == start:
                self._judge(call, found)

    def after(self, call: Call) -> None:
        if call.verb == "observe":
            self._seen[call.run] = [part.process for part in self._scene.may_end()]
        elif call.verb == "signal" and call.exit_status == 0:
            for line in call.answer.decode("utf-8", "replace").splitlines():
                pid, _, came = line.partition(" ")
                if came == "ok" and pid.isdigit() and int(pid) in self._targets:
                    self._judge(call, self._targets[int(pid)])

    def _judge(self, call: Call, process: SimProcess) -> None:
        if process in self._seen.get(call.run, ()):
            return
        part = next((part for part in self._scene.parts if part.process is process), None)
        if part is not None:
            self.breach(
                call,
                f"pid {process.pid} ({part.shape.kind}): {self._scene.why_not(part, alone=True) or 'not seen yet'}",
            )
        elif process.whose != "leftover":
            self.breach(call, f"pid {process.pid} is {process.whose}: {process.why}")


class NoSignalForEver(Watcher):
    """The same signal is not sent again to a process by a daemon that knows that it was sent."""

    def __init__(self, scene: Scene, breaches: list[Breach]) -> None:
        super().__init__({scene.host.name: scene.host}, scene.schedule, breaches)
        self._sent: Counter[tuple[int, str, int, int]] = Counter()

    def before(self, call: Call) -> None:
        for pid, start in targets_of(call):
            if self._sent[call.run, call.value("signal"), pid, start]:
                self.breach(call, f"{call.value('signal')} to pid {pid} once more")

    def returned(self, call: Call) -> None:
        if call.outcome != "whole" or call.exit_status != 0:
            return
        for pid, start in targets_of(call):
            self._sent[call.run, call.value("signal"), pid, start] += 1


class KillBudgetIsKept(Watcher):
    """No more processes are signalled within an hour than the host's declaration says: a condition, not a massacre."""

    def __init__(self, scene: Scene, breaches: list[Breach]) -> None:
        super().__init__({scene.host.name: scene.host}, scene.schedule, breaches)
        self._scene = scene
        self._reached_s: dict[tuple[int, int], float] = {}

    def sent(self, call: Call) -> None:
        if call.value("signal") != "CONT":
            self._scene.asked |= set(targets_of(call))

    def after(self, call: Call) -> None:
        now_s = call.arrived_s or call.sent_s
        if call.verb != "signal" or call.value("signal") == "CONT" or call.exit_status != 0:
            return
        answers = call.answer.decode("utf-8", "replace").splitlines()
        self._reached_s |= {target: now_s for target in targets_of(call) if f"{target[0]} ok" in answers}
        recent = [at_s for at_s in self._reached_s.values() if at_s > now_s - HOUR_S]
        if len(recent) > self._scene.policy.budget:
            self.breach(call, f"{len(recent)} processes within the hour, of {self._scene.policy.budget}")


class OnlyDeadSegmentsGo(Watcher):
    """Of /dev/shm nothing is removed but what a dead engine of that unit's user left and nobody holds."""

    def __init__(self, scene: Scene, breaches: list[Breach]) -> None:
        super().__init__({scene.host.name: scene.host}, scene.schedule, breaches)
        self._scene = scene
        self._there: set[str] = set()
        self._dead: set[str] = set()
        self.removed: Counter[str] = Counter()

    def before(self, call: Call) -> None:
        if call.verb != "sweep-shm":
            return
        self._there = set(self._scene.host.machine.shm.files)
        birth = self._scene.births.get(call.value("unit"))
        self._dead = {
            name
            for name, one in self._scene.segments.items()
            if birth is not None and one.uid == birth.uid and one.dead
        }

    def after(self, call: Call) -> None:
        if call.verb != "sweep-shm":
            return
        for name in self._there - set(self._scene.host.machine.shm.files):
            segment = self._scene.segments[name]
            self.removed[segment.kind] += 1
            if name not in self._dead:
                self.breach(call, f"{name}, {segment.kind}, was removed")


class NoStartOnADirtyCard:
    """Nothing is executed past the gate while a process that is not of it holds one of its cards. Told of each unit."""

    def __init__(self, scene: Scene, breaches: list[Breach]) -> None:
        self._scene, self._breaches = scene, breaches
        self._known: dict[str, str] = {}
        self.starts = 0

    def __call__(self, unit: str) -> None:
        wish = next((wish for wish in self._scene.wishes() if wish.unit == unit), None)
        found = self._scene.host.unit(unit)
        if wish is None or found.active != "active" or self._known.get(unit) == found.invocation:
            return
        self._known[unit] = found.invocation
        self.starts += 1
        cards = _cards_of(found.main) or set(wish.gpus)
        for process in self._scene.in_the_way(wish):
            if process is not found.main and cards & process.memory.keys():
                text = f"{unit} was started while pid {process.pid} ({process.why}) held {process.memory}"
                now_s = self._scene.host.machine.clock()
                self._breaches.append(Breach(now_s, type(self).__name__, self._scene.host.name, text))
        self._scene.held |= {("card", card) for card in cards} | {("port", port) for port in wish.ports}


def _cards_of(main: SimProcess | None) -> set[int]:
    said = "" if main is None else main.environment("CUDA_VISIBLE_DEVICES") or ""
    return {int(word) for word in said.split(",") if word.isdigit() and int(word) < CARDS}

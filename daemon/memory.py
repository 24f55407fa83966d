"""What one host's reconciles remember between looks, in this process only. Losing it costs a look, never an action.

Owned by `controller`, one for each host; changed by `reconcile` and by the probe tasks of that host only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from daemon.domain.actions import Action, PutUnit, RemoveUnit, SetAside, Signal, SignalName, SweepShm, UnitVerb, kind_of
from daemon.domain.observation import Observation, ProcessId, Unit, Unknown
from daemon.domain.status import Reason
from daemon.planner.cards import Card, seen
from daemon.planner.clearing import ServeQuestion
from daemon.planner.holders import answered
from daemon.planner.plan import Plan
from daemon.planner.waits import Wait
from daemon.planner.world import Desired, EffectiveFact, ProbeFact, StrayFact, World
from daemon.store.rows import StoredInstance

FACTS_KEPT_S = 30.0
TOLD_FROM = 3  # version of the helper that passes unusable cards on to the gates
FIRST_WAIT_S = 0.3
LONGEST_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A person's word to clear one process: whose, and when (the daemon's clock)."""

    by: str
    at_s: float


_CARDS_GONE = frozenset(
    {Reason.GPU_LOST, Reason.DEVICE_HANDLE_ERROR, Reason.DRIVER_NOT_LOADED, Reason.DRIVER_LIBRARY_MISMATCH}
)

Ground = tuple[object, ...]


def ground_of(action: Action) -> Ground:
    """What makes two actions the same try: kind, target and the ground; not the words of why."""
    match action:
        case Signal():
            return (kind_of(action), action.targets)
        case PutUnit():
            return (kind_of(action), action.unit, action.ground_sha256, action.text)
        case SetAside():
            return (kind_of(action), action.path, action.ground_sha256)
        case RemoveUnit():
            return (kind_of(action), action.unit, action.ground_sha256)
        case UnitVerb():
            return (kind_of(action), action.unit, action.ground)
        case SweepShm():
            return (kind_of(action), action.files)


@dataclass(slots=True)
class HostMemory:
    """Facts of one boot; `forget_boot` drops those that a reboot makes false."""

    boot_id: str = ""
    strays: dict[ProcessId, StrayFact] = field(default_factory=dict)
    stray_seen_s: dict[ProcessId, float] = field(default_factory=dict)
    unkillable: dict[ProcessId, frozenset[str]] = field(default_factory=dict)  # told to survive KILL, with its cards
    recalled_boot: str = ""  # the boot whose survivors of an earlier daemon were read
    probes: dict[str, ProbeFact] = field(default_factory=dict)
    probing: set[str] = field(default_factory=set)
    asked: dict[ProcessId, Asked] = field(default_factory=dict)
    asking: set[ProcessId] = field(default_factory=set)
    held_before: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    cards: dict[str, Card] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)  # unit → its start that is held up
    down_since: dict[str, float] = field(default_factory=dict)
    invocations: dict[str, str] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)
    own: dict[str, str] = field(default_factory=dict)  # unit → the invocation that our last start led to
    effective: dict[str, EffectiveFact] = field(default_factory=dict)
    known_gpus: tuple[str, ...] = ()  # the host's UUIDs at first sight, as stored
    unwell: set[str] = field(default_factory=set)  # cards that were unusable or gone
    recovered: set[str] = field(default_factory=set)  # those of them that the last look found well again
    restarts: dict[str, int] = field(default_factory=dict)  # unit → those we ordered
    startup_s: dict[str, float] = field(default_factory=dict)  # unit → of its last start that we saw whole
    rows: tuple[StoredInstance, ...] = ()
    told: dict[str, str] = field(default_factory=dict)  # unit → the invocation whose failure was told
    failures: int = 0
    tries: dict[Ground, tuple[int, float]] = field(default_factory=dict)
    look: Observation | Unknown | None = None
    looked_at_s: float | None = None
    look_took_s: float | None = None
    look_bytes: int | None = None
    plan: Plan | None = None
    world: World | None = None

    def see(self, look: Observation, now_s: float) -> None:
        """Take in one complete look: note first sightings, drop what is gone, forget all of another boot."""
        if look.identity.boot_id != self.boot_id:
            self._forget_boot(look.identity.boot_id)
        self._see_own(look)
        self.cards = seen(self.cards, look, now_s)
        self._see_health(look)
        if isinstance(look.processes, Unknown):
            return
        here = {process.id for process in look.processes}
        for identity in here:
            if identity not in self.strays:
                self.strays[identity] = StrayFact(first_seen_s=now_s)
            elif now_s - self.stray_seen_s.get(identity, now_s) > FACTS_KEPT_S:
                self.strays[identity] = replace(self.strays[identity], first_seen_s=now_s)
            self.stray_seen_s[identity] = now_s
        for identity in set(self.strays) - here:
            del self.strays[identity]
            self.stray_seen_s.pop(identity, None)

    def due(self, actions: Sequence[Action], now_s: float) -> tuple[Action, ...]:
        """Those to carry out now, in order: what was tried on this very ground waits, twice as long each time.

        What comes later for the same unit waits with it. A try that a new plan does not repeat is forgotten.
        """
        wanted = {ground_of(action) for action in actions}
        self.tries = {ground: tried for ground, tried in self.tries.items() if ground in wanted}
        found, waiting = [], set[str]()
        for action in actions:
            unit = "" if isinstance(action, Signal | SweepShm) else action.unit  # no start waits for a sweep
            _, again_s = self.tries.get(ground_of(action), (0, now_s))
            if now_s < again_s or unit in waiting:
                waiting |= {unit} - {""}
            else:
                found.append(action)
        return tuple(found)

    def note_try(self, action: Action, now_s: float) -> None:
        """The action is being tried: until when the same is not tried again."""
        times, _ = self.tries.get(ground_of(action), (0, 0.0))
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(times, 30))
        self.tries[ground_of(action)] = (times + 1, now_s + wait_s)

    def wait_s(self, now_s: float) -> float | None:
        """How long until the next try of what waits, None when nothing does."""
        return min((again_s - now_s for _, again_s in self.tries.values() if again_s > now_s), default=None)

    def _see_own(self, look: Observation) -> None:
        """Which invocation came of a start that we ordered."""
        for unit in () if isinstance(look.units, Unknown) else look.units:
            if unit.name in self.ours and unit.invocation_id not in ("", self.invocations.get(unit.name)):
                self.own[unit.name] = unit.invocation_id

    def note_signal(self, signal: SignalName, targets: Iterable[ProcessId], now_s: float) -> None:
        """The signal reached these."""
        for target in targets:
            fact = self.strays.get(target)
            if fact is not None and signal == "TERM":
                self.strays[target] = replace(fact, term_at_s=now_s)
            elif fact is not None and signal == "KILL":
                self.strays[target] = replace(fact, kill_at_s=now_s)

    def note_serves(self, question: ServeQuestion, serves: bool, now_s: float) -> None:
        """Whether its tree serves, as it was answered now."""
        fact = self.strays.get(question.process)
        if fact is not None:
            self.strays[question.process] = answered(fact, question.ports, serves, now_s, marked=question.marked)

    def _see_health(self, look: Observation) -> None:
        """Which cards are well again since the last look."""
        if isinstance(look.gpus, Unknown):
            self.unwell |= set(self.known_gpus) if look.gpus.reason in _CARDS_GONE else set()
            self.recovered = set()
            return
        well = {gpu.uuid for gpu in look.gpus if gpu.fault is None}
        self.recovered = self.unwell & well
        self.unwell |= {*self.known_gpus, *(gpu.uuid for gpu in look.gpus)}
        self.unwell -= well

    @property
    def unusable(self) -> tuple[str, ...] | None:
        """The cards that the gates on the host are to keep from, None while there is nothing new to say to them."""
        look = self.look
        if not isinstance(look, Observation) or isinstance(look.gpus, Unknown) or look.helper < TOLD_FROM:
            return None
        return tuple(gpu.uuid for gpu in look.gpus if gpu.fault is not None)

    def note_seen(self, desired: Desired, unit: Unit) -> bool:
        """Whether an instance gave up while one of its cards was bad: that cause is gone, as a cleared stray is."""
        gave_up = not unit.running and unit.active_state == "failed" and bool(desired.gpu_uuids & self.recovered)
        if gave_up:
            self.cleared.add(unit.name)
        return gave_up

    def note_held(self, desired: Desired) -> None:
        """An instance of ours runs: its cards and ports have been ours since this boot."""
        self.held_before |= desired.holds

    def _forget_boot(self, boot_id: str) -> None:
        self.boot_id = boot_id
        for kept in (self.strays, self.stray_seen_s, self.probes, self.held_before, self.cleared):
            kept.clear()
        self.asked.clear()  # processes of the boot before
        self.unkillable.clear()

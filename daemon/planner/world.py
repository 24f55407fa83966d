"""Everything a decision about one host may read, as one frozen value. Built by `daemon.reconcile`, read here.

Times named `_s` are the daemon's monotonic clock; stamps of the host are its own monotonic microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from daemon.domain.host import HostSpec
from daemon.domain.observation import Observation, ProcessId, Unknown
from daemon.domain.spec import Role, ServingSpec
from daemon.domain.status import Reason
from daemon.engines.effective import Claim
from daemon.engines.launch import Launch
from daemon.planner.cards import Card
from daemon.planner.waits import Wait


@dataclass(frozen=True, slots=True)
class Record:
    """What the store remembers of one instance: the unit written, the cards bound, the invocation that generated."""

    unit: str
    path: str
    gpus: tuple[tuple[int, str], ...] = ()
    written_sha256: str = ""
    written_launch: str = ""
    started_launch: str = ""  # the launch hash of the last start or restart that we ordered
    stopped: bool = False  # the last thing we ordered was a stop
    ready_invocation: str = ""
    silent_invocation: str = ""  # the one that did not generate any more when it was last asked
    unclean: str = ""  # why our last start was on memory in use, "" when it was on clean cards
    inherited: tuple[str, ...] | None = None  # variables that the host gives from the start; None: not noted yet


@dataclass(frozen=True, slots=True)
class Declared:
    """One instance as declared. `view` is the role's effective spec; `record` is None before the first placement."""

    spec_name: str
    spec_uid: str
    generation: int
    role: Role
    spec: ServingSpec
    view: ServingSpec
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """A declared instance bound to cards and rendered: what its unit, file and process should be."""

    declared: Declared
    unit: str
    path: str
    adopted: bool
    gpus: tuple[tuple[int, str], ...]
    ports: tuple[int, ...]
    launch: Launch
    launch_hash: str
    text: str
    gate: str

    @property
    def gpu_uuids(self) -> frozenset[str]:
        """UUIDs of the bound cards."""
        return frozenset(uuid for _, uuid in self.gpus)

    @property
    def holds(self) -> frozenset[str]:
        """What it holds when it runs, as `World.held_before` names it."""
        return self.gpu_uuids | {f"port:{port}" for port in self.ports}


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A declared instance that cannot be rendered now, and why."""

    declared: Declared
    unit: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Retired:
    """A unit this store wrote whose spec or role is gone: to be stopped and removed."""

    spec_name: str
    spec_uid: str
    record: Record
    clears: bool = True  # false: its spec says `strays: {kill: report}`
    generation: int = 0  # of the spec that takes it away


@dataclass(frozen=True, slots=True)
class ProbeFact:
    """The last finished generation probe of one unit, for one invocation."""

    invocation: str
    at_s: float
    ok: bool
    reason: Reason
    message: str
    failures: int = 0


@dataclass(frozen=True, slots=True)
class EffectiveFact:
    """What the engine of one invocation says is in effect, of the fields that its spec declares."""

    invocation: str
    claims: tuple[Claim, ...] | Unknown

    @property
    def ask_again(self) -> bool:
        """It did not answer in time or was cut off: what an engine does not tell at all stays untold."""
        told = (Reason.PROBE_REFUSED, Reason.UNPARSABLE)
        return isinstance(self.claims, Unknown) and self.claims.reason not in told


@dataclass(frozen=True, slots=True)
class StrayFact:
    """What is remembered of one process identity between looks."""

    first_seen_s: float
    term_at_s: float | None = None
    kill_at_s: float | None = None
    serves: bool | None = None
    asked_at_s: float = 0.0  # when that was answered
    ports: tuple[int, ...] = ()  # those that were asked
    silent: int = 0  # answers in a row that it does not serve


@dataclass(frozen=True, slots=True)
class Kills:
    """Processes that were signalled on this host within the last hour: how many, and which of this boot."""

    count: int = 0
    known: frozenset[ProcessId] = frozenset()


@dataclass(frozen=True, slots=True)
class World:
    """The input of one decision."""

    name: str
    host: HostSpec
    store_uid: str
    now_s: float
    observation: Observation | Unknown
    desired: tuple[Desired, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    retired: tuple[Retired, ...] = ()
    strays: Mapping[ProcessId, StrayFact] = field(default_factory=dict)
    probes: Mapping[str, ProbeFact] = field(default_factory=dict)
    probing: frozenset[str] = frozenset()
    corrections: Mapping[str, int] = field(default_factory=dict)
    held_before: frozenset[str] = frozenset()  # GPU UUIDs and "port:N" an instance of ours held since boot
    asked: Mapping[ProcessId, str] = field(default_factory=dict)  # what a person asked to clear → who asked
    cleared: frozenset[str] = frozenset()  # units whose strays were cleared since their last start
    cards: Mapping[str, Card] = field(default_factory=dict)  # GPU UUID → what is known of its memory
    waits: Mapping[str, Wait] = field(default_factory=dict)  # unit → its start that is held up
    returned: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (unit, Drift.key) → corrections in 24 h
    own: Mapping[str, str] = field(default_factory=dict)  # unit → the invocation that our last start led to
    effective: Mapping[str, EffectiveFact] = field(default_factory=dict)
    known_gpus: tuple[str, ...] = ()  # UUIDs of the host as at first sight
    wall: str = ""  # this instant as people read it; empty where no clock runs
    kills: Kills = Kills()
    # Told to have survived KILL, and still there: identity → UUIDs of the cards it held then.
    unkillable: Mapping[ProcessId, frozenset[str]] = field(default_factory=dict)
    withheld: Reason | None = None  # why nothing may be changed: Paused, ObserveOnly, FencedOff, Held …

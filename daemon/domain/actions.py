"""What a plan may hold: one value for each command to a host, with the ground it was decided on.

Made by `daemon.planner`, carried out by `daemon.execute`, refused by `stoker-host` when the ground changed. `cures`
names the drift that an action takes back from somebody else, as `Drift.key`: how often that happens is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from daemon.domain.observation import ProcessId
from daemon.domain.status import Reason

Verb = Literal["start", "stop", "restart", "enable", "disable"]
SignalName = Literal["TERM", "KILL", "CONT"]


@dataclass(frozen=True, slots=True)
class UnitGround:
    """A unit as it was when a verb on it was decided: refused when either differs at the time of the verb."""

    invocation_id: str
    active_state: str


@dataclass(frozen=True, slots=True)
class PutUnit:
    """Write a unit file and the gate's manifest, reload systemd, check that nothing waits for a reload.

    `ground_sha256` is the file's present hash, "" when it must not exist. `path` is where the text goes.
    """

    unit: str
    path: str
    text: str
    gate: str
    ground_sha256: str
    why: str
    reason: Reason
    cures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SetAside:
    """Move a drop-in that somebody added out of the unit's folder, to one where it is kept; then reload systemd.

    `excerpt` is the beginning of its text, redacted, for the event.
    """

    unit: str
    path: str
    ground_sha256: str
    excerpt: str
    why: str
    reason: Reason
    cures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveUnit:
    """Remove a unit file (or our drop-in) and its gate manifest, reload systemd. The unit must be inactive."""

    unit: str
    path: str
    ground_sha256: str
    why: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class UnitVerb:
    """start, stop or restart (all `--no-block`), enable or disable one unit; start and restart reset its failures."""

    unit: str
    verb: Verb
    ground: UnitGround
    why: str
    reason: Reason
    cures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal to processes proven to be orphans. `cgroups` are theirs as seen, in the order of `targets`.

    The host checks start and cgroup of each again in the step that signals it.
    """

    signal: SignalName
    targets: tuple[ProcessId, ...]
    why: str
    reason: Reason
    cgroups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepShm:
    """Remove what dead processes of this unit left in /dev/shm; each file is looked at again in the same step.

    `files` are name, uid, inode and time of change as the look showed them. The unit must be down.
    """

    unit: str
    files: tuple[tuple[str, int, int, str], ...]
    ground: UnitGround
    why: str
    reason: Reason


Action = PutUnit | SetAside | RemoveUnit | UnitVerb | Signal | SweepShm


def kind_of(action: Action) -> str:
    """The action's name in metrics and events: put-unit, set-aside, remove-unit, unit-start, …, signal-term, …"""
    match action:
        case PutUnit():
            return "put-unit"
        case SetAside():
            return "set-aside"
        case RemoveUnit():
            return "remove-unit"
        case UnitVerb():
            return f"unit-{action.verb}"
        case SweepShm():
            return "sweep-shm"
        case Signal():
            return f"signal-{action.signal.lower()}"

"""The value that `decide` gives, and the small steps in which it is built. Read by `plan` and `settle`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from daemon.domain.actions import Action, UnitGround, UnitVerb, Verb
from daemon.domain.observation import Unit, Unknown
from daemon.domain.status import Drift, Reason
from daemon.planner.clearing import Clearing, ServeQuestion
from daemon.planner.dropins import DROPIN_KEY
from daemon.planner.holders import Holders
from daemon.planner.world import Desired, Retired, World

CONTESTED_AFTER = 3  # corrections of one field of one unit in 24 h: what comes back then is left alone
DROPINS_AFTER = 9  # of all drop-ins of one unit: a tool may give each another name


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why an instance is not brought further now; `detail` says who, since when and what a person can do.

    `since` is given when its start is held up because what it needs is not free.
    """

    reason: Reason
    detail: str
    since: str = ""


@dataclass(frozen=True, slots=True)
class ProbeWanted:
    """A generation is asked of this unit's present invocation."""

    unit: str
    invocation: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision. `blocked` and `drift` are by unit; `finished` are retired units of which nothing is left.

    `adopted` maps units whose file already says what is declared, though we did not write it, to that file's hash;
    `accepted` maps units to variables that nobody declared and that are to count as the host's own from now on.
    """

    actions: tuple[Action, ...] = ()
    blocked: dict[str, Blocked] = field(default_factory=dict)
    drift: tuple[Drift, ...] = ()
    holders: Holders | Unknown = field(default_factory=lambda: Holders((), ()))
    clearing: Clearing = field(default_factory=Clearing)
    probes: tuple[ProbeWanted, ...] = ()
    questions: tuple[ServeQuestion, ...] = ()
    finished: tuple[Retired, ...] = ()
    unclaimed: tuple[str, ...] = ()
    adopted: dict[str, str] = field(default_factory=dict)
    accepted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    wake_in_s: float | None = None


def verb(unit: Unit, what: Verb, reason: Reason, why: str, cures: Iterable[Drift] = ()) -> UnitVerb:
    """A verb on the unit as it is now."""
    ground = UnitGround(unit.invocation_id, unit.active_state)
    return UnitVerb(unit.name, what, ground, why, reason, keys(cures))


def keys(drift: Iterable[Drift]) -> tuple[str, ...]:
    """Under which names corrections of these are counted."""
    return tuple(dict.fromkeys(one.key for one in drift))


def contested(world: World, drift: Iterable[Drift]) -> list[Drift]:
    """Those that were taken back as often as law 5 allows and are here again."""
    return [one for one in drift if _often(world, one)]


def _often(world: World, one: Drift) -> bool:
    if world.returned.get((one.unit, one.key), 0) >= CONTESTED_AFTER:
        return True
    taken = sum(n for (unit, key), n in world.returned.items() if unit == one.unit and key.startswith(DROPIN_KEY))
    return one.key.startswith(DROPIN_KEY) and taken >= DROPINS_AFTER


def hands_off(world: World, drift: Iterable[Drift]) -> str:
    """What a person is told of contested drift."""
    first = next(iter(drift))
    own = world.returned.get((first.unit, first.key), 0) >= CONTESTED_AFTER
    what = f"{first.key} came back {CONTESTED_AFTER} times" if own else f"{DROPINS_AFTER} drop-ins were set aside"
    return (
        f"{what} within a day and {first.key} is left alone now: it is {first.observed}, "
        f"declared {first.declared}; change the spec (any change counts anew) or end what brings it back"
    )


def add(plan: Plan, *actions: Action) -> Plan:
    """The plan with these after the others."""
    return replace(plan, actions=(*plan.actions, *actions))


def block(plan: Plan, desired: Desired, reason: Reason, detail: str) -> Plan:
    """The plan in which this instance is not brought further."""
    return replace(plan, blocked={**plan.blocked, desired.unit: Blocked(reason, detail)})


def hold_up(plan: Plan, desired: Desired, reason: Reason, detail: str, world: World) -> Plan:
    """The plan in which its start waits for what it needs, with the time at which it began to."""
    known = world.waits.get(desired.unit)
    since = world.wall if known is None else known.since
    text = f"{detail} (since {since})" if since else detail
    return replace(plan, blocked={**plan.blocked, desired.unit: Blocked(reason, text, since)})


def wake(plan: Plan, in_s: float) -> Plan:
    """The plan that asks to be woken no later than that."""
    return replace(plan, wake_in_s=in_s if plan.wake_in_s is None else min(plan.wake_in_s, in_s))

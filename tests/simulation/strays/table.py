"""Whose a planted process is and whether it may be ended, out of its hidden shape and the state of its unit.

This is design section 2 in its own order and law 3 in its own words. It reads no byte that a host prints and no line of
the planner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.simulation.strays.shapes import ENGINES, LIVE_HOMES, Shape

Owner = Literal["unknown", "proven", "likely", "foreign"]
UnitState = Literal["live", "moving", "down"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the host's declaration says about strays; `budget` is how many processes an hour may be signalled."""

    exclusive: bool
    limit: str
    protects: bool
    budget: int = 64


@dataclass(frozen=True, slots=True)
class Now:
    """What moves around a process. `unit` is the state of the unit that it was started by, or whose cgroup it is in.

    `of_this_start`: it is not older than that unit's current start. `serves`: a port of its tree generates or asks for
    a key, whoever of those that share the port it is; `unsure`: nobody can tell, since several share one
    address of a port (SO_REUSEPORT). `kills` is what each spec that needs what it holds says of strays. `spent`: the
    hour's budget has gone to others.
    """

    unit: UnitState = "down"
    of_this_start: bool = False
    serves: bool = False
    unsure: bool = False
    kills: frozenset[str] = frozenset({"orphans"})
    held_before: bool = True
    mps: bool = False
    spent: bool = False


def owner_of(shape: Shape, now: Now) -> Owner:
    """The first row that holds."""
    unit = now.unit
    bound = shape.home == "managed" or shape.mark in ("ours", "veiled")
    if bound and unit == "moving":  # its unit is stopping, reloading or between two automatic starts
        return "unknown"
    if shape.home == "managed":
        return "proven"
    if shape.home in LIVE_HOMES:
        return "foreign"
    if shape.mark == "veiled":
        return "unknown"
    if not shape.own_user or shape.serves or now.serves:
        return "foreign"
    if now.unsure:
        return "unknown"
    if shape.mark == "ours" and unit != "live":
        return "proven"
    launched = shape.mark == "ours" and unit == "live" and now.of_this_start  # its launcher lives
    if shape.guise in ENGINES and not shape.attended and not launched:
        return "likely"
    return "foreign"


def looks_alike(shape: Shape) -> bool:
    """Somebody else's, whatever it looks like and whatever our units do."""
    return owner_of(shape, Now()) == "foreign"


def protected(shape: Shape, policy: Policy) -> bool:
    return policy.protects and (shape.home == "kept-unit" or shape.guise == "kept")


def why_not(shape: Shape, now: Now, policy: Policy) -> str:
    """Why it may not be ended, "" when it may."""
    owner = owner_of(shape, now)
    if owner in ("unknown", "foreign"):
        return owner
    if protected(shape, policy):
        return "protected"
    if now.mps:
        return "under MPS"
    if not now.kills:
        return "holds nothing that is needed"
    if policy.limit == "report" or "report" in now.kills:
        return "policy says report"
    if owner == "likely" and not (policy.exclusive or now.held_before):
        return "likely, and the host is not exclusive"
    return "the budget of the hour is spent" if now.spent else ""

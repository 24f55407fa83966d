"""Clearing: which holders may be signalled now, which only later, which never (law 3).

A process is signalled only when it is an orphan that our policy covers, was seen in two complete looks at least
0.5 s apart, holds what a spec needs, and is not protected. A person's word stands in for policy and need alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from daemon.domain.actions import Action, Signal
from daemon.domain.observation import Observation, Process, ProcessId, Unknown
from daemon.domain.status import Reason
from daemon.domain.text import duration_s
from daemon.planner.holders import Holder, Holders, tree_ports
from daemon.planner.ownership import is_engine
from daemon.planner.protect import mps_runs, protected
from daemon.planner.world import Desired, Retired, StrayFact, World

SIGHTING_GAP_S = 0.5
LOOK_GOOD_S = 30.0
SURVIVES_KILL_S = 10.0
MARKED_PATIENCE_S = 4.0  # our own mark already says whose it is
LIKELY_PATIENCE_S = 15.0  # a saturated server of somebody else answers late


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to one orphan now: `reason` OK means it is being cleared."""

    holder: Holder
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class ServeQuestion:
    """Whether any of these ports, of the tree of this process, generates or asks for a key, and how long to wait."""

    process: ProcessId
    ports: tuple[int, ...]
    patience_s: float


@dataclass(frozen=True, slots=True)
class Clearing:
    """The signals of this plan, what was decided about each orphan, and which serve probes are needed first."""

    actions: tuple[Action, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    questions: tuple[ServeQuestion, ...] = ()
    wake_in_s: float | None = field(default=None)


def clear_strays(world: World, look: Observation, holders: Holders | Unknown) -> Clearing:
    """Signals for the proven, in one action for each signal; nothing when an input is unknown."""
    if isinstance(holders, Unknown):
        return Clearing()
    mps = mps_runs(look)
    verdicts: list[Verdict] = []
    send: dict[str, list[Holder]] = {"TERM": [], "CONT": [], "KILL": []}
    for holder in holders.all:
        if not holder.ownership.orphan or holder.process.state == "Z":
            continue
        verdict = may_clear(holder, world, look, mps)
        verdicts.append(verdict)
        if verdict.reason is Reason.OK:
            for signal in _signals(
                holder.process, world.strays[holder.process.id], _grace_s(holder, world), world.now_s
            ):
                send[signal].append(holder)
    actions = tuple(_signal(name, found, world) for name, found in send.items() if found)
    return Clearing(actions, tuple(verdicts), _questions(world, look, holders), 0.6 if verdicts else None)


def _signal(name: str, holders: list[Holder], world: World) -> Signal:
    targets = tuple(sorted((h.process.id for h in holders), key=lambda p: p.pid))
    why = "; ".join(_why(h, world) for h in holders)[:2000]
    match name:
        case "TERM":
            return Signal("TERM", targets, why, Reason.ORPHAN_WORKERS)
        case "CONT":
            return Signal("CONT", targets, why, Reason.ORPHAN_WORKERS)
        case _:
            return Signal("KILL", targets, why, Reason.ORPHAN_WORKERS)


def _why(holder: Holder, world: World) -> str:
    by = world.asked.get(holder.process.id)
    return holder.describe() if by is None else f"asked by {by}: {holder.describe()}"


def may_clear(holder: Holder, world: World, look: Observation, mps: bool) -> Verdict:
    """What happens to one orphan now; `mps`: a CUDA MPS server runs."""
    process, fact = holder.process, world.strays.get(holder.process.id)
    asked, wanting = process.id in world.asked, wanted_by(world, holder)
    retired = any(left_of(holder, r) for r in world.retired)
    if process.id.pid <= 1 or not process.argv or protected(process, world.host.protect):
        return Verdict(holder, Reason.PROTECTED, "on the protect list")
    if mps:
        return Verdict(holder, Reason.STRAY_UNDER_MPS, "CUDA MPS runs: killing one client can hurt all")
    if not (wanting or retired or asked):
        return Verdict(holder, Reason.REPORT_ONLY, "holds nothing that a running spec needs")
    reported = world.host.strays.limit == "report" or any(d.declared.view.strays.kill == "report" for d in wanting)
    if reported and not asked:
        return Verdict(holder, Reason.REPORT_ONLY, "policy says report")
    if holder.ownership.owner == "orphan-likely" and not (asked or _covered(holder, world)):
        return Verdict(holder, Reason.REPORT_ONLY, "likely an orphan, but this host is not exclusive")
    # This look began late enough after the end of the first one: what passed between is no second sighting.
    if fact is None or look.at_s - fact.first_seen_s < SIGHTING_GAP_S or world.now_s - look.at_s > LOOK_GOOD_S:
        return Verdict(holder, Reason.NOT_OBSERVED_YET, "seen once; looked at again before any signal")
    if fact.kill_at_s is not None and world.now_s - fact.kill_at_s > SURVIVES_KILL_S:
        return Verdict(holder, Reason.UNKILLABLE_PROCESS, f"survived KILL in state {process.state}; reboot the host")
    return Verdict(holder, Reason.OK, "being cleared")


def left_of(holder: Holder, retired: Retired) -> bool:
    """Whether it was started for a role that is gone: it sits in its unit's cgroup, or carries the mark of its spec."""
    if holder.unit_group == retired.record.unit:
        return True
    marks = dict(holder.process.marks or ())
    return retired.clears and holder.ownership.owner == "orphan-proven" and marks.get("STOKER_SPEC") == retired.spec_uid


def wanted_by(world: World, holder: Holder) -> tuple[Desired, ...]:
    """The instances that are to run and need something that this process holds."""
    return tuple(desired for desired in world.desired if _wants(desired, holder))


def _wants(desired: Desired, holder: Holder) -> bool:
    view = desired.declared.view
    if not view.run or view.suspend:
        return False
    if holder.unit_group == desired.unit:
        return True
    return any(uuid in desired.gpu_uuids for uuid, _, _ in holder.gpus) or bool(set(desired.ports) & set(holder.ports))


def helped_by(world: World, holders: Holders | Unknown, targets: Iterable[ProcessId]) -> frozenset[str]:
    """The units for whose start these processes were signalled."""
    if isinstance(holders, Unknown):
        return frozenset()
    signalled = set(targets)
    found = [holder for holder in holders.all if holder.process.id in signalled]
    return frozenset(desired.unit for desired in world.desired for holder in found if _wants(desired, holder))


def _covered(holder: Holder, world: World) -> bool:
    """A likely orphan is ours to clear where the host is exclusive, or an instance of ours already held that thing."""
    held = {uuid for uuid, _, _ in holder.gpus} | {f"port:{port}" for port in holder.ports}
    return world.host.exclusive or bool(held & world.held_before)


def _grace_s(holder: Holder, world: World) -> float:
    graces = [duration_s(d.declared.view.strays.grace) for d in wanted_by(world, holder)]
    return max(graces, default=20.0)


def _signals(process: Process, fact: StrayFact, grace_s: float, now_s: float) -> tuple[str, ...]:
    """TERM once (with CONT for a stopped one, so that it can act on it), KILL once after the grace."""
    if fact.term_at_s is None:
        return ("TERM", "CONT") if process.state in "Tt" else ("TERM",)
    if fact.kill_at_s is None and now_s - fact.term_at_s >= grace_s:
        return ("KILL",)
    return ()


def _questions(world: World, look: Observation, holders: Holders) -> tuple[ServeQuestion, ...]:
    """Processes whose class hangs on whether their tree serves."""
    asked = []
    for holder in holders.all:
        process = holder.process
        marked = dict(process.marks or ()).get("STOKER_STORE") == world.store_uid
        if holder.ownership.owner == "unknown" and (marked or is_engine(process)):
            ports = tree_ports(process, look)
            if ports:
                asked.append(ServeQuestion(process.id, ports, MARKED_PATIENCE_S if marked else LIKELY_PATIENCE_S))
    return tuple(asked)

"""Clearing: which holders may be signalled now, which only later, which never (law 3).

A process is signalled only when it is an orphan that our policy covers, was seen in two complete looks at least
0.5 s apart, holds what a spec needs, and is not protected. A person's word stands in for policy and need alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from daemon.domain.actions import Action, Signal, SignalName
from daemon.domain.host import StrayLimit
from daemon.domain.observation import Observation, Process, ProcessId, Unknown
from daemon.domain.status import Reason
from daemon.domain.text import duration_s
from daemon.planner.holders import SERVES_GOOD_S, Holder, Holders, answer_age_s, shapes_of, tree_ports
from daemon.planner.ownership import SERVING
from daemon.planner.protect import mps_runs, protected
from daemon.planner.titles import is_engine
from daemon.planner.world import Desired, Retired, StrayFact, World

SIGHTING_GAP_S = 0.5
LOOK_GOOD_S = 30.0
SURVIVES_KILL_S = 10.0
HEAD_START_S = 5.0  # at most a quarter of the grace
MARKED_PATIENCE_S = 4.0
ASK_AGAIN_S = 5.0  # what gave no answer is asked again no sooner
LIKELY_PATIENCE_S = 15.0
_LEVELS: tuple[StrayLimit, ...] = ("report", "orphans", "any")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to one orphan now: `reason` OK means it is being cleared."""

    holder: Holder
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class ServeQuestion:
    """Whether any of these ports, of the tree of this process, generates or asks for a key, and how long to wait.

    `marked`: our own mark already says whose it is; of anybody else's server one silence tells nothing.
    """

    process: ProcessId
    ports: tuple[int, ...]
    marked: bool

    @property
    def patience_s(self) -> float:
        """A saturated server of somebody else answers late."""
        return MARKED_PATIENCE_S if self.marked else LIKELY_PATIENCE_S


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
    orphans = [h for h in holders.all if h.ownership.orphan and h.process.state != "Z"]
    verdicts = tuple(may_clear(holder, world, look, mps) for holder in orphans)
    going = [v.holder for v in verdicts if v.reason is Reason.OK]
    send: dict[SignalName, list[Holder]] = {"TERM": [], "CONT": [], "KILL": []}
    affordable = _affordable(going, world)
    for holder in affordable:
        for signal in _signals(holder, affordable, world):
            send[signal].append(holder)
    actions = tuple(_signal(name, found, world) for name, found in send.items() if found)
    moves = any(v.reason in (Reason.OK, Reason.NOT_OBSERVED_YET) for v in verdicts)
    questions = _questions(world, look, holders)
    return Clearing(actions, verdicts, questions, 0.6 if moves else ASK_AGAIN_S if questions else None)


def _affordable(going: list[Holder], world: World) -> list[Holder]:
    """Those that the budget of this hour covers: whoever was signalled already, then as many others as are left.

    What a person asked for is no part of it.
    """
    left = max(world.host.strays.budget - world.kills.count, 0)
    free = world.kills.known | world.asked.keys()
    new = [h.process.id for h in going if h.process.id not in free]
    held_back = set(new[left:])
    return [holder for holder in going if holder.process.id not in held_back]


def _signal(name: SignalName, holders: list[Holder], world: World) -> Signal:
    targets = sorted((h.process for h in holders), key=lambda p: p.id.pid)
    why = "; ".join(_why(h, world) for h in holders)[:2000]
    groups = tuple(process.cgroup for process in targets)
    return Signal(name, tuple(process.id for process in targets), why, Reason.ORPHAN_WORKERS, groups)


def _why(holder: Holder, world: World) -> str:
    by = world.asked.get(holder.process.id)
    return holder.describe() if by is None else f"asked by {by}: {holder.describe()}"


def may_clear(holder: Holder, world: World, look: Observation, mps: bool) -> Verdict:
    """What happens to one orphan now; `mps`: a CUDA MPS server runs."""
    process, fact = holder.process, world.strays.get(holder.process.id)
    if protected(process, world.host.protect):
        unnamed = "" if process.user else f", as far as uid {process.uid} can be told, which has no name here"
        return Verdict(holder, Reason.PROTECTED, f"on the protect list{unnamed}")
    if process.id in world.unkillable or _survived(fact, world):
        return Verdict(holder, Reason.UNKILLABLE_PROCESS, f"survived KILL in state {process.state}; reboot the host")
    if mps:
        return Verdict(holder, Reason.STRAY_UNDER_MPS, "CUDA MPS runs: killing one client can hurt all")
    asked = process.id in world.asked
    if not asked and (policy := _policy(holder, world)) is not None:
        return Verdict(holder, Reason.REPORT_ONLY, policy)
    # This look began late enough after the end of the first one: what passed between is no second sighting.
    if fact is None or look.at_s - fact.first_seen_s < SIGHTING_GAP_S or world.now_s - look.at_s > LOOK_GOOD_S:
        return Verdict(holder, Reason.NOT_OBSERVED_YET, "seen once; looked at again before any signal")
    if not asked and world.kills.count >= world.host.strays.budget and process.id not in world.kills.known:
        return Verdict(holder, Reason.KILL_BUDGET_EXHAUSTED, _spent(world, process))
    return Verdict(holder, Reason.OK, "being cleared")


def _survived(fact: StrayFact | None, world: World) -> bool:
    return fact is not None and fact.kill_at_s is not None and world.now_s - fact.kill_at_s > SURVIVES_KILL_S


def _spent(world: World, process: Process) -> str:
    return (
        f"{world.kills.count} processes were signalled here within an hour and strays.budget is "
        f"{world.host.strays.budget}; find what starts them. `stoker strays clear {world.name} --pid {process.id.pid}` "
        "ends this one by hand, a greater strays.budget of the host lets Stoker go on"
    )


def _policy(holder: Holder, world: World) -> str | None:
    """Why nobody asked for its end, or somebody asked that it be left; None when it may be cleared."""
    wanting = wanted_by(world, holder)
    if not wanting and not any(left_of(holder, r) for r in world.retired):
        return "holds nothing that a running spec needs"
    limits = [world.host.strays.limit, *(d.declared.view.strays.kill for d in wanting)]
    if not wanting:
        limits.append("orphans")  # what a deleted spec left is no reason to do more
    level = min(limits, key=_LEVELS.index)
    if level == "report":
        return "policy says report"
    if holder.ownership.owner == "orphan-likely" and level != "any" and not _covered(holder, world):
        return "likely an orphan, but this host is not exclusive"
    return None


def left_of(holder: Holder, retired: Retired) -> bool:
    """Whether it was started for a role that is gone: it sits in its unit's cgroup, or carries the mark of its spec."""
    if retired.record.unit in (holder.unit_group, holder.child_group):
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
    if desired.unit in (holder.unit_group, holder.child_group):
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


def _signals(holder: Holder, going: list[Holder], world: World) -> tuple[SignalName, ...]:
    """TERM once (with CONT for a stopped one, so that it can act on it), KILL once after the grace.

    An engine is asked first and ends its workers itself (case B01): they have the rest of its grace, at least half.
    """
    process, fact, grace_s = holder.process, world.strays[holder.process.id], _grace_s(holder, world)
    start_s, head = min(HEAD_START_S, grace_s / 4), _head(process, going)
    above_s = None if head is None else world.strays[head.process.id].term_at_s
    if fact.term_at_s is None:
        if head is not None and (above_s is None or world.now_s - above_s < start_s):
            return ()
        return ("TERM", "CONT") if process.state in "Tt" else ("TERM",)
    since_s = fact.term_at_s
    if above_s is not None and since_s - above_s <= grace_s / 2:
        since_s = above_s
    if fact.kill_at_s is None and world.now_s - since_s >= grace_s:
        return ("KILL",)
    return ()


def _head(process: Process, going: list[Holder]) -> Holder | None:
    """The uppermost of its ancestors that is being cleared as well, and can act on a TERM."""
    by_pid = {holder.process.id.pid: holder for holder in going}
    found, pid = None, process.ppid
    while (above := by_pid.pop(pid, None)) is not None:
        found, pid = (found if above.process.state == "D" else above), above.process.ppid
    return found


def _questions(world: World, look: Observation, holders: Holders) -> tuple[ServeQuestion, ...]:
    """Processes whose class hangs on whether their tree serves, and those whose answer has had its time."""
    asked, shapes = [], shapes_of(world)
    for holder in holders.all:
        process = holder.process
        marked = dict(process.marks or ()).get("STOKER_STORE") == world.store_uid
        old = holder.ownership == SERVING and answer_age_s(process, world) >= SERVES_GOOD_S
        if (old or holder.ownership.owner == "unknown") and (marked or is_engine(process, shapes)):
            ports = tree_ports(process, look, shapes)
            if ports:
                asked.append(ServeQuestion(process.id, ports, marked))
    return tuple(asked)

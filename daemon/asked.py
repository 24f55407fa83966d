"""A person's word to clear processes of a host: judged when it is given, watched until it ended, told both times.

Called by `strays` with what a person asked and by `reconcile` after each plan. Sends nothing: the plan does, by the
rules of `planner.clearing`. A word lives in this process only: when it is lost, the person sees so and asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from daemon.domain.observation import Observation, Process, ProcessId, Unknown
from daemon.domain.status import Event, Reason
from daemon.memory import Asked, HostMemory
from daemon.planner.clearing import SURVIVES_KILL_S, Verdict, may_clear
from daemon.planner.holders import Holder
from daemon.planner.plan import Plan
from daemon.planner.protect import mps_runs
from daemon.planner.world import World
from daemon.store import Store

ASKED_GOOD_S = 600.0
_GOING = frozenset({Reason.OK, Reason.NOT_OBSERVED_YET})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one process is not cleared, though a person asked."""

    process: ProcessId
    reason: Reason
    detail: str

    def __str__(self) -> str:
        return f"pid {self.process.pid}: {self.reason}: {self.detail}"


def judge(world: World, plan: Plan, wanted: Sequence[ProcessId], by: str) -> tuple[Refusal, ...]:
    """Those that are not cleared by anybody's word, each with its reason; as the last look showed them."""
    asked = replace(world, asked={**world.asked, **dict.fromkeys(wanted, by)})
    return tuple(found for identity in wanted if (found := _refusal(asked, plan, identity)) is not None)


def _refusal(world: World, plan: Plan, identity: ProcessId) -> Refusal | None:
    look = world.observation
    assert isinstance(look, Observation)
    holder = _holder(plan, identity)
    if holder is None:
        return Refusal(identity, *_absent(look, identity))
    owner, proof = holder.ownership.owner, holder.ownership.proof
    match owner:
        case "managed":
            return Refusal(identity, Reason.MANAGED, f"{proof}; to stop it set run: false or delete its spec")
        case "foreign":
            return Refusal(identity, Reason.FOREIGN_HOLDER, f"foreign, {proof}; Stoker ends no foreign process")
        case "unknown":
            return Refusal(identity, Reason.OWNERSHIP_UNKNOWN, f"whose it is, is not known: {proof}")
        case "orphan-proven" | "orphan-likely":
            if holder.process.state == "Z":
                text = f"it has ended already; its parent, pid {holder.process.ppid}, must reap it"
                return Refusal(identity, Reason.DEFUNCT_PROCESS, text)
            verdict = may_clear(holder, world, look, mps_runs(look))
            return None if verdict.reason in _GOING else Refusal(identity, verdict.reason, verdict.detail)


def _holder(plan: Plan, identity: ProcessId) -> Holder | None:
    holders = () if isinstance(plan.holders, Unknown) else plan.holders.all
    return next((holder for holder in holders if holder.process.id == identity), None)


def _absent(look: Observation, identity: ProcessId) -> tuple[Reason, str]:
    """What is not among the holders: another process by now, one that holds nothing, or none."""
    if isinstance(look.apps, Unknown):
        return look.apps.reason, f"what runs on the GPUs is not known: {look.apps.detail}"
    here = () if isinstance(look.processes, Unknown) else look.processes
    same = next((process for process in here if process.id.pid == identity.pid), None)
    if same is None:
        return Reason.GROUND_CHANGED, "it is gone, or holds nothing here any more"
    if same.id != identity:
        return Reason.GROUND_CHANGED, "that pid is another process by now"
    return Reason.GROUND_CHANGED, "it holds no GPU, needed port or managed cgroup"


async def settle(store: Store, world: World, plan: Plan, memory: HostMemory, now: datetime) -> None:
    """End every word that is done or that can come to nothing now, each with an event that names who gave it."""
    for identity, asked in tuple(memory.asked.items()):
        ended = _ended(world, plan, identity, asked)
        if ended is None:
            continue
        del memory.asked[identity]
        reason, text, good = ended
        event = Event(
            reason,
            f"pid {identity.pid}, which {asked.by} asked to clear: {text}",
            "Host",
            world.name,
            "Normal" if good else "Warning",
            action="clear",
            result="ok" if good else "refused",
        )
        await store.add_event(event, now)


def _ended(world: World, plan: Plan, identity: ProcessId, asked: Asked) -> tuple[Reason, str, bool] | None:
    """How one word ended, None while it is being followed. What is not known ends nothing before its time."""
    look, late = world.observation, world.now_s - asked.at_s > ASKED_GOOD_S
    if isinstance(look, Unknown) or isinstance(look.processes, Unknown) or isinstance(plan.holders, Unknown):
        return (Reason.OBSERVATION_OLD, "what became of it is not known", False) if late else None
    holder = _holder(plan, identity)
    if holder is None or holder.process.state == "Z":
        if isinstance(look.apps, Unknown) and holder is None:
            return (look.apps.reason, "whether it still holds a GPU is not known", False) if late else None
        return _left(world, look.processes, identity, late)
    if world.withheld is not None:
        return world.withheld, "nothing may be changed now; ask again when it may", False
    if holder.ownership.owner == "unknown":
        return (Reason.OWNERSHIP_UNKNOWN, holder.ownership.proof, False) if late else None
    if not holder.ownership.orphan:
        return Reason.FOREIGN_HOLDER, f"{holder.ownership.owner}, {holder.ownership.proof}", False
    verdict = _decided(plan, identity)
    if verdict is None or verdict.reason is Reason.OK or (verdict.reason is Reason.NOT_OBSERVED_YET and not late):
        return None
    return verdict.reason, verdict.detail, False


def _left(
    world: World, processes: tuple[Process, ...], identity: ProcessId, late: bool
) -> tuple[Reason, str, bool] | None:
    """The end of what is listed as holding nothing: bad where it was killed, or has a card open, and is still there."""
    here = next((process for process in processes if process.id == identity), None)
    if here is None:
        return Reason.CLEAN, "it is gone", True
    fact = world.strays.get(identity)
    killed_s = None if fact is None or fact.kill_at_s is None else world.now_s - fact.kill_at_s
    if here.state != "Z" and (here.nvidia_open or killed_s is not None or identity in world.unkillable):
        stuck = late or identity in world.unkillable or (killed_s is not None and killed_s > SURVIVES_KILL_S)
        text = f"it is still there, in state {here.state}; reboot the host"
        return (Reason.UNKILLABLE_PROCESS, text, False) if stuck else None
    return Reason.CLEAN, "it has ended, or holds nothing any more", True


def _decided(plan: Plan, identity: ProcessId) -> Verdict | None:
    return next((v for v in plan.clearing.verdicts if v.holder.process.id == identity), None)

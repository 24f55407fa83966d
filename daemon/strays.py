"""Every process that a host's last look attributed, and a person's word to clear some: for the API.

Made once, by `controller`. Reads what the last pass left in memory and asks no host: figures that move (memory, ages,
states) are here and not in the store, which a steady host must not write to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from daemon.asked import Refusal, judge
from daemon.domain.errors import Conflict
from daemon.domain.observation import Observation, Process, ProcessId, Unknown
from daemon.domain.status import Event, Reason
from daemon.memory import Asked, HostMemory
from daemon.planner.clearing import Verdict
from daemon.planner.holders import Holders, command_of
from daemon.planner.plan import Plan
from daemon.planner.strays import judged
from daemon.planner.world import World
from daemon.record import why_not
from daemon.store import Store
from daemon.store.rows import JsonObject

COMMAND_CHARS = 1000
PARENT_CHARS = 120


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a person's word: `accepted` are being cleared from now on, by the rules of every clearing."""

    accepted: tuple[ProcessId, ...]
    refused: tuple[Refusal, ...]


class Strays:
    """The live list of each host, and the words given over it."""

    def __init__(
        self,
        store: Store,
        memory_of: Callable[[str], HostMemory | None],
        poke: Callable[[str], None],
        clock: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._memory_of = memory_of
        self._poke = poke
        self._clock = clock
        self._wall = wall

    def list(self, name: str, *, managed: bool = True) -> JsonObject:
        """All that is known of who holds what there; `items` and `gpus` are None where that is not known."""
        memory = self._memory_of(name)
        world, plan = (None, None) if memory is None else (memory.world, memory.plan)
        if memory is None or world is None or plan is None:
            return _nothing(name, Unknown(Reason.NOT_OBSERVED_YET, "the host has not been looked at yet"))
        look = world.observation
        if isinstance(look, Unknown):
            return _nothing(name, look)
        times = _Times(look, self._clock(), self._wall())
        shown = [v for v in judged(world, plan) if managed or v.holder.ownership.owner != "managed"]
        known = isinstance(plan.holders, Holders)
        return {
            "host": name,
            "bootId": look.identity.boot_id,
            "observedAt": times.of(look.at_s),
            "withheld": None if world.withheld is None else str(world.withheld),
            "unknown": _unknown(look, plan),
            "gpus": _gpus(look),
            "items": [_item(verdict, look, memory, times) for verdict in shown] if known else None,
            "unseen": _ghosts(plan, look),
        }

    async def ask(self, name: str, boot_id: str, wanted: Sequence[ProcessId], by: str) -> Answer:
        """A person's word to clear these, as they were listed. Raises: Conflict where nothing can be cleared now."""
        memory, wanted = self._memory_of(name), tuple(dict.fromkeys(wanted))
        try:
            world, plan = self._able(name, memory, boot_id)
        except Conflict as error:
            await self._say(name, by, wanted, f"refused, {error}", (), good=False)
            raise
        assert memory is not None
        refused = judge(world, plan, wanted, by)
        hopeless = {refusal.process for refusal in refused}
        accepted = tuple(identity for identity in wanted if identity not in hopeless)
        text = "accepted" if not refused else "accepted " + (", ".join(str(p.pid) for p in accepted) or "none")
        await self._say(name, by, wanted, text, refused, good=not refused)
        memory.asked |= {identity: Asked(by, self._clock()) for identity in accepted}
        self._poke(name)
        return Answer(accepted, refused)

    def _able(self, name: str, memory: HostMemory | None, boot_id: str) -> tuple[World, Plan]:
        world, plan = (None, None) if memory is None else (memory.world, memory.plan)
        if world is None or plan is None:
            raise Conflict(f"{name} has not been looked at yet: try again")
        look = world.observation
        if isinstance(look, Unknown):
            raise Conflict(f"what runs on {name} is not known: {look.reason}: {look.detail}")
        if look.identity.boot_id != boot_id:
            raise Conflict(f"{name} was booted since that list was made: list its strays again")
        if isinstance(plan.holders, Unknown):
            raise Conflict(f"who holds what on {name} is not known: {plan.holders.reason}: {plan.holders.detail}")
        if world.withheld is not None:
            raise Conflict(f"nothing may be changed on {name} now: {world.withheld}: {why_not(world)}".rstrip(": "))
        return world, plan

    async def _say(
        self, name: str, by: str, wanted: Sequence[ProcessId], text: str, refused: Sequence[Refusal], *, good: bool
    ) -> None:
        pids = ", ".join(str(identity.pid) for identity in wanted)
        event = Event(
            refused[0].reason if refused else Reason.CLEARING,
            "; ".join([f"{by} asked to clear pid {pids} on {name}: {text}", *map(str, refused)]),
            "Host",
            name,
            "Normal" if good else "Warning",
            action="ask-clear",
            result="ok" if good else "refused",
        )
        await self._store.add_event(event, self._wall())


@dataclass(frozen=True, slots=True)
class _Times:
    """Stamps of the daemon's clock and of the host's boot clock as times of the day, to the second.

    None for one that no calendar holds: what a host says of its clock is no reason to list nothing.
    """

    look: Observation
    now_s: float
    now: datetime

    def of(self, at_s: float) -> str | None:
        try:
            return (self.now - timedelta(seconds=self.now_s - at_s)).isoformat(timespec="seconds")
        except OverflowError:
            return None

    def started(self, process: Process) -> str | None:
        return self.of(self.look.at_s - (self.look.identity.uptime_s - process.id.start_ticks / 100))


def _nothing(name: str, why: Unknown) -> JsonObject:
    unknown = [_why("host", why)]
    return {"host": name, "bootId": None, "observedAt": None, "withheld": str(why.reason), "unknown": unknown,
            "gpus": None, "items": None, "unseen": None}  # fmt: skip


def _why(what: str, why: Unknown) -> JsonObject:
    return {"what": what, "reason": str(why.reason), "detail": why.detail}


def _unknown(look: Observation, plan: Plan) -> list[JsonObject]:
    """What is missing from the list, and why: no answer is not an empty answer."""
    parts: dict[str, Any] = {"gpus": look.gpus, "gpuProcesses": look.apps, "holders": plan.holders}
    return [_why(what, part) for what, part in parts.items() if isinstance(part, Unknown)]


def _gpus(look: Observation) -> list[JsonObject] | None:
    if isinstance(look.gpus, Unknown):
        return None
    return [
        {"index": g.index, "uuid": g.uuid, "memoryUsedMib": g.memory_used_mib, "memoryTotalMib": g.memory_total_mib}
        for g in look.gpus
    ]


def _ghosts(plan: Plan, look: Observation) -> list[JsonObject] | None:
    """Rows of the driver that name no process here, as inside a container."""
    if isinstance(plan.holders, Unknown) or isinstance(look.apps, Unknown):
        return None
    index = {} if isinstance(look.gpus, Unknown) else {gpu.uuid: gpu.index for gpu in look.gpus}
    return [
        {"gpu": index.get(uuid), "uuid": uuid, "pid": pid, "memoryMib": mib} for uuid, pid, mib in plan.holders.ghosts
    ]


def _item(verdict: Verdict, look: Observation, memory: HostMemory, times: _Times) -> JsonObject:
    holder, process = verdict.holder, verdict.holder.process
    fact, asked = memory.strays.get(process.id), memory.asked.get(process.id)
    stamps: tuple[float | None, ...] = (None, None, None)  # the newest look may not show one of the plan any more
    if fact is not None:
        stamps = (fact.first_seen_s, fact.term_at_s, fact.kill_at_s)
    first, term, kill = (None if at_s is None else times.of(at_s) for at_s in stamps)
    return {
        "pid": process.id.pid,
        "startTicks": process.id.start_ticks,
        "owner": holder.ownership.owner,
        "proof": holder.ownership.proof,
        "unit": holder.unit_group or holder.child_group or holder.ownership.unit,
        "cgroup": process.cgroup,
        "gpus": [{"index": index, "uuid": uuid, "memoryMib": mib} for uuid, index, mib in holder.gpus],
        "ports": list(holder.ports),
        "user": process.user,
        "uid": process.uid,
        "state": process.state,
        "comm": process.comm,
        "command": command_of(process, COMMAND_CHARS),
        "parent": _parent(process, look),
        "startedAt": times.started(process),
        "firstSeenAt": first,
        "termAt": term,
        "killAt": kill,
        "verdict": str(verdict.reason),
        "detail": verdict.detail,
        "askedBy": None if asked is None else asked.by,
    }


def _parent(process: Process, look: Observation) -> JsonObject:
    here = () if isinstance(look.processes, Unknown) else look.processes
    parent = next((p for p in here if p.id.pid == process.ppid), None)
    return {"pid": process.ppid, "command": None if parent is None else command_of(parent, PARENT_CHARS)}

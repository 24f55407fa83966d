"""What becomes of every holder that a look found, for a person: orphans as clearing decided, the others why not.

Called by `daemon.record` for the status and by `daemon.strays` for the live list. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from daemon.domain.observation import Unknown
from daemon.domain.status import Reason
from daemon.planner.clearing import SURVIVES_KILL_S, Verdict, wanted_by
from daemon.planner.holders import Holder, Holders, ledger_of
from daemon.planner.ownership import attribute
from daemon.planner.plan import Plan
from daemon.planner.world import World

_ORDER = {"orphan-proven": 0, "orphan-likely": 0, "unknown": 1, "foreign": 2, "managed": 3}


def judged(world: World, plan: Plan) -> tuple[Verdict, ...]:
    """A verdict for each holder, what is or may be a stray first; empty when holders are not known."""
    if isinstance(plan.holders, Unknown):
        return ()
    decided = {verdict.holder.process.id: verdict for verdict in plan.clearing.verdicts}
    found = [_judged(holder, decided.get(holder.process.id), world) for holder in plan.holders.all]
    found += _killed(world, plan.holders)
    return tuple(sorted(found, key=lambda v: (_ORDER[v.holder.ownership.owner], v.holder.process.id.pid)))


def _killed(world: World, holders: Holders) -> Iterator[Verdict]:
    """What was killed and is still there, though the driver and the kernel no longer list what it holds (case B07)."""
    look, told = world.observation, {holder.process.id for holder in holders.all}
    if isinstance(look, Unknown) or isinstance(look.processes, Unknown):
        return
    for process in look.processes:
        fact = world.strays.get(process.id)
        killed_s = None if fact is None or fact.kill_at_s is None else world.now_s - fact.kill_at_s
        stuck = process.id in world.unkillable or (killed_s is not None and killed_s > SURVIVES_KILL_S)
        if process.id in told or process.state == "Z" or (killed_s is None and not stuck):
            continue
        holder = Holder(process, attribute(process, ledger_of(world, look)))
        if stuck:
            text = f"survived KILL in state {process.state}; reboot the host"
            yield Verdict(holder, Reason.UNKILLABLE_PROCESS, text)
        else:
            yield Verdict(holder, Reason.CLEARING, "was sent KILL and is ending")


def _judged(holder: Holder, decided: Verdict | None, world: World) -> Verdict:
    if decided is not None and decided.reason is not Reason.OK:
        return decided
    if decided is not None:
        if world.withheld is not None:
            return Verdict(holder, world.withheld, "would be cleared, but nothing may be changed now")
        return Verdict(holder, Reason.CLEARING, decided.detail)
    match holder.ownership.owner:
        case "managed":
            return Verdict(holder, Reason.MANAGED, "left to its unit")
        case "foreign":
            return Verdict(holder, Reason.FOREIGN_HOLDER, f"left alone{_blocks(holder, world)}")
        case "unknown":
            return Verdict(holder, Reason.OWNERSHIP_UNKNOWN, f"left alone while that is so{_blocks(holder, world)}")
        case "orphan-proven" | "orphan-likely":
            return Verdict(
                holder, Reason.DEFUNCT_PROCESS, f"ended; its parent, pid {holder.process.ppid}, must reap it"
            )


def _blocks(holder: Holder, world: World) -> str:
    """Whose start it is in the way of."""
    names = sorted({desired.declared.spec_name for desired in wanted_by(world, holder)})
    return f"; in the way of spec {', '.join(names[:3])}" if names else ""

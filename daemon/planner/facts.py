"""Drift of the layers that nobody corrects: which cards an instance holds, what its engine says, what the host has.

Reported only (law 5): no row of these is ever a reason to restart. Where nothing is told, nothing is said.
"""

from __future__ import annotations

from daemon.domain.host import Gpus
from daemon.domain.observation import Observation, Unit, Unknown
from daemon.domain.status import Drift
from daemon.planner.holders import Holders
from daemon.planner.world import Desired, EffectiveFact

IDLE_MIB = 1024  # a card with less in use holds no model: a driver's and a context's own share


def placement_drift(
    desired: Desired, unit: Unit, holders: Holders | Unknown, look: Observation, *, loaded: bool
) -> tuple[Drift, ...]:
    """Cards that its processes hold and should not; and, once it has generated (`loaded`), cards it leaves unused.

    Rows that name nobody here (another pid namespace) may be its own: then nothing is missing for sure.
    """
    if isinstance(holders, Unknown) or isinstance(look.gpus, Unknown) or isinstance(look.apps, Unknown):
        return ()
    mine = [h for h in holders.all if h.ownership.owner == "managed" and h.ownership.unit == unit.name]
    held = {uuid for holder in mine for uuid, _, _ in holder.gpus}
    cards = {gpu.uuid: gpu for gpu in look.gpus}
    extra = [
        Drift(desired.unit, "placement", f"gpu.{cards[uuid].index}", "not held", "held")
        for uuid in sorted(held - desired.gpu_uuids, key=lambda uuid: cards[uuid].index if uuid in cards else -1)
        if uuid in cards
    ]
    if not loaded or holders.ghosts:
        return tuple(extra)
    idle = [
        Drift(desired.unit, "placement", f"gpu.{index}", "held", "not held")
        for index, uuid in desired.gpus
        if uuid not in held and uuid in cards and _idle(cards[uuid].memory_used_mib)
    ]
    return (*idle, *extra)


def _idle(used_mib: int | None) -> bool:
    return used_mib is not None and used_mib < IDLE_MIB


def effective_drift(desired: Desired, unit: Unit, fact: EffectiveFact | None) -> tuple[Drift, ...]:
    """What the engine of this very invocation says otherwise."""
    if fact is None or fact.invocation != unit.invocation_id or isinstance(fact.claims, Unknown):
        return ()
    return tuple(
        Drift(desired.unit, "effective", claim.field, claim.declared, claim.observed)
        for claim in fact.claims
        if claim.declared != claim.observed
    )


def inventory_drift(wanted: Gpus | None, known: tuple[str, ...], look: Observation) -> tuple[Drift, ...]:
    """Cards against the declared number and product, and against those of the first sight (`known`)."""
    if isinstance(look.gpus, Unknown):
        return ()
    found: list[Drift] = []
    if wanted is not None and len(look.gpus) != wanted.count:
        found.append(Drift("", "inventory", "gpus", str(wanted.count), str(len(look.gpus))))
    if wanted is not None and wanted.product is not None:
        found += [
            Drift("", "inventory", f"gpu.{gpu.index}.product", wanted.product, gpu.name)
            for gpu in look.gpus
            if gpu.name != wanted.product
        ]
    here = {gpu.uuid for gpu in look.gpus}
    if known:
        found += [Drift("", "inventory", f"uuid.{uuid}", "present", "missing") for uuid in sorted(set(known) - here)]
        found += [Drift("", "inventory", f"uuid.{uuid}", "not known", "present") for uuid in sorted(here - set(known))]
    return tuple(found)

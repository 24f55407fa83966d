"""What is known of each card's memory between looks: its idle baseline, and since when it is in use unexplained.

`seen` is one pure step: what was known, one look, now. `HostMemory` keeps the result, `barrier` and `conditions` judge
by it. A baseline is learned only while nobody was on the card for QUIET_S without a break; it never falls below truth
by a wrong look, and no wrong one can be larger than CAP_MIB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from daemon.domain.observation import Gpu, Observation, Process, Unknown
from daemon.planner.protect import protected

QUIET_S = 60.0
APART_S = 60.0  # between two looks somebody may have come and gone
CAP_MIB = 1024
NORMAL_MIB = 600  # in use with nobody on it: 0 to 600 MiB were seen, by driver and product
SLACK_MIB = 512  # above the baseline: what a driver keeps for a context that just ended, and less than any model
STEP_MIB = 64  # less is no news: counters tremble


@dataclass(frozen=True, slots=True)
class Card:
    """One card, of one boot and one driver. `idle_mib` None: not learned yet.

    `loose_since_s` is since when more than the idle share is in use that no row of the driver explains, None while that
    is not so. `low_mib` is the lowest of it since it last rose, `fell_at_s` when that last fell.
    """

    boot_id: str
    driver: str
    idle_mib: int | None = None
    seen_at_s: float = 0.0
    quiet_since_s: float | None = None
    loose_since_s: float | None = None
    low_mib: int = 0
    fell_at_s: float | None = None

    @property
    def limit_mib(self) -> int:
        """The most that counts as idle."""
        return max(NORMAL_MIB, (self.idle_mib or 0) + SLACK_MIB)


def limit_of(cards: Mapping[str, Card], uuid: str) -> int:
    """The most that counts as idle on a card, known or not."""
    return cards[uuid].limit_mib if uuid in cards else NORMAL_MIB


def loose_mib(gpu: Gpu, look: Observation) -> int | None:
    """What is in use on a card and in no row of the driver; None where that is not known (unified memory, case A14)."""
    if gpu.memory_used_mib is None or isinstance(look.apps, Unknown):
        return None
    shares = [app.memory_mib for app in look.apps if app.gpu_uuid == gpu.uuid]
    if None in shares:
        return 0  # somebody has it: how much of it, the driver does not say
    return max(0, gpu.memory_used_mib - sum(share for share in shares if share is not None))


def seen(before: Mapping[str, Card], look: Observation, now_s: float) -> dict[str, Card]:
    """What is known of each card after one complete look; cards that it does not show are forgotten."""
    if isinstance(look.gpus, Unknown):
        return {uuid: _broken(card) for uuid, card in before.items() if card.boot_id == look.identity.boot_id}
    return {gpu.uuid: _step(before.get(gpu.uuid), gpu, look, now_s) for gpu in look.gpus}


def _broken(card: Card) -> Card:
    """Nobody can say who was there meanwhile; memory that was on its way back may still be."""
    return replace(card, quiet_since_s=None)


def _step(before: Card | None, gpu: Gpu, look: Observation, now_s: float) -> Card:
    boot_id = look.identity.boot_id
    if before is None or (before.boot_id, before.driver) != (boot_id, gpu.driver):
        before = Card(boot_id, gpu.driver, seen_at_s=now_s)
    return _loose(_learned(before, gpu, look, now_s), gpu, look, now_s)


def _learned(card: Card, gpu: Gpu, look: Observation, now_s: float) -> Card:
    """Quiet goes on, begins or ends; the baseline is the least seen while it had lasted long enough."""
    gap = now_s - card.seen_at_s
    card = replace(card, seen_at_s=now_s)
    if not _alone(gpu, look):
        return _broken(card)
    since = now_s if card.quiet_since_s is None or gap > APART_S else card.quiet_since_s
    card = replace(card, quiet_since_s=since)
    if now_s - since < QUIET_S or gpu.memory_used_mib is None:
        return card
    return replace(card, idle_mib=min(gpu.memory_used_mib, CAP_MIB if card.idle_mib is None else card.idle_mib))


def _alone(gpu: Gpu, look: Observation) -> bool:
    """Surely nobody is on the card: no row, and nobody has it open but what keeps or watches a driver."""
    if isinstance(look.apps, Unknown) or isinstance(look.processes, Unknown):
        return False
    if any(app.gpu_uuid == gpu.uuid for app in look.apps):
        return False
    return not any(_on(process, gpu, look) for process in look.processes)


def _on(process: Process, gpu: Gpu, look: Observation) -> bool:
    inside = look.identity.container not in ("", "none")  # there a number may be another card's
    open_here = process.nvidia_open if inside else gpu.index in process.nvidia_minors
    return open_here and not protected(process, ())


def _loose(card: Card, gpu: Gpu, look: Observation, now_s: float) -> Card:
    """Since when memory is in use that nobody explains, and whether it falls."""
    loose = loose_mib(gpu, look)
    if isinstance(look.apps, Unknown):
        return card
    if loose is None or loose <= card.limit_mib:
        return replace(card, loose_since_s=None, low_mib=0, fell_at_s=None)
    if card.loose_since_s is None:
        return replace(card, loose_since_s=now_s, low_mib=loose, fell_at_s=None)
    if loose <= card.low_mib - STEP_MIB:
        return replace(card, low_mib=loose, fell_at_s=now_s)
    # What fell and rises again is no memory on its way back: it must rest first to be called falling once more.
    rested = card.fell_at_s is None or now_s - card.fell_at_s > QUIET_S
    return replace(card, low_mib=loose) if loose >= card.low_mib + STEP_MIB and rested else card

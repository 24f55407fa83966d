"""The host's Degraded: what needs a person before it stops a start. Never a reason to stop or restart anything. Pure.

Told in steps, without figures that move: a steady host writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from daemon.domain.health import Space
from daemon.domain.observation import Observation, Unknown
from daemon.domain.status import Condition, Reason

NEARLY_PCT = 90  # from here on a person has time to act
FULL_PCT = 98  # from here on a start may well fail: NCCL, compilers and the journal need room
ROOMY_MIB = 20 * 1024  # with this much left a share says nothing: 10 % of a large disk is plenty
SHM = "/dev/shm"  # noqa: S108 - a mount point
_MAX_TEXT = 1000


def degraded(look: Observation, generation: int) -> Condition:
    """True with the worst first, False where nothing is known to be wrong, Unknown where only half could be read."""
    found = [*_cards(look), *_spaces(look)]
    if found:
        worst = min(found, key=lambda one: one[0])
        text = "; ".join(dict.fromkeys(said for _, _, said in sorted(found, key=lambda one: one[0])))
        return Condition("Degraded", "True", worst[1], text[:_MAX_TEXT], generation)
    for part in (look.gpus, look.space):
        if isinstance(part, Unknown):
            return Condition("Degraded", "Unknown", part.reason, part.detail, generation)
    return Condition("Degraded", "False", Reason.OK, "", generation)


def _cards(look: Observation) -> Iterator[tuple[int, Reason, str]]:
    indexes = {} if isinstance(look.gpus, Unknown) else {gpu.uuid: gpu.index for gpu in look.gpus}
    for one in look.ailments:
        where = f"GPU {indexes[one.uuid]}: " if one.uuid in indexes else ""
        yield 0 if one.unusable else 2, one.reason, f"{where}{one.detail}"


def _spaces(look: Observation) -> Iterator[tuple[int, Reason, str]]:
    for space in () if isinstance(look.space, Unknown) else look.space:
        used = _step(space.used_pct) if space.free_mib < ROOMY_MIB else None
        if used is not None:
            yield 1 if used == FULL_PCT else 3, _reason(space), f"{space.path} is more than {used} % full"
        files = _step(space.inodes_pct)
        if files is not None:
            rank = 1 if files == FULL_PCT else 3
            yield rank, Reason.INODES_FULL, f"{space.path} has used more than {files} % of its inodes"


def _step(pct: int | None) -> int | None:
    return next((step for step in (FULL_PCT, NEARLY_PCT) if pct is not None and pct > step), None)


def _reason(space: Space) -> Reason:
    if space.path == SHM:
        return Reason.SHARED_MEMORY_FULL
    return Reason.JOURNAL_FULL if space.path.endswith("/log/journal") else Reason.DISK_FULL

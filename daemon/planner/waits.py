"""Starts that are held up: since when, and when that is said again, louder. Pure; `HostMemory` keeps the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

TOLD_AT_S = (120.0, 900.0, 3600.0)
THEN_EACH_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Wait:
    """One start that is held up. `since` is for people; `told` is how often it was said again."""

    since: str
    since_s: float
    told: int = 0

    def due_s(self) -> float:
        """After how long it is said the next time."""
        if self.told < len(TOLD_AT_S):
            return TOLD_AT_S[self.told]
        return TOLD_AT_S[-1] + THEN_EACH_S * (self.told - len(TOLD_AT_S) + 1)


def taken_up(since: str, waited_s: float, now_s: float) -> Wait:
    """A wait that an earlier daemon wrote down: what was due before now was said by that one."""
    wait = Wait(since, now_s - waited_s)
    while wait.due_s() <= waited_s:
        wait = replace(wait, told=wait.told + 1)
    return wait


def step(
    before: Mapping[str, Wait], held_up: Mapping[str, str], now_s: float
) -> tuple[dict[str, Wait], frozenset[str]]:
    """The waits after one pass, and the units whose wait is to be said again now; `held_up` is since when, by unit."""
    now = {unit: before.get(unit, Wait(since, now_s)) for unit, since in held_up.items()}
    due = frozenset(_due(now, now_s))
    return {unit: replace(wait, told=wait.told + 1) if unit in due else wait for unit, wait in now.items()}, due


def _due(waits: Mapping[str, Wait], now_s: float) -> Iterator[str]:
    return (unit for unit, wait in waits.items() if now_s - wait.since_s >= wait.due_s())

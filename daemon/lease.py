"""Who may change a host: the fence, taken by compare-and-swap, and only from a run that this store knows (law 6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from daemon.domain.errors import TransportError, VerbFailed, VerbRefused
from daemon.domain.observation import Fence, Observation, Unknown
from daemon.domain.status import Reason
from daemon.verbs import Asks, ask, fence_text

Knows = Callable[[Fence], Awaitable[bool]]
TAKE_TIMEOUT_S = 15.0


async def hold_fence(road: Asks, look: Observation, ours: Fence, knows: Knows) -> Reason | None:
    """None when this run may change the host; else why not. Takes the host over from an earlier run of this store."""
    present = look.fence
    if isinstance(present, Unknown):
        return present.reason
    if present == ours:
        return None
    if present is not None and not await knows(present):
        return Reason.FENCED_OFF
    return await take_fence(road, present, ours)


async def take_fence(road: Asks, expected: Fence | None, ours: Fence) -> Reason | None:
    """Swap `expected` for `ours` on the host; None when done. Also what a person's `takeover` calls."""
    lines = [("expected", "-" if expected is None else fence_text(expected)), ("fence", fence_text(ours))]
    try:
        await ask(road, "take-fence", lines, timeout_s=TAKE_TIMEOUT_S)
    except VerbRefused as refused:
        return Reason(refused.reason)
    except (TransportError, VerbFailed):
        return Reason.TRANSPORT_LOST
    return None

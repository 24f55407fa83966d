"""What dead engines left in /dev/shm (case B10): which of it is surely this unit's and nobody's any more.

Read by `plan` before a start, when the unit is down and nobody holds what it needs. Names are of SGLang's own sweep
list (0.5.23), NCCL, vLLM and Python's multiprocessing.
"""

from __future__ import annotations

from daemon.domain.actions import SweepShm, UnitGround
from daemon.domain.observation import Leftover, Observation, Unit, Unknown
from daemon.domain.status import Reason
from daemon.planner.world import Desired

_ENGINES = ("nccl-", "cuda.shm.", "sglang_", "sgl_shm_", "multi_tokenizer_args_")
_MOST = 200
CLOCKS_S = 0.2  # by which the two clocks of one look may be apart


def sweep(desired: Desired, unit: Unit, look: Observation) -> SweepShm | None:
    """The removal of what is left, None when there is nothing or not everything about it is known."""
    if look.leftovers is None or isinstance(look.leftovers, Unknown) or unit.inactive_enter_us <= 0:
        return None
    down_s = (look.identity.monotonic_us - unit.inactive_enter_us) / 1_000_000
    ran_s = (
        (look.identity.monotonic_us - unit.exec_main_start_us) / 1_000_000 if unit.exec_main_start_us > 0 else down_s
    )
    dead = [left for left in look.leftovers if _dead(left, desired.launch.user or "root", down_s, ran_s)][:_MOST]
    if not dead:
        return None
    mib = sum(left.size for left in dead) // 2**20
    names = ", ".join(left.name for left in dead[:4]) + (f" and {len(dead) - 4} more" if len(dead) > 4 else "")
    return SweepShm(
        unit.name,
        tuple((left.name, left.uid, left.inode, left.changed) for left in dead),
        UnitGround(unit.invocation_id, unit.active_state),
        f"{len(dead)} files of {mib} MiB that dead processes of {unit.name} left in /dev/shm: {names}",
        Reason.SHARED_MEMORY_LEFT,
    )


def _dead(left: Leftover, user: str, down_s: float, ran_s: float) -> bool:
    """Nobody's, of the unit's user, and not made since it went down.

    Names that any Python program may give count only when they were made while the unit last ran.
    """
    if left.held or user not in (left.user, str(left.uid)) or left.age_s <= down_s + CLOCKS_S:
        return False
    return left.name.startswith(_ENGINES) or left.age_s <= ran_s

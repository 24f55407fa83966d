"""The section `shm`: the host's clock and for how long the look had lasted; then of each file, a line each:

NAME UID USER SIZE INODE CHANGED held|free
"""

from __future__ import annotations

import re

from daemon.domain.observation import Leftover
from daemon.probes.process import Malformed, whole_number

_STAMP = re.compile(r"[0-9]{1,12}\.[0-9]{1,12}", re.ASCII)


def parse_leftovers(text: str) -> tuple[Leftover, ...]:
    """Every file of the section, with its age when the look began.

    Raises Malformed when a line is not whole: what is not known is never removed.
    """
    head, *lines = text.split("\n")
    word, now, lasted = head.split(" ")
    if word != "now" or not lines or lines.pop() != "":
        raise Malformed("not whole")
    began = _seconds(now) - whole_number(lasted) / 100
    return tuple(_leftover(line, began) for line in lines)


def _seconds(text: str) -> float:
    if not _STAMP.fullmatch(text):
        raise Malformed(f"not a time: {text[:60]}")
    return float(text)


def _leftover(line: str, began: float) -> Leftover:
    name, uid, user, size, inode, changed, state = line.split(" ")
    if state not in ("held", "free") or not name:
        raise Malformed(f"not a file: {line[:200]}")
    return Leftover(
        name=name,
        uid=whole_number(uid),
        user=user,
        size=whole_number(size),
        inode=whole_number(inode),
        changed=changed,
        age_s=began - _seconds(changed),
        held=state == "held",
    )

"""The rows of `stat -f -c '%b %f %a %S %c %d %n'`: how full file systems are. Called by `report`.

Shares are those that `df` shows: used over used and free to everybody, rounded up.
"""

from __future__ import annotations

import re

from daemon.domain.health import Space
from daemon.probes.process import whole_lines

_ROW = re.compile(r"([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,10}) ([0-9]{1,19}) ([0-9]{1,19}) (/\S{0,200})")


def parse_space(text: str) -> tuple[Space, ...]:
    """One row a path, in order. Raises ValueError on anything else."""
    return tuple(_space(line) for line in whole_lines(text) if line.strip())


def _space(line: str) -> Space:
    found = _ROW.fullmatch(line)
    if found is None:
        raise ValueError(f"no row of a file system: {line[:100]}")
    blocks, free, available, size, files, files_free = (int(part) for part in found.groups()[:6])
    used, files_used = max(0, blocks - free), max(0, files - files_free)
    return Space(
        path=found[7],
        used_pct=_share(used, used + available),
        inodes_pct=_share(files_used, files),
        free_mib=available * size // (1024 * 1024),
    )


def _share(part: int, whole: int) -> int | None:
    return -(-100 * part // whole) if whole > 0 else None

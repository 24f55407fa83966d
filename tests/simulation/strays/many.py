"""Many seeds of strays over all cores, with figures: `make strays N=10000`, or one again with `make strays SEED=…`.

Prints what was planted by kind, the share of foreign look-alikes, recall, wrong kills and starts on a dirty card.
`--result FILE` keeps that text. Exit status 1 when any seed failed; SEED=… with TRACE=FILE replays it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.seeds import Kind, Sums, counted, quantiles
from tests.simulation.strays.run import Result, run
from tests.simulation.strays.trouble import alike


@dataclass(slots=True)
class Tally(Sums[Result]):
    """What many runs came to."""

    kinds: Counter[str] = field(default_factory=Counter)
    holds: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    swept: Counter[str] = field(default_factory=Counter)
    cleared_s: list[float] = field(default_factory=list)
    starts: int = 0

    def add(self, one: Result) -> None:
        Sums.add(self, one)
        self.kinds += one.kinds
        self.holds += one.holds
        self.ends += one.ends
        self.broken += one.broken
        self.swept += one.swept
        self.starts += one.starts
        if one.cleared_s is not None:
            self.cleared_s.append(one.cleared_s)

    @property
    def alike_pct(self) -> float:
        """The share of foreign look-alikes in all that was planted."""
        return 100 * alike(self.kinds) / max(1, self.kinds.total())

    def figures(self) -> Iterator[str]:
        wrong, dirty = self.broken["OnlyClearableAreSignalled"], self.broken["NoStartOnADirtyCard"]
        due = self.ends["cleared"] + self.broken["missed"]
        yield f"recall: {self.ends['cleared']} of {due}, wrong kills: {wrong}, starts on a dirty card: {dirty}"
        yield f"planted: {self.kinds.total()}, of them foreign look-alikes {alike(self.kinds)} ({self.alike_pct:.1f} %)"
        yield f"starts: {self.starts}"
        yield from quantiles("cleared, and what blocks said", self.cleared_s)
        yield f"held: {counted(self.holds)}"
        yield f"how they ended: {counted(self.ends)}"
        yield f"segments of /dev/shm removed: {counted(self.swept)}"
        yield from (f"  {count:6d} {kind}" for kind, count in sorted(self.kinds.items()))


STRAYS = Kind(run, Result, Tally)

if __name__ == "__main__":
    sys.exit(STRAYS.command(__doc__))

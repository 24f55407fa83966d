"""Many seeds over all cores, with figures: `make simulate N=1000`, or one seed again with `make simulate SEED=…`.

Prints seconds per 1,000 seeds, faults by kind, restarts, signals and convergence; `--result FILE` keeps that text.
Exit status 1 when any seed failed; each is named with what was wrong, and SEED=… with TRACE=FILE replays it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.run import Result, run
from tests.simulation.seeds import Kind, Sums, counted, quantiles


@dataclass(slots=True)
class Tally(Sums[Result]):
    """What many runs came to."""

    changes: Counter[str] = field(default_factory=Counter)
    converged_s: list[float] = field(default_factory=list)

    def add(self, one: Result) -> None:
        Sums.add(self, one)
        self.changes += one.changes
        if one.converged_s is not None:
            self.converged_s.append(one.converged_s)

    def figures(self) -> Iterator[str]:
        yield f"changes on hosts: {counted(self.changes)}"
        yield from quantiles("converged after the last fault", self.converged_s)


FLEET = Kind(run, Result, Tally)

if __name__ == "__main__":
    sys.exit(FLEET.command(__doc__))

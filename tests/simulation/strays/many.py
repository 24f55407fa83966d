"""Many seeds of strays over all cores, with figures: `make strays N=10000`, or one again with `make strays SEED=…`.

Prints what was planted by kind, the share of foreign look-alikes, recall, wrong kills and starts on a dirty card.
`--result FILE` keeps that text. Exit status 1 when any seed failed; SEED=… with TRACE=FILE replays it.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.provenance import made
from tests.simulation.many import counted, spread
from tests.simulation.strays.run import Result, run_seed
from tests.simulation.strays.trouble import alike

FIRST_SEED = 1


@dataclass(slots=True)
class Tally:
    """What many runs came to. `wall_s` is the time they took on `cores`."""

    cores: int
    wall_s: float = 0.0
    seeds: int = 0
    failed: list[Result] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    holds: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    signals: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    cleared_s: list[float] = field(default_factory=list)
    starts: int = 0
    virtual_s: float = 0.0

    def add(self, one: Result) -> None:
        self.seeds += 1
        for name in ("kinds", "holds", "ends", "faults", "signals", "broken"):
            getattr(self, name).update(getattr(one, name))
        self.starts += one.starts
        self.virtual_s += one.virtual_s
        if one.cleared_s is not None:
            self.cleared_s.append(one.cleared_s)
        if one.wrong:
            self.failed.append(one)

    @property
    def alike_pct(self) -> float:
        """The share of foreign look-alikes in all that was planted."""
        return 100 * alike(self.kinds) / max(1, self.kinds.total())

    def lines(self) -> Iterator[str]:
        """The figures, for people."""
        wrong, dirty = self.broken["OnlyClearableAreSignalled"], self.broken["NoStartOnADirtyCard"]
        due = self.ends["cleared"] + self.broken["missed"]
        yield f"seeds: {self.seeds}, failed: {len(self.failed)}"
        yield f"recall: {self.ends['cleared']} of {due}, wrong kills: {wrong}, starts on a dirty card: {dirty}"
        yield f"planted: {self.kinds.total()}, of them foreign look-alikes {alike(self.kinds)} ({self.alike_pct:.1f} %)"
        yield f"signals: {counted(self.signals)}, starts: {self.starts}"
        yield f"seconds per 1,000 seeds: {self.wall_s / max(1, self.seeds) * 1000:.0f} on {self.cores} cores"
        yield f"virtual time: {self.virtual_s / 3600:.0f} h"
        if len(self.cleared_s) > 1:
            cuts = statistics.quantiles(self.cleared_s, n=100, method="inclusive")
            most = max(self.cleared_s)
            yield f"cleared, and what blocks said: p50 {cuts[49]:.0f} s, p99 {cuts[98]:.0f} s, most {most:.0f} s"
        yield f"held: {counted(self.holds)}"
        yield f"how they ended: {counted(self.ends)}"
        yield f"faults: {counted(self.faults)}"
        yield from (f"  {count:6d} {kind}" for kind, count in sorted(self.kinds.items()))
        for one in self.failed[:20]:
            yield from (f"SEED={one.seed}: {line[:400]}" for line in one.wrong[:4])


def tried(seed: int) -> Result:
    """One seed; an error of the run itself is what is wrong with it, and ends no other."""
    try:
        return run_seed(seed)
    except Exception:
        return Result(seed, [traceback.format_exc()])
    finally:
        gc.collect()


def run_many(seeds: Sequence[int], cores: int) -> Tally:
    """All of them, spread over processes."""
    tally = Tally(cores)
    tally.wall_s = spread(tried, seeds, cores, tally.add)
    tally.failed.sort(key=lambda one: one.seed)
    return tally


def main(args: Sequence[str] | None = None) -> int:
    """See the module."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=1000)
    asked.add_argument("--first", type=int, default=FIRST_SEED)
    asked.add_argument("--only", type=int)
    asked.add_argument("--trace", type=Path)
    asked.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--result", type=Path)
    given = asked.parse_args(args)
    if given.only is not None:
        return _only(given.only, given.trace)
    tally = run_many(range(given.first, given.first + given.seeds), given.cores)
    text = "\n".join([*made(), f"seeds from {given.first}", *tally.lines()]) + "\n"
    sys.stdout.write(text)
    if given.result is not None:
        given.result.write_text(text, encoding="utf-8")
    return 1 if tally.failed else 0


def _only(seed: int, trace: Path | None) -> int:
    """One seed, with its trace if wanted."""
    if trace is None:
        one = run_seed(seed)
    else:
        with trace.open("w", encoding="utf-8") as out:
            one = run_seed(seed, out)
    tally = Tally(1)
    tally.add(one)
    sys.stdout.write("\n".join([*tally.lines(), *one.wrong, f"trace {one.digest}"]) + "\n")
    return 1 if one.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

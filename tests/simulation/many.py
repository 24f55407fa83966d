"""Many seeds over all cores, with figures: `make simulate N=1000`, or one seed again with `make simulate SEED=…`.

Prints seconds per 1,000 seeds, faults by kind, restarts, signals and convergence; `--result FILE` keeps that text.
Exit status 1 when any seed failed; each is named with what was wrong, and SEED=… with TRACE=FILE replays it.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

from tests.provenance import made
from tests.simulation.run import Result, run_seed

FIRST_SEED = 1
R = TypeVar("R")


@dataclass(slots=True)
class Tally:
    """What many runs came to. `wall_s` is the time they took on `cores`."""

    cores: int
    wall_s: float = 0.0
    seeds: int = 0
    failed: list[Result] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    signals: Counter[str] = field(default_factory=Counter)
    converged_s: list[float] = field(default_factory=list)
    virtual_s: float = 0.0

    def add(self, one: Result) -> None:
        self.seeds += 1
        self.faults += one.faults
        self.changes += one.changes
        self.signals += one.signals
        self.virtual_s += one.virtual_s
        if one.converged_s is not None:
            self.converged_s.append(one.converged_s)
        if one.wrong:
            self.failed.append(one)

    def lines(self) -> Iterator[str]:
        """The figures, for people."""
        per = self.wall_s / max(1, self.seeds) * 1000
        yield f"seeds: {self.seeds}, failed: {len(self.failed)}"
        yield f"seconds per 1,000 seeds: {per:.0f} on {self.cores} cores"
        yield f"virtual time: {self.virtual_s / 3600:.0f} h"
        yield f"faults: {counted(self.faults)}"
        yield f"changes on hosts: {counted(self.changes)}"
        yield f"signals: {counted(self.signals)}"
        if len(self.converged_s) > 1:
            cuts = statistics.quantiles(self.converged_s, n=100, method="inclusive")
            most = max(self.converged_s)
            yield f"converged after the last fault: p50 {cuts[49]:.0f} s, p99 {cuts[98]:.0f} s, most {most:.0f} s"
        for one in self.failed[:20]:
            yield from (f"SEED={one.seed}: {line[:400]}" for line in one.wrong[:4])


def counted(found: Counter[str]) -> str:
    total = sum(found.values())
    return f"{total} (" + ", ".join(f"{kind} {count}" for kind, count in sorted(found.items())) + ")"


def tried(seed: int) -> Result:
    """One seed; an error of the run itself is what is wrong with it, and ends no other."""
    try:
        return run_seed(seed)
    except Exception:
        return Result(seed, [traceback.format_exc()])
    finally:
        gc.collect()


def run_many(seeds: Iterable[int], cores: int, told: Callable[[Result], None] | None = None) -> Tally:
    """All of them, spread over processes. `told` hears of each."""
    tally = Tally(cores)

    def take(one: Result) -> None:
        tally.add(one)
        if told is not None:
            told(one)

    tally.wall_s = spread(tried, seeds, cores, take)
    tally.failed.sort(key=lambda one: one.seed)
    return tally


def spread(tried: Callable[[int], R], seeds: Iterable[int], cores: int, take: Callable[[R], None]) -> float:
    """Each seed tried in one of so many processes, the next when one of them is free; how long that took, in s."""
    begun, left, running = time.monotonic(), iter(seeds), set[Future[R]]()
    with ProcessPoolExecutor(cores, initializer=gc.disable) as pool:  # once a seed is enough, and a sixth faster
        running |= {pool.submit(tried, seed) for seed in islice(left, cores)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                take(one.result())
                running |= {pool.submit(tried, seed) for seed in islice(left, 1)}
    return time.monotonic() - begun


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
    tally = run_many(range(given.first, given.first + given.seeds), given.cores, _say_failed)
    text = "\n".join([*made(), f"seeds from {given.first}", *tally.lines()]) + "\n"
    sys.stdout.write(text)
    if given.result is not None:
        given.result.write_text(text, encoding="utf-8")
    return 1 if tally.failed else 0


def _say_failed(one: Result) -> None:
    for line in one.wrong:
        print(f"SEED={one.seed}: {line[:600]}", file=sys.stderr, flush=True)


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

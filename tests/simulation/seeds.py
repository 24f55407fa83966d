"""Many seeds over all cores, or one again: what every kind of seeded run has in common with the others.

A kind brings how one seed runs, what that came to, and a tally of many with its figures.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

import structlog

from tests.provenance import made
from tests.simulation import loop
from tests.simulation.tape import Tape

FIRST_SEED = 1


@dataclass(slots=True)
class Came:
    """What one seed came to; `wrong` says why it is not right."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    signals: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    calls: int = 0
    digest: str = ""


C = TypeVar("C", bound=Came)


@dataclass(slots=True)
class Sums(Generic[C]):
    """What many came to. `wall_s` is the time they took on `cores`."""

    cores: int
    wall_s: float = 0.0
    seeds: int = 0
    failed: list[C] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    signals: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0

    def add(self, one: C) -> None:
        self.seeds += 1
        self.faults += one.faults
        self.signals += one.signals
        self.virtual_s += one.virtual_s
        if one.wrong:
            self.failed.append(one)

    def lines(self) -> Iterator[str]:
        """The figures, for people."""
        per = self.wall_s / max(1, self.seeds) * 1000
        yield f"seeds: {self.seeds}, failed: {len(self.failed)}"
        yield f"seconds per 1,000 seeds: {per:.0f} on {self.cores} cores"
        yield f"virtual time: {self.virtual_s / 3600:.0f} h"
        yield f"faults: {counted(self.faults)}"
        yield f"signals: {counted(self.signals)}"
        yield from self.figures()
        for one in self.failed[:20]:
            yield from (f"SEED={one.seed}: {line[:400]}" for line in one.wrong[:4])

    def figures(self) -> Iterator[str]:
        """Those of this kind alone."""
        yield from ()


def counted(found: Counter[str]) -> str:
    """The sum, and of what."""
    return f"{found.total()} (" + ", ".join(f"{kind} {count}" for kind, count in sorted(found.items())) + ")"


def quantiles(what: str, seconds: Sequence[float]) -> Iterator[str]:
    """One line; none where there is too little to tell of."""
    if len(seconds) > 1:
        cuts = statistics.quantiles(seconds, n=100, method="inclusive")
        yield f"{what}: p50 {cuts[49]:.0f} s, p99 {cuts[98]:.0f} s, most {max(seconds):.0f} s"


S = TypeVar("S", bound=Sums[Any])


@dataclass(frozen=True, slots=True)
class Kind(Generic[C, S]):
    """One kind of seeded run. All three are top-level names: other processes get them by name."""

    run: Callable[[int, Path, Tape], Coroutine[Any, Any, C]]
    came: Callable[[int, list[str]], C]
    sums: Callable[[int], S]

    def one(self, seed: int, trace: TextIO | None = None) -> C:
        """The whole run, on a loop and in a folder of its own. The daemon's log goes nowhere: events tell it too."""
        memory = Path("/dev/shm")
        place = memory if memory.is_dir() else None
        with _silent(), tempfile.TemporaryDirectory(dir=place, prefix="stoker-sim-") as folder:
            return loop.run(self.run(seed, Path(folder), Tape(trace)))

    def tried(self, seed: int) -> C:
        """One seed; an error of the run itself is what is wrong with it, and ends no other."""
        try:
            return self.one(seed)
        except Exception:
            return self.came(seed, [traceback.format_exc()])
        finally:
            gc.collect()

    def many(self, seeds: Iterable[int], cores: int, told: Callable[[C], None] = lambda one: None) -> S:
        """All of them, each in one of so many processes, the next when one of them is free. `told` hears of each."""
        sums, begun = self.sums(cores), time.monotonic()
        left, running = iter(seeds), set[Future[C]]()
        with ProcessPoolExecutor(cores, initializer=gc.disable) as pool:  # once a seed is enough, and a sixth faster
            running |= {pool.submit(self.tried, seed) for seed in islice(left, cores)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    sums.add(one.result())
                    told(one.result())
                    running |= {pool.submit(self.tried, seed) for seed in islice(left, 1)}
        sums.wall_s = time.monotonic() - begun
        sums.failed.sort(key=lambda one: one.seed)
        return sums

    def command(self, about: str | None, args: Sequence[str] | None = None) -> int:
        """The command line of a kind's module; its exit status."""
        asked = argparse.ArgumentParser(description=about)
        asked.add_argument("--seeds", type=int, default=1000)
        asked.add_argument("--first", type=int, default=FIRST_SEED)
        asked.add_argument("--only", type=int)
        asked.add_argument("--trace", type=Path)
        asked.add_argument("--cores", type=int, default=os.cpu_count() or 1)
        asked.add_argument("--result", type=Path)
        given = asked.parse_args(args)
        if given.only is not None:
            return self._only(given.only, given.trace)
        sums = self.many(range(given.first, given.first + given.seeds), given.cores, _say_failed)
        text = "\n".join([*made(), f"seeds from {given.first}", *sums.lines()]) + "\n"
        sys.stdout.write(text)
        if given.result is not None:
            given.result.write_text(text, encoding="utf-8")
        return 1 if sums.failed else 0

    def _only(self, seed: int, trace: Path | None) -> int:
        """One seed, with its trace if wanted."""
        if trace is None:
            one = self.one(seed)
        else:
            with trace.open("w", encoding="utf-8") as out:
                one = self.one(seed, out)
        sums = self.sums(1)
        sums.add(one)
        sys.stdout.write("\n".join([*sums.lines(), *one.wrong, f"trace {one.digest}"]) + "\n")
        return 1 if one.wrong else 0


def _say_failed(one: Came) -> None:
    for line in one.wrong:
        print(f"SEED={one.seed}: {line[:600]}", file=sys.stderr, flush=True)


@contextmanager
def _silent() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[_dropped])
    try:
        yield
    finally:
        structlog.configure(**before)


def _dropped(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    raise structlog.DropEvent

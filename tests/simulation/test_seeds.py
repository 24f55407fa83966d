"""The short form of `make simulate`: as many fresh seeds as fit in a minute, and the same seed twice.

Each call takes fresh seeds and prints the first; SIMULATE_FIRST=N takes those again, `make simulate SEED=N` one alone.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.simulation.many import FLEET

ROOM_S = 60.0
AT_LEAST = 12
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.fleet


def _while_there_is_room(first: int) -> Iterator[int]:
    """Seeds from `first` on until the time is up; on a busy machine at least so many that they say something."""
    begun = time.monotonic()
    for seed in count(first):
        if seed - first >= AT_LEAST and time.monotonic() - begun >= ROOM_S:
            return
        yield seed


def test_after_any_faults_everything_declared_is_ready_again_and_no_law_was_broken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = int(os.environ.get("SIMULATE_FIRST") or random.SystemRandom().randrange(10**9))
    with capsys.disabled():
        print(f"\nseeds from {first} (SIMULATE_FIRST={first} takes them again)")
    tally = FLEET.many(_while_there_is_room(first), os.cpu_count() or 1)
    with capsys.disabled():
        print("\n".join(tally.lines()))
    assert not tally.failed, "\n".join(f"make simulate SEED={one.seed}: {one.wrong}" for one in tally.failed)
    assert tally.faults.total() >= 3 * tally.seeds


@pytest.mark.parametrize("seed", [1, 2])
def test_one_seed_has_one_trace_in_one_process_and_across_processes(seed: int) -> None:
    here = {FLEET.one(seed).digest for _ in range(2)}
    for hash_seed in ("1", "2"):
        code = f"from tests.simulation.many import FLEET; print(FLEET.one({seed}).digest)"
        told = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        here.add(told.stdout.strip())
    assert len(here) == 1
    assert FLEET.one(seed + 100).digest not in here


@pytest.mark.parametrize("seed", [5256, 5286])
def test_seeds_that_once_failed_pass(seed: int) -> None:
    """5256: a spec deleted while its unit is masked. 5286: a crash in the first instants of a start."""
    assert FLEET.one(seed).wrong == []

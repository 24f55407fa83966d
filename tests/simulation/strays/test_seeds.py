"""The short form of `make strays`: fresh seeds, and the same seed twice.

CI takes 500 of them (STRAYS_SEEDS), a newcomer's `make test` fewer. Each call takes fresh seeds and prints the first;
STRAYS_FIRST=N takes those again, `make strays SEED=N` one alone.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.strays.many import STRAYS

SEEDS = int(os.environ.get("STRAYS_SEEDS") or 60)
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.strays


def test_every_orphan_is_found_nobody_elses_process_is_touched_and_nothing_starts_on_a_dirty_card(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = int(os.environ.get("STRAYS_FIRST") or random.SystemRandom().randrange(10**9))
    with capsys.disabled():
        print(f"\nseeds of strays from {first} (STRAYS_FIRST={first} takes them again)")
    tally = STRAYS.many(range(first, first + SEEDS), os.cpu_count() or 1)
    with capsys.disabled():
        print("\n".join(tally.lines()))
    assert not tally.failed, "\n".join(f"make strays SEED={one.seed}: {one.wrong}" for one in tally.failed)
    assert tally.seeds == SEEDS
    assert tally.alike_pct >= 40
    assert tally.ends["cleared"] > SEEDS // 2


def test_one_seed_has_one_trace_in_one_process_and_across_processes() -> None:
    here = {STRAYS.one(7).digest for _ in range(2)}
    code = "from tests.simulation.strays.many import STRAYS; print(STRAYS.one(7).digest)"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert here == {told.stdout.strip()}
    assert STRAYS.one(107).digest not in here

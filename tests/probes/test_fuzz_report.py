"""Damaged answers, a few thousand in every run, each time others; `make fuzz` gives many more."""

from __future__ import annotations

import random

import pytest

from daemon.domain.observation import Unknown
from tests.probes.fuzz import SHARES, SOURCES, run
from tests.probes.recordings import looks, probes, recordings, undamaged

pytestmark = pytest.mark.strays
INPUTS = 3000


@pytest.mark.parametrize(("name", "share"), SHARES.items())
def test_damaged_input_is_the_same_or_unknown_and_never_raises(name: str, share: float) -> None:
    first = random.randrange(2**32)
    print(f"seed {first}")
    count = run(name, round(INPUTS * share), first)
    assert count.total() == round(INPUTS * share)


def test_every_recording_is_understood_whole_so_that_damage_can_show() -> None:
    assert len(looks()) == 4
    assert len(probes()) == 1
    assert len({one.nonce for one in recordings()}) == len(recordings())
    for one in looks():
        there = [
            key for key, names in SOURCES.items() if names <= one.sections.keys() and key not in ("hold", "kernel")
        ]
        assert len(there) >= 10
        assert not [key for key in there if isinstance(getattr(undamaged(one), key), Unknown)]


def test_every_section_of_every_look_is_the_source_of_some_value() -> None:
    known = {name for names in SOURCES.values() for name in names}
    assert {name for one in looks() for name in one.sections} <= known

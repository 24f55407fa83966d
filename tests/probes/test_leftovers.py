"""The section `shm`: whole, or not known at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.observation import Leftover
from daemon.probes.leftovers import parse_leftovers

pytestmark = pytest.mark.strays
TEXT = (
    "now 1764509999.500000000 250\n"
    "nccl-Ewjreo 0 root 33030528 7 1764509900.2500000000 free\n"
    "psm_1a2b 1000 alice 4096 8 1764509990.0000000000 held\n"
)


def test_ages_are_of_the_looks_beginning() -> None:
    assert parse_leftovers(TEXT) == (
        Leftover("nccl-Ewjreo", 0, "root", 33_030_528, 7, "1764509900.2500000000", 96.75, held=False),
        Leftover("psm_1a2b", 1000, "alice", 4096, 8, "1764509990.0000000000", 7.0, held=True),
    )
    assert parse_leftovers("now 1.0 0\n") == ()


@given(st.integers(0, len(TEXT) - 1))
def test_a_cut_section_is_never_a_shorter_one(at: int) -> None:
    """Only a cut between two lines leaves a whole text: lengths and the answer's sum show that one."""
    if TEXT[:at].endswith("\n"):
        assert set(parse_leftovers(TEXT[:at])) <= set(parse_leftovers(TEXT))
        return
    with pytest.raises(ValueError, match=r".*"):
        parse_leftovers(TEXT[:at])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" free", " gone"),
        (" free", ""),
        ("now ", "then "),
        (" 7 ", " seven "),
        (" 250", ""),
        ("33030528", "-1"),
        (".25", ""),
    ],
)
def test_a_line_that_is_not_whole_spoils_the_section(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_leftovers(TEXT.replace(old, new))

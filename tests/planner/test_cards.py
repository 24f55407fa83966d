"""What is learned of a card's idle memory, and what is not: properties over any series of looks, then the edges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.domain.observation import Gpu, GpuApp, Identity, Observation, Process, ProcessId, Unknown
from daemon.domain.status import Reason
from daemon.planner.cards import APART_S, CAP_MIB, NORMAL_MIB, QUIET_S, STEP_MIB, Card, seen

CARD, OTHER = "GPU-a", "GPU-b"
BOOT = "11111111-2222-3333-4444-555555555555"

pytestmark = pytest.mark.strays


@dataclass(frozen=True)
class Glimpse:
    """One look at one card, as far as its memory goes."""

    used_mib: int | None
    rows_mib: tuple[int | None, ...] = ()
    open_by: str = ""  # a command that has the card open
    apps_known: bool = True
    gpus_known: bool = True
    boot: str = BOOT
    driver: str = "580.159.04"

    @property
    def quiet(self) -> bool:
        return self.gpus_known and self.apps_known and not self.rows_mib and self.open_by in ("", "nvidia-persistenced")


def look(one: Glimpse) -> Observation:
    gpus = tuple(
        Gpu(n, uuid, f"0:{n}", "H200", one.driver, 143_771, used)
        for n, (uuid, used) in enumerate([(CARD, one.used_mib), (OTHER, 4)])
    )
    apps = tuple(GpuApp(CARD, 100 + n, "python", mib) for n, mib in enumerate(one.rows_mib))
    holder = Process(
        ProcessId(50, 5), 1, 50, 50, "S", 0, one.open_by[:15], "/x", (one.open_by,), (),
        nvidia_open=True, nvidia_minors=frozenset({0}),
    )  # fmt: skip
    unknown = Unknown(Reason.TOOL_TIMED_OUT)
    return Observation(
        host="a", at_s=0, identity=Identity("m", one.boot, "none", 252, 1.0, 1),
        gpus=gpus if one.gpus_known else unknown, apps=apps if one.apps_known else unknown,
        processes=(holder,) if one.open_by else (), listeners=(), units=(), other_units=(), sessions=(),
        fence=None, hold=None,
    )  # fmt: skip


def after(series: list[tuple[float, Glimpse]]) -> Card | None:
    """What is known of the card when all of it was seen; the floats are seconds between looks."""
    cards: dict[str, Card] = {}
    now_s = 1000.0
    for gap_s, one in series:
        now_s += gap_s
        cards = seen(cards, look(one), now_s)
    return cards.get(CARD)


glimpses = st.builds(
    Glimpse,
    used_mib=st.one_of(st.none(), st.integers(0, 143_771)),
    rows_mib=st.lists(st.one_of(st.none(), st.integers(0, 100_000)), max_size=2).map(tuple),
    open_by=st.sampled_from(["", "", "nvidia-persistenced", "python3"]),
    apps_known=st.sampled_from([True, True, True, False]),
    gpus_known=st.sampled_from([True, True, True, False]),
    boot=st.sampled_from([BOOT, BOOT, BOOT, "b" * 36]),
    driver=st.sampled_from(["580.159.04", "580.159.04", "595.1"]),
)
serieses = st.lists(st.tuples(st.floats(0, 90), glimpses), max_size=40)


def quiet_values(series: list[tuple[float, Glimpse]]) -> list[int]:
    """The oracle, another way round: readings of the last boot and driver that ended a quiet minute without a gap."""
    found: list[int] = []
    now_s, since_s, last_s = 1000.0, None, 0.0
    who: tuple[str, str] | None = None
    for gap_s, one in series:
        now_s += gap_s
        if one.gpus_known and (one.boot, one.driver) != who:
            found, since_s, who = [], None, (one.boot, one.driver)
        elif one.boot != (who or ("", ""))[0]:
            found, since_s, who = [], None, None
        if one.gpus_known:
            if not one.quiet:
                since_s = None
            elif since_s is None or now_s - last_s > APART_S:
                since_s = now_s
            last_s = now_s
        else:
            since_s = None
        if since_s is not None and now_s - since_s >= QUIET_S and one.used_mib is not None:
            found.append(one.used_mib)
    return found


@given(serieses)
def test_a_baseline_is_the_least_of_quiet_readings_of_this_boot_and_driver_and_never_above_its_cap(
    series: list[tuple[float, Glimpse]],
) -> None:
    card, values = after(series), quiet_values(series)
    assert (None if card is None else card.idle_mib) == (min(CAP_MIB, *values) if values else None)


@given(serieses)
def test_what_counts_as_idle_is_never_less_than_normal_nor_more_than_the_cap_and_the_slack(
    series: list[tuple[float, Glimpse]],
) -> None:
    card = after(series)
    assert card is None or NORMAL_MIB <= card.limit_mib <= CAP_MIB + 512


@given(serieses, glimpses)
def test_nothing_is_learned_from_one_look(series: list[tuple[float, Glimpse]], last: Glimpse) -> None:
    """However the looks before it went, a look with somebody on the card changes no baseline."""
    busy = replace(last, rows_mib=(9000,), apps_known=True, boot=BOOT, driver="580.159.04")
    before = after(series)
    card = after([*series, (1.0, busy)])
    same = before is not None and (before.boot_id, before.driver) == (BOOT, "580.159.04")
    if busy.gpus_known:
        assert card is not None
        assert card.idle_mib == (before.idle_mib if same and before is not None else None)


@given(st.lists(st.integers(2_000, 140_000), min_size=1, max_size=30))
def test_unexplained_memory_dates_from_its_first_look_however_it_moves(figures: list[int]) -> None:
    card = after([(1.0, Glimpse(4)), *((1.0, Glimpse(mib)) for mib in figures)])
    assert card is not None
    assert card.loose_since_s == 1002.0
    assert card.low_mib >= min(figures)


@given(st.lists(st.integers(STEP_MIB, 5_000), min_size=1, max_size=20))
def test_each_fall_is_noticed(steps: list[int]) -> None:
    levels = [120_000]
    for step in steps:
        levels.append(levels[-1] - step)
    card = after([(30.0, Glimpse(mib)) for mib in levels])
    assert card is not None
    assert card.fell_at_s == 1000.0 + 30.0 * len(levels)
    assert card.low_mib == levels[-1]


def test_a_counter_that_trembles_does_not_fall() -> None:
    card = after([(1.0, Glimpse(20_000 + (-1) ** n * 20)) for n in range(40)])
    assert card is not None
    assert card.fell_at_s is None
    assert card.low_mib == 20_020


def test_what_is_taken_and_given_back_over_and_over_is_not_on_its_way_back() -> None:
    """Somebody unseen works there: between two of its turns the memory is called standing, so a wait for it ends."""
    series = [(20.0, Glimpse(40_000 if n % 2 else 20_000)) for n in range(12)]
    fell = []
    for upto in range(1, len(series) + 1):
        card = after(series[:upto])
        assert card is not None
        fell.append(card.fell_at_s)
    assert len({at for at in fell if at is not None}) <= 3


@pytest.mark.parametrize("one", [Glimpse(None), Glimpse(500), Glimpse(9_400, (9_000,)), Glimpse(9_000, (None,))])
def test_memory_that_is_explained_or_not_told_is_not_loose(one: Glimpse) -> None:
    """A14: unified memory tells no figure."""
    card = after([(1.0, Glimpse(20_000)), (1.0, one)])
    assert card is not None
    assert card.loose_since_s is None


def test_a_look_that_does_not_know_the_rows_ends_no_wait_and_learns_nothing() -> None:
    card = after([(1.0, Glimpse(20_000)), (1.0, Glimpse(20_000, apps_known=False))])
    assert card is not None
    assert card.loose_since_s == 1001.0
    assert card.quiet_since_s is None


def test_two_quiet_looks_that_are_too_far_apart_are_no_quiet_minute() -> None:
    """Somebody may have come and gone between them."""
    far = after([(1.0, Glimpse(900)), (APART_S + 1, Glimpse(900))])
    near = after([(1.0, Glimpse(900)), (QUIET_S / 2, Glimpse(900)), (QUIET_S / 2, Glimpse(900))])
    assert far is not None
    assert near is not None
    assert (far.idle_mib, near.idle_mib) == (None, 900)


def test_in_a_container_any_open_card_file_may_be_of_this_card() -> None:
    inside = look(Glimpse(4, open_by="python3"))
    other = replace(inside, identity=replace(inside.identity, container="lxc"))
    cards: dict[str, Card] = {}
    for n in range(4):
        cards = seen(cards, other, n * 30.0)
    assert cards[OTHER].idle_mib is None
    for n in range(4, 8):
        cards = seen(cards, inside, n * 30.0)
    assert cards[OTHER].idle_mib == 4

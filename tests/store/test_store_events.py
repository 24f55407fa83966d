"""Events: deduplicated, bounded, paged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daemon.domain.status import Event, Reason
from daemon.store import Store
from tests.store.times import at

EVENT = Event(Reason.UNIT_FAILED, "start refused", "Host", "h1", "Warning", evidence="exit 1", action="unit-start")


async def test_same_event_within_ten_minutes_is_counted_with_its_newest_evidence(store: Store) -> None:
    for seconds in (0, 599, 1198):  # each within ten minutes of the last
        await store.add_event(replace(EVENT, evidence=f"at {seconds}"), at(seconds))
    [found] = await store.events()
    assert (found.count, found.first_seen, found.last_seen, found.evidence) == (3, at(0), at(1198), "at 1198")


async def test_same_event_ten_minutes_later_is_a_new_one(store: Store) -> None:
    await store.add_event(EVENT, at(0))
    await store.add_event(EVENT, at(600))
    assert [found.count for found in await store.events()] == [1, 1]


@pytest.mark.parametrize(
    "other",
    [
        replace(EVENT, kind="ServingSpec"),
        replace(EVENT, name="h2"),
        replace(EVENT, reason=Reason.EXITED),
        replace(EVENT, message="other"),
        replace(EVENT, result="ok"),
        replace(EVENT, action="unit-stop"),
    ],
)
async def test_events_that_differ_are_kept_apart(store: Store, other: Event) -> None:
    await store.add_event(EVENT, at(0))
    await store.add_event(other, at(0))
    assert len(await store.events()) == 2


async def test_clock_set_back_neither_hides_an_event_nor_turns_its_last_time(store: Store) -> None:
    await store.add_event(EVENT, at(10_000))
    await store.add_event(EVENT, at(9_999))
    await store.add_event(EVENT, at(0))
    assert [(found.count, found.last_seen) for found in await store.events()] == [(2, at(10_000)), (1, at(0))]


async def test_last_seen_comes_first_and_paging_by_id_goes_forward(store: Store) -> None:
    for number in range(5):
        await store.add_event(replace(EVENT, message=f"m{number}"), at(number))
    await store.add_event(replace(EVENT, message="m0"), at(10))
    assert [found.message for found in await store.events(limit=3)] == ["m0", "m4", "m3"]
    page = await store.events(after_id=0, limit=2)
    assert [found.message for found in page] == ["m0", "m1"]
    assert [found.message for found in await store.events(after_id=page[-1].id)] == ["m2", "m3", "m4"]


async def test_events_are_of_a_kind_and_a_name(store: Store) -> None:
    await store.add_event(EVENT, at(0))
    await store.add_event(replace(EVENT, kind="ServingSpec"), at(0))
    assert [found.kind for found in await store.events("ServingSpec")] == ["ServingSpec"]
    assert await store.events("Host", "h2") == ()


async def test_oldest_events_go_beyond_the_bound(path: Path) -> None:
    async with Store.open(path, max_events=10) as store:
        for number in range(25):
            await store.add_event(replace(EVENT, message=f"m{number}"), at(number))
        assert [found.message for found in await store.events()] == [f"m{number}" for number in range(24, 14, -1)]


async def test_evidence_keeps_its_last_eight_kib_and_a_message_its_first_four(store: Store) -> None:
    await store.add_event(replace(EVENT, message="é" * 5000, evidence="é" * 9000 + "the cause"), at(0))
    [found] = await store.events()
    assert len(found.evidence.encode()) <= 8192
    assert found.evidence.endswith("é the cause".replace(" ", "", 1))
    assert len(found.message.encode()) == 4096


async def test_evidence_with_bytes_of_a_host_is_stored(store: Store) -> None:
    await store.add_event(replace(EVENT, evidence="\udcff\x00tail"), at(0))
    assert [found.evidence for found in await store.events()] == ["?\x00tail"]

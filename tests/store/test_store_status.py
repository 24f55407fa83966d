"""Status: written where it differs, with the time at which a condition turned."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from daemon.domain.status import Condition, Reason
from daemon.store import Store
from tests.store.times import at

READY = Condition("Ready", "True", Reason.GENERATED, "answers", 1)
CLEAN = Condition("Clean", "True", Reason.CLEAN)


async def spec(store: Store) -> str:
    return (await store.put("ServingSpec", "a", {}, actor="ann", now=at(0))).object.uid


async def test_steady_state_writes_nothing(store: Store, path: Path) -> None:
    uid = await spec(store)
    assert await store.put_status("ServingSpec", uid, {"b": 1, "a": [1]}, [READY, CLEAN], at(0))
    with closing(sqlite3.connect(path)) as other, store.subscribe() as changes:
        before = other.execute("PRAGMA data_version").fetchone()
        for seconds in range(900):
            assert not await store.put_status("ServingSpec", uid, {"a": [1], "b": 1}, [CLEAN, READY], at(seconds))
        assert other.execute("PRAGMA data_version").fetchone() == before
        assert changes.taken() == ()
    found = await store.status("ServingSpec", uid)
    assert found is not None
    assert found.updated_at == at(0)


async def test_transition_time_moves_only_when_the_status_turns(store: Store) -> None:
    uid = await spec(store)
    for seconds, said in enumerate(
        [
            READY,
            Condition("Ready", "True", Reason.GENERATED, "answers still", 2),
            Condition("Ready", "Unknown", Reason.UNREACHABLE, "", 2),
            Condition("Ready", "Unknown", Reason.TRANSPORT_LOST, "cut", 2),
            READY,
        ]
    ):
        assert await store.put_status("ServingSpec", uid, {}, [said], at(seconds))
        found = await store.status("ServingSpec", uid)
        assert found is not None
        turned = found.condition("Ready")
        assert turned is not None
        assert (turned.status, turned.reason, turned.message) == (said.status, str(said.reason), said.message)
        assert turned.observed_generation == said.observed_generation
        assert turned.last_transition_time == at([0, 0, 2, 2, 4][seconds])


async def test_condition_that_is_not_said_any_more_vanishes_and_others_keep_their_time(store: Store) -> None:
    uid = await spec(store)
    await store.put_status("ServingSpec", uid, {}, [READY, CLEAN], at(0))
    assert await store.put_status("ServingSpec", uid, {}, [CLEAN], at(5))
    found = await store.status("ServingSpec", uid)
    assert found is not None
    assert [one.type for one in found.conditions] == ["Clean"]
    assert found.conditions[0].last_transition_time == at(0)
    assert found.condition("Ready") is None


async def test_changed_status_alone_is_written_and_told(store: Store) -> None:
    uid = await spec(store)
    await store.put_status("ServingSpec", uid, {"progress": 1}, [READY], at(0))
    with store.subscribe() as changes:
        assert await store.put_status("ServingSpec", uid, {"progress": 2}, [READY], at(1))
        assert [change.what for change in changes.taken()] == ["status"]
    found = await store.status("ServingSpec", uid)
    assert found is not None
    assert (found.status, found.updated_at) == ({"progress": 2}, at(1))


async def test_status_does_not_touch_the_object(store: Store) -> None:
    uid = await spec(store)
    before = await store.get("ServingSpec", "a")
    await store.put_status("ServingSpec", uid, {}, [READY], at(1))
    assert await store.get("ServingSpec", "a") == before


async def test_status_of_what_is_gone_is_dropped(store: Store) -> None:
    uid = await spec(store)
    await store.delete("ServingSpec", "a", at(1))
    await store.finish_delete("ServingSpec", uid, now=at(2))
    assert not await store.put_status("ServingSpec", uid, {}, [READY], at(3))
    assert await store.status("ServingSpec", uid) is None


async def test_never_said_is_none_and_not_empty(store: Store) -> None:
    uid = await spec(store)
    assert await store.status("ServingSpec", uid) is None
    await store.put_status("ServingSpec", uid, {}, [], at(1))
    assert await store.status("ServingSpec", uid) is not None


async def test_statuses_are_of_one_kind(store: Store) -> None:
    uid = await spec(store)
    host = (await store.put("Host", "h", {}, actor="ann", now=at(0))).object.uid
    await store.put_status("ServingSpec", uid, {}, [READY], at(0))
    await store.put_status("Host", host, {}, [CLEAN], at(0))
    assert set(await store.statuses("Host")) == {host}
    assert await store.status("Host", uid) is None


async def test_one_type_twice_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="twice"):
        await store.put_status("ServingSpec", await spec(store), {}, [READY, READY], at(0))


async def test_message_with_bytes_of_a_host_is_kept_readable_and_steady(store: Store) -> None:
    uid = await spec(store)
    said = [Condition("Ready", "False", Reason.EXITED, "\udcff and \x00")]
    assert await store.put_status("ServingSpec", uid, {"line": "\udcff"}, said, at(0))
    assert not await store.put_status("ServingSpec", uid, {"line": "\udcff"}, said, at(1))
    found = await store.status("ServingSpec", uid)
    assert found is not None
    assert (found.conditions[0].message, found.status) == ("? and \x00", {"line": "\udcff"})

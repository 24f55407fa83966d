"""Deletions: marked, ended, remembered for ever."""

from __future__ import annotations

import pytest

from daemon.domain.errors import Conflict, NotFound
from daemon.domain.status import Condition, Reason
from daemon.store import Leftovers, Store, StoredInstance
from tests.store.times import at


async def spec_on(store: Store, name: str, *hosts: str) -> str:
    made = await store.put("ServingSpec", name, {"x": 1}, actor="ann", now=at(0))
    for host in hosts:
        unit = f"stoker-{name}.server.service"
        await store.put_instance(StoredInstance(made.object.uid, "server", host, unit, f"/etc/systemd/system/{unit}"))
    return made.object.uid


async def test_delete_marks_once_and_the_object_stays_readable(store: Store) -> None:
    await spec_on(store, "a", "h1")
    first = await store.delete("ServingSpec", "a", at(1), actor="bob")
    again = await store.delete("ServingSpec", "a", at(2), actor="eve")
    assert first.deleted_at == at(1)
    assert again == first == await store.get("ServingSpec", "a")
    assert [event.message for event in await store.events("ServingSpec", "a", limit=1)] == ["deleted by bob"]


async def test_put_of_a_terminating_name_is_refused(store: Store) -> None:
    await spec_on(store, "a")
    await store.delete("ServingSpec", "a", at(1))
    with pytest.raises(Conflict, match="terminating"):
        await store.put("ServingSpec", "a", {"x": 1}, actor="ann", now=at(2))


async def test_delete_of_nothing_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.delete("ServingSpec", "a", at(1))


async def test_end_that_nobody_asked_for_is_refused(store: Store) -> None:
    uid = await spec_on(store, "a")
    with pytest.raises(Conflict, match="not being deleted"):
        await store.finish_delete("ServingSpec", uid, now=at(1))
    with pytest.raises(NotFound):
        await store.finish_delete("ServingSpec", "no-such-uid", now=at(1))
    assert (await store.get("ServingSpec", "a")).uid == uid


async def test_end_removes_object_status_and_instances_and_keeps_history_and_tombstone(store: Store) -> None:
    uid = await spec_on(store, "a", "h1", "h2")
    await store.put_status("ServingSpec", uid, {}, [Condition("Ready", "True", Reason.OK)], at(1))
    await store.delete("ServingSpec", "a", at(2))
    stone = await store.finish_delete("ServingSpec", uid, now=at(3))
    assert (stone.name, stone.uid, stone.spec, stone.at, stone.abandoned) == ("a", uid, {"x": 1}, at(3), False)
    assert (stone.units, stone.hosts) == (("stoker-a.server.service",), ("h1", "h2"))
    assert await store.find("ServingSpec", "a") is None
    assert await store.status("ServingSpec", uid) is None
    assert await store.statuses("ServingSpec") == {}
    assert await store.instances() == ()
    assert len(await store.history("ServingSpec", "a")) == 1
    assert (await store.events("ServingSpec", "a", limit=1))[0].reason == "Deleted"


async def test_tombstone_names_hosts_whose_instances_were_removed_before_the_end(store: Store) -> None:
    uid = await spec_on(store, "a", "h1")
    assert await store.remove_instance(uid, "server", "h1")
    await store.delete("ServingSpec", "a", at(1))
    await store.finish_delete("ServingSpec", uid, now=at(2))
    assert [stone.uid for stone in await store.tombstones("h1")] == [uid]
    assert await store.tombstones("h2") == ()


async def test_second_end_gives_the_same_tombstone(store: Store) -> None:
    uid = await spec_on(store, "a", "h1")
    await store.delete("ServingSpec", "a", at(1))
    first = await store.finish_delete("ServingSpec", uid, now=at(2))
    assert await store.finish_delete("ServingSpec", uid, Leftovers(abandoned=True), now=at(9)) == first
    assert await store.tombstone(uid) == first


async def test_abandoned_end_keeps_what_was_left_and_warns(store: Store) -> None:
    uid = await spec_on(store, "a", "h1")
    await store.delete("ServingSpec", "a", at(1))
    left = Leftovers(("stoker-a.server.service",), ("h1",), abandoned=True, detail={"why": "host is gone"})
    stone = await store.finish_delete("ServingSpec", uid, left, now=at(2))
    assert stone.abandoned
    assert stone.leftovers == {"why": "host is gone", "units": ["stoker-a.server.service"], "hosts": ["h1"]}
    event = (await store.events("ServingSpec", "a", limit=1))[0]
    assert (event.reason, event.severity) == ("Abandoned", "Warning")
    assert "h1" in event.message


async def test_name_used_again_is_another_object_and_the_old_one_stays_history(store: Store) -> None:
    old = await spec_on(store, "a", "h1")
    await store.delete("ServingSpec", "a", at(1))
    await store.finish_delete("ServingSpec", old, now=at(2))
    new = await store.put("ServingSpec", "a", {"x": 2}, actor="ann", now=at(3))
    assert (new.outcome, new.object.generation) == ("created", 1)
    assert new.object.uid != old
    assert [one.uid for one in await store.history("ServingSpec", "a")] == [old, new.object.uid]
    assert [one.uid for one in await store.history("ServingSpec", old)] == [old]
    assert await store.tombstone(new.object.uid) is None


async def test_deleted_host_leaves_its_name_and_frees_its_identity(store: Store) -> None:
    first = (await store.put("Host", "h1", {}, actor="ann", now=at(0))).object
    await store.note_identity(first.uid, "m1", "none", ["GPU-1"], at(0))
    await store.delete("Host", "h1", at(1))
    stone = await store.finish_delete("Host", first.uid, now=at(2))
    assert (stone.kind, stone.hosts, stone.units) == ("Host", ("h1",), ())
    second = (await store.put("Host", "h2", {}, actor="ann", now=at(3))).object
    assert (await store.note_identity(second.uid, "m1", "none", ["GPU-1"], at(3))).machine_id == "m1"


async def test_tombstones_are_newest_first_and_bounded(store: Store) -> None:
    for number in range(4):
        uid = await spec_on(store, f"s{number}", "h1")
        await store.delete("ServingSpec", f"s{number}", at(number))
        await store.finish_delete("ServingSpec", uid, now=at(number))
    assert [stone.name for stone in await store.tombstones("h1", limit=2)] == ["s3", "s2"]
    assert len(await store.tombstones()) == 4

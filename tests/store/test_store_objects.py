"""Declared objects: what a put changes and what it does not."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from daemon.domain.errors import Conflict, NotFound
from daemon.store import Change, Store
from tests.store.times import at


async def test_first_put_creates_with_generation_one_and_an_event(store: Store) -> None:
    made = await store.put("ServingSpec", "k26", {"port": 1}, {"tier": "a"}, actor="ann", now=at(0))
    assert made.outcome == "created"
    assert (made.object.generation, made.object.labels, made.object.spec) == (1, {"tier": "a"}, {"port": 1})
    assert made.object.created_at == made.object.updated_at == at(0)
    assert await store.get("ServingSpec", "k26") == made.object
    [event] = await store.events("ServingSpec", "k26")
    assert (event.reason, event.message) == ("Created", "created by ann: generation 1")


async def test_equal_put_changes_nothing_whatever_the_order_of_keys(store: Store) -> None:
    first = await store.put("ServingSpec", "a", {"x": 1, "y": {"p": 1, "q": 2}}, {"l": "1"}, actor="ann", now=at(0))
    again = await store.put("ServingSpec", "a", {"y": {"q": 2, "p": 1}, "x": 1}, {"l": "1"}, actor="bob", now=at(9))
    assert again.outcome == "unchanged"
    assert again.object == first.object
    assert len(await store.events()) == 1


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), ([1, 2], [2, 1]), ("1", 1), (None, 0), ({}, [])])
async def test_values_that_python_or_people_confuse_are_changes(store: Store, old: object, new: object) -> None:
    await store.put("ServingSpec", "a", {"x": old}, actor="ann", now=at(0))
    changed = await store.put("ServingSpec", "a", {"x": new}, actor="ann", now=at(1))
    assert (changed.outcome, changed.object.generation) == ("configured", 2)


async def test_labels_alone_raise_the_version_but_not_the_generation(store: Store) -> None:
    first = await store.put("Host", "h", {"x": 1}, {"rack": "1"}, actor="ann", now=at(0))
    changed = await store.put("Host", "h", {"x": 1}, {"rack": "2"}, actor="ann", now=at(1))
    assert (changed.outcome, changed.object.generation) == ("configured", 1)
    assert changed.object.resource_version > first.object.resource_version
    assert len(await store.history("Host", "h")) == 1


async def test_changed_spec_keeps_uid_and_creation_and_adds_history(store: Store) -> None:
    first = await store.put("ServingSpec", "a", {"x": 1}, actor="ann", now=at(0))
    second = await store.put("ServingSpec", "a", {"x": 2}, actor="bob", now=at(1))
    assert second.object.uid == first.object.uid
    assert (second.object.created_at, second.object.updated_at) == (at(0), at(1))
    found = await store.history("ServingSpec", "a")
    assert [(one.generation, one.spec, one.actor, one.at) for one in found] == [
        (1, {"x": 1}, "ann", at(0)),
        (2, {"x": 2}, "bob", at(1)),
    ]
    assert await store.history("ServingSpec", first.object.uid) == found


async def test_versions_grow_over_all_objects_and_kinds(store: Store) -> None:
    made = [
        await store.put("Host", "a", {}, actor="ann", now=at(0)),
        await store.put("ServingSpec", "a", {}, actor="ann", now=at(0)),
        await store.put("Host", "a", {"x": 1}, actor="ann", now=at(0)),
    ]
    deleted = await store.delete("Host", "a", at(1))
    versions = [one.object.resource_version for one in made] + [deleted.resource_version]
    assert versions == sorted(set(versions))


async def test_put_at_another_version_is_refused(store: Store) -> None:
    made = await store.put("Host", "a", {}, actor="ann", now=at(0), if_version=0)
    with pytest.raises(Conflict, match="read it again"):
        await store.put("Host", "a", {"x": 1}, actor="bob", now=at(0), if_version=0)
    with pytest.raises(Conflict):
        await store.put("Host", "b", {}, actor="bob", now=at(0), if_version=7)
    version = made.object.resource_version
    assert (await store.put("Host", "a", {"x": 1}, actor="bob", now=at(0), if_version=version)).outcome == "configured"


async def test_list_is_by_name_and_selects_by_all_labels(store: Store) -> None:
    await store.put("Host", "c", {}, {"rack": "1", "gpu": "h200"}, actor="ann", now=at(0))
    await store.put("Host", "a", {}, {"rack": "1"}, actor="ann", now=at(0))
    await store.put("Host", "b", {}, {"rack": "2", "gpu": "h200"}, actor="ann", now=at(0))
    await store.put("ServingSpec", "d", {}, {"rack": "1"}, actor="ann", now=at(0))
    assert [one.name for one in await store.list("Host")] == ["a", "b", "c"]
    assert [one.name for one in await store.list("Host", {"rack": "1"})] == ["a", "c"]
    assert [one.name for one in await store.list("Host", {"rack": "1", "gpu": "h200"})] == ["c"]
    assert await store.list("Host", {"rack": "3"}) == ()


async def test_what_does_not_exist_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="Host nobody"):
        await store.get("Host", "nobody")
    assert await store.find("Host", "nobody") is None
    assert await store.by_uid("nobody") is None
    assert await store.history("Host", "nobody") == ()


async def test_refused_put_leaves_nothing_behind(store: Store) -> None:
    with pytest.raises(ValueError, match="JSON"):
        await store.put("Host", "a", {"x": float("nan")}, actor="ann", now=at(0))
    assert await store.find("Host", "a") is None
    assert await store.events() == ()


async def test_hostile_text_comes_back_as_it_was(store: Store) -> None:
    spec = {"x": "\ud800 \x00 é \u2028 '); DROP TABLE objects;--"}
    made = await store.put("Host", "a", spec, actor="ann", now=at(0))
    assert (await store.get("Host", "a")).spec == spec == made.object.spec


async def test_times_are_kept_as_utc_and_without_zone_refused(store: Store) -> None:
    east = at(0).astimezone(timezone(timedelta(hours=5)))
    made = await store.put("Host", "a", {}, actor="ann", now=east)
    assert made.object.created_at == at(0)
    assert made.object.created_at.utcoffset() == timedelta(0)
    with pytest.raises(ValueError, match="time zone"):
        await store.put("Host", "b", {}, actor="ann", now=datetime(2026, 1, 1))


async def test_listener_hears_of_commits_only_and_of_equal_ones_once(store: Store) -> None:
    with store.subscribe() as changes:
        await store.put("Host", "a", {}, actor="ann", now=at(0))
        await store.put("Host", "a", {}, actor="ann", now=at(0))
        await store.put("Host", "a", {"x": 1}, actor="ann", now=at(0))
        with pytest.raises(Conflict):
            await store.put("Host", "b", {}, actor="ann", now=at(0), if_version=9)
        await store.delete("Host", "a", at(1))
        assert changes.taken() == (Change("Host", "a", "spec"), Change("Host", "a", "deleted"))
        await store.set_paused(True, "ann", at(2))
        assert await anext(changes) == Change(None, "", "pause")
    await store.put("Host", "c", {}, actor="ann", now=at(0))
    assert changes.taken() == ()

"""Instances and the identity of hosts."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.domain.errors import Conflict, NotFound
from daemon.store import Store, StoredInstance
from tests.store.times import at


async def made(store: Store, kind: str, name: str) -> str:
    assert kind in {"Host", "ServingSpec"}
    if kind == "Host":
        return (await store.put("Host", name, {}, actor="ann", now=at(0))).object.uid
    return (await store.put("ServingSpec", name, {}, actor="ann", now=at(0))).object.uid


async def test_instance_comes_back_as_it_was_put(store: Store) -> None:
    uid = await made(store, "ServingSpec", "a")
    instance = StoredInstance(
        uid,
        "prefill",
        "h1",
        "u.service",
        "/etc/systemd/system/u.service",
        gpus=((0, "GPU-a"), (3, "GPU-b")),
        written_sha256="ab",
        written_launch="v1:cd",
        ready_invocation_id="ef",
        ready_generation=4,
        ready_at=at(1),
        loaded_generation=3,
        extra={"k": [1]},
    )
    assert await store.put_instance(instance)
    assert await store.instances() == (instance,)


async def test_equal_instance_writes_nothing(store: Store, path: Path) -> None:
    instance = StoredInstance(await made(store, "ServingSpec", "a"), "server", "h1", "u.service", "/u", ((0, "GPU-a"),))
    await store.put_instance(instance)
    with closing(sqlite3.connect(path)) as other:
        before = other.execute("PRAGMA data_version").fetchone()
        assert not await store.put_instance(instance)
        assert other.execute("PRAGMA data_version").fetchone() == before
    assert await store.put_instance(replace(instance, ready_generation=1))
    assert len(await store.instances()) == 1


async def test_instances_are_found_by_host_and_by_spec(store: Store) -> None:
    first, second = await made(store, "ServingSpec", "a"), await made(store, "ServingSpec", "b")
    for uid, role, host in [(first, "prefill", "h1"), (first, "decode", "h2"), (second, "server", "h1")]:
        await store.put_instance(StoredInstance(uid, role, host, f"{role}.service", "/u"))
    assert [one.role for one in await store.instances("h1")] == ["prefill", "server"]
    assert [one.role for one in await store.instances(spec_uid=first)] == ["prefill", "decode"]
    assert [one.role for one in await store.instances("h1", second)] == ["server"]
    assert len(await store.instances()) == 3


async def test_removed_instance_is_gone_and_a_second_removal_says_so(store: Store) -> None:
    uid = await made(store, "ServingSpec", "a")
    await store.put_instance(StoredInstance(uid, "server", "h1", "u.service", "/u"))
    assert await store.remove_instance(uid, "server", "h1")
    assert not await store.remove_instance(uid, "server", "h1")
    assert await store.instances() == ()


async def test_instance_of_a_spec_that_is_gone_is_refused(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.put_instance(StoredInstance("no-such-uid", "server", "h1", "u.service", "/u"))


async def test_first_sight_is_kept_whatever_is_seen_later(store: Store) -> None:
    uid = await made(store, "Host", "h1")
    assert await store.host_identity(uid) is None
    first = await store.note_identity(uid, "m1", "none", ["GPU-b", "GPU-a"], at(0))
    assert (first.gpu_uuids, first.first_seen) == (("GPU-a", "GPU-b"), at(0))
    assert await store.note_identity(uid, "m2", "lxc", ["GPU-c"], at(1)) == first
    assert await store.host_identity(uid) == first


async def test_gpus_unknown_at_first_sight_are_filled_in_once(store: Store) -> None:
    uid = await made(store, "Host", "h1")
    await store.note_identity(uid, "m1", "none", [], at(0))
    assert (await store.note_identity(uid, "m2", "none", ["GPU-x"], at(1))).gpu_uuids == ()
    filled = await store.note_identity(uid, "m1", "none", ["GPU-a"], at(2))
    assert (filled.gpu_uuids, filled.first_seen) == (("GPU-a",), at(0))
    assert (await store.note_identity(uid, "m1", "none", ["GPU-z"], at(3))).gpu_uuids == ("GPU-a",)


async def test_person_may_confirm_another_machine(store: Store) -> None:
    uid = await made(store, "Host", "h1")
    await store.note_identity(uid, "m1", "none", ["GPU-a"], at(0))
    kept = await store.note_identity(uid, "m2", "none", ["GPU-b"], at(5), replace=True)
    assert (kept.machine_id, kept.gpu_uuids, kept.first_seen) == ("m2", ("GPU-b",), at(5))


@pytest.mark.parametrize(
    ("machine", "container", "gpus", "taken"),
    [
        ("m1", "none", ["GPU-a"], True),
        ("m1", "none", ["GPU-a", "GPU-z"], True),
        ("m1", "none", [], True),
        ("m1", "none", ["GPU-z"], False),  # a cloned machine id
        ("m2", "none", ["GPU-a"], False),  # a container and its hypervisor see the same cards
        ("m1", "lxc", ["GPU-a"], False),
    ],
)
async def test_second_host_with_one_identity_is_refused_by_name(
    store: Store, machine: str, container: str, gpus: list[str], taken: bool
) -> None:
    await store.note_identity(await made(store, "Host", "first"), "m1", "none", ["GPU-a", "GPU-b"], at(0))
    second = await made(store, "Host", "second")
    if taken:
        with pytest.raises(Conflict, match="Host first"):
            await store.note_identity(second, machine, container, gpus, at(1))
        assert await store.host_identity(second) is None
    else:
        await store.note_identity(second, machine, container, gpus, at(1))


async def test_identity_of_a_host_that_is_gone_is_refused(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.note_identity("no-such-uid", "m1", "none", [], at(0))


async def test_two_changes_of_one_instance_at_once_both_stay(store: Store) -> None:
    """A whole row written back by one task would take away what another noted meanwhile."""
    uid = await made(store, "ServingSpec", "m")
    new = StoredInstance(spec_uid=uid, role="server", host="a", unit="u.service", path="/u")
    await store.put_instance(new)
    await asyncio.gather(
        *(
            store.change_instance(
                uid,
                "server",
                "a",
                lambda row, n=number: replace(row, extra={**row.extra, str(n): n}),  # type: ignore[misc]
            )
            for number in range(20)
        )
    )
    (row,) = await store.instances("a")
    assert row.extra == {str(number): number for number in range(20)}
    assert not await store.change_instance(uid, "server", "a", lambda row: row)
    assert not await store.change_instance(uid, "decode", "a", lambda row: replace(row, unit="x.service"))
    assert await store.change_instance(uid, "decode", "a", lambda row: row, new=replace(new, role="decode"))
    with pytest.raises(NotFound):
        await store.change_instance("none", "server", "a", lambda row: row, new=replace(new, spec_uid="none"))

"""Runs and fences, the ledger of corrections, the pause."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from daemon.domain.observation import Fence
from daemon.store import Pause, Store
from tests.store.times import at


async def test_epochs_grow_over_restarts_and_all_runs_stay_known(path: Path) -> None:
    fences = []
    for seconds in range(3):
        async with Store.open(path) as store:
            fences.append(await store.begin_run(at(seconds)))
    assert [fence.epoch for fence in fences] == [1, 2, 3]
    assert len({fence.run for fence in fences}) == 3
    assert len({fence.store for fence in fences}) == 1
    async with Store.open(path) as store:
        assert all([await store.knows_run(fence) for fence in fences])


async def test_fence_of_another_store_epoch_or_run_is_not_known(store: Store) -> None:
    fence = await store.begin_run(at(0))
    assert not await store.knows_run(replace(fence, run="0" * 32))
    assert not await store.knows_run(replace(fence, epoch=2))
    assert not await store.knows_run(replace(fence, store="other"))
    assert not await store.knows_run(Fence("", 0, ""))


async def test_copy_of_the_file_does_not_know_the_run_that_came_after_it(path: Path, tmp_path: Path) -> None:
    async with Store.open(path) as store:
        before = await store.begin_run(at(0))
    copied = tmp_path / "copy" / "stoker.db"
    shutil.copytree(path.parent, copied.parent)
    async with Store.open(path) as store, Store.open(copied) as copy:
        ours, theirs = await store.begin_run(at(1)), await copy.begin_run(at(1))
        assert ours.epoch == theirs.epoch
        assert await copy.knows_run(before)
        assert not await copy.knows_run(ours)
        assert not await store.knows_run(theirs)


async def test_corrections_are_found_by_instance_host_and_time(store: Store) -> None:
    await store.note_correction("s/server/h1", "restart", "LaunchChanged", at(0), host="h1")
    await store.note_correction("s/server/h1", "stop", "LaunchChanged", at(10), host="h1")
    await store.note_correction("t/server/h2", "restart", "UnitFailed", at(20), host="h2")
    assert [one.at for one in await store.corrections("s/server/h1", since=at(0))] == [at(0), at(10)]
    assert [one.kind for one in await store.corrections("s/server/h1", since=at(10))] == ["stop"]
    assert [one.instance_key for one in await store.corrections(since=at(0), host="h2")] == ["t/server/h2"]
    assert len(await store.corrections(since=at(0))) == 3


async def test_corrections_survive_reopening_and_are_forgotten_after_thirty_days(path: Path) -> None:
    async with Store.open(path) as store:
        await store.note_correction("k", "restart", "LaunchChanged", at(0))
    async with Store.open(path) as store:
        assert len(await store.corrections("k", since=at(0))) == 1
        await store.note_correction("k", "restart", "LaunchChanged", at(31 * 86400))
        assert len(await store.corrections("k", since=at(0))) == 1


async def test_pause_keeps_the_first_person_and_survives_reopening(path: Path) -> None:
    async with Store.open(path) as store:
        assert await store.paused() is None
        await store.set_paused(True, "ann", at(0))
        await store.set_paused(True, "bob", at(1))
    async with Store.open(path) as store:
        assert await store.paused() == Pause("ann", at(0))
        await store.set_paused(False, "bob", at(2))
        await store.set_paused(False, "bob", at(3))
        assert await store.paused() is None


async def test_only_a_change_of_the_pause_is_told(store: Store) -> None:
    with store.subscribe() as changes:
        await store.set_paused(False, "ann", at(0))
        assert changes.taken() == ()
        await store.set_paused(True, "ann", at(0))
        assert len(changes.taken()) == 1
        await store.set_paused(True, "ann", at(0))
        assert changes.taken() == ()

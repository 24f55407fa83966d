"""What was acknowledged is there: after kill -9, among many writers, whoever is cancelled."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from daemon.domain.status import Condition, Event, Reason
from daemon.store import Store
from tests.store.times import at

WRITER = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from daemon.store import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)

async def write(store, name):
    generation = 0
    while True:
        generation += 1
        await store.put("ServingSpec", name, {"n": generation}, actor="writer", now=NOW)
        print("put", name, generation, flush=True)
        await store.note_correction(name, "restart", str(generation), NOW)
        print("note", name, generation, flush=True)

async def main():
    async with Store.open(Path(sys.argv[1])) as store:
        fence = await store.begin_run(NOW)
        print("run", fence.run, fence.epoch, flush=True)
        await asyncio.gather(*(write(store, f"s{number}") for number in range(4)))

asyncio.run(main())
"""


async def killed_after(path: Path, lines: int) -> list[list[str]]:
    """Everything that a writer acknowledged before it was killed in the middle of its work."""
    command = (sys.executable, "-c", WRITER, str(path))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    said = [await asyncio.wait_for(process.stdout.readline(), 60) for _ in range(lines)]
    process.kill()
    said += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    return [line.decode().split() for line in said if line.endswith(b"\n")]


@pytest.mark.parametrize("lines", [1, 7, 40, 111])
async def test_every_acknowledged_write_survives_kill_nine(path: Path, lines: int) -> None:
    said = await killed_after(path, lines)
    async with Store.open(path) as store:
        for what, name, number in said:
            if what == "run":
                assert (await store.begin_run(at(0))).epoch == int(number) + 1
            elif what == "put":
                found = await store.history("ServingSpec", name)
                assert found[int(number) - 1].spec == {"n": int(number)}
            else:
                assert number in {one.reason for one in await store.corrections(name, since=at(-1e9))}
        for found_object in await store.list("ServingSpec"):
            history = await store.history("ServingSpec", found_object.uid)
            assert [one.generation for one in history] == list(range(1, found_object.generation + 1))
            assert history[-1].spec == found_object.spec


async def test_killed_writer_leaves_no_lock_for_the_next(path: Path) -> None:
    for epoch in range(1, 4):
        [first, *_] = await killed_after(path, 5)
        assert first[2] == str(epoch)


async def test_many_writers_lose_nothing_and_share_no_version(store: Store) -> None:
    async def write(writer: int) -> list[int]:
        made = [
            await store.put("Host", "shared", {"by": writer, "n": number}, actor=str(writer), now=at(number))
            for number in range(10)
        ]
        return [one.object.resource_version for one in made]

    versions = await asyncio.gather(*(write(writer) for writer in range(12)))
    assert sorted(version for one in versions for version in one) == list(range(1, 121))
    assert all(one == sorted(one) for one in versions)
    assert (await store.get("Host", "shared")).generation == 120
    assert len(await store.history("Host", "shared")) == 120


async def test_two_open_stores_write_one_file_side_by_side(store: Store, path: Path) -> None:
    async with Store.open(path) as other:

        async def write(through: Store, name: str) -> None:
            for number in range(25):
                await through.put("Host", f"{name}{number}", {}, actor=name, now=at(0))

        await asyncio.gather(write(store, "a"), write(other, "b"))
        assert len(await store.list("Host")) == len(await other.list("Host")) == 50
        await other.put("Host", "a0", {"x": 1}, actor="c", now=at(0))
        assert (await store.list("Host"))[0].spec == {"x": 1}
        await other.delete("Host", "a0", at(1))
        assert (await store.list("Host"))[0].deleted_at == at(1)


async def test_compare_and_put_lets_exactly_one_of_many_win(store: Store) -> None:
    version = (await store.put("Host", "h", {}, actor="ann", now=at(0))).object.resource_version
    tries = [store.put("Host", "h", {"by": number}, actor="ann", now=at(1), if_version=version) for number in range(10)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    assert (await store.get("Host", "h")).generation == 2


async def cancelled_after(store: Store, turns: int, number: int) -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(store.put("ServingSpec", f"s{number}", {"n": number}, actor="ann", now=at(0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()


async def test_cancelled_put_is_whole_or_not_there_and_the_next_goes_on(store: Store) -> None:
    for number in range(60):
        await cancelled_after(store, number // 2, number)
        async with asyncio.timeout(30):  # a turn that was never given back would hang here
            after = await store.put("Host", f"h{number}", {}, actor="ann", now=at(0))
        assert after.outcome == "created"
    for number in range(60):
        found = await store.find("ServingSpec", f"s{number}")
        parts = [bool(found)]
        parts += [bool(await store.history("ServingSpec", f"s{number}"))]
        parts += [bool(await store.events("ServingSpec", f"s{number}"))]
        assert len(set(parts)) == 1, parts


async def test_put_that_began_commits_though_its_caller_was_cancelled_and_tells_it(store: Store) -> None:
    with store.subscribe() as changes:
        await cancelled_after(store, 3, 1)
        assert (await anext(changes)).name == "s1"
    assert (await store.get("ServingSpec", "s1")).spec == {"n": 1}


async def test_put_cancelled_while_it_waits_for_its_turn_does_nothing(store: Store) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(store.put("Host", "first", {}, actor="ann", now=at(0)))
        await asyncio.sleep(0)
        second = group.create_task(store.put("Host", "second", {}, actor="ann", now=at(0)))
        await asyncio.sleep(0)
        second.cancel()
        assert (await first).outcome == "created"
    assert await store.find("Host", "second") is None


async def test_cancelled_reads_leave_every_reader_usable(store: Store) -> None:
    await store.put("Host", "a", {}, actor="ann", now=at(0))
    for turns in range(40):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(store.list("Host")) for _ in range(5)]
            for _ in range(turns // 4):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
        assert len(await store.list("Host")) == 1


async def test_close_waits_for_the_write_that_runs(path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        async with Store.open(path) as store:
            task = group.create_task(store.put("Host", "a", {}, actor="ann", now=at(0)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert (await task).outcome == "created"
    async with Store.open(path) as store:
        assert (await store.get("Host", "a")).generation == 1


async def test_failed_transaction_leaves_no_part_and_frees_its_turn(store: Store) -> None:
    uid = (await store.put("Host", "a", {}, actor="ann", now=at(0))).object.uid
    with pytest.raises(ValueError, match="JSON"):
        await store.put_status("Host", uid, {"x": float("inf")}, [Condition("Clean", "True", Reason.OK)], at(0))
    assert await store.status("Host", uid) is None
    await store.add_event(Event(Reason.OK, "fine", "Host", "a"), at(0))

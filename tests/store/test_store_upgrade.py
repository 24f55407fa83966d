"""Upgrades: of a store that the first issue's Stoker wrote, whoever is killed, and only by one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from daemon.domain.errors import StoreError
from daemon.domain.observation import Fence
from daemon.store import Store
from daemon.store.migrations import VERSIONS, revision_of
from daemon.store.migrations.__main__ import config, upgrade
from daemon.store.schema import SCHEMA_VERSION, metadata
from tests.store.upgrading import KILLED, NEXT, Rows, first_store, rows, schema

pytestmark = pytest.mark.fleet
HEAD = revision_of(SCHEMA_VERSION)
UID = "00000000-0000-4000-8000-000000000001"
K26 = "00000000-0000-4000-8000-000000000006"
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def kept(path: Path, version: int = SCHEMA_VERSION) -> Path:
    return path.with_name(f"{path.name}.before-{revision_of(version)}")


def without_version(found: Rows) -> Rows:
    """All content but the marks of the version."""
    found = {name: lines for name, lines in found.items() if name != "alembic_version"}
    return {**found, "meta": [line for line in found["meta"] if line[0] != "schema_version"]}


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """A folder with one more revision than there is."""
    folder = tmp_path / "more"
    folder.mkdir()
    text = NEXT.format(revision=revision_of(SCHEMA_VERSION + 1), before=HEAD)
    (folder / "next.py").write_text(text)
    return folder


async def test_store_of_the_first_issue_is_upgraded_with_all_its_content(path: Path) -> None:
    before = rows(first_store(path))
    async with Store.open(path, sole=True) as store:
        assert store.uid == UID
        after = rows(path)
        assert dict(after["meta"])["schema_version"] == str(SCHEMA_VERSION)
        assert after["alembic_version"] == [(HEAD,)]
        assert {name: without_version(after)[name] for name in without_version(before)} == without_version(before)
        (instance,) = await store.instances("gpu-a")
        assert (instance.spec_uid, instance.gpus) == (K26, ((0, "GPU-1"), (1, "GPU-2")))
        assert [one.generation for one in await store.history("ServingSpec", "k26")] == [1, 2]
        said = await store.status("ServingSpec", K26)
        assert said is not None
        assert [one.type for one in said.conditions] == ["Drifted", "Ready"]
        (stone,) = await store.tombstones()
        assert (stone.units, stone.abandoned) == (("stoker-old.server.service",), True)
        assert (await store.get("ServingSpec", "ending")).deleted_at is not None
        assert (await store.events("Host", "gpu-a", limit=1))[0].count == 3
    assert rows(kept(path)) == before


async def test_upgraded_store_takes_its_hosts_back_by_the_fence_of_before(path: Path) -> None:
    first_store(path)
    async with Store.open(path, sole=True) as store:
        assert await store.knows_run(Fence(UID, 2, "00000000000040008000000000000003"))
        assert not await store.knows_run(Fence(UID, 3, "00000000000040008000000000000003"))
        assert (await store.begin_run(NOW)).epoch == 3


async def test_upgraded_store_still_keeps_keys_and_takes_writes(path: Path) -> None:
    first_store(path)
    async with Store.open(path, sole=True) as store:
        await store.finish_delete("ServingSpec", (await store.get("ServingSpec", "ending")).uid, now=NOW)
        await store.delete("ServingSpec", "k26", NOW)
        await store.finish_delete("ServingSpec", K26, now=NOW)
        assert await store.instances() == ()
        assert await store.status("ServingSpec", K26) is None
    async with Store.open(path, sole=True) as store:
        assert await store.find("ServingSpec", "k26") is None


async def test_store_made_new_equals_one_made_by_the_revisions_and_one_upgraded(path: Path, tmp_path: Path) -> None:
    async with Store.open(path):
        pass
    empty = tmp_path / "revisions.db"
    engine = create_engine(f"sqlite:///{empty}")
    with engine.begin() as connection:
        command.upgrade(config(connection), "head")
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    old = first_store(tmp_path / "old" / "stoker.db")
    async with Store.open(old):
        pass
    assert schema(path) == schema(empty) == schema(old)
    assert len(schema(path)) > 20


def test_first_revision_is_what_the_first_issue_wrote(tmp_path: Path) -> None:
    made = tmp_path / "made.db"
    engine = create_engine(f"sqlite:///{made}")
    with engine.begin() as connection:
        command.upgrade(config(connection), revision_of(1))
    engine.dispose()
    found = schema(made)
    del found["alembic_version"]
    assert found == schema(first_store(tmp_path / "data" / "stoker.db"))


def test_revisions_are_one_chain_of_numbers_up_to_the_schema_version() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        script = ScriptDirectory.from_config(config(connection))
    engine.dispose()
    found = [one.revision for one in script.walk_revisions()]
    assert found == [revision_of(number) for number in range(SCHEMA_VERSION, 0, -1)]
    assert len(list(VERSIONS.glob("r*.py"))) == SCHEMA_VERSION


async def test_store_of_a_newer_stoker_is_refused_and_untouched(path: Path, more: Path) -> None:
    upgrade(first_store(path), SCHEMA_VERSION + 1, (VERSIONS, more))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(StoreError, match=f"schema version {SCHEMA_VERSION + 1}, this Stoker has {SCHEMA_VERSION}: run"):
        async with Store.open(path, sole=True):
            pass
    after = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.suffix != ".lock"}
    assert after == before


def test_upgrade_that_is_killed_at_any_step_leaves_the_old_version_whole(path: Path, more: Path) -> None:
    upgrade(first_store(path), SCHEMA_VERSION)
    before, old_schema = rows(path), schema(path)
    argv = [sys.executable, "-c", KILLED, str(path), str(SCHEMA_VERSION + 1), str(more)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    steps = done.stdout.splitlines()
    print(f"{len(steps)} steps an upgrade was killed before:", *steps, sep="\n  ")
    assert {"COMMIT", "os.rename", "sqlite3.connect"} <= set(steps)
    assert sum("_alembic_tmp_objects" in step for step in steps) >= 3
    assert len(steps) > 20
    for number in range(1, len(steps) + 1):
        file = path.parent / f"killed-{number}" / path.name
        copy = kept(file, SCHEMA_VERSION + 1)
        assert (rows(file), schema(file)) == (before, old_schema), steps[number - 1]
        assert not copy.exists() or rows(copy) == before
        if number % 5 == 0:  # what a killed one left is in nobody's way
            upgrade(file, SCHEMA_VERSION + 1, (VERSIONS, more))
            assert "places_seen" in rows(file)
    whole = rows(path.parent / f"killed-{len(steps) + 1}" / path.name)
    assert [line[-1] for line in whole["objects"]] == ["none"] * len(before["objects"])
    assert whole["instances"] == before["instances"]  # its owner's table was made anew
    assert whole["conditions"] == before["conditions"]


async def test_upgrade_that_fails_says_why_and_leaves_the_old_version(path: Path) -> None:
    first_store(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("INSERT INTO statuses VALUES ('nobody', '{}', '2026-01-01')")
    before = rows(path)
    with pytest.raises(StoreError, match=r"failed and changed nothing: .*rows without their owner.*statuses"):
        async with Store.open(path, sole=True):
            pass
    assert rows(path) == before == rows(kept(path))


async def test_store_on_which_a_daemon_works_is_not_upgraded_under_it(path: Path) -> None:
    before = rows(first_store(path))
    mark = os.open(path.with_name(path.name + ".daemon"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another daemon"):
            async with Store.open(path):
                pass
    finally:
        os.close(mark)
    assert rows(path) == before
    assert not kept(path).exists()


OPENER = """
import asyncio, sys
from pathlib import Path
from daemon.store import Store

async def main():
    async with Store.open(Path(sys.argv[1])) as store:
        print(store.uid, len(await store.list("ServingSpec")), "alembic" in sys.modules)

asyncio.run(main())
"""


async def opener(path: Path) -> asyncio.subprocess.Process:
    command = (sys.executable, "-c", OPENER, str(path))
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def test_several_that_start_at_once_upgrade_once_and_load_no_alembic(path: Path) -> None:
    before = rows(first_store(path))
    processes = [await opener(path) for _ in range(3)]
    for process in processes:
        out, _ = await asyncio.wait_for(process.communicate(), 120)
        assert out.decode().split() == [UID, "3", "False"]
    # A second upgrade would have put a copy of the new version over that of the old.
    assert rows(kept(path)) == before
    assert dict(rows(path)["meta"])["schema_version"] == str(SCHEMA_VERSION)


async def test_daemon_killed_while_it_upgrades_is_followed_by_one_that_finds_it_done(path: Path) -> None:
    before = rows(first_store(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the upgrade waits for us
        first = await opener(path)
        lock = path.with_name(path.name + ".daemon")
        async with asyncio.timeout(60):
            while not (lock.exists() and lock.read_text() == f"{first.pid}\n" and await children(first.pid)):
                await asyncio.sleep(0.02)
        first.kill()
        await first.wait()
        second = await opener(path)
        other.execute("ROLLBACK")
    out, _ = await asyncio.wait_for(second.communicate(), 120)
    assert out.decode().split()[:2] == [UID, "3"]
    assert rows(kept(path)) == before


async def children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task")
    found = [(task / "children").read_text().split() for task in tasks.iterdir()] if tasks.exists() else []
    return [child for some in found for child in some]


async def test_copy_of_before_is_for_the_daemons_user_alone_and_replaces_an_older_one(path: Path) -> None:
    before = rows(first_store(path))
    kept(path).write_text("an older copy")
    kept(path).with_name(kept(path).name + ".part").write_text("half a copy")
    old = os.umask(0)
    try:
        async with Store.open(path, sole=True):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE(kept(path).stat().st_mode) == 0o600
    assert rows(kept(path)) == before
    assert not list(path.parent.glob("*.part"))


def test_revisions_import_nothing_of_stoker() -> None:
    for file in VERSIONS.glob("r*.py"):
        assert not re.search(r"^(from|import) (daemon|api)", file.read_text(), re.MULTILINE), file

"""The file: its modes, its version, who else may have it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from daemon.domain.errors import StoreError
from daemon.store import Store
from daemon.store.files import file_system
from daemon.store.schema import SCHEMA_VERSION
from tests.store.times import at


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_everything_made_is_for_the_daemons_user_alone(path: Path) -> None:
    old = os.umask(0)
    try:
        async with Store.open(path, sole=True) as store:
            await store.put("Host", "a", {}, actor="ann", now=at(0))
            assert mode(path.parent) == 0o700
            assert {mode(file) for file in path.parent.iterdir()} == {0o600}
            assert {"stoker.db", "stoker.db-wal"} <= {file.name for file in path.parent.iterdir()}
    finally:
        os.umask(old)


async def test_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    async with Store.open(path):
        pass
    path.chmod(0o644)
    async with Store.open(path):
        assert mode(path) == 0o600


async def test_folder_that_others_could_write_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.parent.chmod(0o777)
    with pytest.raises(StoreError, match="chmod 0700"):
        async with Store.open(path):
            pass


async def test_file_is_durable_and_consistent_by_its_settings(store: Store, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    pragmas = await store._write(
        lambda tx: [
            tx.connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("synchronous", "foreign_keys")
        ]
    )
    assert pragmas == [2, 1]


async def test_store_keeps_its_uid(path: Path) -> None:
    async with Store.open(path) as store:
        first = store.uid
    async with Store.open(path) as store:
        assert store.uid == first


@pytest.mark.parametrize("version", ["0", str(SCHEMA_VERSION + 1), "99", "1.0", "²"])
async def test_another_schema_version_is_refused_with_what_to_do(path: Path, version: str) -> None:
    async with Store.open(path) as store:
        await store.put("Host", "a", {}, actor="ann", now=at(0))
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"schema version {version}.*run the Stoker that wrote it"):
        async with Store.open(path):
            pass
    assert path.read_bytes() == before


async def test_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE photos (id)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="other program"):
        async with Store.open(path):
            pass
    assert path.read_bytes() == before


async def test_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_text("hello " * 1000)
    with pytest.raises(StoreError, match="not a store"):
        async with Store.open(path):
            pass
    assert path.read_text().startswith("hello")


async def test_missing_file_is_refused_where_none_may_be_made(path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        async with Store.open(path, create=False):
            pass
    assert not path.exists()


async def test_folder_in_place_of_the_file_is_told(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True)
    with pytest.raises(StoreError, match="Is a directory"):
        async with Store.open(path):
            pass


async def test_closed_store_says_so_and_may_be_closed_again(path: Path) -> None:
    async with Store.open(path) as store:
        pass
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.list("Host")
    with pytest.raises(StoreError, match="closed"):
        await store.put("Host", "a", {}, actor="ann", now=at(0))


async def test_failure_of_the_file_is_told_as_ours(store: Store, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DROP TABLE pause")
    with pytest.raises(StoreError, match="no such table: pause"):
        await store.paused()


async def test_second_daemon_is_refused_with_the_pid_of_the_first(path: Path) -> None:
    async with Store.open(path, sole=True):
        with pytest.raises(StoreError, match=f"pid {os.getpid()}"):
            async with Store.open(path, sole=True):
                pass
        async with Store.open(path) as tool:  # a look by a tool is no second daemon
            assert await tool.list("Host") == ()
    async with Store.open(path, sole=True):
        pass


OTHER = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from daemon.store import Store

async def main():
    async with Store.open(Path(sys.argv[1])) as store:
        for number in range(30):
            await store.put("Host", f"{sys.argv[2]}-{number}", {}, actor="other", now=datetime(2026, 1, 1, tzinfo=UTC))
        fence = await store.begin_run(datetime(2026, 1, 1, tzinfo=UTC))
        print(store.uid, fence.epoch)

asyncio.run(main())
"""


async def other_process(path: Path, name: str) -> list[str]:
    command = (sys.executable, "-c", OTHER, str(path), name)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return out.decode().split()


async def test_processes_that_make_and_write_one_file_at_once_share_one_store(path: Path) -> None:
    answers = await asyncio.gather(*(other_process(path, name) for name in ("a", "b", "c")))
    assert len({uid for uid, _ in answers}) == 1
    assert sorted(epoch for _, epoch in answers) == ["1", "2", "3"]
    async with Store.open(path) as store:
        found = await store.list("Host")
        assert len(found) == 90
        assert sorted(one.resource_version for one in found) == list(range(1, 91))


async def test_what_another_process_wrote_is_read_at_once(store: Store, path: Path) -> None:
    await store.put("Host", "ours", {}, actor="ann", now=at(0))
    await other_process(path, "theirs")
    assert len(await store.list("Host")) == 31


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:30 / /srv/my\\040data rw shared:1 - nfs4 server:/x rw
31 22 0:31 / /srv/over rw - nfs4 server:/y rw
32 22 8:2 / /srv/over rw - xfs /dev/sdb1 rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/lib", "ext4"), ("/srv/my data/stoker", "nfs4"), ("/srv/over/x", "xfs"), ("/srv/overlay", "ext4")],
)
def test_file_system_is_that_of_the_deepest_and_last_mount(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


def test_file_system_is_unknown_without_mounts() -> None:
    assert file_system(Path("/x"), "") == ""

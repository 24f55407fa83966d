"""The store's file: made 0600 in a 0700 folder, of our schema version, not on a network file system.

Called once by `Store.open`, in a thread of its own: everything here blocks.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from daemon.domain.errors import StoreError
from daemon.store.migrations import revision_of
from daemon.store.schema import SCHEMA_VERSION, metadata, revisions
from daemon.store.upgrade import upgrade

BUSY_TIMEOUT_S = 5.0

# SQLite's locks and shared memory do not hold on these.
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "afs", "lustre", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph"}
)


def prepare(path: Path, new_id: Callable[[], str], *, create: bool) -> str:
    """Make the file when there is none and `create`, check it, upgrade it when it is older, and give the store's uid.

    Raises:
        StoreError: missing, of a newer version, not ours, on a network file system, not accessible, or older while a
            daemon works on it.
    """
    try:
        _folder(path.parent, create=create)
        with _locked(path.with_name(path.name + ".lock")) as lock:
            _file(path, create=create)
            found = _checked(path, new_id)
            if found.version < SCHEMA_VERSION:
                with sole(path) as mark:
                    upgrade(path, (lock, mark))
            return found.uid
    except OSError as err:
        raise StoreError(f"{path}: {err.strerror}: give the daemon's user access, or set STOKER_DATA") from err
    except sqlite3.OperationalError as err:
        raise StoreError(f"{path}: {err}: check the disk, and who else has the file open") from err
    except sqlite3.DatabaseError as err:
        raise StoreError(f"{path}: {err}: it is not a store; move it away or set STOKER_DATA") from err


@contextmanager
def sole(path: Path) -> Iterator[int]:
    """Hold the mark of the one daemon on this file; the kernel frees it when the process ends. StoreError if taken.

    Gives the mark's descriptor: a child that inherits it holds the mark too.
    """
    mark = path.with_name(path.name + ".daemon")
    descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            other = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "?"
            raise StoreError(f"{path}: another daemon (pid {other}) works on this store; stop it first") from err
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def file_system(path: Path, mountinfo: str) -> str:
    """Type of the file system that holds `path`, by the text of /proc/self/mountinfo; "" when it cannot tell."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if not right or len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= best:  # a later mount on the same point hides the earlier
            best, found = len(point), right.split(" ", 1)[0]
    return found


def _folder(folder: Path, *, create: bool) -> None:
    if create:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o022:
        raise StoreError(f"{folder} is writable by others: chmod 0700 it")
    mounts = Path("/proc/self/mountinfo")
    kind = file_system(folder.resolve(), mounts.read_text("utf-8", "replace")) if mounts.exists() else ""
    if kind in _NETWORK:
        raise StoreError(f"{folder} is on {kind}: a network file system loses writes; set STOKER_DATA to a local disk")


@contextmanager
def _locked(lock: Path) -> Iterator[int]:
    # Two processes that make the same file at once would meet in the switch to WAL, which no busy timeout covers.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _file(path: Path, *, create: bool) -> None:
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # the name itself survives power loss
    finally:
        os.close(folder)


@dataclass(frozen=True, slots=True)
class _Found:
    uid: str
    version: int


def _checked(path: Path, new_id: Callable[[], str]) -> _Found:
    with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "meta" not in tables:
            raise StoreError(f"{path} is some other program's database; move it away or set STOKER_DATA")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if not tables:
            _create(connection, new_id())
        values = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    found = values.get("schema_version", "none")
    if not found.isascii() or not found.isdigit() or not 1 <= int(found) <= SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {found}, this Stoker has {SCHEMA_VERSION}: run the Stoker that wrote it, or "
            "move the file away and apply the manifests again (units of the old store are then Unclaimed: left alone)"
        )
    return _Found(str(values["store_uid"]), int(found))


def _create(connection: sqlite3.Connection, store_uid: str) -> None:
    dialect = sqlite.dialect()
    connection.execute("BEGIN IMMEDIATE")
    for table in (*metadata.sorted_tables, revisions):
        connection.execute(str(CreateTable(table).compile(dialect=dialect)))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(str(CreateIndex(index).compile(dialect=dialect)))
    rows = [("schema_version", str(SCHEMA_VERSION)), ("store_uid", store_uid)]
    connection.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", rows)
    connection.execute("INSERT INTO counters (name, value) VALUES ('resource_version', 0)")
    connection.execute("INSERT INTO alembic_version (version_num) VALUES (?)", (revision_of(SCHEMA_VERSION),))
    connection.execute("COMMIT")

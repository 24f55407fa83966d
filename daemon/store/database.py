"""Transactions: one writer connection, a few readers, changes told after the commit.

Base of `Store`; the other files of this package give `_read` and `_write` their bodies. A body is a plain function
over a Core connection and must be short: a write holds the file's only write lock. A read is one statement, or several
within `snapshot`.

Cancellation: waiting for a turn can be cancelled and then nothing happened. Once a transaction began it runs to its end
whoever is cancelled, so a cancelled or timed-out write has *maybe* committed: the caller reads again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, StatementError

from daemon.domain.errors import StoreError
from daemon.store.files import BUSY_TIMEOUT_S
from daemon.store.rows import Change, Kind, StoredObject, What
from daemon.store.subscription import Subscription

T = TypeVar("T")
READERS = 3


@dataclass(frozen=True, slots=True)
class Tx:
    """One write transaction; `changed` is told to listeners only if it commits."""

    connection: Connection
    changes: list[Change] = field(default_factory=list)

    severities: list[str] = field(default_factory=list)  # of the events it stores

    def changed(self, kind: Kind | None, name: str, what: What) -> None:
        self.changes.append(Change(kind, name, what))


class Database:
    """The file, open. Made by `Store.open` only."""

    def __init__(self, path: Path, uid: str, new_id: Callable[[], str], max_events: int) -> None:
        self.path = path
        self.uid = uid
        self._new_id = new_id
        self._max_events = max_events
        self._writer = _writer(path)
        self._reader = _reader(path)
        self._threads = ThreadPoolExecutor(READERS + 1, "store")  # a body runs in one; started when first needed
        self._turn = asyncio.Lock()
        self._reading = asyncio.Semaphore(READERS)
        self._listeners: set[Subscription] = set()
        self._told: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closed = False
        self._timed: tuple[Callable[[], float], Callable[[float, list[str]], None]] | None = None
        self._listed: dict[Kind, tuple[int, tuple[StoredObject, ...]]] = {}  # by the version they were read at

    def time_writes(self, clock: Callable[[], float], told: Callable[[float, list[str]], None]) -> None:
        """From now on tell how many seconds each committed write took, and the severities of its events."""
        self._timed = (clock, told)

    def subscribe(self) -> Subscription:
        """Changes committed by this process from entering it on: `with store.subscribe() as changes: async for …`."""
        return Subscription(self._listeners)

    async def close(self) -> None:
        """Wait for what runs, then let go of the file. May be called twice."""
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        self._closed = True
        async with self._turn:
            await asyncio.to_thread(self._writer.dispose)
        for _ in range(READERS):
            await self._reading.acquire()
        await asyncio.to_thread(self._reader.dispose)
        for _ in range(READERS):
            self._reading.release()
        self._threads.shutdown(wait=False)

    # In both, the shielded task is held by whatever it waits for, and frees the turn itself: its caller may be gone.

    async def _read(self, body: Callable[[Connection], T]) -> T:
        await self._reading.acquire()
        return await asyncio.shield(self._look(body))

    async def _write(self, body: Callable[[Tx], T]) -> T:
        await self._turn.acquire()
        return await asyncio.shield(self._commit(body))

    async def _look(self, body: Callable[[Connection], T]) -> T:
        try:
            self._check_open()
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._looked, body)
        except StatementError as err:
            raise self._failed(err) from err
        finally:
            self._reading.release()

    async def _commit(self, body: Callable[[Tx], T]) -> T:
        try:
            self._check_open()
            began_s = 0.0 if self._timed is None else self._timed[0]()
            work = asyncio.get_running_loop().run_in_executor(self._threads, self._committed, body)
            result, tx = await work
            if self._timed is not None:
                clock, told = self._timed
                told(clock() - began_s, tx.severities)
            for listener in tuple(self._listeners):
                listener.publish(tx.changes)
            return result
        except StatementError as err:
            raise self._failed(err) from err
        finally:
            self._turn.release()

    def _looked(self, body: Callable[[Connection], T]) -> T:
        with self._reader.connect() as connection:
            return body(connection)

    def _committed(self, body: Callable[[Tx], T]) -> tuple[T, Tx]:
        with self._writer.begin() as connection:
            tx = Tx(connection)
            result = body(tx)
        return result, tx

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")

    def _failed(self, err: StatementError) -> Exception:
        if not isinstance(err, DBAPIError):  # a value that no column takes: the caller's mistake, in its own words
            return ValueError(str(err.orig))
        hint = "check who else has the file open" if "locked" in str(err.orig) else "check the disk and the file"
        return StoreError(f"{self.path}: {err.orig}; {hint}")


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """Make the statements of a reader see one state of the file."""
    connection.exec_driver_sql("BEGIN")
    try:
        yield
    finally:
        connection.exec_driver_sql("ROLLBACK")


def _writer(path: Path) -> Engine:
    engine = _engine(path, 1)

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "begin", begun)
    _set_up(engine)
    return engine


def _reader(path: Path) -> Engine:
    # A single SELECT needs no BEGIN and ROLLBACK around it.
    engine = _engine(path, READERS, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True)
    _set_up(engine, "PRAGMA query_only=ON")
    return engine


def _engine(path: Path, size: int, **options: Any) -> Engine:
    url = URL.create("sqlite", database=str(path))
    waits = {"timeout": BUSY_TIMEOUT_S}
    return create_engine(url, pool_size=size, max_overflow=0, connect_args=waits, **options)


def _set_up(engine: Engine, *pragmas: str) -> None:
    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # sqlite3 would begin by itself, late and deferred
        cursor = connection.cursor()
        for pragma in ("PRAGMA foreign_keys=ON", "PRAGMA synchronous=FULL", *pragmas):
            cursor.execute(pragma)
        cursor.close()

    event.listen(engine, "connect", connected)

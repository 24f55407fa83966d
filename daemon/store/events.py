"""Events: everything that happened or was refused, deduplicated and bounded."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, update
from sqlalchemy import delete as sql_delete

from daemon.domain.status import Event
from daemon.store.database import Database, Tx
from daemon.store.rows import Kind, StoredEvent
from daemon.store.schema import events

MAX_EVENTS = 50_000
MAX_EVIDENCE_BYTES = 8 * 1024
MAX_MESSAGE_BYTES = 4 * 1024
SAME_WITHIN = timedelta(minutes=10)

_SAME = ("kind", "name", "reason", "message", "severity", "action", "result")
_LAST_SAME = (
    select(events.c.id, events.c.last_seen)
    .where(*(events.c[column] == bindparam(column) for column in _SAME))
    .order_by(events.c.last_seen.desc())
    .limit(1)
)


class Events(Database):
    """The part of `Store` that holds events."""

    async def add_event(self, event: Event, now: datetime) -> None:
        """Add it, or count it once more when the same was said in the last 10 minutes (the newest evidence is kept).

        Evidence is cut to its last 8 KiB, a message to its first 4 KiB.
        """
        await self._write(lambda tx: write_event(tx, event, now, self._max_events))

    async def events(
        self, kind: Kind | None = None, name: str | None = None, *, limit: int = 100, after_id: int | None = None
    ) -> tuple[StoredEvent, ...]:
        """Without `after_id` the last seen ones, newest first; with it those first said after it, oldest first."""
        query = select(events).limit(limit)
        if kind is not None:
            query = query.where(events.c.kind == kind)
        if name is not None:
            query = query.where(events.c.name == name)
        if after_id is None:
            query = query.order_by(events.c.last_seen.desc(), events.c.id.desc())
        else:
            query = query.where(events.c.id > after_id).order_by(events.c.id)
        return await self._read(lambda connection: tuple(_event(row) for row in connection.execute(query)))


def write_event(tx: Tx, event: Event, now: datetime, max_events: int) -> None:
    """Add one event within a transaction: see `Events.add_event`."""
    tx.severities.append(event.severity)
    values = {
        "kind": event.kind,
        "name": event.name,
        "reason": str(event.reason),
        "message": _head(event.message),
        "severity": event.severity,
        "evidence": _tail(event.evidence),
        "action": event.action,
        "result": event.result,
    }
    if not _counted(tx, values, now):
        made = tx.connection.execute(insert(events).values(**values, count=1, first_seen=now, last_seen=now))
        assert made.inserted_primary_key is not None
        newest = int(made.inserted_primary_key[0])
        tx.connection.execute(sql_delete(events).where(events.c.id <= newest - max_events))


def _counted(tx: Tx, values: dict[str, str], now: datetime) -> bool:
    found = tx.connection.execute(_LAST_SAME, {column: values[column] for column in _SAME}).one_or_none()
    # A clock that was set back must neither hide an event nor make its last time run backwards.
    if found is None or abs(now - found.last_seen) >= SAME_WITHIN:
        return False
    changes = {"count": events.c.count + 1, "last_seen": max(now, found.last_seen), "evidence": values["evidence"]}
    tx.connection.execute(update(events).where(events.c.id == found.id).values(changes))
    return True


def _tail(text: str) -> str:
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= MAX_EVIDENCE_BYTES else data[-MAX_EVIDENCE_BYTES:].decode("utf-8", "ignore")


def _head(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")


def _event(row: Row[Any]) -> StoredEvent:
    return StoredEvent(**row._mapping)

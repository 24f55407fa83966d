"""Deleting declared objects, and what stays of them: tombstones.

Only a deletion recorded here may ever stop a unit, so nothing is dropped that could tell it later.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select
from sqlalchemy import delete as sql_delete

from daemon.domain.errors import Conflict, NotFound
from daemon.domain.status import Event, Reason
from daemon.store.database import Database, Tx, snapshot
from daemon.store.events import write_event
from daemon.store.records import find, find_uid, next_version, remember_place, rewrite
from daemon.store.rows import Kind, Leftovers, StoredObject, Tombstone
from daemon.store.schema import objects, places, tombstones


class Deletions(Database):
    """The part of `Store` that holds what was deleted."""

    async def delete(self, kind: Kind, name: str, now: datetime, *, actor: str = "") -> StoredObject:
        """Mark an object as terminating; a second time changes nothing. Raises NotFound."""

        def body(tx: Tx) -> StoredObject:
            found = find(tx.connection, kind, name)
            if found is None:
                raise NotFound(f"{kind} {name} does not exist")
            if found.deleted_at is not None:
                return found
            marked = replace(found, deleted_at=now, updated_at=now, resource_version=next_version(tx))
            rewrite(tx, marked)
            said = Event(Reason.TERMINATING, f"deleted by {actor or 'unknown'}", kind, name, action="delete")
            write_event(tx, said, now, self._max_events)
            tx.changed(kind, name, "deleted")
            return marked

        return await self._write(body)

    async def finish_delete(
        self, kind: Kind, uid: str, leftovers: Leftovers | None = None, *, now: datetime
    ) -> Tombstone:
        """End a deletion: the object, its status and instances go; a tombstone and the history stay.

        A second time gives the same tombstone.

        Raises:
            NotFound: this store never had that uid.
            Conflict: nobody asked for the deletion, so it cannot end.
        """
        left = leftovers or Leftovers()

        def body(tx: Tx) -> Tombstone:
            found = find_uid(tx.connection, uid)
            if found is not None and found.deleted_at is None:
                raise Conflict(f"{kind} {found.name} is not being deleted")
            if found is not None:
                _bury(tx, found, left, now)
                write_event(tx, _said(found, left), now, self._max_events)
            buried = _tombstone(tx.connection, uid)
            if buried is None or buried.kind != kind:
                raise NotFound(f"{kind} with uid {uid} does not exist")
            return buried

        return await self._write(body)

    async def tombstone(self, uid: str) -> Tombstone | None:
        """How the object of that uid ended; None when it lives, or this store never had it."""
        return await self._read(lambda connection: _tombstone(connection, uid))

    async def tombstones(self, host: str | None = None, *, limit: int = 1000) -> tuple[Tombstone, ...]:
        """Ended deletions, newest first; with `host` those that ever had a place there."""
        query = select(tombstones).order_by(tombstones.c.at.desc(), tombstones.c.uid).limit(limit)
        if host is not None:
            query = query.where(tombstones.c.uid.in_(select(places.c.uid).where(places.c.host == host)))

        def body(connection: Connection) -> tuple[Tombstone, ...]:
            with snapshot(connection):
                return tuple(_stone(connection, row) for row in connection.execute(query).all())

        return await self._read(body)


def _bury(tx: Tx, found: StoredObject, left: Leftovers, now: datetime) -> None:
    for host in {*left.hosts, *([found.name] if found.kind == "Host" else ())}:
        for unit in left.units or ("",):
            remember_place(tx, found.uid, host, unit)
    values = {
        "uid": found.uid,
        "kind": found.kind,
        "name": found.name,
        "generation": found.generation,
        "spec": found.spec,
        "leftovers": {**left.detail, "units": sorted(left.units), "hosts": sorted(left.hosts)},
        "abandoned": int(left.abandoned),
        "at": now,
    }
    tx.connection.execute(insert(tombstones).values(values))
    tx.connection.execute(sql_delete(objects).where(objects.c.uid == found.uid))  # status and instances cascade
    next_version(tx)
    tx.changed(found.kind, found.name, "gone")


def _said(found: StoredObject, left: Leftovers) -> Event:
    reason = Reason.ABANDONED if left.abandoned else Reason.DELETED
    rest = ", ".join(sorted({*left.units, *left.hosts}))
    message = f"deletion ended; left behind: {rest}" if rest else "deletion ended, nothing left behind"
    said = Event(reason, message, found.kind, found.name, action="delete", result="gone")
    return replace(said, severity="Warning") if left.abandoned else said


def _tombstone(connection: Connection, uid: str) -> Tombstone | None:
    row = connection.execute(select(tombstones).where(tombstones.c.uid == uid)).one_or_none()
    return None if row is None else _stone(connection, row)


def _stone(connection: Connection, row: Row[Any]) -> Tombstone:
    held = connection.execute(select(places.c.host, places.c.unit).where(places.c.uid == row.uid)).all()
    return Tombstone(
        kind=row.kind,
        name=row.name,
        uid=row.uid,
        generation=row.generation,
        spec=row.spec,
        units=tuple(sorted({place.unit for place in held} - {""})),
        hosts=tuple(sorted({place.host for place in held})),
        leftovers=row.leftovers,
        abandoned=bool(row.abandoned),
        at=row.at,
    )

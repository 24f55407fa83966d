"""Declared objects: put, get, list, history.

A name may be used again after its deletion ended: the new object has another uid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from daemon.domain.errors import Conflict, NotFound
from daemon.domain.status import Event, Reason
from daemon.store.database import Database, Tx, snapshot
from daemon.store.events import write_event
from daemon.store.records import (
    find,
    find_uid,
    next_version,
    present_version,
    remember_generation,
    rewrite,
    to_object,
    values_of,
)
from daemon.store.rows import JsonObject, Kind, Outcome, PutResult, Revision, StoredObject
from daemon.store.schema import canonical, history, objects


class Objects(Database):
    """The part of `Store` that holds what is declared."""

    async def put(
        self,
        kind: Kind,
        name: str,
        spec: JsonObject,
        labels: Mapping[str, str] | None = None,
        *,
        actor: str,
        now: datetime,
        if_version: int | None = None,
    ) -> PutResult:
        """Create or change an object, with its history and its event, in one transaction; an equal put changes nothing.

        `if_version` is the resource_version the caller read, 0 for "must not exist"; None takes any.

        Raises:
            Conflict: the object is terminating, or is not at `if_version`.
        """
        wanted = _Put(kind, name, spec, dict(labels or {}), actor, now)

        def body(tx: Tx) -> PutResult:
            found = find(tx.connection, kind, name)
            _check_version(wanted, found, if_version)
            made = _create(tx, wanted, self._new_id()) if found is None else _change(tx, wanted, found)
            if made.outcome != "unchanged":
                write_event(tx, _said(wanted, made), now, self._max_events)
                tx.changed(kind, name, "spec")
            return made

        return await self._write(body)

    async def get(self, kind: Kind, name: str) -> StoredObject:
        """The object of that name, terminating ones included. Raises NotFound."""
        found = await self.find(kind, name)
        if found is None:
            raise NotFound(f"{kind} {name} does not exist")
        return found

    async def find(self, kind: Kind, name: str) -> StoredObject | None:
        """As `get`, None when it does not exist."""
        return await self._read(lambda connection: find(connection, kind, name))

    async def by_uid(self, uid: str) -> StoredObject | None:
        """The object of that uid; None when there is none, or none any more (see `tombstone`)."""
        return await self._read(lambda connection: find_uid(connection, uid))

    async def list(self, kind: Kind, selector: Mapping[str, str] | None = None) -> tuple[StoredObject, ...]:
        """All objects of a kind by name, terminating ones included; `selector` keeps those with all these labels.

        Cheap while no object changes: the same values are given again, so their dicts must not be written to.
        """
        version, found = await self._read(lambda connection: _list(connection, kind, self._listed.get(kind)))
        self._listed[kind] = (version, found)
        wanted = (selector or {}).items()
        return tuple(item for item in found if wanted <= item.labels.items())

    async def history(self, kind: Kind, name_or_uid: str) -> tuple[Revision, ...]:
        """All generations, oldest first: of one object by uid, or of all that ever had the name."""

        def body(connection: Connection) -> tuple[Revision, ...]:
            for column in (history.c.uid, history.c.name):
                query = select(history).where(history.c.kind == kind, column == name_or_uid).order_by(history.c.id)
                if rows := connection.execute(query).all():
                    return tuple(_revision(row) for row in rows)
            return ()

        return await self._read(body)


_Listed = tuple[int, tuple[StoredObject, ...]]


def _list(connection: Connection, kind: Kind, before: _Listed | None) -> _Listed:
    if before is not None and before[0] == present_version(connection):
        return before
    query = select(objects).where(objects.c.kind == kind).order_by(objects.c.name)
    with snapshot(connection):
        found = tuple(to_object(row) for row in connection.execute(query))
        return present_version(connection), found


@dataclass(frozen=True, slots=True)
class _Put:
    kind: Kind
    name: str
    spec: JsonObject
    labels: dict[str, str]
    actor: str
    now: datetime


def _create(tx: Tx, put: _Put, uid: str) -> PutResult:
    version = next_version(tx)
    made = StoredObject(put.kind, put.name, uid, 1, version, put.labels, put.spec, put.now, put.now, None)
    tx.connection.execute(insert(objects).values(values_of(made)))
    remember_generation(tx, made, put.actor, put.now)
    return _result(tx, uid, "created")


def _change(tx: Tx, put: _Put, found: StoredObject) -> PutResult:
    if found.deleted_at is not None:
        raise Conflict(f"{put.kind} {put.name} is terminating: wait until it is gone, or abandon it")
    same_spec = canonical(found.spec) == canonical(put.spec)
    if same_spec and found.labels == put.labels:
        return PutResult(found, "unchanged")
    version = next_version(tx)
    made = replace(found, spec=put.spec, labels=put.labels, resource_version=version, updated_at=put.now)
    if not same_spec:
        made = replace(made, generation=found.generation + 1)
        remember_generation(tx, made, put.actor, put.now)
    rewrite(tx, made)
    return _result(tx, made.uid, "configured")


def _result(tx: Tx, uid: str, outcome: Outcome) -> PutResult:
    # Read back, so that the caller holds exactly what later reads will give.
    kept = find_uid(tx.connection, uid)
    assert kept is not None
    return PutResult(kept, outcome)


def _said(put: _Put, made: PutResult) -> Event:
    reason = Reason.CREATED if made.outcome == "created" else Reason.CONFIGURED
    message = f"{made.outcome} by {put.actor or 'unknown'}: generation {made.object.generation}"
    return Event(reason, message, put.kind, put.name, action="put", result=made.outcome)


def _check_version(put: _Put, found: StoredObject | None, if_version: int | None) -> None:
    present = 0 if found is None else found.resource_version
    if if_version is not None and if_version != present:
        raise Conflict(f"{put.kind} {put.name} is at version {present}, not {if_version}: read it again")


def _revision(row: Row[Any]) -> Revision:
    return Revision(row.kind, row.name, row.uid, row.generation, row.spec, row.actor, row.at)

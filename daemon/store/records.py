"""Reading and writing single rows of declared objects within a transaction; shared by the files of this package."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from daemon.store.database import Tx
from daemon.store.rows import Kind, StoredObject
from daemon.store.schema import counters, history, objects, places

# Statements that are asked at every pass are built once: building one takes longer than SQLite takes to answer it.
_NAMED = select(objects).where(objects.c.kind == bindparam("kind"), objects.c.name == bindparam("name"))
_OF_UID = select(objects).where(objects.c.uid == bindparam("uid"))
_VERSION = select(counters.c.value).where(counters.c.name == "resource_version")


def find(connection: Connection, kind: Kind, name: str) -> StoredObject | None:
    """The object that has the name now."""
    row = connection.execute(_NAMED, {"kind": kind, "name": name}).one_or_none()
    return None if row is None else to_object(row)


def find_uid(connection: Connection, uid: str) -> StoredObject | None:
    """The object of that uid, unless it is gone."""
    row = connection.execute(_OF_UID, {"uid": uid}).one_or_none()
    return None if row is None else to_object(row)


def to_object(row: Row[Any]) -> StoredObject:
    """The row of `objects` as a value."""
    return StoredObject(**row._mapping)


def values_of(item: StoredObject) -> dict[str, Any]:
    """The value as a row of `objects`."""
    return {column.name: getattr(item, column.name) for column in objects.c}


def present_version(connection: Connection) -> int:
    """The store's resource_version: equal means that no object was made, changed or removed, by any process."""
    return int(connection.execute(_VERSION).scalar_one())


def rewrite(tx: Tx, changed: StoredObject) -> None:
    """Store the object, whole, in place of what it was."""
    tx.connection.execute(update(objects).where(objects.c.uid == changed.uid).values(values_of(changed)))


def next_version(tx: Tx) -> int:
    """The store's next resource_version; given back only if the transaction fails."""
    query = update(counters).where(counters.c.name == "resource_version").values(value=counters.c.value + 1)
    return int(tx.connection.execute(query.returning(counters.c.value)).scalar_one())


def remember_generation(tx: Tx, made: StoredObject, actor: str, now: datetime) -> None:
    """Add the object's present generation to the history."""
    kept = {"kind": made.kind, "name": made.name, "uid": made.uid, "generation": made.generation, "spec": made.spec}
    tx.connection.execute(insert(history).values(**kept, actor=actor, at=now))


def remember_place(tx: Tx, uid: str, host: str, unit: str) -> None:
    """Note for ever that an object had this unit ("" for none yet) on this host."""
    place = {"uid": uid, "host": host, "unit": unit}
    tx.connection.execute(insert(places).prefix_with("OR IGNORE").values(place))

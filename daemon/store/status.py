"""Status: what was last said about each object. Written only where it differs, so a steady fleet writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, insert, select, update
from sqlalchemy import delete as sql_delete

from daemon.domain.status import Condition
from daemon.store.database import Database, Tx, snapshot
from daemon.store.rows import JsonObject, Kind, StoredCondition, StoredStatus
from daemon.store.schema import canonical, conditions, objects, statuses


def _asked(*which: ColumnElement[bool]) -> tuple[Select[Any], Select[Any]]:
    """Statuses and conditions of some objects. Built once: building one takes longer than SQLite takes to answer it."""
    said = select(statuses.c.uid, statuses.c.status, statuses.c.updated_at)
    return (
        said.join(objects, objects.c.uid == statuses.c.uid).where(*which),
        select(conditions).join(objects, objects.c.uid == conditions.c.uid).where(*which).order_by(conditions.c.type),
    )


_OWNER = select(objects.c.kind, objects.c.name).where(objects.c.uid == bindparam("uid"))
_OF_UID = _asked(objects.c.uid == bindparam("uid"))
_OF_KIND = _asked(objects.c.kind == bindparam("kind"))
_ONE = _asked(objects.c.kind == bindparam("kind"), objects.c.uid == bindparam("uid"))


class Status(Database):
    """The part of `Store` that holds status and conditions."""

    def telling(self, uid: str) -> asyncio.Lock:
        """To be held from the reading of what a status is made of until it is written, or an older one may be last."""
        return self._told.setdefault(uid, asyncio.Lock())

    async def put_status(
        self, kind: Kind, uid: str, status: JsonObject, said: Sequence[Condition], now: datetime
    ) -> bool:
        """Make `status` and exactly these conditions what is said of an object; whether anything differed.

        A condition's transition time moves only when its status turns. An object that is gone is left alone: False.
        ValueError when one type is given twice.
        """
        wanted = {condition.type: condition for condition in said}
        if len(wanted) != len(said):
            raise ValueError(f"one condition type twice: {[condition.type for condition in said]}")
        # Looked at by a reader first: the steady state must not queue for the writer.
        if not await self._read(lambda connection: _differs(connection, uid, status, wanted)):
            return False
        return await self._write(lambda tx: _put(tx, uid, status, wanted, now))

    async def status(self, kind: Kind, uid: str) -> StoredStatus | None:
        """What was last said of one object, None when nothing was."""
        return (await self._read(lambda connection: _seen(connection, _ONE, kind=kind, uid=uid))).get(uid)

    async def statuses(self, kind: Kind) -> dict[str, StoredStatus]:
        """What was last said of every object of a kind, by uid."""
        return await self._read(lambda connection: _seen(connection, _OF_KIND, kind=kind))


def _put(tx: Tx, uid: str, status: JsonObject, wanted: dict[str, Condition], now: datetime) -> bool:
    owner = tx.connection.execute(_OWNER, {"uid": uid}).one_or_none()
    if owner is None or not _differs(tx.connection, uid, status, wanted):
        return False
    found = _one(tx.connection, uid)
    if found is None:
        tx.connection.execute(insert(statuses).values(uid=uid, status=status, updated_at=now))
    else:
        tx.connection.execute(update(statuses).where(statuses.c.uid == uid).values(status=status, updated_at=now))
    old = {} if found is None else {condition.type: condition for condition in found.conditions}
    _put_conditions(tx, uid, old, wanted, now)
    tx.changed(owner.kind, owner.name, "status")
    return True


def _put_conditions(
    tx: Tx, uid: str, old: dict[str, StoredCondition], wanted: dict[str, Condition], now: datetime
) -> None:
    for gone in old.keys() - wanted.keys():
        tx.connection.execute(sql_delete(conditions).where(conditions.c.uid == uid, conditions.c.type == gone))
    for type_, condition in wanted.items():
        found = old.get(type_)
        if found is not None and _same(found, condition):
            continue
        turned = found is None or found.status != condition.status
        values = {
            "status": condition.status,
            "reason": str(condition.reason),
            "message": _clean(condition.message),
            "observed_generation": condition.observed_generation,
            "last_transition_time": now if found is None or turned else found.last_transition_time,
        }
        if found is None:
            tx.connection.execute(insert(conditions).values(uid=uid, type=type_, **values))
        else:
            at = (conditions.c.uid == uid, conditions.c.type == type_)
            tx.connection.execute(update(conditions).where(*at).values(values))


def _differs(connection: Connection, uid: str, status: JsonObject, wanted: dict[str, Condition]) -> bool:
    found = _one(connection, uid)
    if found is None or canonical(found.status) != canonical(status):
        return True
    old = {condition.type: condition for condition in found.conditions}
    return old.keys() != wanted.keys() or not all(_same(old[type_], wanted[type_]) for type_ in wanted)


def _same(found: StoredCondition, wanted: Condition) -> bool:
    said = (wanted.status, str(wanted.reason), _clean(wanted.message), wanted.observed_generation)
    return (found.status, found.reason, found.message, found.observed_generation) == said


def _clean(text: str) -> str:
    # Text from hosts may hold lone surrogates, which no UTF-8 file takes.
    return text.encode("utf-8", "replace").decode()


def _one(connection: Connection, uid: str) -> StoredStatus | None:
    return _statuses(connection, _OF_UID, uid=uid).get(uid)


def _seen(connection: Connection, asked: tuple[Select[Any], Select[Any]], **of: str) -> dict[str, StoredStatus]:
    with snapshot(connection):
        return _statuses(connection, asked, **of)


def _statuses(connection: Connection, asked: tuple[Select[Any], Select[Any]], **of: str) -> dict[str, StoredStatus]:
    rows = connection.execute(asked[0], of).all()
    said: dict[str, list[StoredCondition]] = {row.uid: [] for row in rows}
    for uid, *values in connection.execute(asked[1], of):
        said[uid].append(StoredCondition(*values))
    return {row.uid: StoredStatus(row.uid, row.status, tuple(said[row.uid]), row.updated_at) for row in rows}

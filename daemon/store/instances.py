"""Instances, the units that carry them, and the identity of hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select
from sqlalchemy import delete as sql_delete

from daemon.domain.errors import Conflict, NotFound
from daemon.store.database import Database, Tx
from daemon.store.records import remember_place
from daemon.store.rows import HostIdentity, StoredInstance
from daemon.store.schema import identities, instances, objects

# Statements that are asked at every pass are built once: building one takes longer than SQLite takes to answer it.
_OF_HOST, _OF_SPEC = instances.c.host == bindparam("host"), instances.c.spec_uid == bindparam("spec_uid")
_ALL = select(instances).order_by(instances.c.host, instances.c.unit, instances.c.role, instances.c.spec_uid)
_LISTED = {  # by whether a host and a spec are given
    (False, False): _ALL,
    (True, False): _ALL.where(_OF_HOST),
    (False, True): _ALL.where(_OF_SPEC),
    (True, True): _ALL.where(_OF_HOST, _OF_SPEC),
}
_ONE = select(instances).where(_OF_HOST, _OF_SPEC, instances.c.role == bindparam("role"))
_OWNER = select(objects.c.uid).where(objects.c.uid == bindparam("uid"))
_IDENTITY = select(identities).where(identities.c.uid == bindparam("uid"))


class Instances(Database):
    """The part of `Store` that holds what runs where, and which machine a Host is."""

    async def put_instance(self, instance: StoredInstance) -> bool:
        """Store an instance, whole; whether it differed. NotFound when its spec is gone."""
        if instance in await self.instances(instance.host, instance.spec_uid):
            return False

        await self._write(lambda tx: _put_instance(tx, instance))
        return True

    async def change_instance(
        self,
        spec_uid: str,
        role: str,
        host: str,
        change: Callable[[StoredInstance], StoredInstance],
        *,
        new: StoredInstance | None = None,
    ) -> bool:
        """Store what `change` makes of the instance, read and written in one transaction; whether it differed.

        `new` is changed where there is none; without it nothing is made. `change` may be called twice. NotFound when
        the spec is gone and something would be stored.
        """

        def wanted(connection: Connection) -> StoredInstance | None:
            key = {"spec_uid": spec_uid, "role": role, "host": host}
            row = connection.execute(_ONE, key).one_or_none()
            found = new if row is None else _instance(row)
            changed = None if found is None else change(found)
            return None if row is not None and changed == found else changed

        if await self._read(wanted) is None:
            return False

        def body(tx: Tx) -> bool:
            changed = wanted(tx.connection)
            if changed is not None:
                _put_instance(tx, changed)
            return changed is not None

        return await self._write(body)

    async def instances(self, host: str | None = None, spec_uid: str | None = None) -> tuple[StoredInstance, ...]:
        """Instances, all or of one host or one spec, ordered by host, unit and role."""
        query = _LISTED[host is not None, spec_uid is not None]
        of = {"host": host, "spec_uid": spec_uid}
        asked = {name: value for name, value in of.items() if value is not None}
        return await self._read(lambda connection: tuple(_instance(row) for row in connection.execute(query, asked)))

    async def remove_instance(self, spec_uid: str, role: str, host: str) -> bool:
        """Forget an instance; whether there was one. That it was there stays known for its spec's tombstone."""
        key = (instances.c.spec_uid == spec_uid, instances.c.role == role, instances.c.host == host)
        return await self._write(lambda tx: tx.connection.execute(sql_delete(instances).where(*key)).rowcount > 0)

    async def host_identity(self, uid: str) -> HostIdentity | None:
        """What the host of that uid was at first sight, None when it was never seen."""
        return await self._read(lambda connection: _identity(connection, uid))

    async def note_identity(
        self,
        uid: str,
        machine_id: str,
        container: str,
        gpu_uuids: Sequence[str],
        now: datetime,
        *,
        replace: bool = False,
    ) -> HostIdentity:
        """Keep what a host shows at first sight, and give what is kept: later sights change nothing, but fill in GPUs.

        `replace`: a person confirmed that the host may be another now. Two hosts are one when machine id and container
        are equal and their GPUs are not known to differ (cloned machine ids are common, cloned GPUs are not).

        Raises:
            Conflict: another Host object has this identity; the message names it.
            NotFound: the Host object is gone.
        """
        seen = HostIdentity(uid, machine_id, container, tuple(sorted(gpu_uuids)), now)

        def body(tx: Tx) -> HostIdentity:
            _check_owner(tx, uid)
            old = _identity(tx.connection, uid)
            if old is not None and not replace and (old.gpu_uuids or not _fills(old, seen)):
                return old
            _check_taken(tx.connection, seen)
            kept = (
                seen
                if old is None or replace
                else HostIdentity(uid, old.machine_id, old.container, seen.gpu_uuids, old.first_seen)
            )
            values = {column.name: getattr(kept, column.name) for column in identities.c}
            tx.connection.execute(insert(identities).prefix_with("OR REPLACE").values(values))
            return kept

        return await self._write(body)


def _put_instance(tx: Tx, instance: StoredInstance) -> None:
    _check_owner(tx, instance.spec_uid)
    values = {column.name: getattr(instance, column.name) for column in instances.c}
    tx.connection.execute(insert(instances).prefix_with("OR REPLACE").values(values))
    remember_place(tx, instance.spec_uid, instance.host, instance.unit)


def _fills(old: HostIdentity, seen: HostIdentity) -> bool:
    same = (old.machine_id, old.container) == (seen.machine_id, seen.container)
    return same and not old.gpu_uuids and bool(seen.gpu_uuids)


def _check_owner(tx: Tx, uid: str) -> None:
    if tx.connection.execute(_OWNER, {"uid": uid}).one_or_none() is None:
        raise NotFound(f"the object with uid {uid} does not exist")


def _check_taken(connection: Connection, seen: HostIdentity) -> None:
    query = (
        select(identities, objects.c.name)
        .join(objects, objects.c.uid == identities.c.uid)
        .where(identities.c.machine_id == seen.machine_id, identities.c.container == seen.container)
        .where(identities.c.uid != seen.uid)
        .order_by(objects.c.name)
    )
    for row in connection.execute(query):
        apart = row.gpu_uuids and seen.gpu_uuids and set(row.gpu_uuids).isdisjoint(seen.gpu_uuids)
        if not apart:
            raise Conflict(f"Host {row.name} is the same machine (machine id {seen.machine_id}): delete one of the two")


def _identity(connection: Connection, uid: str) -> HostIdentity | None:
    row = connection.execute(_IDENTITY, {"uid": uid}).one_or_none()
    if row is None:
        return None
    return HostIdentity(row.uid, row.machine_id, row.container, tuple(row.gpu_uuids), row.first_seen)


def _instance(row: Row[Any]) -> StoredInstance:
    values = dict(row._mapping)
    values["gpus"] = tuple((index, uuid) for index, uuid in values["gpus"])
    return StoredInstance(**values)

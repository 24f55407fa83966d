"""Who may act: runs of the daemon and their fences, the ledger of corrections, the pause of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete as sql_delete
from sqlalchemy import func, insert, select

from daemon.domain.observation import Fence
from daemon.store.database import Database, Tx
from daemon.store.rows import Correction, Pause
from daemon.store.schema import corrections, pause, runs

# The longest budget looks back one day (contested drift); survivors of KILL are known longer; the rest is for people.
KEEP_CORRECTIONS = timedelta(days=30)


class Runs(Database):
    """The part of `Store` that holds who may act and how often it was done."""

    async def begin_run(self, now: datetime) -> Fence:
        """A new run of the daemon: the next epoch of this store, under an id of its own. Durable before it returns."""
        run = self._new_id().replace("-", "")

        def body(tx: Tx) -> Fence:
            last = tx.connection.execute(select(func.max(runs.c.epoch))).scalar_one()
            epoch = (last or 0) + 1
            tx.connection.execute(insert(runs).values(epoch=epoch, run=run, started_at=now))
            return Fence(self.uid, epoch, run)

        return await self._write(body)

    async def knows_run(self, fence: Fence) -> bool:
        """Whether that fence is of a run of this very store (a copy knows those before the copy)."""
        if fence.store != self.uid:
            return False
        query = select(runs.c.epoch).where(runs.c.epoch == fence.epoch, runs.c.run == fence.run)
        return await self._read(lambda connection: connection.execute(query).one_or_none() is not None)

    async def note_correction(
        self, instance_key: str, kind: str, reason: str, now: datetime, *, host: str = ""
    ) -> None:
        """Count a stop or restart. Call it before the action: one counted too many is safe, one too few is not."""
        await self.note_corrections([(instance_key, reason)], kind, now, host=host)

    async def note_corrections(
        self, counted: Sequence[tuple[str, str]], kind: str, now: datetime, *, host: str = ""
    ) -> None:
        """Count several of one kind, each as (instance_key, reason), in one transaction."""
        values = [
            {"instance_key": key, "host": host, "kind": kind, "reason": reason, "at": now} for key, reason in counted
        ]
        if not values:
            return

        def body(tx: Tx) -> None:
            tx.connection.execute(insert(corrections), values)
            tx.connection.execute(sql_delete(corrections).where(corrections.c.at < now - KEEP_CORRECTIONS))

        await self._write(body)

    async def corrections(
        self,
        instance_key: str | None = None,
        *,
        since: datetime | None = None,
        host: str | None = None,
        kind: str | None = None,
    ) -> tuple[Correction, ...]:
        """Corrections from `since` on, oldest first: of an instance, a host, a kind, or the fleet. 30 days are kept."""
        query = select(corrections).order_by(corrections.c.at, corrections.c.id)
        if since is not None:
            query = query.where(corrections.c.at >= since)
        if kind is not None:
            query = query.where(corrections.c.kind == kind)
        if instance_key is not None:
            query = query.where(corrections.c.instance_key == instance_key)
        if host is not None:
            query = query.where(corrections.c.host == host)
        rows = await self._read(lambda connection: connection.execute(query).all())
        return tuple(Correction(row.instance_key, row.host, row.kind, row.reason, row.at) for row in rows)

    async def set_paused(self, flag: bool, by: str, now: datetime) -> None:
        """Pause or resume the whole fleet; pausing again keeps the first person and time."""

        def body(tx: Tx) -> None:
            if flag:
                query = insert(pause).prefix_with("OR IGNORE").values(id=1, by=by, since=now)
                changed = tx.connection.execute(query).rowcount
            else:
                changed = tx.connection.execute(sql_delete(pause)).rowcount
            if changed:
                tx.changed(None, "", "pause")

        await self._write(body)

    async def paused(self) -> Pause | None:
        """Who paused the fleet and since when, None while it is not paused."""
        row = await self._read(lambda connection: connection.execute(select(pause)).one_or_none())
        return None if row is None else Pause(row.by, row.since)

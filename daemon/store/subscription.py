"""Telling listeners in this process what was committed. Changes by another process are not seen: readers resync too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType

from daemon.store.rows import Change


class Subscription:
    """Committed changes in order of commit; equal ones not yet taken are one. Never blocks the writer.

    Memory is bounded by the number of objects. Enter it before the first read of what it watches, so that nothing falls
    between. One reader at a time; several subscriptions side by side.
    """

    def __init__(self, listeners: set[Subscription]) -> None:
        self._listeners = listeners
        self._pending: dict[Change, None] = {}
        self._some = asyncio.Event()

    def __enter__(self) -> Subscription:
        self._listeners.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listeners.discard(self)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Change:
        """The oldest change not yet taken; waits for one. A cancelled wait loses none."""
        while not self._pending:
            self._some.clear()
            await self._some.wait()
        change = next(iter(self._pending))
        del self._pending[change]
        return change

    def taken(self) -> tuple[Change, ...]:
        """All changes not yet taken, now taken; does not wait."""
        changes = tuple(self._pending)
        self._pending.clear()
        return changes

    def publish(self, changes: Iterable[Change]) -> None:
        """Called by the store after a commit."""
        for change in changes:
            self._pending.setdefault(change)
        if self._pending:
            self._some.set()

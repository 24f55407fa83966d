"""`Store`: all parts of the store over one open file, and how it is opened."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from daemon.store import files
from daemon.store.deletions import Deletions
from daemon.store.events import MAX_EVENTS, Events
from daemon.store.instances import Instances
from daemon.store.objects import Objects
from daemon.store.runs import Runs
from daemon.store.status import Status


def new_uid() -> str:
    """A random uid: 122 bits, as uuid4 text."""
    return str(uuid.uuid4())


class Store(Objects, Deletions, Status, Instances, Runs, Events):
    """The open store; one event loop. Methods raise StoreError when the file fails; see each for more.

    A write that returned survives kill -9 and power loss. A write that was cancelled or raised StoreError has maybe
    committed: read again.
    """

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path,
        *,
        create: bool = True,
        sole: bool = False,
        new_id: Callable[[], str] = new_uid,
        max_events: int = MAX_EVENTS,
    ) -> AsyncIterator[Store]:
        """Open the file, made when missing (unless not `create`) and upgraded when older, and close it at the end.

        `sole` is for the daemon: a second one on the same file is refused. `new_id` makes the uids of objects, runs and
        the store.

        Raises:
            StoreError: missing, of a newer version, not ours, on a network file system, or a second daemon.
        """
        path = await asyncio.to_thread(path.absolute)
        uid = await asyncio.to_thread(files.prepare, path, new_id, create=create)
        with ExitStack() as held:
            if sole:
                held.enter_context(files.sole(path))
            store = cls(path, uid, new_id, max_events)
            try:
                yield store
            finally:
                await store.close()

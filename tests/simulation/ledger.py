"""Law 7 at the end of a run: what was acknowledged is in the store, and what was asked to be deleted is on its way out.

Reads the store as a client would; the daemon that wrote it has no part in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from daemon.store import Store
from tests.simulation.specs import Wish


async def lost(store: Store, acknowledged: dict[str, tuple[str, Wish]], deleting: dict[str, str]) -> AsyncIterator[str]:
    """Everything that was acknowledged and is not so."""
    here = {item.uid: item for item in await store.list("ServingSpec")}
    for name, (uid, wish) in sorted(acknowledged.items()):
        item = here.get(uid)
        if item is None or item.deleted_at is not None:
            yield f"SpecsAreKept: {name} was acknowledged and is {'gone' if item is None else 'terminating'}"
        elif item.spec != wish.json():
            yield f"SpecsAreKept: {name} is not as it was last acknowledged"
    for name, uid in sorted(deleting.items()):
        if uid in here and here[uid].deleted_at is None:
            yield f"SpecsAreKept: the deletion of {name} is forgotten"

"""The store: what was declared, what was said about it, and who may act. One SQLite file.

Called by `controller`, `reconcile` and its verbs, and `api`. Nothing here decides anything or reads a clock: time is an
argument everywhere.
"""

from daemon.store.rows import (
    Change,
    Correction,
    HostIdentity,
    JsonObject,
    Kind,
    Leftovers,
    Pause,
    PutResult,
    Revision,
    StoredCondition,
    StoredEvent,
    StoredInstance,
    StoredObject,
    StoredStatus,
    Tombstone,
)
from daemon.store.store import Store
from daemon.store.subscription import Subscription

__all__ = [
    "Change",
    "Correction",
    "HostIdentity",
    "JsonObject",
    "Kind",
    "Leftovers",
    "Pause",
    "PutResult",
    "Revision",
    "Store",
    "StoredCondition",
    "StoredEvent",
    "StoredInstance",
    "StoredObject",
    "StoredStatus",
    "Subscription",
    "Tombstone",
]

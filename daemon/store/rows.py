"""What the store gives back: frozen rows. Times are aware UTC datetimes, reasons plain text as they were stored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

Kind = Literal["Host", "ServingSpec"]
JsonObject = dict[str, Any]
Outcome = Literal["created", "configured", "unchanged"]
What = Literal["spec", "deleted", "gone", "status", "pause"]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One declared object. `deleted_at` is set while it terminates.

    `generation` counts changes of `spec` from 1; `resource_version` is of the whole store and grows with any change of
    spec, labels or deletion (never of status).
    """

    kind: Kind
    name: str
    uid: str
    generation: int
    resource_version: int
    labels: dict[str, str]
    spec: JsonObject
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of a put, and the object as it stands now."""

    object: StoredObject
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Revision:
    """One generation of one object, kept for ever; `uid` tells apart objects that had the same name."""

    kind: Kind
    name: str
    uid: str
    generation: int
    spec: JsonObject
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a deletion leaves behind when it ends: empty when all was seen stopped and removed.

    `abandoned`: a person gave the rest up. `detail` is for people.
    """

    units: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    abandoned: bool = False
    detail: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deletion that ended. `units` and `hosts` are all that the object ever had here, sorted."""

    kind: Kind
    name: str
    uid: str
    generation: int
    spec: JsonObject
    units: tuple[str, ...]
    hosts: tuple[str, ...]
    leftovers: JsonObject
    abandoned: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class StoredCondition:
    """A condition with the time at which its `status` last turned."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    observed_generation: int
    last_transition_time: datetime


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """What was last said about one object; conditions are sorted by type. `updated_at` is the last time it differed."""

    uid: str
    status: JsonObject
    conditions: tuple[StoredCondition, ...]
    updated_at: datetime

    def condition(self, type_: str) -> StoredCondition | None:
        """The condition of that type, None when it was never said."""
        return next((found for found in self.conditions if found.type == type_), None)


@dataclass(frozen=True, slots=True)
class StoredInstance:
    """What this store knows of one role of one spec on one host; the key is (spec_uid, role, host).

    `gpus` are the bound (index, UUID) pairs. `written_sha256` is of the file as last written, "" before the
    first write; `written_launch` its launch hash. `ready_*` is the last generation that answered, with the invocation
    that did. `loaded_generation` is the spec generation whose launch the running process has, 0 while unknown.
    """

    spec_uid: str
    role: str
    host: str
    unit: str
    path: str
    gpus: tuple[tuple[int, str], ...] = ()
    written_sha256: str = ""
    written_launch: str = ""
    ready_invocation_id: str = ""
    ready_generation: int = 0
    ready_at: datetime | None = None
    loaded_generation: int = 0
    extra: JsonObject = field(default_factory=dict)

    def noting(self, **facts: Any) -> StoredInstance:
        """This row with these facts in `extra`, beside the others there."""
        return replace(self, extra={**self.extra, **facts})


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """What made the host this host when it was first seen. `gpu_uuids` sorted; empty until GPUs were seen."""

    uid: str
    machine_id: str
    container: str
    gpu_uuids: tuple[str, ...]
    first_seen: datetime


@dataclass(frozen=True, slots=True)
class Correction:
    """A stop or restart that was decided; written before it was tried. `host` is "" when the caller gave none."""

    instance_key: str
    host: str
    kind: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event, perhaps said `count` times between `first_seen` and `last_seen`."""

    id: int
    kind: Kind
    name: str
    reason: str
    message: str
    severity: Literal["Normal", "Warning"]
    evidence: str
    action: str
    result: str
    count: int
    first_seen: datetime
    last_seen: datetime


@dataclass(frozen=True, slots=True)
class Pause:
    """The whole fleet is paused: by whom, since when."""

    by: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change. `what` is spec (created, changed, relabelled), deleted (terminates), gone, status, pause.

    For pause `kind` is None and `name` "".
    """

    kind: Kind | None
    name: str
    what: What

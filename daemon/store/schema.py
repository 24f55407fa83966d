"""The tables, and how values lie in them: times as ISO-8601 UTC text, JSON as canonical text.

Used inside `daemon.store` only. A change of any table raises SCHEMA_VERSION and adds a revision: see
`daemon.store.migrations`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

SCHEMA_VERSION = 2

metadata = MetaData()

# alembic's own, as it makes it; not of `metadata`, which is what alembic compares.
revisions = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def canonical(value: object) -> str:
    """JSON with sorted keys, ASCII only: equal text exactly when equal values of equal types. ValueError on NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def moment_text(moment: datetime) -> str:
    """ISO-8601 in UTC with microseconds, so that text order is time order. ValueError for a time without zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: the store takes aware datetimes only")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


class Moment(TypeDecorator[datetime]):
    """An aware datetime, as UTC text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        return None if value is None else moment_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromisoformat(value)


class Json(TypeDecorator[Any]):
    """A JSON value, as canonical text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> str:
        return canonical(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def _text(name: str, *, primary_key: bool = False) -> Column[str]:
    return Column(name, Text, nullable=False, primary_key=primary_key)


def _owner(name: str = "uid") -> Column[str]:
    return Column(name, Text, ForeignKey("objects.uid", ondelete="CASCADE"), primary_key=True)


meta = Table("meta", metadata, _text("key", primary_key=True), _text("value"))

counters = Table("counters", metadata, _text("name", primary_key=True), Column("value", Integer, nullable=False))

objects = Table(
    "objects",
    metadata,
    _text("uid", primary_key=True),
    _text("kind"),
    _text("name"),
    Column("generation", Integer, nullable=False),
    Column("resource_version", Integer, nullable=False),
    Column("labels", Json, nullable=False),
    Column("spec", Json, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("deleted_at", Moment),
    UniqueConstraint("kind", "name"),
    CheckConstraint("kind IN ('Host', 'ServingSpec')"),
)

# No foreign key: a revision outlives its object.
history = Table(
    "history",
    metadata,
    Column("id", Integer, primary_key=True),
    _text("kind"),
    _text("name"),
    _text("uid"),
    Column("generation", Integer, nullable=False),
    Column("spec", Json, nullable=False),
    _text("actor"),
    Column("at", Moment, nullable=False),
    UniqueConstraint("uid", "generation"),
    Index("history_by_name", "kind", "name"),
    sqlite_autoincrement=True,
)

tombstones = Table(
    "tombstones",
    metadata,
    _text("uid", primary_key=True),
    _text("kind"),
    _text("name"),
    Column("generation", Integer, nullable=False),
    Column("spec", Json, nullable=False),
    Column("leftovers", Json, nullable=False),
    Column("abandoned", Integer, nullable=False),
    Column("at", Moment, nullable=False),
)

# Every (host, unit) that an object ever had here; outlives objects, since a host may come back years later.
places = Table(
    "places",
    metadata,
    _text("uid", primary_key=True),
    _text("host", primary_key=True),
    _text("unit", primary_key=True),
    Index("places_by_host", "host"),
)

statuses = Table(
    "statuses",
    metadata,
    _owner(),
    Column("status", Json, nullable=False),
    Column("updated_at", Moment, nullable=False),
)

conditions = Table(
    "conditions",
    metadata,
    _owner(),
    _text("type", primary_key=True),
    _text("status"),
    _text("reason"),
    _text("message"),
    Column("observed_generation", Integer, nullable=False),
    Column("last_transition_time", Moment, nullable=False),
)

instances = Table(
    "instances",
    metadata,
    _owner("spec_uid"),
    _text("role", primary_key=True),
    _text("host", primary_key=True),
    _text("unit"),
    _text("path"),
    Column("gpus", Json, nullable=False),
    _text("written_sha256"),
    _text("written_launch"),
    _text("ready_invocation_id"),
    Column("ready_generation", Integer, nullable=False),
    Column("ready_at", Moment),
    Column("loaded_generation", Integer, nullable=False),
    Column("extra", Json, nullable=False),
    Index("instances_by_host", "host"),
)

identities = Table(
    "identities",
    metadata,
    _owner(),
    _text("machine_id"),
    _text("container"),
    Column("gpu_uuids", Json, nullable=False),
    Column("first_seen", Moment, nullable=False),
    Index("identities_by_machine", "machine_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("epoch", Integer, primary_key=True),
    Column("run", Text, nullable=False, unique=True),
    Column("started_at", Moment, nullable=False),
)

corrections = Table(
    "corrections",
    metadata,
    Column("id", Integer, primary_key=True),
    _text("instance_key"),
    _text("host"),
    _text("kind"),
    _text("reason"),
    Column("at", Moment, nullable=False),
    Index("corrections_by_instance", "instance_key", "at"),
    Index("corrections_by_time", "at"),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    _text("kind"),
    _text("name"),
    _text("reason"),
    _text("message"),
    _text("severity"),
    _text("evidence"),
    _text("action"),
    _text("result"),
    Column("count", Integer, nullable=False),
    Column("first_seen", Moment, nullable=False),
    Column("last_seen", Moment, nullable=False),
    Index("events_by_object", "kind", "name", "last_seen"),
    sqlite_autoincrement=True,
)

pause = Table(
    "pause",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True),
    _text("by"),
    Column("since", Moment, nullable=False),
)

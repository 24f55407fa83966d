"""The tables of the first Stoker. Never run on a store that has content: one without a revision is taken to be here."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _owned(name: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([name], ["objects.uid"], ondelete="CASCADE")


def upgrade() -> None:
    """Make them."""
    _declared()
    _ended()
    _said()
    _running()
    _acting()


def _declared() -> None:
    op.create_table("meta", _text("key"), _text("value"), sa.PrimaryKeyConstraint("key"))
    op.create_table("counters", _text("name"), _number("value"), sa.PrimaryKeyConstraint("name"))
    op.create_table(
        "objects",
        *(_text("uid"), _text("kind"), _text("name"), _number("generation"), _number("resource_version")),
        *(_text("labels"), _text("spec"), _text("created_at"), _text("updated_at")),
        _text("deleted_at", nullable=True),
        sa.PrimaryKeyConstraint("uid"),
        sa.UniqueConstraint("kind", "name"),
        sa.CheckConstraint("kind IN ('Host', 'ServingSpec')"),
    )
    op.create_table(
        "history",
        sa.Column("id", sa.Integer(), primary_key=True),
        *(_text("kind"), _text("name"), _text("uid"), _number("generation")),
        *(_text("spec"), _text("actor"), _text("at")),
        sa.UniqueConstraint("uid", "generation"),
        sqlite_autoincrement=True,
    )
    op.create_index("history_by_name", "history", ["kind", "name"])


def _ended() -> None:
    op.create_table(
        "tombstones",
        *(_text("uid"), _text("kind"), _text("name"), _number("generation"), _text("spec"), _text("leftovers")),
        *(_number("abandoned"), _text("at")),
        sa.PrimaryKeyConstraint("uid"),
    )
    op.create_table(
        "places", *(_text("uid"), _text("host"), _text("unit")), sa.PrimaryKeyConstraint("uid", "host", "unit")
    )
    op.create_index("places_by_host", "places", ["host"])


def _said() -> None:
    op.create_table(
        "statuses",
        *(_text("uid"), _text("status"), _text("updated_at", nullable=True)),
        sa.PrimaryKeyConstraint("uid"),
        _owned("uid"),
    )
    op.create_table(
        "conditions",
        *(_text("uid"), _text("type"), _text("status"), _text("reason"), _text("message")),
        *(_number("observed_generation"), _text("last_transition_time")),
        sa.PrimaryKeyConstraint("uid", "type"),
        _owned("uid"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), primary_key=True),
        *(_text("kind"), _text("name"), _text("reason"), _text("message"), _text("severity"), _text("evidence")),
        *(_text("action"), _text("result"), _number("count"), _text("first_seen"), _text("last_seen")),
        sqlite_autoincrement=True,
    )
    op.create_index("events_by_object", "events", ["kind", "name", "last_seen"])


def _running() -> None:
    op.create_table(
        "instances",
        *(_text("spec_uid"), _text("role"), _text("host"), _text("unit"), _text("path"), _text("gpus")),
        *(_text("written_sha256"), _text("written_launch"), _text("ready_invocation_id")),
        *(_number("ready_generation"), _text("ready_at", nullable=True), _number("loaded_generation")),
        _text("extra"),
        sa.PrimaryKeyConstraint("spec_uid", "role", "host"),
        _owned("spec_uid"),
    )
    op.create_index("instances_by_host", "instances", ["host"])
    op.create_table(
        "identities",
        *(_text("uid"), _text("machine_id"), _text("container"), _text("gpu_uuids"), _text("first_seen")),
        sa.PrimaryKeyConstraint("uid"),
        _owned("uid"),
    )
    op.create_index("identities_by_machine", "identities", ["machine_id"])


def _acting() -> None:
    op.create_table(
        "runs",
        *(_number("epoch"), _text("run"), _text("started_at")),
        sa.PrimaryKeyConstraint("epoch"),
        sa.UniqueConstraint("run"),
    )
    op.create_table(
        "corrections",
        sa.Column("id", sa.Integer(), primary_key=True),
        *(_text("instance_key"), _text("host"), _text("kind"), _text("reason"), _text("at")),
    )
    op.create_index("corrections_by_instance", "corrections", ["instance_key", "at"])
    op.create_index("corrections_by_time", "corrections", ["at"])
    op.create_table(
        "pause",
        sa.Column("id", sa.Integer(), sa.CheckConstraint("id = 1"), primary_key=True),
        *(_text("by"), _text("since")),
    )

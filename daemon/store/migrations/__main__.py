"""Upgrade one store: `python -P -m daemon.store.migrations FILE VERSION`, run by `daemon.store.upgrade`.

First a copy of the file as it is, then everything in one transaction: who is killed anywhere leaves the old version.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, Engine, create_engine, event, pool

from daemon.store.migrations import FOLDER, VERSIONS, revision_of

BUSY_TIMEOUT_S = 30.0


def upgrade(path: Path, version: int, versions: Sequence[Path] = (VERSIONS,)) -> None:
    """Bring the store to that schema version. Raises sqlite3 and SQLAlchemy errors; then nothing changed."""
    engine = _engine(path)
    try:
        with engine.begin() as connection:  # holds the write lock: the copy is of exactly what is upgraded
            _keep(path, path.with_name(f"{path.name}.before-{revision_of(version)}"))
            _change(connection, version, versions)
    finally:
        engine.dispose()


def config(connection: Connection, versions: Sequence[Path] = (VERSIONS,)) -> Config:
    """What alembic needs to know, in place of an ini file."""
    made = Config()
    made.set_main_option("script_location", _literal(FOLDER))
    made.set_main_option("path_separator", "newline")
    made.set_main_option("version_locations", "\n".join(map(_literal, versions)))
    made.attributes["connection"] = connection
    return made


def _literal(path: Path) -> str:
    return str(path).replace("%", "%%")


def _engine(path: Path) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)), poolclass=pool.StaticPool, connect_args={"timeout": BUSY_TIMEOUT_S}
    )

    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # sqlite3 would begin by itself, and not before a CREATE TABLE
        # A table that is made anew is dropped in between: with the keys on, its children's rows would go with it.
        for pragma in ("PRAGMA foreign_keys=OFF", "PRAGMA synchronous=FULL"):
            connection.execute(pragma)

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _change(connection: Connection, version: int, versions: Sequence[Path]) -> None:
    made = config(connection, versions)
    if not _tables(connection, "alembic_version"):
        command.stamp(made, revision_of(1))  # written before there were revisions
    command.upgrade(made, revision_of(version))
    text = "UPDATE meta SET value = ? WHERE key = 'schema_version'"
    connection.exec_driver_sql(text, (str(version),))
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if broken:
        raise sqlite3.IntegrityError(f"rows without their owner after the upgrade: {broken[:5]}")


def _tables(connection: Connection, name: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return connection.exec_driver_sql(query, (name,)).first() is not None


def _keep(path: Path, copy: Path) -> None:
    """A copy that survives power loss under its name, or none. An older copy of that name is replaced."""
    part = copy.with_name(copy.name + ".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
        os.fsync(descriptor)
        part.rename(copy)
    finally:
        os.close(descriptor)
    folder = os.open(copy.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


if __name__ == "__main__":
    upgrade(Path(sys.argv[1]), int(sys.argv[2]))

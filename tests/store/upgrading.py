"""A store of the first issue on disk, what a file holds, and an upgrade that is killed at any of its steps."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
Rows = dict[str, list[tuple[object, ...]]]

# A revision after the last one, that does all a revision may: a new table, old ones altered, content moved.
NEXT = """
import sqlalchemy as sa
from alembic import op

revision = {revision!r}
down_revision = {before!r}

def upgrade():
    op.create_table("places_seen", sa.Column("uid", sa.Text(), primary_key=True), sa.Column("times", sa.Integer()))
    op.execute("INSERT INTO places_seen SELECT uid, count(*) FROM places GROUP BY uid")
    kinds = sa.CheckConstraint("kind IN ('Host', 'ServingSpec')")
    with op.batch_alter_table("objects", table_args=[kinds], recreate="always") as table:
        table.add_column(sa.Column("note", sa.Text(), nullable=False, server_default="none"))
    op.execute("UPDATE events SET message = upper(message)")
    op.create_index("events_by_reason", "events", ["reason"])
"""

# Kills itself before its Nth step: a statement, the commit, or a file opened, made or renamed. Prints the steps of the
# run that is not killed. One process forks them all: importing takes longest.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from daemon.store.migrations import VERSIONS
from daemon.store.migrations.__main__ import upgrade

source, version, more = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
steps, last = [], 0

def step(what):
    steps.append(what)
    if len(steps) == last:
        os.kill(os.getpid(), signal.SIGKILL)

def audited(name, args):
    if name in ("open", "os.rename", "os.remove", "sqlite3.connect") and "stoker.db" in str(args[0]):
        step(name)

def run(number):
    global last
    last = number
    event.listen(Engine, "before_cursor_execute", lambda c, cursor, text, *rest: step(" ".join(text.split())[:60]))
    event.listen(Engine, "commit", lambda c: step("COMMIT"))
    sys.addaudithook(audited)
    upgrade(folder / source.name, version, (VERSIONS, more))
    print("\\n".join(steps), flush=True)
    os._exit(0)

for number in range(1, 1000):
    folder = source.parent / f"killed-{number}"
    folder.mkdir(mode=0o700)
    shutil.copy(source, folder)
    if (child := os.fork()) == 0:
        run(number)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        break
"""


def first_store(path: Path) -> Path:
    """The file as the first issue's Stoker left it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA journal_mode=WAL")
        made.executescript((GOLDEN / "first.sql").read_text())
    path.chmod(0o600)
    return path


def rows(path: Path) -> Rows:
    """All content: the rows of each table, in order of themselves."""
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(file.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr) for name in names}


def schema(path: Path) -> dict[str, list[str]]:
    """What each table and index is made of; neither the order of a table's parts nor blanks and quotes count."""
    with closing(sqlite3.connect(path)) as file:
        found = file.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: _parts(text) for name, text in found}


def _parts(text: str) -> list[str]:
    head, body = re.sub(r"\s+", " ", text.replace('"', "")).split("(", 1)
    pieces, depth = [""], 0
    for letter in body[: body.rindex(")")]:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [head.strip(), *sorted(re.sub(r"\s*\(\s*", "(", piece).strip() for piece in pieces)]

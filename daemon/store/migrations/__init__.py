"""Changes of the store's tables from one version of Stoker to the next, by alembic.

To change a table:
1. Change `daemon/store/schema.py` and raise SCHEMA_VERSION there by one, to N.
2. Add `versions/rNNNN_what.py` like the last one: `revision` is N in four digits, `down_revision` the last. Import
   nothing of Stoker there: a released revision means the same for ever. A table is altered by `op.batch_alter_table`,
   which makes it anew and sees no CHECK constraint: give it those in `table_args`.
3. `pytest tests/store/test_store_upgrade.py` says whether both ways to the tables agree, and that the first issue's
   content came through; say there what your revision does to it.
There is no way down: the file as it was stays beside it as `STORE.before-NNNN`.

alembic is imported by the process that upgrades (`__main__`) and by no other: it costs 9 MiB.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
VERSIONS = FOLDER / "versions"


def revision_of(version: int) -> str:
    """The revision that makes that schema version."""
    return f"{version:04d}"

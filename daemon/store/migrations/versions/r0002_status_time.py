"""A status always has the time at which it last differed: every row had one, the table now says so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make `statuses.updated_at` NOT NULL."""
    with op.batch_alter_table("statuses") as table:
        table.alter_column("updated_at", existing_type=sa.Text(), nullable=False)

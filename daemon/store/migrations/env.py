"""What alembic runs for each command: the revisions, over the connection and in the transaction of `__main__`."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()

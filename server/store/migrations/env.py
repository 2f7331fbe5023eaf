"""Runs migrations on the connection that ``server.store.database`` passes in.

Covered: SQLite and PostgreSQL, inside the caller's transaction. Not covered: offline SQL scripts.
"""

from alembic import context

from server.store.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
    transactional_ddl=False,
)
context.run_migrations()

"""Several runs: the place of a queued run in the queue, and since when a run is in its state."""

import sqlalchemy as sa
from alembic import op

revision = "r0006"
down_revision = "r0005"
branch_labels = None
depends_on = None

COLUMNS = ("queue_place", "state_since_unix_s")


def upgrade() -> None:
    """No run is queued; since when a run is in its state is not known of earlier ones."""
    op.add_column("runs", sa.Column("queue_place", sa.BigInteger))
    op.add_column(
        "runs", sa.Column("state_since_unix_s", sa.Float, nullable=False, server_default="0")
    )


def downgrade() -> None:
    """Drop what was added."""
    for column in COLUMNS:
        op.drop_column("runs", column)

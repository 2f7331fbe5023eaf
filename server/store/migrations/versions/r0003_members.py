"""With each aggregation, the families its silos were ready with and who answered in each phase."""

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"
branch_labels = None
depends_on = None

COLUMNS = {"families_json": "{}", "members_json": "[]"}


def upgrade() -> None:
    """Add the columns; an attempt that was open under r0002 lacks them and is not continued."""
    with op.batch_alter_table("aggregations") as batch:
        for name, empty in COLUMNS.items():
            batch.add_column(sa.Column(name, sa.Text, nullable=False, server_default=empty))


def downgrade() -> None:
    """Drop the columns."""
    with op.batch_alter_table("aggregations") as batch:
        for name in COLUMNS:
            batch.drop_column(name)

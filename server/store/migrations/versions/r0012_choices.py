"""Whom rounds ask, where a plan has them chosen."""

import sqlalchemy as sa
from alembic import op

revision = "r0012"
down_revision = "r0011"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Every round so far asked everybody."""
    op.create_table(
        "choices",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("round", Number, primary_key=True, autoincrement=False),
        sa.Column("silos", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("ready_deadline_s", Number),
    )


def downgrade() -> None:
    """Drop what was added; the tasks that were sent say whom they invite."""
    op.drop_table("choices")

"""Which runs admins asked to bisect."""

import sqlalchemy as sa
from alembic import op

revision = "r0011"
down_revision = "r0010"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Nothing was asked yet."""
    op.create_table(
        "bisections",
        sa.Column("submit_token", sa.String(128), primary_key=True),
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("named", sa.Text, nullable=False),
        sa.Column("suspects", sa.Text, nullable=False),
        sa.Column("asked_unix_s", sa.Float, nullable=False),
        sa.Column("round", Number),
    )
    op.create_index("ix_bisections_run_id", "bisections", ["run_id"])


def downgrade() -> None:
    """Drop what was added; a bisected round stays skipped in its chain."""
    op.drop_table("bisections")

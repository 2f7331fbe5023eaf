"""What admins asked runs to go back to."""

import sqlalchemy as sa
from alembic import op

revision = "r0008"
down_revision = "r0007"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Nothing was asked yet."""
    op.create_table(
        "rollbacks",
        sa.Column("submit_token", sa.String(128), primary_key=True),
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("to_round", Number, nullable=False),
        sa.Column("asked_unix_s", sa.Float, nullable=False),
        sa.Column("round", Number),
    )
    op.create_index("ix_rollbacks_run_id", "rollbacks", ["run_id"])


def downgrade() -> None:
    """Drop what was added; records of rollbacks stay in their chains."""
    op.drop_table("rollbacks")

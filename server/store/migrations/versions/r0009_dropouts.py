"""Who dropped out of a run's attempts, and until when it sits out."""

import sqlalchemy as sa
from alembic import op

revision = "r0009"
down_revision = "r0008"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Counting begins now; what was lost before was not noted by silo."""
    op.create_table(
        "dropouts",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("silo_id", sa.String(63), primary_key=True),
        sa.Column("in_a_row", Number, nullable=False),
        sa.Column("last_round", Number, nullable=False),
        sa.Column("out_until_round", Number, nullable=False),
    )


def downgrade() -> None:
    """Drop what was added; the audit log still names everybody."""
    op.drop_table("dropouts")

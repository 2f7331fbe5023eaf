"""Runs have a suite, round tasks and the charges that uploads name are kept."""

import sqlalchemy as sa
from alembic import op

revision = "r0010"
down_revision = "r0009"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Every run so far is of suite v1."""
    op.add_column("runs", sa.Column("suite", sa.Integer, nullable=False, server_default="1"))
    op.create_table(
        "tasks",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("round", Number, primary_key=True, autoincrement=False),
        sa.Column("step", Number, primary_key=True, autoincrement=False),
        sa.Column("attempt", Number, nullable=False),
        sa.Column("task", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "debit_heads",
        sa.Column("silo_id", sa.String(63), primary_key=True),
        sa.Column("header", sa.LargeBinary, nullable=False),
        sa.Column("ctx", sa.LargeBinary(32), nullable=False),
        sa.Column("members_sha256", sa.LargeBinary(32), nullable=False),
    )


def downgrade() -> None:
    """Drop what was added; a run of suite v2 cannot go on then."""
    op.drop_table("debit_heads")
    op.drop_table("tasks")
    op.drop_column("runs", "suite")

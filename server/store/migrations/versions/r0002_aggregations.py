"""Every accepted message of an aggregation, its folds, and its descriptor with the signature."""

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None

IDENTITY = ("run_id", "round", "step", "part", "attempt")


def upgrade() -> None:
    """Create the tables; a descriptor kept without its signature cannot be opened again."""
    op.create_table(
        "aggregations",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        *(
            sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)
            for name in IDENTITY[1:]
        ),
        sa.Column("descriptor", sa.LargeBinary, nullable=False),
        sa.Column("phases_closed", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
    )
    op.create_table(
        "messages",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String(128), nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in IDENTITY[1:]),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("silo_id", sa.String(63), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary),
        sa.UniqueConstraint(*IDENTITY, "phase", "silo_id", name="messages_once"),
    )
    op.create_table(
        "folds",
        sa.Column("run_id", sa.String(128), primary_key=True),
        *(
            sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)
            for name in (*IDENTITY[1:], "generation")
        ),
        sa.Column("silo_id", sa.String(63), nullable=False),
        sa.UniqueConstraint(*IDENTITY, "silo_id", name="folds_once"),
    )
    with op.batch_alter_table("rounds") as batch:
        batch.drop_column("descriptor")


def downgrade() -> None:
    """Drop the tables and bring the empty column back."""
    with op.batch_alter_table("rounds") as batch:
        batch.add_column(sa.Column("descriptor", sa.LargeBinary))
    for name in ("folds", "messages", "aggregations"):
        op.drop_table(name)

"""What choices follow from, and what else they move."""

import sqlalchemy as sa
from alembic import op

revision = "r0013"
down_revision = "r0012"
branch_labels = None
depends_on = None

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """No choice so far moved anything but its deadline; what they followed from is not known."""
    op.create_table(
        "decisions",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("round", Number, primary_key=True, autoincrement=False),
        sa.Column("inputs", sa.LargeBinary, nullable=False),
        sa.Column("advice", sa.LargeBinary, nullable=False),
    )
    op.add_column("choices", sa.Column("local_epochs", Number))
    for name in ("stop", "diagnose"):
        op.add_column(
            "choices", sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())
        )


def downgrade() -> None:
    """Drop what was added; tasks that are out say how many local epochs they ask for."""
    with op.batch_alter_table("choices") as choices:
        for name in ("diagnose", "stop", "local_epochs"):
            choices.drop_column(name)
    op.drop_table("decisions")

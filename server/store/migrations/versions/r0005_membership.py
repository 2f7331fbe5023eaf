"""Membership: the federation itself, standing and renewal of silos, k-of-n rosters, audit heads."""

import sqlalchemy as sa
from alembic import op

revision = "r0005"
down_revision = "r0004"
branch_labels = None
depends_on = None

TABLES = ("audit_heads", "roster_approvals", "roster_proposals", "federation")
COLUMNS = ("next_certificate_expiry_unix_s", "next_certificate_sha256", "left", "suspended")


def upgrade() -> None:
    """No silo is suspended, none has left, and none has a certificate in waiting."""
    for name in ("suspended", "left"):
        op.add_column(
            "silos", sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())
        )
    op.add_column("silos", sa.Column("next_certificate_sha256", sa.LargeBinary(32)))
    op.add_column("silos", sa.Column("next_certificate_expiry_unix_s", sa.BigInteger))
    op.create_table(
        "federation",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("min_silos", sa.Integer, nullable=False),
        sa.Column("colluding", sa.Integer, nullable=False),
        sa.Column("epsilon_cap", sa.Float),
        sa.Column("delta", sa.Float, nullable=False),
        sa.Column("created_unix_s", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "roster_proposals",
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("roster", sa.LargeBinary, nullable=False),
        sa.Column("proposed_unix_s", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "roster_approvals",
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("silo_id", sa.String(63), primary_key=True),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("signature", sa.LargeBinary(64), nullable=False),
    )
    op.create_table(
        "audit_heads",
        sa.Column("silo_id", sa.String(63), primary_key=True),
        sa.Column("index", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("at_unix_s", sa.BigInteger, nullable=False),
        sa.Column("signature", sa.LargeBinary(64), nullable=False),
    )


def downgrade() -> None:
    """Drop what was added."""
    for table in TABLES:
        op.drop_table(table)
    for column in COLUMNS:
        op.drop_column("silos", column)

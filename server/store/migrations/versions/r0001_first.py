"""The first schema: invites, silos, rosters, runs, rounds, records."""

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "invites",
        sa.Column("secret_sha256", sa.LargeBinary(32), primary_key=True),
        sa.Column("silo_id", sa.String(63), nullable=False, index=True),
        sa.Column("created_unix_s", sa.BigInteger, nullable=False),
        sa.Column("expires_unix_s", sa.BigInteger, nullable=False),
        sa.Column("spent_unix_s", sa.BigInteger),
    )
    op.create_table(
        "silos",
        sa.Column("silo_id", sa.String(63), primary_key=True),
        sa.Column("spiffe_uri", sa.String(512), nullable=False, unique=True),
        sa.Column("verification_key", sa.LargeBinary(32), nullable=False),
        sa.Column("certificate_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("certificate_expiry_unix_s", sa.BigInteger, nullable=False),
        sa.Column("enrolled_unix_s", sa.BigInteger, nullable=False),
        sa.Column("last_seen_unix_s", sa.Float, nullable=False),
        sa.Column("families", sa.Text, nullable=False),
        sa.Column("revoked", sa.Boolean, nullable=False),
    )
    op.create_table(
        "rosters",
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("roster", sa.LargeBinary, nullable=False),
        sa.Column("published_unix_s", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(128), primary_key=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("plan", sa.LargeBinary, nullable=False),
        sa.Column("plan_sha256", sa.LargeBinary(32), nullable=False, index=True),
        sa.Column("submit_token", sa.String(128), nullable=False, unique=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("created_unix_s", sa.Float, nullable=False),
    )
    op.create_table(
        "rounds",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("phases_unix_s", sa.Text, nullable=False),
        sa.Column("descriptor", sa.LargeBinary),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("figures_json", sa.Text, nullable=False),
    )
    op.create_table(
        "records",
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("adapter_sha256", sa.LargeBinary(32), nullable=False, index=True),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drop every table, children first."""
    for name in ("records", "rounds", "runs", "rosters", "silos", "invites"):
        op.drop_table(name)

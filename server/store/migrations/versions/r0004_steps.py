"""Several releases in one round: a step in rounds and records; the silos' newest ledger heads."""

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"
branch_labels = None
depends_on = None

INDEX = "ix_records_adapter_sha256"
KEYS = {"rounds": ("run_id", "round", "step", "attempt"), "records": ("run_id", "round", "step")}
REST = {
    "rounds": {"phase": 32, "phases_unix_s": None, "outcome": 16, "figures_json": None},
    "records": {},
}
"""Text columns with their longest length."""
BYTES = {"rounds": {}, "records": {"adapter_sha256": 32, "record": None}}


def upgrade() -> None:
    """Every row that is there is of step 0: until now a round had one release."""
    for table, key in KEYS.items():
        _rebuild(table, key)
    op.create_table(
        "ledger_heads",
        sa.Column("silo_id", sa.String(63), primary_key=True),
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("bundle", sa.LargeBinary, nullable=False),
        sa.Column("descriptor_sha256", sa.LargeBinary(32), nullable=False),
    )


def downgrade() -> None:
    """Drop what was added; a database with several releases in a round cannot go back."""
    op.drop_table("ledger_heads")
    for table, key in KEYS.items():
        _rebuild(table, tuple(name for name in key if name != "step"))


def _rebuild(table: str, key: tuple[str, ...]) -> None:
    """Give a table another primary key: neither SQLite nor a batch can change one in place."""
    new = f"{table}_rebuilt"
    op.create_table(
        new,
        sa.Column("run_id", sa.String(128), sa.ForeignKey("runs.run_id"), primary_key=True),
        *(
            sa.Column(
                name,
                sa.Integer,
                primary_key=True,
                autoincrement=False,
                server_default="0" if name == "step" else None,
            )
            for name in key[1:]
        ),
        *(
            sa.Column(name, sa.String(length) if length else sa.Text, nullable=False)
            for name, length in REST[table].items()
        ),
        *(
            sa.Column(name, sa.LargeBinary(length), nullable=False)
            for name, length in BYTES[table].items()
        ),
    )
    # Without the step, which is its default in a row that comes and goes in a row that leaves.
    kept = [name for name in (*key, *REST[table], *BYTES[table]) if name != "step"]
    source = sa.table(table, *(sa.column(name) for name in kept))
    target = sa.table(new, *(sa.column(name) for name in kept))
    op.execute(sa.insert(target).from_select(kept, sa.select(*source.c)))
    op.drop_table(table)
    op.rename_table(new, table)
    if table == "records":
        op.create_index(INDEX, table, ["adapter_sha256"])

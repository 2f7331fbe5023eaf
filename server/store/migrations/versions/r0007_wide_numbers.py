"""Rounds, steps, parts and attempts as wide as the wire's: PostgreSQL's integer ends at 2^31.

SQLite's integers always had 64 bits.
"""

import sqlalchemy as sa
from alembic import op

revision = "r0007"
down_revision = "r0006"
branch_labels = None
depends_on = None

_IDENTITY = ("round", "step", "part", "attempt")
COLUMNS = {
    "rounds": ("round", "step", "attempt"),
    "records": ("round", "step"),
    "aggregations": _IDENTITY,
    "messages": _IDENTITY,
    "folds": (*_IDENTITY, "generation"),
    "ledger_heads": _IDENTITY,
}


def upgrade() -> None:
    """Widen them, where they are narrow."""
    _retype(sa.Integer(), sa.BigInteger())


def downgrade() -> None:
    """Narrow them again; fails where a value does not fit."""
    _retype(sa.BigInteger(), sa.Integer())


def _retype(before: sa.types.TypeEngine[int], after: sa.types.TypeEngine[int]) -> None:
    if op.get_bind().dialect.name == "sqlite":
        return
    for table, columns in COLUMNS.items():
        for column in columns:
            op.alter_column(table, column, existing_type=before, type_=after)

"""The tables. ``migrations/versions`` makes them; a test holds the two together.

Times are Unix seconds, digests and documents are bytes, and what is JSON here is JSON nowhere else:
each noun's file turns its rows into typed values.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

__all__ = [
    "IDENTITY",
    "METADATA",
    "aggregations",
    "approvals",
    "audit_heads",
    "bisections",
    "choices",
    "debit_heads",
    "decisions",
    "dropouts",
    "federation",
    "folds",
    "heads",
    "invites",
    "messages",
    "proposals",
    "records",
    "rollbacks",
    "rosters",
    "rounds",
    "runs",
    "silos",
    "tasks",
]

METADATA: Final = MetaData()

Number: Final = BigInteger().with_variant(Integer(), "sqlite")
"""An unsigned 32-bit number of the wire; SQLite's integers have 64 bits by any name."""

invites: Final = Table(
    "invites",
    METADATA,
    Column("secret_sha256", LargeBinary(32), primary_key=True),
    Column("silo_id", String(63), nullable=False, index=True),
    Column("created_unix_s", BigInteger, nullable=False),
    Column("expires_unix_s", BigInteger, nullable=False),
    Column("spent_unix_s", BigInteger),
)

silos: Final = Table(
    "silos",
    METADATA,
    Column("silo_id", String(63), primary_key=True),
    Column("spiffe_uri", String(512), nullable=False, unique=True),
    Column("verification_key", LargeBinary(32), nullable=False),
    Column("certificate_sha256", LargeBinary(32), nullable=False),
    Column("certificate_expiry_unix_s", BigInteger, nullable=False),
    Column("enrolled_unix_s", BigInteger, nullable=False),
    Column("last_seen_unix_s", Float, nullable=False),
    Column("families", Text, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("suspended", Boolean, nullable=False, server_default=false()),
    Column("left", Boolean, nullable=False, server_default=false()),
    Column("next_certificate_sha256", LargeBinary(32)),
    Column("next_certificate_expiry_unix_s", BigInteger),
)

federation: Final = Table(
    "federation",
    METADATA,
    Column("name", String(63), primary_key=True),
    Column("min_silos", Integer, nullable=False),
    Column("colluding", Integer, nullable=False),
    Column("epsilon_cap", Float),
    Column("delta", Float, nullable=False),
    Column("created_unix_s", BigInteger, nullable=False),
)

proposals: Final = Table(
    "roster_proposals",
    METADATA,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("sha256", LargeBinary(32), nullable=False),
    Column("roster", LargeBinary, nullable=False),
    Column("proposed_unix_s", BigInteger, nullable=False),
)

approvals: Final = Table(
    "roster_approvals",
    METADATA,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("silo_id", String(63), primary_key=True),
    Column("sha256", LargeBinary(32), nullable=False),
    Column("signature", LargeBinary(64), nullable=False),
)

audit_heads: Final = Table(
    "audit_heads",
    METADATA,
    Column("silo_id", String(63), primary_key=True),
    Column("index", BigInteger, nullable=False),
    Column("sha256", LargeBinary(32), nullable=False),
    Column("at_unix_s", BigInteger, nullable=False),
    Column("signature", LargeBinary(64), nullable=False),
)

rosters: Final = Table(
    "rosters",
    METADATA,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("sha256", LargeBinary(32), nullable=False),
    Column("roster", LargeBinary, nullable=False),
    Column("published_unix_s", BigInteger, nullable=False),
)

runs: Final = Table(
    "runs",
    METADATA,
    Column("run_id", String(128), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("plan", LargeBinary, nullable=False),
    Column("plan_sha256", LargeBinary(32), nullable=False, index=True),
    Column("submit_token", String(128), nullable=False, unique=True),
    Column("state", String(16), nullable=False),
    Column("error", Text, nullable=False),
    Column("created_unix_s", Float, nullable=False),
    Column("queue_place", BigInteger),
    Column("state_since_unix_s", Float, nullable=False, server_default="0"),
    Column("suite", Integer, nullable=False, server_default="1"),
)

rounds: Final = Table(
    "rounds",
    METADATA,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("round", Number, primary_key=True, autoincrement=False),
    Column("step", Number, primary_key=True, autoincrement=False, server_default="0"),
    Column("attempt", Number, primary_key=True, autoincrement=False),
    Column("phase", String(32), nullable=False),
    Column("phases_unix_s", Text, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("figures_json", Text, nullable=False),
)

records: Final = Table(
    "records",
    METADATA,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("round", Number, primary_key=True, autoincrement=False),
    Column("step", Number, primary_key=True, autoincrement=False, server_default="0"),
    Column("adapter_sha256", LargeBinary(32), nullable=False, index=True),
    Column("record", LargeBinary, nullable=False),
)

tasks: Final = Table(
    "tasks",
    METADATA,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("round", Number, primary_key=True, autoincrement=False),
    Column("step", Number, primary_key=True, autoincrement=False),
    Column("attempt", Number, nullable=False),
    Column("task", LargeBinary, nullable=False),
)

choices: Final = Table(
    "choices",
    METADATA,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("round", Number, primary_key=True, autoincrement=False),
    Column("silos", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("ready_deadline_s", Number),
    Column("local_epochs", Number),
    Column("stop", Boolean, nullable=False, server_default=false()),
    Column("diagnose", Boolean, nullable=False, server_default=false()),
)

decisions: Final = Table(
    "decisions",
    METADATA,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("round", Number, primary_key=True, autoincrement=False),
    Column("inputs", LargeBinary, nullable=False),
    Column("advice", LargeBinary, nullable=False),
)

bisections: Final = Table(
    "bisections",
    METADATA,
    Column("submit_token", String(128), primary_key=True),
    Column("run_id", String(128), ForeignKey("runs.run_id"), nullable=False, index=True),
    Column("named", Text, nullable=False),
    Column("suspects", Text, nullable=False),
    Column("asked_unix_s", Float, nullable=False),
    Column("round", Number),
)

rollbacks: Final = Table(
    "rollbacks",
    METADATA,
    Column("submit_token", String(128), primary_key=True),
    Column("run_id", String(128), ForeignKey("runs.run_id"), nullable=False, index=True),
    Column("to_round", Number, nullable=False),
    Column("asked_unix_s", Float, nullable=False),
    Column("round", Number),
)

dropouts: Final = Table(
    "dropouts",
    METADATA,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("silo_id", String(63), primary_key=True),
    Column("in_a_row", Number, nullable=False),
    Column("last_round", Number, nullable=False),
    Column("out_until_round", Number, nullable=False),
)

IDENTITY: Final = ("run_id", "round", "step", "part", "attempt")

aggregations: Final = Table(
    "aggregations",
    METADATA,
    Column("run_id", String(128), ForeignKey("runs.run_id"), primary_key=True),
    Column("round", Number, primary_key=True, autoincrement=False),
    Column("step", Number, primary_key=True, autoincrement=False),
    Column("part", Number, primary_key=True, autoincrement=False),
    Column("attempt", Number, primary_key=True, autoincrement=False),
    Column("descriptor", LargeBinary, nullable=False),
    Column("families_json", Text, nullable=False, server_default="{}"),
    Column("members_json", Text, nullable=False, server_default="[]"),
    Column("phases_closed", Integer, nullable=False),
    Column("outcome", String(16), nullable=False),
)

messages: Final = Table(
    "messages",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("run_id", String(128), nullable=False),
    Column("round", Number, nullable=False),
    Column("step", Number, nullable=False),
    Column("part", Number, nullable=False),
    Column("attempt", Number, nullable=False),
    Column("phase", String(32), nullable=False),
    Column("silo_id", String(63), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("sealed", LargeBinary),
    UniqueConstraint(*IDENTITY, "phase", "silo_id", name="messages_once"),
)

folds: Final = Table(
    "folds",
    METADATA,
    Column("run_id", String(128), primary_key=True),
    Column("round", Number, primary_key=True, autoincrement=False),
    Column("step", Number, primary_key=True, autoincrement=False),
    Column("part", Number, primary_key=True, autoincrement=False),
    Column("attempt", Number, primary_key=True, autoincrement=False),
    Column("generation", Number, primary_key=True, autoincrement=False),
    Column("silo_id", String(63), nullable=False),
    UniqueConstraint(*IDENTITY, "silo_id", name="folds_once"),
)

heads: Final = Table(
    "ledger_heads",
    METADATA,
    Column("silo_id", String(63), primary_key=True),
    Column("run_id", String(128), nullable=False),
    Column("round", Number, nullable=False),
    Column("step", Number, nullable=False),
    Column("part", Number, nullable=False),
    Column("attempt", Number, nullable=False),
    Column("bundle", LargeBinary, nullable=False),
    Column("descriptor_sha256", LargeBinary(32), nullable=False),
)

debit_heads: Final = Table(
    "debit_heads",
    METADATA,
    Column("silo_id", String(63), primary_key=True),
    Column("header", LargeBinary, nullable=False),
    Column("ctx", LargeBinary(32), nullable=False),
    Column("members_sha256", LargeBinary(32), nullable=False),
)

"""How one attempt at an aggregation is called in logs and in the ledger, and what it is charged.

Invariants: the charge is a function of the plan's privacy part and of the step alone.

Covered: names and charges. Not covered: order and budget (``dp.ledger.ledger``), the attempt itself
(``silo_agent/attempt/session.py``).
"""

from __future__ import annotations

from dp.accounting.charge import attempt_charges
from dp.config import PrivacySpec
from dp.ledger.ledger import Identity, Ledger, LedgerEntry
from secagg.descriptor import AggregationId

__all__ = ["identity_name", "ledger_identity", "newest_identity", "round_entry"]


def round_entry(
    spec: PrivacySpec, *, identity: AggregationId, dimension: int, descriptor_sha256: bytes
) -> LedgerEntry:
    """The charge for one attempt: vector and metrics block are released together."""
    return LedgerEntry(
        run=identity.run_id,
        round=identity.round,
        attempt=identity.attempt,
        step=identity.step,
        part=identity.part,
        mode=spec.mode,
        charges=attempt_charges(spec, step=identity.step),
        dimension=dimension,
        descriptor_sha256=descriptor_sha256,
    )


def identity_name(identity: AggregationId) -> str:
    """An aggregation's name as logs show it: run/round/step/part/attempt."""
    return "/".join(str(field) for field in identity.fields())


def ledger_identity(identity: AggregationId) -> Identity:
    """An aggregation's name as the ledger writes it."""
    return Identity(
        run=identity.run_id,
        round=identity.round,
        step=identity.step,
        part=identity.part,
        attempt=identity.attempt,
    )


def newest_identity(ledger: Ledger, run_id: str) -> AggregationId | None:
    """The newest aggregation of a run that this silo joined or was charged for."""
    newest = ledger.highest_identity(run_id)
    if newest is None:
        return None
    return AggregationId(
        run_id=newest.run,
        round=newest.round,
        step=newest.step,
        part=newest.part,
        attempt=newest.attempt,
    )

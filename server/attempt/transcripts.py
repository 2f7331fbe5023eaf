"""Transcripts for audit, made from what the store kept of an attempt.

Covered: every attempt whose R0 was opened, as far as its phases closed. Not covered: verifying it,
which is for whoever does not trust this coordinator (``federation/transcript/transcript.py``).
"""

from __future__ import annotations

from typing import Any

from federation.chain.record import Place
from federation.transcript.transcript import PUBLIC_PHASES, Outcome, Transcript
from secagg.messages import (
    ConsistencySignature,
    KeyBundle,
    MaskedInputHeader,
    ShareBoxHeader,
    ShareRoot,
)
from server.attempt.journal import decode_public
from server.errors import NotPublishedError
from server.figures import STEPS
from server.store import Store
from server.store.aggregations import AggregationOutcome, AggregationRow

__all__ = ["build_transcript"]

_OUTCOMES = {
    AggregationOutcome.OPEN: Outcome.OPEN,
    AggregationOutcome.RELEASED: Outcome.RELEASED,
    AggregationOutcome.ABORTED: Outcome.ABORTED,
    AggregationOutcome.SKIPPED: Outcome.SKIPPED,
}


def build_transcript(
    store: Store,
    run_id: str,
    round_number: int,
    *,
    step: int = 0,
    attempt: int = 0,
    part: int | None = None,
) -> Transcript:
    """Put the public part of an attempt together; attempt 0 is the last one.

    Without ``part`` it is the attempt's only sum.

    Raises:
        NotPublishedError: there is no such attempt, or it has several sums and none is named.
    """
    row = _row(store, run_id, Place(round_number, step), attempt, part)
    descriptor = row.descriptor
    roster = store.rosters.get(descriptor.descriptor.roster_sha256)
    if roster is None:
        raise NotPublishedError("the roster of this attempt is not in the store")
    phases = min(row.phases_closed, PUBLIC_PHASES)
    closed = {step.value for step in STEPS[:phases]}
    messages = [
        decode_public(message, hybrid=descriptor.descriptor.is_hybrid)
        for message in sorted(store.messages.list(row.identity), key=lambda item: item.silo_id)
        if message.phase in closed
    ]
    outcome = _OUTCOMES[row.outcome]
    closing: dict[str, Any] = {}
    records = store.records.list(run_id)
    position = next(
        (k for k, record in enumerate(records) if record.place == (round_number, step)), None
    )
    if outcome is Outcome.SKIPPED and position is None:
        # The run failed or was aborted meanwhile: nothing was signed that closes this step.
        outcome = Outcome.ENDED
    if outcome in (Outcome.RELEASED, Outcome.SKIPPED) and position is not None:
        closing = {"record": records[position], "parent": records[position - 1]}
    return Transcript(
        outcome=outcome,
        phases=phases,
        roster=roster,
        earlier_rosters=store.rosters.before(roster),
        descriptor=descriptor,
        bundles=tuple(item for item in messages if isinstance(item, KeyBundle)),
        share_headers=tuple(item for item in messages if isinstance(item, ShareBoxHeader)),
        share_roots=tuple(item for item in messages if isinstance(item, ShareRoot)),
        upload_headers=tuple(
            item
            for item in messages
            if isinstance(item, MaskedInputHeader) and item.silo_id in row.survivors
        ),
        agreements=tuple(item for item in messages if isinstance(item, ConsistencySignature)),
        **closing,
    )


def _row(store: Store, run_id: str, place: Place, attempt: int, part: int | None) -> AggregationRow:
    rows = [
        row
        for row in store.aggregations.list(run_id)
        if (row.identity.round, row.identity.step) == place
    ]
    number = attempt or max((row.identity.attempt for row in rows), default=0)
    parts = {row.identity.part: row for row in rows if row.identity.attempt == number}
    where = f"attempt {attempt} of {place}" if attempt else str(place)
    if not parts:
        raise NotPublishedError(f"run {run_id[:128]!r} has no aggregation for {where}")
    if part is None and len(parts) > 1:
        raise NotPublishedError(
            f"{where} has {len(parts)} sums, each with a transcript of its own: say --part "
            f"{' or '.join(map(str, sorted(parts)))}, with a file for each"
        )
    found = next(iter(parts.values())) if part is None else parts.get(part)
    if found is None:
        raise NotPublishedError(f"run {run_id[:128]!r} has no part {part} for {where}")
    return found

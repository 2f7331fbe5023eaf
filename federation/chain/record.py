"""The provenance chain of a run: one signed record for each release, each naming its parent.

    initial       round 0, step 0: the adapter that the run started from
    aggregated    round r ≥ 1, step s: what the adapter became by the release of that step, or
    skipped       that step released nothing; the adapter is the previous one, or
    rollback      nothing was released, and the adapter is the one that an earlier round ended with

A round has S records, (r, 0) to (r, S − 1), S being the plan's sums per round: the optimiser steps
in mode ``record_distributed``, one in every other mode. The position of a record is
1 + (r − 1)·S + s, that of the initial one 0. A rollback takes a whole round: each of its S records
is one, to the same earlier round K, whose last record has position K·S.

An aggregated record has a part for each sum that made its adapter: the aggregations of one release
differ by ``part`` and nothing else. A record of suite v1 has one part, 0, and is signed as it
always was; from suite v2 on the suite and all parts are signed.

Ordered checks of ``verify_chain``: signature; run, suite, plan and base model as in the first
record; the (round, step) that follows the parent's; both parent links (the adapter's and the
record's digest); a round is a rollback from its first step to its last or not at all; a rollback's
adapter is the one of the record that its round K ended with.

Covered: bounds, signatures, links, kinds. Not covered: whether an adapter follows from its sums
(``federation.chain.verify``), which head is the newest (round tasks and peers say so).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.errors import ChainError
from secagg import bounds, canonical, hybrid, suite
from secagg.descriptor import BASE_VERSION, SUITES, AggregationId
from secagg.errors import MalformedMessageError

RECORD_DOMAIN: Final = "chorale/v1/adapter-record"
PARTS_RECORD_DOMAIN: Final = "chorale/v2/adapter-record"
LINK_DOMAIN: Final = "chorale/v1/adapter-record-link"
INITIAL_ROUND: Final = 0
MAX_PARTS: Final = 16
"""Sums of one release: a page of records fits a message."""


RecordKind = Literal["initial", "aggregated", "skipped", "rollback"]
KINDS: Final = ", ".join(get_args(RecordKind))


class Place(NamedTuple):
    """Which release of a run; (0, 0) is before the first. Later ones compare greater."""

    round: int
    """From one."""
    step: int
    """From zero."""

    def __str__(self) -> str:
        return f"round {self.round} step {self.step}"


def position_of(round_number: int, step: int, sums_per_round: int) -> int:
    """Index in the chain of the record of a release.

    Raises:
        ChainError: If a run of S = ``sums_per_round`` has no such release.
    """
    if sums_per_round < 1 or round_number < INITIAL_ROUND:
        raise ChainError(f"no round {round_number} with {sums_per_round} sums")
    if not 0 <= step < (sums_per_round if round_number else 1):
        raise ChainError(f"round {round_number} has no step {step}")
    return 0 if round_number == INITIAL_ROUND else 1 + (round_number - 1) * sums_per_round + step


def last_position_of(round_number: int, sums_per_round: int) -> int:
    """Index in the chain of the record that a round ended with; 0 for round 0.

    Raises:
        ChainError: If there is no such round.
    """
    last_step = sums_per_round - 1 if round_number else 0
    return position_of(round_number, last_step, sums_per_round)


def place_at(position: int, sums_per_round: int) -> Place:
    """The inverse of ``position_of``; a ChainError if the position or S is out of range."""
    if position < 0 or sums_per_round < 1:
        raise ChainError(f"no position {position} with {sums_per_round} sums a round")
    if position == 0:
        return Place(INITIAL_ROUND, 0)
    rounds, step = divmod(position - 1, sums_per_round)
    return Place(rounds + 1, step)


def next_place(place: Place, sums_per_round: int) -> Place:
    """The release after ``place``.

    Raises:
        ChainError: If a run of S = ``sums_per_round`` has no such place.
    """
    return place_at(position_of(*place, sums_per_round) + 1, sums_per_round)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordPart:
    """One released sum of a record. Its bounds are checked with the record's."""

    part: int = 0
    """As in the aggregation's identity."""
    descriptor_sha256: bytes
    """D."""
    sum_sha256: bytes
    """Of the published sum (``federation.chain.sums.encode_sum``)."""
    survivors: tuple[str, ...]
    """U3 in ascending order."""

    def fields(self) -> tuple[canonical.Field, ...]:
        """The signed fields in order."""
        return (self.part, self.descriptor_sha256, self.sum_sha256, self.survivors)

    def require_bounds(self) -> None:
        """Refuse what is out of bounds, or raise MalformedMessageError."""
        bounds.require_integer(self.part, 0, bounds.UINT32_MAX, "record part")
        bounds.require_bytes(self.descriptor_sha256, bounds.DIGEST_BYTES, "part descriptor_sha256")
        bounds.require_bytes(self.sum_sha256, bounds.DIGEST_BYTES, "part sum_sha256")
        bounds.require_sequence(self.survivors, str, 1, bounds.MAX_COHORT, "part survivors")
        for silo_id in self.survivors:
            bounds.require_silo_id(silo_id, "record survivor")
        if not bounds.is_strictly_sorted(self.survivors):
            raise MalformedMessageError("record survivors are not in ascending order")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRecord:
    """One link of the chain."""

    run_id: str
    """The run."""
    round: int
    """The round that made it; 0 for the initial adapter."""
    kind: RecordKind
    """Initial, aggregated, skipped or rollback."""
    adapter_sha256: bytes
    """The published bytes."""
    plan_sha256: bytes
    """Of the plan's TOML bytes."""
    base_model_sha256: bytes
    """The frozen base."""
    step: int = 0
    """The release of the round that made it, from 0."""
    parent_sha256: bytes = b""
    """The previous adapter; empty for the initial record."""
    record_parent_sha256: bytes = b""
    """``sha256`` of the previous record; empty for the initial record."""
    suite: int = SUITES[BASE_VERSION]
    """Of the run's sums."""
    parts: tuple[RecordPart, ...] = ()
    """The sums that made it, in order of part; aggregated records only."""
    restored_round: int | None = None
    """K: the earlier round whose adapter a rollback brings back, 0 for the initial one; rollbacks
    only."""
    signature: bytes = b""
    """Of the coordinator; empty until signed."""

    def __post_init__(self) -> None:
        """Refuse what is out of bounds or does not fit the kind."""
        try:
            self._require_bounds()
        except MalformedMessageError as error:
            raise ChainError(str(error)) from error
        if (self.kind == "initial") != (self.round == INITIAL_ROUND):
            raise ChainError(f"a record of kind {self.kind} cannot be of round {self.round}")
        if self.kind == "initial" and self.step != 0:
            raise ChainError(f"the initial record has no step {self.step}")
        if self.kind == "skipped" and self.adapter_sha256 != self.parent_sha256:
            raise ChainError("a skipped release keeps its adapter")
        if (self.kind == "aggregated") != bool(self.parts):
            raise ChainError("an aggregated record, and nothing else, names its sums")
        if (self.kind == "rollback") != (self.restored_round is not None):
            raise ChainError("a rollback, and nothing else, names the round that it restores")
        if self.restored_round is not None and self.restored_round >= self.round:
            raise ChainError(
                f"{self.place}: a rollback restores an earlier round, not {self.restored_round}"
            )
        if self.kind == "rollback" and self.step and self.adapter_sha256 != self.parent_sha256:
            raise ChainError("the later steps of a rollback keep its adapter")

    def _require_bounds(self) -> None:
        bounds.require_name(self.run_id, "record run_id")
        bounds.require_integer(self.round, INITIAL_ROUND, bounds.UINT32_MAX, "record round")
        bounds.require_integer(self.step, 0, bounds.UINT32_MAX, "record step")
        if self.kind not in get_args(RecordKind):
            raise MalformedMessageError(f"record kind is none of {KINDS}")
        if self.restored_round is not None:
            restored = self.restored_round
            bounds.require_integer(restored, INITIAL_ROUND, bounds.UINT32_MAX, "restored_round")
        linked = 0 if self.kind == "initial" else bounds.DIGEST_BYTES
        for field, size_bytes in (
            ("adapter_sha256", bounds.DIGEST_BYTES),
            ("plan_sha256", bounds.DIGEST_BYTES),
            ("base_model_sha256", bounds.DIGEST_BYTES),
            ("parent_sha256", linked),
            ("record_parent_sha256", linked),
        ):
            bounds.require_bytes(getattr(self, field), size_bytes, f"{self.kind} record's {field}")
        if self.suite not in SUITES.values():
            raise MalformedMessageError("the record is of an unknown suite")
        bounds.require_sequence(self.parts, RecordPart, 0, MAX_PARTS, "record parts")
        for part in self.parts:
            part.require_bounds()
        numbers = tuple(part.part for part in self.parts)
        if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
            raise MalformedMessageError("record parts are not in ascending order")
        if not self.is_hybrid and numbers not in {(), (0,)}:
            raise MalformedMessageError("a record of suite v1 has one sum, part 0")
        # A page of records fits a message.
        if sum(len(part.survivors) for part in self.parts) > bounds.MAX_COHORT:
            raise MalformedMessageError(f"a record names more than {bounds.MAX_COHORT} survivors")
        if self.signature:
            bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "record signature")

    def signed_bytes(self) -> bytes:
        """What the coordinator signs."""
        # The kind says whether there is one, so no two records share an encoding.
        restored = () if self.restored_round is None else (self.restored_round,)
        summed: tuple[canonical.Field, ...]
        if self.is_hybrid:
            domain = PARTS_RECORD_DOMAIN
            summed = (self.suite, tuple(part.fields() for part in self.parts))
        else:
            domain = RECORD_DOMAIN
            summed = (self.descriptor_sha256, self.sum_sha256, self.survivors)
        return canonical.encode(
            domain,
            self.run_id,
            self.round,
            self.step,
            self.kind,
            self.adapter_sha256,
            self.plan_sha256,
            self.base_model_sha256,
            self.parent_sha256,
            self.record_parent_sha256,
            *summed,
            *restored,
        )

    def sign(self, coordinator_key: Ed25519PrivateKey) -> AdapterRecord:
        """The same record with the coordinator's signature."""
        return replace(self, signature=suite.sign(coordinator_key, self.signed_bytes()))

    def verify(self, coordinator_public_key: bytes) -> None:
        """Check the signature.

        Raises:
            ChainError: If it is missing or not the coordinator's.
        """
        if not suite.verify(coordinator_public_key, self.signature, self.signed_bytes()):
            raise ChainError(
                f"the record of {self.place} is not signed by the roster's coordinator"
            )

    @property
    def is_hybrid(self) -> bool:
        """Whether its sums were masked against a quantum computer as well (suite v2)."""
        return self.suite == hybrid.SUITE

    @property
    def survivors(self) -> tuple[str, ...]:
        """Every silo that is in one of the sums, in ascending order."""
        return tuple(sorted({silo_id for part in self.parts for silo_id in part.survivors}))

    def part_of(self, number: int) -> RecordPart | None:
        """The sum of that part; None where the record has no such."""
        return next((part for part in self.parts if part.part == number), None)

    @property
    def descriptor_sha256(self) -> bytes:
        """The descriptor of the only sum; empty without one.

        Raises:
            ChainError: If there are several.
        """
        part = self._only_part()
        return b"" if part is None else part.descriptor_sha256

    @property
    def sum_sha256(self) -> bytes:
        """The only sum; empty without one.

        Raises:
            ChainError: If there are several.
        """
        part = self._only_part()
        return b"" if part is None else part.sum_sha256

    def _only_part(self) -> RecordPart | None:
        if len(self.parts) > 1:
            raise ChainError(f"{self.place} has {len(self.parts)} sums")
        return self.parts[0] if self.parts else None

    @property
    def place(self) -> Place:
        """Which release it is of."""
        return Place(self.round, self.step)

    @property
    def sha256(self) -> bytes:
        """What the next record calls this one: a digest of the signed bytes.

        The signature is not part of it, so signing the same content again breaks no chain.
        """
        return canonical.digest(LINK_DOMAIN, self.signed_bytes())


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """What closes a release at a silo; the record carries the signature."""

    record: AdapterRecord
    """The new head."""
    identity: AggregationId
    """The aggregation that was finished, or the last attempt of a skipped release."""

    def __post_init__(self) -> None:
        """Refuse a result whose two halves speak of different releases."""
        identity, record = self.identity, self.record
        if (identity.run_id, identity.round, identity.step) != (record.run_id, *record.place):
            raise ChainError("the result's record and identity name different releases")

    def verify(self, coordinator_public_key: bytes) -> None:
        """Check the record's signature.

        Raises:
            ChainError: If it is not the coordinator's.
        """
        self.record.verify(coordinator_public_key)


def verify_chain(
    records: Sequence[AdapterRecord],
    coordinator_public_key: bytes,
    *,
    after: AdapterRecord | None = None,
    sums_per_round: int = 1,
    earlier: Callable[[int], AdapterRecord] | None = None,
) -> AdapterRecord:
    """Check a run's records from the initial one, or from a head that was verified before.

    Args:
        records: In the order of their positions, without gaps.
        coordinator_public_key: The roster's coordinator key, 32 bytes.
        after: The head that the caller already holds; None to start at record 0.
        sums_per_round: S of the run's plan, whose digest the records carry.
        earlier: Gives the record of a position before ``after``'s, verified to lead to it; asked
            where a rollback restores a round from there.

    Returns:
        The new head: the last record, or ``after`` if there are none.

    Raises:
        ChainError: Naming the place at which the chain breaks.
    """
    head = after
    # What is at hand: the known head and the records, from this position on.
    known = list(records) if after is None else [after, *records]
    start = 0 if after is None else position_of(*after.place, sums_per_round)
    for record in records:
        record.verify(coordinator_public_key)
        if head is None:
            if record.kind != "initial":
                raise ChainError(f"the chain starts with a record of kind {record.kind}")
        else:
            require_link(head, record, sums_per_round=sums_per_round)
        if record.restored_round is not None and record.step == 0:
            position = last_position_of(record.restored_round, sums_per_round)
            if position >= start:
                restored = known[position - start]
            elif earlier is not None:
                restored = earlier(position)
            else:
                raise ChainError(f"{record.place}: the records that it goes back to are not given")
            require_restored(restored, record, sums_per_round=sums_per_round)
        head = record
    if head is None:
        raise ChainError("the chain has no record")
    return head


def require_link(
    parent: AdapterRecord, record: AdapterRecord, *, sums_per_round: int | None = None
) -> None:
    """Check that one record follows another; signatures are not looked at.

    ``sums_per_round`` is S of the plan. None where the plan is not at hand: then a round may end
    after any of its steps.

    Raises:
        ChainError: If it does not.
    """
    for field in ("run_id", "suite", "plan_sha256", "base_model_sha256"):
        if getattr(record, field) != getattr(parent, field):
            raise ChainError(f"{record.place}: the record changes the run's {field}")
    if sums_per_round is not None:
        follows = record.place == next_place(parent.place, sums_per_round)
    elif record.step:
        follows = record.place == Place(parent.round, parent.step + 1)
    else:
        follows = record.round == parent.round + 1
    if not follows:
        raise ChainError(f"a record of {record.place} follows one of {parent.place}")
    if record.step and record.restored_round != parent.restored_round:
        raise ChainError(f"{record.place}: a rollback takes a whole round, to one earlier round")
    if record.parent_sha256 != parent.adapter_sha256:
        raise ChainError(f"{record.place}: the parent adapter is not the chain's head")
    if record.record_parent_sha256 != parent.sha256:
        raise ChainError(f"{record.place}: the parent record is not the chain's head")


def require_restored(
    restored: AdapterRecord, rollback: AdapterRecord, *, sums_per_round: int
) -> None:
    """Check that a rollback brings back the adapter of a record; links are not looked at.

    The record is verified to be an earlier one of the same chain; ``sums_per_round`` is S of the
    plan.

    Raises:
        ChainError: If it is not the record that the named round ended with, or has another adapter.
    """
    number = rollback.restored_round
    if number is None or restored.place != place_at(
        last_position_of(number, sums_per_round), sums_per_round
    ):
        raise ChainError(f"{rollback.place}: round {number} did not end at {restored.place}")
    if (restored.run_id, restored.adapter_sha256) != (rollback.run_id, rollback.adapter_sha256):
        raise ChainError(
            f"{rollback.place}: the rollback's adapter is not that of the end of round {number}"
        )

"""The public part of one secure aggregation, and how anyone checks it offline.

Whoever holds the consortium root's public key verifies, without trusting the coordinator, in this
order (``TranscriptCheck`` names each; the first that fails is raised):

    roster             the roster is signed by the root, or follows from one that is by approvals
    descriptor         D is signed by the roster's coordinator key, names this roster, and keeps the
                       rules of ``secagg.descriptor.check_descriptor``
    bundles            R0: U1 is an ordered part of the cohort, at least max(t, n_min); signatures
                       over D; every key once, none of low order; families as the metrics block
                       says; in suite v2 KEM keys in range, enough declarers of the plan's families
    ctx                ctx = H(D ‖ bundles), to which everything below is bound
    share_headers      R1: ordered part of U1, at least max(t, n_min); signatures over ctx; one box
                       for each other silo of U1; in suite v2 signatures over the root of as many
                       leaves
    members            H(U2), to which R2 and R3 are bound
    survivors          R2: U3 is an ordered part of U2, at least max(t, n_min) and 2 + c
    upload_headers     signatures over ctx and H(U2); exact lengths; in suite v2 each charge newer
                       than the ledger of R0, no rejected pair, enough declarers of the plan's
                       families and of each with figures
    agreements         R3: ordered part of U3; signatures over ctx, H(U2) and H(U3); at least t
    record             signed by the coordinator; run, round, step, plan, suite and base are D's
    record_survivors   the record has D's part, and that names U3
    record_descriptor  the part names D
    parent             the record before it is signed and linked, and D started from its adapter
    sum                the published sum has D's length and the record's digest; only if it is given

An attempt that released nothing is checked as far as its phases closed; if its step was skipped,
the signed record must say so, or name other sums of the step and not this one. One that was aborted
belongs to no record: its step is another attempt's, another part's or a rollback's. One whose run
ended after U3 was declared has no record: its messages show who agreed on what, and that nothing
was released is the coordinator's word alone.

Covered: that at least t silos of the signed roster agreed on D, on U2 and on U3, and that the
record is about that agreement. Not covered: that the sum is the sum of their vectors (nobody can
show that without opening one; the silos verify the update, ``federation.chain.verify``); that a
roster was the newest; that an attempt which is said to be aborted, or to have ended, released
nothing; messages of a phase that never closed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from federation.adapter.encoding import Buffer
from federation.chain.record import AdapterRecord, require_link
from federation.errors import ChainError, TranscriptCheck, TranscriptError
from secagg import transcript as digests
from secagg.descriptor import SignedDescriptor, verify_descriptor
from secagg.errors import Check, SecAggError, VerificationError
from secagg.messages import (
    ConsistencySignature,
    KeyBundle,
    MaskedInputHeader,
    ShareBoxHeader,
    ShareRoot,
    agreement_bytes,
)
from secagg.parameters import Parameters
from secagg.roster import Roster, SignedRoster, follow_rosters
from secagg.transcript import Members
from secagg.verification import (
    check_bundle,
    check_contributors,
    check_families,
    check_ordered_subset,
    check_share_header,
    check_share_root,
    check_signature,
    check_survivors,
    check_upload_header,
)

PUBLIC_PHASES: Final = 4
"""R0 to R3; R4 carries shares, which are nobody's to keep."""
SURVIVORS_PHASES: Final = 3
"""R0 to R2: U3 is declared."""
LEAST_HONEST: Final = 2


class Outcome(StrEnum):
    """How an attempt ended."""

    OPEN = "open"
    RELEASED = "released"
    ABORTED = "aborted"
    """Another attempt followed, with new keys."""
    SKIPPED = "skipped"
    """The step was closed without a sum."""
    ENDED = "ended_without_record"
    """After U3 was declared the run failed or was aborted; no record closes the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcript:
    """One attempt. Lists are in ascending order of silo id."""

    outcome: Outcome
    """As the coordinator says; a released or skipped one is backed by the record."""
    phases: int
    """How many of R0 to R3 closed; the lists of later ones are empty."""
    roster: SignedRoster
    """Signed by the consortium root, or approved by members of the one before it."""
    descriptor: SignedDescriptor
    """D."""
    bundles: tuple[KeyBundle, ...] = ()
    """R0 of U1."""
    share_headers: tuple[ShareBoxHeader, ...] = ()
    """R1 of U2 in suite v1."""
    share_roots: tuple[ShareRoot, ...] = ()
    """R1 of U2 in suite v2."""
    upload_headers: tuple[MaskedInputHeader, ...] = ()
    """R2 of U3."""
    agreements: tuple[ConsistencySignature, ...] = ()
    """R3."""
    record: AdapterRecord | None = None
    """What closed the step; none for an attempt that did not."""
    parent: AdapterRecord | None = None
    """The record before it."""
    earlier_rosters: tuple[SignedRoster, ...] = ()
    """If members approved the roster: those before it, from the last one that the root signed."""

    def __post_init__(self) -> None:
        """Refuse a document whose parts cannot belong together."""
        hybrid = self.descriptor.descriptor.is_hybrid
        if self.share_headers if hybrid else self.share_roots:
            raise TranscriptError(TranscriptCheck.FORMAT, "R1 has the form of another suite")
        lists = (self.bundles, self.r1, self.upload_headers, self.agreements)
        if not 0 <= self.phases <= PUBLIC_PHASES:
            raise TranscriptError(TranscriptCheck.FORMAT, f"{self.phases} public phases")
        if [bool(messages) for messages in lists] != [
            phase < self.phases for phase in range(PUBLIC_PHASES)
        ]:
            raise TranscriptError(
                TranscriptCheck.FORMAT, f"the messages are not those of {self.phases} phases"
            )
        closing = self.outcome in (Outcome.RELEASED, Outcome.SKIPPED)
        if closing != (self.record is not None) or closing != (self.parent is not None):
            raise TranscriptError(
                TranscriptCheck.FORMAT,
                f"an attempt that is {self.outcome} has "
                f"{'a record and its parent' if closing else 'no record'}",
            )
        if self.outcome is Outcome.ENDED and self.phases < SURVIVORS_PHASES:
            raise TranscriptError(
                TranscriptCheck.FORMAT, "an attempt before R2 closed is aborted, not ended"
            )
        if self.outcome is Outcome.RELEASED and self.phases != PUBLIC_PHASES:
            raise TranscriptError(TranscriptCheck.FORMAT, "a sum was released before R3 closed")

    @property
    def r1(self) -> tuple[ShareBoxHeader, ...] | tuple[ShareRoot, ...]:
        """What silos signed in R1, in the form of the suite."""
        return self.share_roots or self.share_headers


class Passed(NamedTuple):
    """A check that holds."""

    check: TranscriptCheck
    detail: str
    """What was found, for people."""


def verify_transcript(
    transcript: Transcript, root_public_key: bytes, *, total: Buffer | None = None
) -> Iterator[Passed]:
    """Check a transcript; every check that holds is yielded before the next one is made.

    The checks come in the order of the module's docstring. The consortium root's key has 32 bytes
    and comes from a source that is trusted; ``total`` is the published sum's bytes, where they are
    at hand.

    Raises:
        TranscriptError: Naming the first check that fails.
    """
    roster = _roster(transcript, root_public_key)
    yield Passed(TranscriptCheck.ROSTER, f"epoch {roster.epoch}, {len(roster.entries)} silos")
    with _naming(TranscriptCheck.DESCRIPTOR):
        parameters = verify_descriptor(transcript.descriptor, roster)
    identity = transcript.descriptor.descriptor.identity
    yield Passed(
        TranscriptCheck.DESCRIPTOR,
        f"{identity.run_id} round {identity.round} step {identity.step} "
        f"attempt {identity.attempt}, "
        f"n = {parameters.n}, c = {parameters.c}, t = {parameters.t}",
    )
    yield from _messages(transcript, roster, parameters)
    if transcript.record is not None and transcript.parent is not None:
        yield from _record(transcript, transcript.record, transcript.parent, roster)
        if total is not None:
            yield _sum(transcript, transcript.record, total)
    elif total is not None:
        raise TranscriptError(TranscriptCheck.SUM, "this attempt released no sum")


class _naming:  # noqa: N801  # used as a statement, like contextlib's managers
    """Turn a typed refusal of the protocol into one of the transcript."""

    def __init__(self, check: TranscriptCheck) -> None:
        self._check = check

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, SecAggError | ChainError):
            raise TranscriptError(self._check, str(error)) from error


def _roster(transcript: Transcript, root_public_key: bytes) -> Roster:
    with _naming(TranscriptCheck.ROSTER):
        rosters = (*transcript.earlier_rosters, transcript.roster)
        return follow_rosters(rosters, root_public_key, 0)


def _messages(transcript: Transcript, roster: Roster, parameters: Parameters) -> Iterator[Passed]:
    """R0 to R3, as far as their phases closed."""
    descriptor = transcript.descriptor.descriptor
    least = parameters.least_survivors
    if transcript.phases < 1:
        return
    with _naming(TranscriptCheck.BUNDLES):
        u1 = check_ordered_subset(
            (bundle.silo_id for bundle in transcript.bundles),
            descriptor.cohort,
            Check.BUNDLE_SET,
            Check.BUNDLE_SET,
        )
        _require_size(u1, least, Check.BUNDLES_SIZE)
        seen: set[bytes] = set()
        for bundle in transcript.bundles:
            check_bundle(roster, descriptor.sha256, bundle, seen, is_hybrid=descriptor.is_hybrid)
        check_families(descriptor, transcript.bundles, least)
        if descriptor.is_hybrid:
            declared = {bundle.silo_id: bundle.families for bundle in transcript.bundles}
            check_contributors(descriptor, declared, u1, parameters, after_upload=False)
    yield Passed(TranscriptCheck.BUNDLES, f"U1 has {len(u1)} silos, {len(seen)} keys")
    ctx = digests.context(descriptor, transcript.bundles)
    yield Passed(TranscriptCheck.CTX, ctx.hex())
    if transcript.phases < 2:
        return
    with _naming(TranscriptCheck.SHARE_HEADERS):
        u2 = check_ordered_subset(
            (header.sender for header in transcript.r1),
            u1,
            Check.SHARE_SET,
            Check.SHARE_SET,
        )
        _require_size(u2, least, Check.SHARES_SIZE)
        for header in transcript.share_headers:
            check_share_header(roster, ctx, header, u1)
        for root in transcript.share_roots:
            check_share_root(roster, ctx, root, u1)
    yield Passed(TranscriptCheck.SHARE_HEADERS, f"U2 has {len(u2)} silos")
    members = digests.members(ctx, transcript.r1)
    yield Passed(TranscriptCheck.MEMBERS, members.sha256.hex())
    yield from _survivors(transcript, roster, parameters, members)


def _survivors(
    transcript: Transcript, roster: Roster, parameters: Parameters, members: Members
) -> Iterator[Passed]:
    """R2 and R3."""
    if transcript.phases < 3:
        return
    with _naming(TranscriptCheck.SURVIVORS):
        u3 = check_ordered_subset(
            (header.silo_id for header in transcript.upload_headers),
            members.silo_ids,
            Check.SURVIVORS_ORDER,
            Check.SURVIVORS_SUBSET,
        )
        least = max(parameters.least_survivors, parameters.c + LEAST_HONEST)
        _require_size(u3, least, Check.SURVIVORS_SIZE)
    yield Passed(TranscriptCheck.SURVIVORS, f"U3 has {len(u3)} silos: {', '.join(u3)}")
    with _naming(TranscriptCheck.UPLOAD_HEADERS):
        for header in transcript.upload_headers:
            check_upload_header(roster, transcript.descriptor.descriptor, members, header)
        if transcript.descriptor.descriptor.is_hybrid:
            check_survivors(
                transcript.descriptor.descriptor,
                {bundle.silo_id: bundle for bundle in transcript.bundles},
                transcript.upload_headers,
                parameters,
            )
    yield Passed(
        TranscriptCheck.UPLOAD_HEADERS,
        f"{len(u3)} uploads of {transcript.descriptor.descriptor.length_bytes} bytes",
    )
    if transcript.phases < PUBLIC_PHASES:
        return
    survivors_sha256 = digests.survivors_sha256(members.ctx, transcript.upload_headers)
    agreed = agreement_bytes(members.ctx, members.sha256, survivors_sha256)
    with _naming(TranscriptCheck.AGREEMENTS):
        signers = check_ordered_subset(
            (item.silo_id for item in transcript.agreements),
            u3,
            Check.AGREEMENT_SET,
            Check.AGREEMENT_SET,
        )
        for item in transcript.agreements:
            check_signature(
                roster, item.silo_id, item.signature, agreed, Check.AGREEMENT_SIGNATURES
            )
        _require_size(signers, parameters.t, Check.AGREEMENT_SIZE)
    yield Passed(
        TranscriptCheck.AGREEMENTS, f"{len(signers)} silos signed U3, {parameters.t} are needed"
    )


def _require_size(silos: tuple[str, ...], least: int, check: Check) -> None:
    if len(silos) < least:
        raise VerificationError(check, f"{len(silos)} silos where {least} are needed")


def _record(
    transcript: Transcript, record: AdapterRecord, parent: AdapterRecord, roster: Roster
) -> Iterator[Passed]:
    """The signed record of the step, and its place in the chain."""
    descriptor = transcript.descriptor.descriptor
    released = transcript.outcome is Outcome.RELEASED
    with _naming(TranscriptCheck.RECORD):
        record.verify(roster.coordinator_key)
    # A group whose sum was left out of its release ended as one that released nothing.
    named = released or record.part_of(descriptor.identity.part) is not None
    kinds = ("aggregated",) if released else ("skipped",) if named else ("skipped", "aggregated")
    if record.kind not in kinds:
        raise TranscriptError(
            TranscriptCheck.RECORD, "the record's kind is not that of the aggregation"
        )
    for what, found, expected in (
        ("run", record.run_id, descriptor.identity.run_id),
        ("round", record.round, descriptor.identity.round),
        ("step", record.step, descriptor.identity.step),
        ("plan", record.plan_sha256, descriptor.plan_sha256),
        ("suite", record.suite, descriptor.suite),
        ("base model", record.base_model_sha256, descriptor.base_model_sha256),
    ):
        if found != expected:
            raise TranscriptError(
                TranscriptCheck.RECORD, f"the record's {what} is not that of the aggregation"
            )
    yield Passed(TranscriptCheck.RECORD, f"{record.place} was {record.kind}")
    if released:
        part = record.part_of(descriptor.identity.part)
        u3 = tuple(header.silo_id for header in transcript.upload_headers)
        if part is None or part.survivors != u3:
            raise TranscriptError(
                TranscriptCheck.RECORD_SURVIVORS, "the record names other survivors than U3"
            )
        yield Passed(TranscriptCheck.RECORD_SURVIVORS, ", ".join(u3))
        if part.descriptor_sha256 != descriptor.sha256:
            raise TranscriptError(
                TranscriptCheck.RECORD_DESCRIPTOR, "the record is about another descriptor"
            )
        yield Passed(TranscriptCheck.RECORD_DESCRIPTOR, descriptor.sha256.hex())
    with _naming(TranscriptCheck.PARENT):
        parent.verify(roster.coordinator_key)
        # How many steps a round has says the plan, which a transcript does not hold.
        require_link(parent, record)
    if descriptor.adapter_sha256 != parent.adapter_sha256:
        raise TranscriptError(
            TranscriptCheck.PARENT, "the aggregation started from another adapter than the chain's"
        )
    yield Passed(TranscriptCheck.PARENT, f"{parent.place}, {parent.sha256.hex()}")


def _sum(transcript: Transcript, record: AdapterRecord, total: Buffer) -> Passed:
    if transcript.outcome is not Outcome.RELEASED:
        raise TranscriptError(TranscriptCheck.SUM, "this attempt released no sum")
    due_bytes = transcript.descriptor.descriptor.length_bytes
    if len(total) != due_bytes:
        raise TranscriptError(TranscriptCheck.SUM, f"{len(total)} bytes where {due_bytes} are due")
    part = record.part_of(transcript.descriptor.descriptor.identity.part)
    if part is None or hashlib.sha256(total).digest() != part.sum_sha256:
        raise TranscriptError(TranscriptCheck.SUM, "the sum is not the one that the record names")
    return Passed(TranscriptCheck.SUM, part.sum_sha256.hex())

"""What the coordinator answers to a poll, as typed values.

Covered: malformed messages, which are typed errors of the ``wire`` modules. Not covered: trust;
what is signed is verified by whoever acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import federation.wire as federation_wire
import secagg.wire as secagg_wire
from chorale.v1 import round_pb2 as pb
from federation.chain.record import AdapterRecord
from federation.chain.task import RoundTask
from secagg.bounds import DIGEST_BYTES, require_bytes
from secagg.descriptor import AggregationId, SignedDescriptor
from secagg.errors import MalformedMessageError
from secagg.messages import (
    BoxDelivery,
    ConsistencySignatures,
    KeyBundle,
    KeyBundles,
    LeafDelivery,
    MaskedInputHeader,
    Survivors,
)

__all__ = [
    "EchoedUpload",
    "Idle",
    "Instruction",
    "LedgerEcho",
    "RoundAborted",
    "RoundClosed",
    "read_instruction",
    "read_over_runs",
]

MAX_OVER_RUNS = 64
"""A coordinator names fewer."""
MAX_RUN_CHARACTERS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """Nothing to do for this silo."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundAborted:
    """The attempt, or this silo's part in it, ended without a release."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundClosed:
    """A release ended; its record is the newest of the chain."""

    record: AdapterRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class EchoedUpload:
    """The header of an upload that this silo signed, which carries the debit of its attempt."""

    header: MaskedInputHeader
    """As it was signed."""
    ctx: bytes
    """Of that aggregation."""
    members_sha256: bytes
    """H(U2); the signature covers both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEcho:
    """A ledger head that this silo signed, as the coordinator kept it."""

    identity: AggregationId
    """The aggregation it was signed for."""
    bundle: KeyBundle
    """The signed bundle, which carries the head."""
    descriptor_sha256: bytes
    """Of that aggregation's descriptor; the signature covers it."""
    upload: EchoedUpload | None = None
    """The newest upload that came to nothing, if it was charged after the bundle was signed."""


Payload = (
    Idle
    | RoundTask
    | SignedDescriptor
    | KeyBundles
    | BoxDelivery
    | LeafDelivery
    | Survivors
    | ConsistencySignatures
    | RoundClosed
    | RoundAborted
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One answer of the coordinator to a poll."""

    instruction_id: str
    identity: AggregationId | None
    payload: Payload
    ledger_echo: LedgerEcho | None = None
    """Beside a round task, if the coordinator ever saw a bundle of this silo."""


def read_instruction(response: pb.PollResponse) -> Instruction:
    """Read an answer to a poll.

    Raises:
        MalformedMessageError: A field is out of bounds.
    """
    identity = (
        secagg_wire.identity_from_proto(response.identity)
        if response.HasField("identity")
        else None
    )
    return Instruction(
        instruction_id=response.instruction_id[:256],
        identity=identity,
        payload=_payload(response),
        ledger_echo=_ledger_echo(response),
    )


def read_over_runs(response: pb.PollResponse) -> frozenset[str]:
    """Which runs the coordinator says are over; empty where it says nothing of it.

    Raises:
        MalformedMessageError: They are too many, or one is no run id.
    """
    ids = response.over_run_ids
    if len(ids) > MAX_OVER_RUNS or not all(0 < len(one) <= MAX_RUN_CHARACTERS for one in ids):
        raise MalformedMessageError("over_run_ids are not a few run ids")
    return frozenset(ids)


def _payload(response: pb.PollResponse) -> Payload:  # noqa: PLR0911  # one line per message kind
    match response.WhichOneof("instruction"):
        case "round_task":
            return federation_wire.round_task_from_proto(response.round_task)
        case "descriptor":
            return secagg_wire.descriptor_from_proto(response.descriptor)
        case "key_bundles":
            return secagg_wire.key_bundles_from_proto(response.key_bundles)
        case "box_delivery":
            return secagg_wire.box_delivery_from_proto(response.box_delivery)
        case "leaf_delivery":
            return secagg_wire.leaf_delivery_from_proto(response.leaf_delivery)
        case "survivors":
            return secagg_wire.survivors_from_proto(response.survivors)
        case "consistency_signatures":
            return secagg_wire.consistency_signatures_from_proto(response.consistency_signatures)
        case "round_result":
            record = federation_wire.record_from_proto(response.round_result.record)
            return RoundClosed(record=record)
        case "aborted":
            return RoundAborted(reason=response.aborted.reason[:200])
        case _:
            return Idle()


def _ledger_echo(response: pb.PollResponse) -> LedgerEcho | None:
    if not response.HasField("ledger_echo"):
        return None
    echo = response.ledger_echo
    digest: bytes = echo.descriptor_sha256
    require_bytes(digest, DIGEST_BYTES, "ledger echo descriptor_sha256")
    return LedgerEcho(
        identity=secagg_wire.identity_from_proto(echo.identity),
        bundle=secagg_wire.key_bundle_from_proto(echo.bundle),
        descriptor_sha256=digest,
        upload=_echoed_upload(echo),
    )


def _echoed_upload(echo: pb.LedgerEcho) -> EchoedUpload | None:
    if not echo.HasField("header"):
        return None
    ctx: bytes = echo.ctx
    members_sha256: bytes = echo.members_sha256
    require_bytes(ctx, DIGEST_BYTES, "ledger echo ctx")
    require_bytes(members_sha256, DIGEST_BYTES, "ledger echo members_sha256")
    header = secagg_wire.masked_input_header_from_proto(echo.header)
    return EchoedUpload(header=header, ctx=ctx, members_sha256=members_sha256)

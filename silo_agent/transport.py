"""The silo's line to the coordinator: outbound gRPC over mTLS, and nothing else.

Invariants:

1. Every call has a deadline; idempotent calls are tried again with growing pauses while the
   coordinator is unreachable, up to ``patience_s`` after the last bytes that went through.
2. An upload resumes where the coordinator says it stopped (``silo_agent/upload.py``); the bytes
   come from the spool, so a repeat is the identical upload.
3. Bytes fetched by digest are checked against it, and never exceed the size the caller allows
   (``silo_agent/download.py``).
4. A failed call is a refusal only if the coordinator itself says so by a reason, with a code that
   is a verdict on the message; being away, full or broken is none.
5. What arrives is parsed by the ``wire`` modules only; a malformed message is a typed error.

Covered: lost connections, a restarted coordinator, oversize and corrupt answers. Not covered:
proxies (the channel honours the usual environment variables, untested).
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import grpc

import federation.wire as federation_wire
import secagg.wire as secagg_wire
from chorale.v1 import round_pb2 as pb
from chorale.v1 import round_pb2_grpc
from federation.record import AdapterRecord
from federation.task import RoundTask
from secagg.bounds import DIGEST_BYTES, require_bytes
from secagg.descriptor import AggregationId, SignedDescriptor
from secagg.messages import (
    BoxDelivery,
    ConsistencySignature,
    ConsistencySignatures,
    KeyBundle,
    KeyBundles,
    MaskedInputHeader,
    ShareBoxes,
    Survivors,
    UnmaskingShares,
)
from secagg.roster import SignedRoster
from silo_agent.deadline import CALL_TIMEOUT_S
from silo_agent.download import DownloadStream
from silo_agent.errors import TransportError
from silo_agent.ledger_echo import LedgerEcho
from silo_agent.upload import Chunks, UploadStream

__all__ = ["Coordinator", "Idle", "Instruction", "RoundAborted", "RoundClosed"]

MAX_MESSAGE_BYTES = 8 << 20
"""The headers of R1 are the largest message: 6.9 MB for 200 silos with ids of 63 characters."""
MAX_PLAN_BYTES = 64 << 10
RETRYABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
PASSING = RETRYABLE | {
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DATA_LOSS,
}
"""Codes that speak of the coordinator's state and not of the message."""
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


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


Payload = (
    Idle
    | RoundTask
    | SignedDescriptor
    | KeyBundles
    | BoxDelivery
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


class Coordinator:
    """The coordinator as this silo reaches it."""

    def __init__(
        self,
        *,
        address: str,
        credentials: grpc.ChannelCredentials,
        patience_s: float = 300.0,
        stopping: threading.Event | None = None,
        server_name: str = "",
    ) -> None:
        self._patience_s = patience_s
        self._stopping = stopping or threading.Event()
        options: list[tuple[str, Any]] = list(CHANNEL_OPTIONS)
        if server_name:
            options.append(("grpc.ssl_target_name_override", server_name))
        self._channel = grpc.secure_channel(address, credentials, options=options)
        self._stub = round_pb2_grpc.RoundServiceStub(self._channel)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def roster(self) -> SignedRoster:
        """The roster the coordinator publishes; its signature is for the caller to check."""
        response = self._call(self._stub.GetRoster, pb.GetRosterRequest())
        return secagg_wire.roster_from_proto(response.roster)

    def plan(self, plan_sha256: bytes) -> bytes:
        """The TOML bytes with this SHA-256."""
        response = self._call(self._stub.GetPlan, pb.GetPlanRequest(plan_sha256=plan_sha256))
        plan: bytes = response.plan
        if len(plan) > MAX_PLAN_BYTES or hashlib.sha256(plan).digest() != plan_sha256:
            raise TransportError("the plan is not the one with the signed digest")
        return plan

    def poll(self, last_instruction_id: str, *, wait_s: int) -> Instruction | None:
        """Wait for a new instruction; None if nothing changed within ``wait_s``."""
        response = self._call(
            self._stub.Poll,
            pb.PollRequest(last_instruction_id=last_instruction_id, wait_s=wait_s),
            timeout_s=wait_s + CALL_TIMEOUT_S,
        )
        if response.instruction_id == last_instruction_id:
            return None
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

    def report_ready(
        self,
        *,
        run_id: str,
        round_number: int,
        step: int,
        adapter_sha256: bytes,
        families: tuple[str, ...],
    ) -> None:
        """Local work is done."""
        self._call(
            self._stub.ReportReady,
            pb.ReportReadyRequest(
                run_id=run_id,
                round=round_number,
                step=step,
                adapter_sha256=adapter_sha256,
                families=families,
            ),
        )

    def refuse(self, *, run_id: str, round_number: int, step: int, reason: str) -> None:
        """This silo takes no part, for a public reason."""
        self._call(
            self._stub.Refuse,
            pb.RefuseRequest(run_id=run_id, round=round_number, step=step, reason=reason),
        )

    def advertise_keys(self, identity: AggregationId, bundle: KeyBundle) -> None:
        """R0."""
        self._call(
            self._stub.AdvertiseKeys,
            pb.AdvertiseKeysRequest(
                identity=secagg_wire.identity_to_proto(identity),
                bundle=secagg_wire.key_bundle_to_proto(bundle),
            ),
        )

    def share_keys(self, identity: AggregationId, boxes: ShareBoxes) -> None:
        """R1."""
        self._call(
            self._stub.ShareKeys,
            pb.ShareKeysRequest(
                identity=secagg_wire.identity_to_proto(identity),
                boxes=secagg_wire.share_boxes_to_proto(boxes),
            ),
        )

    def upload(self, identity: AggregationId, header: MaskedInputHeader, spool: Chunks) -> None:
        """R2: stream the spooled vector, resuming after every cut until it is whole."""
        stream = UploadStream(self._stub, identity=identity, header=header, spool=spool)
        received = self._retry(stream.send, stream=stream)
        if received != header.length_bytes:
            raise TransportError(
                f"the coordinator holds {received} of {header.length_bytes} bytes of the upload"
            )

    def check_consistency(self, identity: AggregationId, message: ConsistencySignature) -> None:
        """R3."""
        self._call(
            self._stub.CheckConsistency,
            pb.CheckConsistencyRequest(
                identity=secagg_wire.identity_to_proto(identity),
                signature=secagg_wire.consistency_signature_to_proto(message),
            ),
        )

    def unmask(self, identity: AggregationId, shares: UnmaskingShares) -> None:
        """R4."""
        self._call(
            self._stub.Unmask,
            pb.UnmaskRequest(
                identity=secagg_wire.identity_to_proto(identity),
                shares=secagg_wire.unmasking_shares_to_proto(shares),
            ),
        )

    def records(self, run_id: str, from_position: int) -> tuple[AdapterRecord, ...]:
        """A page of the provenance chain from a position on; its signatures are not checked here.

        Raises:
            TransportError: it is longer than a page.
        """
        response = self._call(
            self._stub.ListRecords,
            pb.ListRecordsRequest(run_id=run_id, from_position=from_position),
        )
        if len(response.records) > federation_wire.RECORDS_PER_PAGE:
            raise TransportError(f"{len(response.records)} records in one page of the chain")
        return tuple(federation_wire.record_from_proto(record) for record in response.records)

    def blob(self, sha256: bytes, sink: BinaryIO, *, max_bytes: int) -> None:
        """Write published bytes by digest to an empty file, resuming after every cut.

        Raises:
            TransportError: too many bytes, or not the bytes of that digest.
        """
        stream = DownloadStream(self._stub, sha256=sha256, sink=sink, max_bytes=max_bytes)
        self._retry(stream.receive, stream=stream)
        stream.require_digest()

    def _call(self, method: Any, request: Any, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        return self._retry(lambda: method(request, timeout=timeout_s))

    def _retry(
        self,
        attempt: Callable[[], Any],
        *,
        stream: UploadStream | DownloadStream | None = None,
    ) -> Any:
        give_up_at = time.monotonic() + self._patience_s
        pause_s = 0.2
        while True:
            try:
                return attempt()
            except grpc.RpcError as error:
                code = error.code()
                if stream is not None and stream.progress_at + self._patience_s > give_up_at:
                    give_up_at, pause_s = stream.progress_at + self._patience_s, 0.2
                again = code in RETRYABLE or (stream is not None and stream.overtaken)
                if not again or time.monotonic() > give_up_at:
                    reason = _trailer(error, "chorale-reason")
                    raise TransportError(
                        f"{code.name}: {_hint(error)}",
                        reason=reason,
                        refused=bool(reason) and code not in PASSING,
                    ) from error
            if self._stopping.wait(pause_s * random.uniform(0.5, 1.5)):  # noqa: S311  # jitter only
                raise TransportError("the daemon is stopping", reason="stopping")
            pause_s = min(pause_s * 2, 5.0)


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
    )


def _trailer(error: grpc.RpcError, key: str) -> str:
    trailers: Any = error.trailing_metadata()
    for name, value in trailers or ():
        if name == key:
            return str(value)[:200]
    return ""


def _hint(error: grpc.RpcError) -> str:
    return _trailer(error, "chorale-hint") or str(error.details() or "no detail")[:200]

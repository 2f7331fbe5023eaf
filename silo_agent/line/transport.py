"""The silo's line to the coordinator: outbound gRPC over mTLS, and nothing else.

Invariants:

1. Every call has a deadline; idempotent calls are tried again with growing pauses while the
   coordinator is unreachable, up to ``patience_s`` after the last bytes that went through.
2. An upload resumes where the coordinator says it stopped (``silo_agent/line/upload.py``); the
   bytes come from the spool, so a repeat is the identical upload.
3. Bytes fetched by digest are checked against it, and never exceed the size the caller allows
   (``silo_agent/line/download.py``).
4. A failed call is a refusal only if the coordinator itself says so by a reason, with a code that
   is a verdict on the message; being away, full or broken is none.
5. Credentials can be exchanged at any time: a call that runs finishes, and everything that begins
   after it, repeats and resumed legs included, goes over the new channel
   (``silo_agent/line/channel.py``).
6. What arrives is parsed by the ``wire`` modules only; a malformed message is a typed error.

Covered: lost connections, a restarted coordinator, oversize and corrupt answers. Not covered:
proxies (the channel honours the usual environment variables, untested).
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import grpc

import federation.wire as federation_wire
import secagg.wire as secagg_wire
from chorale.v1 import aggregation_pb2, membership_pb2, membership_pb2_grpc, round_pb2_grpc
from chorale.v1 import round_pb2 as pb
from federation.audit.head import COORDINATOR, AuditHead
from federation.chain.preflight import PreflightAnswer
from federation.chain.record import AdapterRecord
from federation.membership.facts import SignedFacts
from federation.membership.roster_change import RosterProposal, roster_proposal_from_proto
from federation.version import Version
from federation.wire import audit_head_from_proto, audit_head_to_proto
from secagg.descriptor import AggregationId
from secagg.messages import (
    ConsistencySignature,
    KeyBundle,
    MaskedInputHeader,
    ShareBoxes,
    ShareLeaves,
    UnmaskingShares,
)
from secagg.roster import Roster, RosterApproval, SignedRoster
from silo_agent.errors import CoordinatorVersionError, NotServedError, TransportError
from silo_agent.line.channel import CALL_TIMEOUT_S, REASON_METADATA, VERSION_MISMATCH, Line
from silo_agent.line.download import DownloadStream
from silo_agent.line.instruction import Instruction, read_instruction, read_over_runs
from silo_agent.line.upload import Chunks, UploadStream

__all__ = ["Coordinator"]

MAX_MESSAGE_BYTES = 8 << 20
"""The headers of R1 are the largest message of suite v1: 6.9 MB for 200 silos with ids of 63
characters."""
MAX_PLAN_BYTES = 64 << 10
EXCHANGE_TIMEOUT_S = 5.0
CODE_DENIED = grpc.StatusCode.PERMISSION_DENIED
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
        self._over_notice: Callable[[frozenset[str]], None] = lambda _: None
        self._sent: Callable[[int], None] = lambda _count: None
        self._hear_preflight: Callable[[aggregation_pb2.Preflight], None] = lambda _message: None
        options: list[tuple[str, Any]] = list(CHANNEL_OPTIONS)
        if server_name:
            options.append(("grpc.ssl_target_name_override", server_name))
        self._line = Line(address, credentials, options=options)
        self._stub = self._line.stub(round_pb2_grpc.RoundServiceStub)
        self._membership = self._line.stub(membership_pb2_grpc.MembershipServiceStub)

    def close(self) -> None:
        """Close the channel."""
        self._line.close()

    def use(self, credentials: grpc.ChannelCredentials) -> None:
        """Let everything that begins from now on go over these credentials."""
        self._line.replace(credentials)

    def sweep(self) -> None:
        """Close replaced channels that have run out."""
        self._line.sweep()

    def watch_trust(self, notice: Callable[[str], None]) -> None:
        """Say who is told the digest of the CAs that the coordinator trusts."""
        self._line.watch_trust(notice)

    def watch_version(self, notice: Callable[[Version], None]) -> None:
        """Say who is told which version the coordinator runs: at first, then at changes."""
        self._line.watch_version(notice)

    def watch_over_runs(self, notice: Callable[[frozenset[str]], None]) -> None:
        """Say who is told which runs are over, at each poll that says so, before its answer."""
        self._over_notice = notice

    def watch_preflights(self, notice: Callable[[aggregation_pb2.Preflight], None]) -> None:
        """Say who is told of a pre-flight that comes beside a poll's answer; it must not wait.

        The message is not parsed yet: a malformed one must not cost the instruction beside it.
        """
        self._hear_preflight = notice

    def watch_sent(self, notice: Callable[[int], None]) -> None:
        """Say who is told how many bytes of a masked vector went out, at each chunk."""
        self._sent = notice

    @property
    def version(self) -> Version | None:
        """What the coordinator last said that it runs; None before its first answer."""
        return self._line.version

    @property
    def answered_unix_s(self) -> float:
        """When the coordinator last answered, a refusal of its own included; 0 before."""
        return self._line.answered_unix_s

    def ping(self) -> None:
        """Make one call that changes nothing; a failure is not tried again."""
        self._once(self._stub.Poll, pb.PollRequest())

    def renew(self, csr_der: bytes, signature: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """Ask once for the next certificate; it and the trusted CAs are the caller's to check."""
        answer = self._once(
            self._membership.RenewCertificate,
            membership_pb2.RenewCertificateRequest(csr=csr_der, signature=signature),
        )
        return answer.certificate, tuple(answer.ca_certificates)

    def roster(self) -> SignedRoster:
        """The roster the coordinator publishes; its signature is for the caller to check."""
        response = self._call(self._stub.GetRoster, pb.GetRosterRequest())
        return secagg_wire.roster_from_proto(response.roster)

    def rosters(self, from_epoch: int) -> tuple[SignedRoster, ...]:
        """What leads to the published roster from one accepted before; not checked here."""
        response = self._call(self._stub.GetRoster, pb.GetRosterRequest(from_epoch=from_epoch))
        earlier = federation_wire.earlier_rosters_from_proto(response.earlier)
        return (*earlier, secagg_wire.roster_from_proto(response.roster))

    def roster_proposal(self) -> RosterProposal | None:
        """The roster that is proposed to the members, if there is one; not checked here."""
        response = self._once(
            self._membership.GetRosterProposal, membership_pb2.GetRosterProposalRequest()
        )
        return roster_proposal_from_proto(response)

    def approve_roster(self, roster: Roster, approval: RosterApproval) -> None:
        """Leave this silo's approval of a proposed roster."""
        self._once(
            self._membership.ApproveRoster,
            membership_pb2.ApproveRosterRequest(
                epoch=roster.epoch, roster_sha256=roster.sha256, signature=approval.signature
            ),
        )

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
        if over := read_over_runs(response):
            self._over_notice(over)
        if response.HasField("preflight"):
            self._hear_preflight(response.preflight)
        if response.instruction_id == last_instruction_id:
            return None
        return read_instruction(response)

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

    def answer_preflight(self, answer: PreflightAnswer) -> None:
        """Answer a pre-flight, once: the coordinator asks again for what did not reach it."""
        self._once(
            self._stub.AnswerPreflight,
            pb.AnswerPreflightRequest(answer=federation_wire.preflight_answer_to_proto(answer)),
            timeout_s=EXCHANGE_TIMEOUT_S,
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

    def share_keys(self, identity: AggregationId, dealt: ShareBoxes | ShareLeaves) -> None:
        """R1: boxes in suite v1, the leaves of a tree from v2 on."""
        request = pb.ShareKeysRequest(identity=secagg_wire.identity_to_proto(identity))
        if isinstance(dealt, ShareLeaves):
            request.leaves.CopyFrom(secagg_wire.share_leaves_to_proto(dealt))
        else:
            request.boxes.CopyFrom(secagg_wire.share_boxes_to_proto(dealt))
        self._call(self._stub.ShareKeys, request)

    def upload(self, identity: AggregationId, header: MaskedInputHeader, spool: Chunks) -> None:
        """R2: stream the spooled vector, resuming after every cut until it is whole."""
        stream = UploadStream(
            self._stub, identity=identity, header=header, spool=spool, sent=self._sent
        )
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

    def exchange_audit_heads(self, ours: AuditHead) -> AuditHead:
        """Leave this silo's audit head and take the coordinator's, whose signature is not checked.

        One attempt with a short deadline: nothing waits for it.

        Raises:
            TransportError: The coordinator is away, slow, or refuses the head.
            AuditHeadError: What it answers is malformed.
        """
        request = membership_pb2.ExchangeAuditHeadsRequest(silo=audit_head_to_proto(ours))
        response = self._once(
            self._membership.ExchangeAuditHeads, request, timeout_s=EXCHANGE_TIMEOUT_S
        )
        return audit_head_from_proto(
            response.coordinator, federation=ours.federation, writer=COORDINATOR
        )

    def publish_facts(self, signed: SignedFacts) -> None:
        """Leave this silo's facts.

        One attempt with a short deadline: nothing waits for it.

        Raises:
            TransportError: The coordinator is away, slow, or refuses the facts.
        """
        self._once(
            self._membership.PublishFacts,
            federation_wire.signed_facts_to_proto(signed),
            timeout_s=EXCHANGE_TIMEOUT_S,
        )

    @staticmethod
    def _once(method: Any, request: Any, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _failure(error) from error

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
            generation = self._line.generation
            try:
                return attempt()
            except grpc.RpcError as error:
                code = error.code()
                if code is CODE_DENIED and generation != self._line.generation:
                    # It began with a certificate that was replaced while it was on its way.
                    continue
                if stream is not None and stream.progress_at + self._patience_s > give_up_at:
                    give_up_at, pause_s = stream.progress_at + self._patience_s, 0.2
                again = code in RETRYABLE or (stream is not None and stream.overtaken)
                if not again or time.monotonic() > give_up_at:
                    raise _failure(error) from error
            if self._stopping.wait(pause_s * random.uniform(0.5, 1.5)):  # noqa: S311  # jitter only
                raise TransportError("the daemon is stopping", reason="stopping")
            pause_s = min(pause_s * 2, 5.0)


def _failure(error: grpc.RpcError) -> TransportError:
    code, reason = error.code(), _trailer(error, REASON_METADATA)
    if code is grpc.StatusCode.UNIMPLEMENTED and not reason:
        return NotServedError(
            "the coordinator is of an earlier version, which does not know this call: ask the "
            "admin to upgrade it",
            reason=VERSION_MISMATCH,
        )
    named = f"{code.name} ({reason})" if reason else code.name
    kind = CoordinatorVersionError if reason == VERSION_MISMATCH else TransportError
    return kind(
        f"{named}: {_hint(error)}",
        reason=reason,
        refused=bool(reason) and code not in PASSING,
        late=not reason and code is grpc.StatusCode.DEADLINE_EXCEEDED,
    )


def _trailer(error: grpc.RpcError, key: str) -> str:
    trailers: Any = error.trailing_metadata()
    for name, value in trailers or ():
        if name == key:
            return str(value)[:200]
    return ""


def _hint(error: grpc.RpcError) -> str:
    return _trailer(error, "chorale-hint") or str(error.details() or "no detail")[:200]

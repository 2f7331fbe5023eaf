"""RoundService: the silos' RPCs, each checked, bounded and handed to the run.

Invariants:

1. The sender of a message is the silo of the client certificate; a message that names another silo
   is refused.
2. Every refusal is a raised typed error; the interceptor answers and counts it.
3. An upload stream is read chunk by chunk into the spool; less than a chunk is kept in memory. From
   suite v2 on its leaf list is checked before its first chunk, and each chunk before it is written.
4. What the round took is durable before the call is answered.
5. A silo of an older protocol is never shown what it cannot read (``server/rpc/versions.py``).

Covered: wrong identity, wrong phase, malformed, late and oversize messages. Not covered: rate
limits for an enrolled silo.
"""

# ruff: noqa: N802, ARG002 - method names are the RPCs' names in round.proto; gRPC passes a context

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

import federation.wire as federation_wire
import secagg.wire as secagg_wire
from chorale.v1 import round_pb2 as pb
from chorale.v1 import round_pb2_grpc
from federation.chain.record import Place
from federation.chain.sums import require_families
from federation.errors import VersionMismatchError
from federation.plan.read import read_plan
from federation.version import APPROVED_ROSTERS, HYBRID, NEWEST_PROTOCOL, ROLLBACKS
from secagg.descriptor import AggregationId
from secagg.errors import MalformedMessageError
from secagg.messages import ShareBoxes, ShareLeaves
from server.attempt.accumulator import Chunk, Upload
from server.attempt.attempt import Attempt
from server.attempt.stream import UploadStream
from server.conductor.conductor import Conductor
from server.errors import (
    ForeignMessageError,
    NotPublishedError,
    UploadError,
    WrongRoundError,
)
from server.rpc.access import current_peer
from server.rpc.spans import tell_round
from server.rpc.versions import TOO_OLD, plan_protocol, require_protocol
from server.store.blobs.storage import in_threads

__all__ = ["RoundService"]

MAX_WAIT_S = 60
MAX_REASON_CHARS = 200
MAX_INSTRUCTION_ID_CHARS = 512
"""It is kept, one for each silo; the coordinator's own are shorter."""

Context = grpc.aio.ServicerContext[Any, Any]


class RoundService(round_pb2_grpc.RoundServiceServicer):
    """What a silo may ask of the coordinator."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._context = conductor.context
        self._folds: set[asyncio.Task[None]] = set()

    async def GetRoster(
        self, request: pb.GetRosterRequest, context: Context
    ) -> pb.GetRosterResponse:
        """The published roster, and where members approved it how it came about."""
        self._silo()
        roster = self._context.store.rosters.current()
        if roster is None:
            raise NotPublishedError("no roster is published yet")
        if roster.approvals:
            what = f"roster epoch {roster.roster.epoch}, which its members approved,"
            self._require_protocol(APPROVED_ROSTERS, what)
        earlier = self._context.store.rosters.before(roster, from_epoch=request.from_epoch)
        return pb.GetRosterResponse(
            roster=secagg_wire.roster_to_proto(roster),
            earlier=[secagg_wire.roster_to_proto(one) for one in earlier],
        )

    async def GetPlan(self, request: pb.GetPlanRequest, context: Context) -> pb.GetPlanResponse:
        """A plan by its digest."""
        self._silo()
        plan = self._conductor.preflights.plan(request.plan_sha256)
        if plan is None:
            row = self._context.store.runs.by_plan(request.plan_sha256)
            if row is None:
                raise NotPublishedError("no run has a plan of this digest")
            plan = row.plan
        if current_peer().version.newest < NEWEST_PROTOCOL:
            self._require_protocol(plan_protocol(read_plan(plan)), "this plan")
        return pb.GetPlanResponse(plan=plan)

    async def Poll(  # type: ignore[override]  # the interceptor lets serialised answers pass
        self, request: pb.PollRequest, context: Context
    ) -> bytes:
        """The current instruction, as soon as it changes, in bytes (``server/rpc/access.py``)."""
        silo_id = self._silo()
        if len(request.last_instruction_id) > MAX_INSTRUCTION_ID_CHARS:
            raise MalformedMessageError(
                f"an instruction id has at most {MAX_INSTRUCTION_ID_CHARS} characters"
            )
        shown = self._conductor.driver
        if shown is not None and shown.row.is_hybrid and silo_id in shown.members:
            self._require_protocol(HYBRID, "a run of suite v2")
        wait_s = min(request.wait_s, MAX_WAIT_S)
        response = await self._conductor.poll(
            silo_id,
            request.last_instruction_id,
            wait_s,
            protocol=current_peer().version.newest,
        )
        driver = self._conductor.driver
        tell_round(context, "" if driver is None else driver.spans.traceparent)
        self._context.liveness.touch(silo_id)
        return response

    async def ReportReady(
        self, request: pb.ReportReadyRequest, context: Context
    ) -> pb.ReportReadyResponse:
        """Local work is done."""
        silo_id = self._silo()
        families = tuple(sorted(request.families))
        # Checked here, so that one silo's malformed words cannot stop the round for all.
        require_families(silo_id, families)
        driver = self._conductor.require_run(request.run_id)
        driver.cohorts.report_ready(
            silo_id,
            place=Place(request.round, request.step),
            adapter_sha256=request.adapter_sha256,
            families=families,
        )
        self._context.store.silos.set_families(silo_id, families)
        return pb.ReportReadyResponse()

    async def Refuse(self, request: pb.RefuseRequest, context: Context) -> pb.RefuseResponse:
        """The silo takes no part."""
        silo_id = self._silo()
        reason = request.reason[:MAX_REASON_CHARS]
        if not reason.isprintable():
            raise MalformedMessageError("a reason has printable characters only")
        driver = self._conductor.require_run(request.run_id)
        place = Place(request.round, request.step)
        driver.cohorts.refuse(silo_id, place=place, reason=reason)
        return pb.RefuseResponse()

    async def AnswerPreflight(
        self, request: pb.AnswerPreflightRequest, context: Context
    ) -> pb.AnswerPreflightResponse:
        """The silo says whether it would take part in a run."""
        answer = federation_wire.preflight_answer_from_proto(request.answer)
        self._own(answer.silo_id)
        self._conductor.preflights.receive(answer)
        return pb.AnswerPreflightResponse()

    async def AdvertiseKeys(
        self, request: pb.AdvertiseKeysRequest, context: Context
    ) -> pb.AdvertiseKeysResponse:
        """R0."""
        bundle = secagg_wire.key_bundle_from_proto(request.bundle)
        self._own(bundle.silo_id)
        identity = secagg_wire.identity_from_proto(request.identity)
        self._conductor.receive_bundle(identity, bundle)
        self._context.changed.notify()
        return pb.AdvertiseKeysResponse()

    async def ShareKeys(
        self, request: pb.ShareKeysRequest, context: Context
    ) -> pb.ShareKeysResponse:
        """R1."""
        boxes: ShareBoxes | ShareLeaves
        if request.HasField("boxes") == request.HasField("leaves"):
            raise MalformedMessageError("R1 has boxes or leaves")
        if request.HasField("leaves"):
            boxes = secagg_wire.share_leaves_from_proto(request.leaves)
        else:
            boxes = secagg_wire.share_boxes_from_proto(request.boxes)
        self._own(boxes.sender)
        identity = secagg_wire.identity_from_proto(request.identity)
        self._conductor.attempt().receive_boxes(identity, boxes)
        self._context.changed.notify()
        return pb.ShareKeysResponse()

    async def GetUploadOffset(
        self, request: pb.GetUploadOffsetRequest, context: Context
    ) -> pb.GetUploadOffsetResponse:
        """Where to resume an upload."""
        silo_id = self._silo()
        identity = secagg_wire.identity_from_proto(request.identity)
        attempt = self._conductor.attempt()
        if attempt.fold_queued(silo_id):
            # The silo takes "all bytes are here" for the end: it must be in the sum by then.
            async with attempt.lock:
                pass
        offset = attempt.upload_offset(identity, silo_id)
        return pb.GetUploadOffsetResponse(offset_bytes=offset)

    async def UploadMaskedInput(
        self, request_iterator: AsyncIterator[pb.UploadMaskedInputRequest], context: Context
    ) -> pb.UploadMaskedInputResponse:
        """R2."""
        parts = aiter(request_iterator)
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "opening":
            raise MalformedMessageError("an upload begins with its opening")
        opening = first.opening
        header = secagg_wire.masked_input_header_from_proto(opening.header)
        silo_id = self._own(header.silo_id)
        identity = secagg_wire.identity_from_proto(opening.identity)
        attempt = self._conductor.attempt()
        upload = attempt.open_upload(identity, header, opening.leaves)
        if 0 < opening.offset_bytes == upload.received_bytes:
            self._context.metrics.upload_resumes.inc()
        await self._spool(parts, upload, opening.offset_bytes)
        if not upload.complete:
            raise UploadError(
                f"the stream ended {upload.length_bytes - upload.received_bytes} bytes early: "
                "resume at the offset"
            )
        # Shielded: a call that is cut while its thread still adds must keep the lock to the end.
        upload.queued = True
        fold = asyncio.create_task(self._fold(attempt, identity, silo_id, upload))
        self._folds.add(fold)
        fold.add_done_callback(self._folds.discard)
        await asyncio.shield(fold)
        return pb.UploadMaskedInputResponse(received_bytes=upload.length_bytes)

    async def _spool(
        self,
        parts: AsyncIterator[pb.UploadMaskedInputRequest],
        upload: Upload,
        offset_bytes: int,
    ) -> None:
        """Read chunks until the upload is whole or the stream ends.

        Apart from the fold, so that an upload that waits for its turn keeps no chunk in memory.
        """
        stream = UploadStream(upload, offset_bytes)
        async for part in parts:
            if part.WhichOneof("part") != "chunk":
                raise MalformedMessageError("after the opening an upload has only chunks")
            for offset, content in stream.cut(part.chunk.content):
                chunk = await self._checked(upload, offset, content)
                # An earlier stream of the same silo may still be draining: the spool's own offset
                # decides, and a chunk of the stale stream is refused.
                upload.put(chunk)
            self._context.liveness.touch(upload.silo_id)
            if upload.complete:
                # Not one more read: a stream cut after the last byte has still delivered it.
                return

    @staticmethod
    async def _checked(upload: Upload, offset_bytes: int, content: bytes) -> Chunk:
        """Check a chunk before it is written; where that means to hash it, in a thread."""
        if not upload.digest_id:
            return upload.check(offset_bytes, content)
        return await asyncio.to_thread(upload.check, offset_bytes, content)

    async def _fold(
        self, attempt: Attempt, identity: AggregationId, silo_id: str, upload: Upload
    ) -> None:
        try:
            async with attempt.lock:
                await asyncio.to_thread(attempt.fold_upload, identity, silo_id)
        finally:
            upload.queued = False
        self._context.changed.notify()

    async def CheckConsistency(
        self, request: pb.CheckConsistencyRequest, context: Context
    ) -> pb.CheckConsistencyResponse:
        """R3."""
        signature = secagg_wire.consistency_signature_from_proto(request.signature)
        self._own(signature.silo_id)
        identity = secagg_wire.identity_from_proto(request.identity)
        self._conductor.attempt().receive_consistency(identity, signature)
        self._context.changed.notify()
        return pb.CheckConsistencyResponse()

    async def Unmask(self, request: pb.UnmaskRequest, context: Context) -> pb.UnmaskResponse:
        """R4."""
        shares = secagg_wire.unmasking_shares_from_proto(request.shares)
        self._own(shares.silo_id)
        identity = secagg_wire.identity_from_proto(request.identity)
        if self._conductor.released(identity):
            # The answer to the first time was lost with the process that had taken it.
            return pb.UnmaskResponse()
        self._conductor.attempt().receive_unmasking(identity, shares)
        self._context.changed.notify()
        return pb.UnmaskResponse()

    async def FetchBlob(
        self, request: pb.FetchBlobRequest, context: Context
    ) -> AsyncIterator[pb.FetchBlobResponse]:
        """Published bytes by digest, in chunks."""
        self._silo()
        chunks = self._context.blobs.chunks(request.sha256, request.offset_bytes)
        async for chunk in in_threads(chunks):
            yield pb.FetchBlobResponse(content=chunk)

    async def ListRecords(
        self, request: pb.ListRecordsRequest, context: Context
    ) -> pb.ListRecordsResponse:
        """A page of the provenance chain, from a position on."""
        self._silo()
        records = self._context.store.records.page(
            request.run_id, request.from_position, federation_wire.RECORDS_PER_PAGE
        )
        if any(record.kind == "rollback" for record in records):
            self._require_protocol(ROLLBACKS, "a run that went back to an earlier round")
        return pb.ListRecordsResponse(
            records=[federation_wire.record_to_proto(record) for record in records]
        )

    def _require_protocol(self, needed: int, what: str) -> None:
        """Go on only with a silo that knows this; otherwise the round does without it."""
        peer = current_peer()
        try:
            require_protocol(needed, peer.version, silo_id=peer.name, what=what)
        except VersionMismatchError:
            driver = self._conductor.driver
            # It cannot say so itself, and would be waited for until the deadline, again and again.
            if driver is not None and driver.training is not None:
                with contextlib.suppress(WrongRoundError):
                    place = driver.next_place
                    driver.cohorts.refuse(peer.name, place=place, reason=TOO_OLD)
            raise

    def _silo(self) -> str:
        """The calling silo, noted as alive."""
        peer = current_peer()
        self._context.liveness.touch(peer.name)
        self._context.liveness.runs(peer.name, peer.version)
        return peer.name

    def _own(self, silo_id: str) -> str:
        """The calling silo, which must be the one the message names."""
        if silo_id != self._silo():
            raise ForeignMessageError(f"the certificate is not {silo_id!r}'s")
        return silo_id

"""AdminService: what the admin CLI asks of the coordinator.

Invariants:

1. Only the consortium root's signature makes a roster current; the coordinator cannot make one.
2. A published roster names this federation, this coordinator's key, and enrolled silos with the
   keys they enrolled with.
3. Every change is in the audit log, with the admin's name.

Covered: invites, silos, rosters, adapters, budgets, audit; runs are the conductor's. Not covered:
adapters above 1 GiB.
"""

# ruff: noqa: N802 - method names are the RPCs' names in admin.proto

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

import federation.wire as federation_wire
import secagg.wire as secagg_wire
from chorale.v1 import admin_pb2 as pb
from chorale.v1 import admin_pb2_grpc
from federation.invite import SILO_ID, Invite, silo_spiffe_uri
from federation.plan import Plan
from federation.transcript_file import transcript_to_proto
from secagg.errors import MalformedMessageError, SecAggError
from secagg.parameters import threshold
from secagg.roster import Roster, RosterEntry, root_key_sha256, verify_roster
from server.access import current_peer
from server.audit import AuditEvent, AuditLog
from server.blobs import BlobStore
from server.budget import budget_response
from server.config import CoordinatorConfig
from server.errors import EnrolmentError, RosterError, UnknownRunError
from server.metrics import SiloState
from server.pki import CertificateAuthority
from server.roster_file import propose, roster_message
from server.status import run_summary
from server.store import Store
from server.transcripts import build_transcript

__all__ = ["AdminContext", "AdminService", "RunConductor"]

MIN_TTL_S: Final = 60
MAX_TTL_S: Final = 30 * 86400
MAX_TAIL: Final = 1000
MAX_ADAPTER_BYTES: Final = 1 << 30
CHUNK_BYTES: Final = 1 << 20
Context = grpc.aio.ServicerContext[Any, Any]


class RunConductor(Protocol):
    """What this service needs of ``server/conductor.py``."""

    async def start_run(self, plan_toml: bytes, adapter: bytes, submit_token: str) -> str:
        """Start a run once a token; return its id."""

    async def abort_run(self, run_id: str) -> None:
        """Stop a run for good."""

    def watch(self, run_id: str) -> AsyncIterator[pb.WatchRunResponse]:
        """Report a run's state at every change, until it ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminContext:
    """What the service works with."""

    config: CoordinatorConfig
    authority: CertificateAuthority
    root_key: bytes
    """The consortium root's 32-byte public key."""
    coordinator_key: bytes
    """This coordinator's 32-byte Ed25519 public key."""
    store: Store
    blobs: BlobStore
    audit: AuditLog
    conductor: RunConductor
    last_seen: Callable[[str], float]
    """Unix time a silo was last heard of by this process; 0 for never."""
    clock: Callable[[], float] = time.time


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """The admin's RPCs. Refusals are raised; the interceptor answers them."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    async def CreateInvite(
        self, request: pb.CreateInviteRequest, context: Context
    ) -> pb.CreateInviteResponse:
        """Make one silo's single-use invite; it replaces an unspent one."""
        _ = context
        ours = self._context
        if SILO_ID.fullmatch(request.silo_id) is None:
            raise EnrolmentError("a silo id has lower-case letters, digits and dashes, at most 63")
        if not MIN_TTL_S <= request.ttl_s <= MAX_TTL_S:
            raise EnrolmentError(f"an invite lives {MIN_TTL_S} to {MAX_TTL_S} seconds")
        now = int(ours.clock())
        invite = Invite(
            coordinator_address=ours.config.dial_coordinator,
            enrol_address=ours.config.dial_enrolment,
            federation=ours.config.federation,
            silo_id=request.silo_id,
            ca_sha256=ours.authority.sha256,
            root_sha256=root_key_sha256(ours.root_key),
            secret=secrets.token_bytes(32),
            expires_unix_s=now + request.ttl_s,
        )
        ours.store.invites.create(
            secret=invite.secret,
            silo_id=invite.silo_id,
            created_unix_s=now,
            expires_unix_s=invite.expires_unix_s,
        )
        self._audit(
            AuditEvent.INVITE_CREATED, silo=invite.silo_id, expires_unix_s=invite.expires_unix_s
        )
        return pb.CreateInviteResponse(invite=invite.encode())

    async def ListSilos(
        self, request: pb.ListSilosRequest, context: Context
    ) -> pb.ListSilosResponse:
        """Everyone invited, enrolled or in the roster."""
        _ = (request, context)
        ours = self._context
        current = ours.store.rosters.current()
        members = frozenset(current.roster.silo_ids if current else ())
        response = pb.ListSilosResponse()
        enrolled = ours.store.silos.list()
        for silo in enrolled:
            state = SiloState.ROSTERED if silo.silo_id in members else SiloState.ENROLLED
            response.silos.add(
                silo_id=silo.silo_id,
                state=(SiloState.REVOKED if silo.revoked else state).value,
                last_seen_unix_s=int(max(silo.last_seen_unix_s, ours.last_seen(silo.silo_id))),
                certificate_expiry_unix_s=silo.certificate_expiry_unix_s,
                families=silo.families,
            )
        known = {silo.silo_id for silo in enrolled}
        for invite in ours.store.invites.open():
            if invite.silo_id not in known and ours.clock() < invite.expires_unix_s:
                response.silos.add(silo_id=invite.silo_id, state=SiloState.INVITED.value)
        return response

    async def ProposeRoster(
        self, request: pb.ProposeRosterRequest, context: Context
    ) -> pb.ProposeRosterResponse:
        """The unsigned roster of everyone enrolled."""
        _ = context
        ours = self._context
        current = ours.store.rosters.current()
        silos = [silo for silo in ours.store.silos.list() if not silo.revoked]
        try:
            threshold(len(silos), request.colluding)
        except SecAggError as error:
            raise RosterError(str(error)) from error
        roster = Roster(
            federation=ours.config.federation,
            epoch=1 if current is None else current.roster.epoch + 1,
            colluding=request.colluding,
            coordinator_key=ours.coordinator_key,
            entries=tuple(
                RosterEntry(
                    silo_id=silo.silo_id,
                    spiffe_uri=silo.spiffe_uri,
                    verification_key=silo.verification_key,
                )
                for silo in silos
            ),
        )
        self._audit(AuditEvent.ROSTER_PROPOSED, epoch=roster.epoch, sha256=roster.sha256.hex())
        return pb.ProposeRosterResponse(roster=roster_message(propose(roster)))

    async def PublishRoster(
        self, request: pb.PublishRosterRequest, context: Context
    ) -> pb.PublishRosterResponse:
        """Make a signed roster the current one."""
        _ = context
        ours = self._context
        try:
            signed = secagg_wire.roster_from_proto(request.roster)
            current = ours.store.rosters.current()
            roster = verify_roster(
                signed,
                ours.root_key,
                0 if current is None else current.roster.epoch,
                None if current is None else current.roster.sha256,
            )
        except SecAggError as error:
            raise RosterError(str(error)) from error
        self._require_ours(roster)
        ours.store.rosters.publish(signed, at_unix_s=int(ours.clock()))
        self._audit(
            AuditEvent.ROSTER_PUBLISHED,
            epoch=roster.epoch,
            sha256=roster.sha256.hex(),
            silos=roster.silo_ids,
        )
        return pb.PublishRosterResponse()

    async def StartRun(
        self, request_iterator: AsyncIterator[pb.StartRunRequest], context: Context
    ) -> pb.StartRunResponse:
        """Start a run, once a token; the adapter comes in chunks."""
        _ = context
        parts = aiter(request_iterator)
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "opening":
            raise MalformedMessageError("a start begins with its opening")
        opening = first.opening
        if opening.adapter_bytes > MAX_ADAPTER_BYTES:
            raise MalformedMessageError(f"an adapter has at most {MAX_ADAPTER_BYTES} bytes")
        adapter = bytearray()
        async for part in parts:
            adapter += part.adapter_chunk
            if len(adapter) > opening.adapter_bytes or not part.adapter_chunk:
                raise MalformedMessageError("the adapter is not as long as its opening says")
        if len(adapter) != opening.adapter_bytes:
            raise MalformedMessageError("the adapter is not as long as its opening says")
        run_id = await self._context.conductor.start_run(
            opening.plan, bytes(adapter), opening.submit_token or secrets.token_hex(16)
        )
        return pb.StartRunResponse(run_id=run_id)

    async def AbortRun(self, request: pb.AbortRunRequest, context: Context) -> pb.AbortRunResponse:
        """Stop a run for good."""
        _ = context
        await self._context.conductor.abort_run(request.run_id)
        return pb.AbortRunResponse()

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        """Every run, oldest first."""
        _ = (request, context)
        response = pb.ListRunsResponse()
        for row in self._context.store.runs.list():
            records = self._context.store.records.list(row.run_id)
            head = records[-1] if records else None
            response.runs.append(run_summary(row, Plan.parse(row.plan), head=head))
        return response

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """A run's state at every change."""
        _ = context
        async for response in self._context.conductor.watch(request.run_id):
            yield response

    async def ListAdapters(
        self, request: pb.ListAdaptersRequest, context: Context
    ) -> pb.ListAdaptersResponse:
        """A page of the provenance chain of a run."""
        _ = context
        records = self._context.store.records.page(
            request.run_id, request.from_position, federation_wire.RECORDS_PER_PAGE
        )
        if not records and request.from_position == 0:
            raise UnknownRunError(f"no run {request.run_id[:128]!r}")
        return pb.ListAdaptersResponse(
            records=[federation_wire.record_to_proto(record) for record in records]
        )

    async def GetAdapter(
        self, request: pb.GetAdapterRequest, context: Context
    ) -> AsyncIterator[pb.GetAdapterResponse]:
        """Published bytes by digest, in chunks."""
        _ = context
        for chunk in self._context.blobs.chunks(request.adapter_sha256):
            yield pb.GetAdapterResponse(content=chunk)

    async def GetTranscript(
        self, request: pb.GetTranscriptRequest, context: Context
    ) -> AsyncIterator[pb.GetTranscriptResponse]:
        """The public part of an attempt, in chunks."""
        _ = context
        transcript = build_transcript(
            self._context.store,
            request.run_id,
            request.round,
            step=request.step,
            attempt=request.attempt,
        )
        content = transcript_to_proto(transcript).SerializeToString()
        for start in range(0, len(content), CHUNK_BYTES):
            yield pb.GetTranscriptResponse(content=content[start : start + CHUNK_BYTES])

    async def GetBudget(
        self, request: pb.GetBudgetRequest, context: Context
    ) -> pb.GetBudgetResponse:
        """What runs have cost, and the silos' newest ledger heads."""
        _ = (request, context)
        return budget_response(self._context.store)

    async def TailAudit(
        self, request: pb.TailAuditRequest, context: Context
    ) -> pb.TailAuditResponse:
        """The newest audit records."""
        _ = context
        return pb.TailAuditResponse(records=self._context.audit.tail(min(request.lines, MAX_TAIL)))

    def _require_ours(self, roster: Roster) -> None:
        ours = self._context
        if roster.federation != ours.config.federation:
            raise RosterError(f"the roster is of federation {roster.federation!r}")
        if roster.coordinator_key != ours.coordinator_key:
            raise RosterError("the roster names another coordinator key")
        for entry in roster.entries:
            silo = ours.store.silos.get(entry.silo_id)
            if (
                silo is None
                or silo.revoked
                or silo.verification_key != entry.verification_key
                or entry.spiffe_uri != silo_spiffe_uri(roster.federation, entry.silo_id)
            ):
                raise RosterError(f"{entry.silo_id} is not enrolled with the key in the roster")

    def _audit(self, event: AuditEvent, **details: str | int | tuple[str, ...]) -> None:
        self._context.audit.append(event, admin=current_peer().name, **details)

"""AdminService: what the admin CLI asks of the coordinator.

Invariants:

1. Every change is in the audit log, with the admin's name; the record is written in the transaction
   of its change, so that a full disk or a crash leaves no change without one.
2. The adapter that a run starts from is as long as its opening says, and the opening is bounded
   before a byte of it is taken.

Covered: invites, silos, adapters, budgets, audit; streams of a start that are empty, out of order,
short, long or stuffed with empty chunks. Not covered: rosters, runs (the conductor's), the plan and
the adapter themselves (``server/conductor/queue.py``).
"""

# ruff: noqa: N802 - method names are the RPCs' names in admin.proto

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

import federation.wire as federation_wire
import secagg.wire as secagg_wire
from chorale.v1 import admin_pb2 as pb
from chorale.v1 import admin_pb2_grpc
from federation.membership.facts import SiloFacts
from federation.plan.read import read_plan
from federation.transcript.file import transcript_to_proto
from secagg import hybrid
from secagg.errors import MalformedMessageError
from server.attempt.transcripts import build_transcript
from server.audit import AuditEvent, AuditLog
from server.conductor.bisection import halves_so_far, request_bisection
from server.conductor.queue import MAX_ADAPTER_BYTES, places_behind
from server.conductor.rollback import request_rollback
from server.conductor.status import half_sum, run_summary
from server.config import CoordinatorConfig
from server.errors import ConfigurationError, UnknownRunError
from server.members.invites import create_invite
from server.members.roster_file import propose, roster_message
from server.members.rosters import Rosters
from server.members.standing import Standing
from server.members.terms import checked_terms, described, require_federation, require_plan_within
from server.pki.trust import Trust
from server.pki.upkeep import Upkeep
from server.rpc.access import current_peer
from server.run.budget import budget_response
from server.run.dropouts import sitting_out_now
from server.states import SiloState
from server.store import Store
from server.store.blobs.storage import BlobStorage, in_threads
from server.store.federation import FederationRow
from server.store.silos import state_of

__all__ = ["AdminContext", "AdminService", "RunConductor"]

MAX_TAIL: Final = 1000
MAX_TAIL_BYTES: Final = 3 << 20
"""Of an answer that the admin's client takes; a record has at most one mebibyte."""
CHUNK_BYTES: Final = 1 << 20
Context = grpc.aio.ServicerContext[Any, Any]


class RunConductor(Protocol):
    """What this service needs of ``server/conductor/conductor.py``."""

    async def start_run(
        self, plan_toml: bytes, adapter: bytes, submit_token: str, *, suite: int, admin: str
    ) -> str:
        """Start or queue a run once a token; return its id."""

    def ask_silos(
        self, plan_toml: bytes, submit_token: str, *, admin: str, negotiate: bool
    ) -> AsyncGenerator[pb.AskSilosResponse]:
        """Report what the roster's silos say to a plan, until it is complete."""

    async def abort_run(self, run_id: str, *, admin: str) -> None:
        """Stop a run for good."""

    async def pause_run(self, run_id: str, *, admin: str) -> str:
        """Let a run rest; return its state."""

    async def resume_run(self, run_id: str, *, admin: str) -> str:
        """Put a paused run back; return the run that it waits behind."""

    def watch(self, run_id: str) -> AsyncIterator[pb.WatchRunResponse]:
        """Report a run's state at every change, until it ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminContext:
    """What the service works with."""

    config: CoordinatorConfig
    trust: Trust
    upkeep: Upkeep
    standing: Standing
    root_key: bytes
    """The consortium root's 32-byte public key."""
    coordinator_key: bytes
    """This coordinator's 32-byte Ed25519 public key."""
    store: Store
    blobs: BlobStorage
    audit: AuditLog
    conductor: RunConductor
    last_seen: Callable[[str], float]
    """Unix time a silo was last heard of; 0 for never."""
    facts: Callable[[str], SiloFacts | None]
    """What a silo published about itself, if it was lately."""
    invited: Callable[[], Awaitable[None]]
    """Awaited once an invite is made, before it is answered: it can be redeemed at once."""
    clock: Callable[[], float] = time.time


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """The admin's RPCs. Refusals are raised; the interceptor answers them."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._rosters = Rosters(
            store=context.store,
            audit=context.audit,
            root_key=context.root_key,
            coordinator_key=context.coordinator_key,
            clock=context.clock,
        )

    async def CreateFederation(
        self, request: pb.CreateFederationRequest, context: Context
    ) -> pb.CreateFederationResponse:
        """Name the one federation of this coordinator, once."""
        _ = context
        ours = self._context
        row = checked_terms(
            FederationRow(
                name=request.name,
                min_silos=request.min_silos,
                colluding=request.colluding,
                epsilon_cap=request.epsilon_cap if request.HasField("epsilon_cap") else None,
                delta=request.delta,
                created_unix_s=int(ours.clock()),
            )
        )
        with ours.store.transaction():
            known = ours.store.federation.current()
            ours.store.federation.create(row)
            if known is None:
                self._audit(AuditEvent.FEDERATION_CREATED, **described(row))
        return pb.CreateFederationResponse()

    async def GetFederation(
        self, request: pb.GetFederationRequest, context: Context
    ) -> pb.GetFederationResponse:
        """Its terms."""
        _ = (request, context)
        row = require_federation(self._context.store)
        return pb.GetFederationResponse(
            name=row.name,
            min_silos=row.min_silos,
            colluding=row.colluding,
            epsilon_cap=row.epsilon_cap,
            delta=row.delta,
            created_unix_s=row.created_unix_s,
        )

    async def CreateInvite(
        self, request: pb.CreateInviteRequest, context: Context
    ) -> pb.CreateInviteResponse:
        """Make one silo's single-use invite; it replaces an unspent one."""
        _ = context
        ours = self._context
        invite = create_invite(
            ours.store,
            ours.audit,
            config=ours.config,
            trust=ours.trust,
            root_key=ours.root_key,
            silo_id=request.silo_id,
            ttl_s=request.ttl_s,
            federation=request.federation,
            admin=current_peer().name,
            clock=ours.clock,
        )
        try:
            await ours.invited()
        except ConfigurationError:
            # Another program holds the port. An invite that nobody was given must not open it.
            ours.store.invites.withdraw(request.silo_id)
            raise
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
        enrolled, sitting_out = ours.store.silos.list(), sitting_out_now(ours.store)
        for silo in enrolled:
            facts = ours.facts(silo.silo_id)
            response.silos.add(
                silo_id=silo.silo_id,
                state=state_of(silo, members, sitting_out).value,
                last_seen_unix_s=int(max(silo.last_seen_unix_s, ours.last_seen(silo.silo_id))),
                certificate_expiry_unix_s=silo.certificate_expiry_unix_s,
                families=silo.families,
                facts=None if facts is None else federation_wire.silo_facts_to_proto(facts),
            )
        known = {silo.silo_id for silo in enrolled}
        for invite in ours.store.invites.open():
            if invite.silo_id not in known and ours.clock() < invite.expires_unix_s:
                response.silos.add(silo_id=invite.silo_id, state=SiloState.INVITED.value)
        return response

    async def SuspendSilo(
        self, request: pb.SuspendSiloRequest, context: Context
    ) -> pb.SuspendSiloResponse:
        """Refuse a silo until it is reinstated."""
        _ = context
        self._context.standing.suspend(
            request.silo_id, admin=current_peer().name, reason=request.reason
        )
        return pb.SuspendSiloResponse()

    async def ReinstateSilo(
        self, request: pb.ReinstateSiloRequest, context: Context
    ) -> pb.ReinstateSiloResponse:
        """End a suspension."""
        _ = context
        self._context.standing.reinstate(request.silo_id, admin=current_peer().name)
        return pb.ReinstateSiloResponse()

    async def RevokeSilo(
        self, request: pb.RevokeSiloRequest, context: Context
    ) -> pb.RevokeSiloResponse:
        """Refuse a silo's certificates for good."""
        _ = context
        self._context.standing.revoke(
            request.silo_id, admin=current_peer().name, reason=request.reason
        )
        return pb.RevokeSiloResponse()

    async def RotateCa(self, request: pb.RotateCaRequest, context: Context) -> pb.RotateCaResponse:
        """Make a new issuing CA; both are trusted until the overlap ends."""
        _ = context
        retiring = self._context.upkeep.rotate(request.overlap_s, admin=current_peer().name)
        return pb.RotateCaResponse(
            ca_sha256=self._context.trust.issuing.sha256,
            overlap_until_unix_s=retiring.until_unix_s,
        )

    async def ProposeRoster(
        self, request: pb.ProposeRosterRequest, context: Context
    ) -> pb.ProposeRosterResponse:
        """The unsigned roster of everyone enrolled."""
        _ = context
        roster = self._rosters.propose(
            request.colluding, admin=current_peer().name, epoch=request.epoch
        )
        return pb.ProposeRosterResponse(roster=roster_message(propose(roster)))

    async def PublishRoster(
        self, request: pb.PublishRosterRequest, context: Context
    ) -> pb.PublishRosterResponse:
        """Make a signed roster the current one; without one, the proposal that members approved."""
        _ = context
        given = request.roster if request.HasField("roster") else None
        roster = self._rosters.publish(
            None if given is None else secagg_wire.roster_from_proto(given),
            admin=current_peer().name,
        )
        return pb.PublishRosterResponse(epoch=roster.epoch, silos=len(roster.entries))

    async def AskSilos(
        self, request: pb.AskSilosRequest, context: Context
    ) -> AsyncIterator[pb.AskSilosResponse]:
        """Ask the roster's silos about a run of a plan; nothing is started."""
        _ = context
        federation = require_federation(self._context.store, request.federation)
        require_plan_within(federation, read_plan(request.plan))
        async with aclosing(
            self._context.conductor.ask_silos(
                request.plan,
                request.submit_token or secrets.token_hex(16),
                admin=current_peer().name,
                negotiate=request.negotiate,
            )
        ) as statuses:
            async for status in statuses:
                yield status

    async def StartRun(
        self, request_iterator: AsyncIterator[pb.StartRunRequest], context: Context
    ) -> pb.StartRunResponse:
        """Start a run, once a token; the adapter comes in chunks."""
        _ = context
        asked, adapter = await _read_start(request_iterator)
        federation = require_federation(self._context.store, asked.federation)
        require_plan_within(federation, read_plan(asked.plan))
        run_id = await self._context.conductor.start_run(
            asked.plan,
            adapter,
            asked.submit_token or secrets.token_hex(16),
            suite=asked.suite or hybrid.SUITE,
            admin=current_peer().name,
        )
        behind = places_behind(self._context.store).get(run_id, "")
        return pb.StartRunResponse(run_id=run_id, behind=behind)

    async def AbortRun(self, request: pb.AbortRunRequest, context: Context) -> pb.AbortRunResponse:
        """Stop a run for good."""
        _ = context
        await self._context.conductor.abort_run(request.run_id, admin=current_peer().name)
        return pb.AbortRunResponse()

    async def PauseRun(self, request: pb.PauseRunRequest, context: Context) -> pb.PauseRunResponse:
        """Let a run rest, and the next one begin."""
        _ = context
        conductor = self._context.conductor
        state = await conductor.pause_run(request.run_id, admin=current_peer().name)
        return pb.PauseRunResponse(state=str(state))

    async def ResumeRun(
        self, request: pb.ResumeRunRequest, context: Context
    ) -> pb.ResumeRunResponse:
        """Put a paused run before all that wait."""
        _ = context
        conductor = self._context.conductor
        behind = await conductor.resume_run(request.run_id, admin=current_peer().name)
        return pb.ResumeRunResponse(behind=behind)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        """Every run, oldest first."""
        _ = (request, context)
        response = pb.ListRunsResponse()
        behind = places_behind(self._context.store)
        for row in self._context.store.runs.list():
            records = self._context.store.records.list(row.run_id)
            head = records[-1] if records else None
            response.runs.append(
                run_summary(row, read_plan(row.plan), head=head, behind=behind.get(row.run_id, ""))
            )
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

    async def RollbackAdapter(
        self, request: pb.RollbackAdapterRequest, context: Context
    ) -> pb.RollbackAdapterResponse:
        """Note that a run goes back to an earlier round, once a token."""
        _ = context
        ours = self._context
        asked = request_rollback(
            ours.store,
            ours.audit,
            run_id=request.run_id,
            to_round=request.to_round,
            submit_token=request.submit_token or secrets.token_hex(16),
            admin=current_peer().name,
            clock=ours.clock,
        )
        state = ours.store.runs.get(asked.run_id).state.value
        return pb.RollbackAdapterResponse(round=asked.round or 0, state=state)

    async def BisectRun(
        self, request: pb.BisectRunRequest, context: Context
    ) -> pb.BisectRunResponse:
        """Note that a run's next round is summed in two halves, once a token."""
        _ = context
        ours = self._context
        asked = request_bisection(
            ours.store,
            ours.audit,
            run_id=request.run_id,
            named=tuple(request.suspects),
            submit_token=request.submit_token or secrets.token_hex(16),
            admin=current_peer().name,
            clock=ours.clock,
        )
        number = asked.round or 0
        halves = halves_so_far(ours.store, asked.run_id, number)
        return pb.BisectRunResponse(
            suspects=asked.suspects,
            round=0 if halves is None else number,
            halves=[half_sum(half) for half in halves or ()],
            state=ours.store.runs.get(asked.run_id).state.value,
        )

    async def GetAdapter(
        self, request: pb.GetAdapterRequest, context: Context
    ) -> AsyncIterator[pb.GetAdapterResponse]:
        """Published bytes by digest, in chunks."""
        _ = context
        async for chunk in in_threads(self._context.blobs.chunks(request.adapter_sha256)):
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
            part=request.part if request.HasField("part") else None,
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
        """The newest audit records, as many as fit an answer."""
        _ = context
        lines = min(request.lines, MAX_TAIL)
        records = self._context.audit.tail(lines, max_bytes=MAX_TAIL_BYTES)
        return pb.TailAuditResponse(records=records)

    def _audit(self, event: AuditEvent, **details: str | int | tuple[str, ...]) -> None:
        self._context.audit.append(event, admin=current_peer().name, **details)


async def _read_start(
    stream: AsyncIterator[pb.StartRunRequest],
) -> tuple[pb.StartRunOpening, bytes]:
    """What a start asks for, and the bytes of the adapter that come after it in chunks.

    Raises:
        MalformedMessageError: It is not what its opening says, or says too much.
    """
    parts = aiter(stream)
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
    return opening, bytes(adapter)

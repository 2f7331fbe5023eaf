"""MembershipService: what an enrolled silo does about its own membership.

Invariants:

1. The silo that acts is the one of the client certificate; a request names nobody.
2. Refusals are raised; the interceptor answers and counts them.

Covered: renewing a certificate, approving a roster, audit heads, facts, leaving. Not covered: what
these change (``server/members/renewal.py``, ``server/members/roster_approvals.py``,
``server/members/audit_heads.py``, ``server/members/public_facts.py``,
``server/members/standing.py``).
"""

# ruff: noqa: N802 - method names are the RPCs' names in membership.proto

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from chorale.v1 import membership_pb2 as pb
from chorale.v1 import membership_pb2_grpc
from server.members.audit_heads import AuditHeadExchange
from server.members.public_facts import PublicFacts
from server.members.renewal import Renewals
from server.members.roster_approvals import RosterApprovals
from server.members.roster_file import propose, roster_message
from server.members.standing import Standing
from server.rpc.access import current_peer

__all__ = ["MembershipContext", "MembershipService"]

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipContext:
    """What the service works with."""

    renewals: Renewals
    standing: Standing
    audit_heads: AuditHeadExchange
    public_facts: PublicFacts
    rosters: RosterApprovals


class MembershipService(membership_pb2_grpc.MembershipServiceServicer):
    """The silos' RPCs about themselves; what is not here answers UNIMPLEMENTED."""

    def __init__(self, context: MembershipContext) -> None:
        self._context = context

    async def RenewCertificate(
        self, request: pb.RenewCertificateRequest, context: Context
    ) -> pb.RenewCertificateResponse:
        """Issue the silo's next certificate."""
        _ = context
        renewed = self._context.renewals.renew(
            current_peer(), csr_der=request.csr, signature=request.signature
        )
        return pb.RenewCertificateResponse(
            certificate=renewed.certificate_der, ca_certificates=renewed.ca_certificates_der
        )

    async def GetRosterProposal(
        self, request: pb.GetRosterProposalRequest, context: Context
    ) -> pb.GetRosterProposalResponse:
        """Show the proposed roster and who approved it."""
        _ = (request, context)
        proposal = self._context.rosters.current()
        if proposal is None:
            return pb.GetRosterProposalResponse()
        return pb.GetRosterProposalResponse(
            roster=roster_message(propose(proposal.roster)),
            approvals_needed=proposal.needed,
            approved_by=[approval.silo_id for approval in proposal.approvals],
        )

    async def ApproveRoster(
        self, request: pb.ApproveRosterRequest, context: Context
    ) -> pb.ApproveRosterResponse:
        """Keep the silo's approval of the proposed roster."""
        _ = context
        self._context.rosters.approve(
            current_peer().name,
            epoch=request.epoch,
            sha256=request.roster_sha256,
            signature=request.signature,
        )
        return pb.ApproveRosterResponse()

    async def ExchangeAuditHeads(
        self, request: pb.ExchangeAuditHeadsRequest, context: Context
    ) -> pb.ExchangeAuditHeadsResponse:
        """Keep the silo's signed audit head, and give the coordinator's."""
        _ = context
        ours = self._context.audit_heads.exchange(current_peer().name, request.silo)
        return pb.ExchangeAuditHeadsResponse(coordinator=ours)

    async def PublishFacts(
        self, request: pb.PublishFactsRequest, context: Context
    ) -> pb.PublishFactsResponse:
        """Take what the silo says about itself in place of what it said before."""
        _ = context
        self._context.public_facts.publish(current_peer().name, request)
        return pb.PublishFactsResponse()

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        """Take part in no further round; with revoke, the certificate ends now."""
        _ = context
        self._context.standing.leave(current_peer().name, revoke=request.revoke)
        return pb.LeaveResponse()

"""EnrolmentService: redeeming an invite for a client certificate.

The order of the checks, and why:

1. The secret, the silo and the federation together name an invite. Only who knows the secret
   learns anything more, such as that the invite is spent or expired.
2. Spent, then expired.
3. The Ed25519 signature proves that the caller holds the verification key it names, for this very
   certificate request.
4. The certificate request is for a P-256 key and signed by it.
5. One transaction spends the invite and records the silo. A refused request spends nothing.

Covered: guessing, replay, races for one invite, another silo's invite, other key types.
Not covered: limiting the rate of guesses at a 256-bit secret; when the port is open, which
``server/rpc/ports.py`` decides.
"""

# ruff: noqa: N802 - method names are the RPCs' names in enrolment.proto

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from chorale.v1 import enrolment_pb2 as pb
from chorale.v1 import enrolment_pb2_grpc
from federation.membership.invite import FEDERATION_NAME, SILO_ID, join_statement, silo_spiffe_uri
from ops.logs.logger import get_logger
from secagg.suite import is_sound_key, verify
from server.audit import AuditEvent, AuditLog
from server.errors import (
    EnrolmentError,
    ExpiredInviteError,
    PossessionProofError,
    Reason,
    SpentInviteError,
    UnknownInviteError,
)
from server.members.standing import Standing
from server.metrics import ENROLMENT_REASONS, CoordinatorMetrics
from server.pki.authority import certificate_sha256, der, not_after_unix_s
from server.pki.trust import Trust
from server.rpc.catalogue import describe
from server.rpc.strangers import Strangers
from server.store import Store
from server.store.silos import SiloRow

__all__ = ["EnrolmentService"]

log = get_logger(__name__)

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
Context = grpc.aio.ServicerContext[Any, Any]


class EnrolmentService(enrolment_pb2_grpc.EnrolmentServiceServicer):
    """The one service a caller without a client certificate can reach."""

    def __init__(
        self,
        *,
        trust: Trust,
        root_key: bytes,
        store: Store,
        audit: AuditLog,
        metrics: CoordinatorMetrics,
        standing: Standing,
        strangers: Strangers,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._trust = trust
        self._root_key = root_key
        self._store = store
        self._audit = audit
        self._metrics = metrics
        self._standing = standing
        self._strangers = strangers
        self._clock = clock

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        """Redeem an invite for a certificate, its CA and the consortium root's key."""
        _ = context
        try:
            response = self._join(request)
        except Exception as error:
            reason = describe(error).reason if isinstance(error, EnrolmentError) else None
            outcome = reason if reason in ENROLMENT_REASONS else Reason.INTERNAL
            self._metrics.enrolments.labels(outcome=outcome.value).inc()
            silo = request.silo_id if SILO_ID.fullmatch(request.silo_id) else "malformed"
            self._strangers.join_refused(silo, outcome.value)
            raise
        self._standing.tell_joined(request.silo_id)
        self._metrics.enrolments.labels(outcome="joined").inc()
        log.info("silo_joined", silo=request.silo_id)
        return response

    def _join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        now = int(self._clock())
        silo_id = request.silo_id
        authority = self._trust.issuing
        with self._store.transaction():
            invite, federation = None, self._store.federation.current()
            if (
                federation is not None
                and request.federation == federation.name
                and FEDERATION_NAME.fullmatch(request.federation)
                and SILO_ID.fullmatch(silo_id)
            ):
                invite = self._store.invites.find(secret=request.invite_secret, silo_id=silo_id)
            if invite is None:
                raise UnknownInviteError("no invite has this secret for this silo and federation")
            if invite.spent_unix_s is not None:
                raise SpentInviteError("this invite was used before")
            if now >= invite.expires_unix_s:
                raise ExpiredInviteError("this invite has expired")
            _verify_possession(request)
            certificate = authority.issue_silo(request.csr, silo_id, federation=request.federation)
            if not self._store.invites.spend(invite, at_unix_s=now):
                raise SpentInviteError("this invite was used before")
            self._store.silos.enrol(
                SiloRow(
                    silo_id=silo_id,
                    spiffe_uri=silo_spiffe_uri(request.federation, silo_id),
                    verification_key=request.verification_key,
                    certificate_sha256=certificate_sha256(certificate),
                    certificate_expiry_unix_s=not_after_unix_s(certificate),
                    enrolled_unix_s=now,
                )
            )
            # Inside the transaction: a silo that the audit log cannot name does not join.
            self._audit.append(
                AuditEvent.SILO_JOINED,
                silo=silo_id,
                certificate_sha256=certificate_sha256(certificate).hex(),
                verification_key=request.verification_key.hex(),
            )
        return pb.JoinResponse(
            certificate=der(certificate),
            ca_certificate=der(authority.certificate),
            root_key=self._root_key,
        )


def _verify_possession(request: pb.JoinRequest) -> None:
    if len(request.verification_key) != KEY_BYTES or len(request.signature) != SIGNATURE_BYTES:
        raise PossessionProofError("the verification key or the signature has the wrong length")
    if not is_sound_key(request.verification_key):
        raise PossessionProofError(
            "the verification key is of small order, or not in its one encoding: anybody could "
            "sign for it, so it proves no possession"
        )
    statement = join_statement(request.federation, request.silo_id, request.csr)
    if not verify(request.verification_key, request.signature, statement):
        raise PossessionProofError("the join request is not signed by its key")

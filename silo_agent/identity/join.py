"""Joining a federation: an invite becomes this silo's identity.

In order:

1. Keys are made here and never leave: P-256 for TLS, Ed25519 for protocol messages. Joining the
   same federation again keeps the Ed25519 key, so that the roster stays as it is.
2. The enrolment port's certificate chain is fetched without trusting it; the CA in it must have the
   SHA-256 of the invite. It and the leaf must be valid by this machine's clock: TLS refuses them
   without a word of the clock. Only then is the secret sent, over TLS verified by that CA.
3. The answer must hold a certificate for our key and our SPIFFE URI, and a root key with the
   SHA-256 of the invite. It is from the pinned CA or, while that one is replaced, from another one
   that the answer names: the answer itself came over TLS under the pinned CA.
4. Nothing is stored before all of that holds; what the caller must have on disk before the identity
   is, such as a ledger that carries what was spent before, is written in between.

Covered: altered or stale invites, a coordinator with another CA or root, a wrong answer, a crash
while joining. Not covered: how an identity lies on disk (``silo_agent/identity/identity.py``).

Errors::

    IdentityError
    ├── AlreadyJoinedError         another federation, silo or root lives here
    ├── InviteRefusedError         expired, spent, unknown or malformed; ``reason`` says which
    ├── UntrustedCoordinatorError  the CA, the certificate or the root is not what the invite pins
    └── WrongClockError            what the coordinator presents is not valid now, by this clock
    TransportError                 the enrolment port cannot be reached
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chorale.v1 import enrolment_pb2, enrolment_pb2_grpc
from federation.membership.invite import Invite, InviteFormatError, join_statement, parse_invite
from federation.text import printable
from federation.version import this_version
from ops.doctor.reach import ReachError, presented_chain
from secagg.suite import is_sound_key
from silo_agent.errors import IdentityError, TransportError
from silo_agent.identity.identity import Identity, NotJoinedError, forget_previous
from silo_agent.identity.leaf import (
    UntrustedCoordinatorError,
    certificate_request,
    read_ca,
    read_leaf,
)

__all__ = ["AlreadyJoinedError", "InviteRefusedError", "WrongClockError", "join", "read_invite"]

TIMEOUT_S: Final = 20.0
_MAX_SAID_CHARS: Final = 200
_PEM: Final = serialization.Encoding.PEM
_DER: Final = serialization.Encoding.DER


class AlreadyJoinedError(IdentityError):
    """Another federation, silo or root lives in this data directory."""


class WrongClockError(IdentityError):
    """The coordinator's certificate is not valid now, by this machine's clock."""


class InviteRefusedError(IdentityError):
    """The invite cannot be used.

    Attributes:
        reason: The coordinator's stable reason code, or ``invite_malformed``.
    """

    def __init__(self, text: str, *, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


def read_invite(line: str) -> Invite:
    """The invite of a line from the coordinator's admin.

    Raises:
        InviteRefusedError: It is malformed.
    """
    try:
        return parse_invite(line)
    except InviteFormatError as error:
        raise InviteRefusedError(str(error), reason="invite_malformed") from error


def join(
    invite: Invite | str, data_dir: Path, *, before_stored: Callable[[], None] = lambda: None
) -> Identity:
    """Redeem an invite, or the admin's line for one, and store the new identity.

    The silo's data directory is created with mode 0700. ``before_stored`` is called when nothing
    can be refused any more; what it raises leaves the directory without the new identity.

    Raises:
        InviteRefusedError: The invite is malformed, expired, spent or unknown.
        UntrustedCoordinatorError: The coordinator is not the one the invite pins.
        WrongClockError: By this machine's clock its certificate is not valid.
        AlreadyJoinedError: This directory belongs to another federation, silo or root.
        TransportError: The enrolment port cannot be reached.
    """
    parsed = read_invite(invite) if isinstance(invite, str) else invite
    now = time.time()
    if parsed.expires_unix_s <= now:
        raise InviteRefusedError(
            f"the invite has expired, if this machine's clock is right: it says {_shown(now)}, and "
            f"the invite was good until {_shown(parsed.expires_unix_s)}; a new one comes from the "
            f"admin (chorale invite {parsed.silo_id})",
            reason="invite_expired",
        )
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise IdentityError(f"{data_dir} cannot be a data directory: {error}") from error
    signing_key = _kept_key(parsed, data_dir) or Ed25519PrivateKey.generate()
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    ca = _fetch_ca(parsed)
    response = _redeem(parsed, ca, leaf_key, signing_key)
    if hashlib.sha256(response.root_key).digest() != parsed.root_sha256:
        raise UntrustedCoordinatorError("the answer names another consortium root than the invite")
    if not is_sound_key(response.root_key):
        raise UntrustedCoordinatorError(
            "the invite pins a consortium root for which anybody could sign: do not join"
        )
    issuer = read_ca(response.ca_certificate)
    identity = Identity(
        federation=parsed.federation,
        silo_id=parsed.silo_id,
        coordinator_address=parsed.coordinator_address,
        root_key=response.root_key,
        leaf=read_leaf(
            response.certificate,
            issuer=issuer,
            key=leaf_key,
            federation=parsed.federation,
            silo_id=parsed.silo_id,
        ),
        ca=issuer,
        also_trusted=() if issuer == ca else (ca,),
        signing_key=signing_key,
        leaf_key=leaf_key,
    )
    before_stored()
    identity.store(data_dir)
    # Joining replaced the certificate before at the coordinator too.
    forget_previous(data_dir)
    return identity


def _kept_key(invite: Invite, data_dir: Path) -> Ed25519PrivateKey | None:
    try:
        known = Identity.load(data_dir)
    except NotJoinedError:
        return None
    if (known.federation, known.silo_id) != (invite.federation, invite.silo_id) or (
        hashlib.sha256(known.root_key).digest() != invite.root_sha256
    ):
        raise AlreadyJoinedError(
            f"{data_dir} belongs to {known.silo_id} of {known.federation}: "
            "use another data directory for this invite"
        )
    return known.signing_key


def _fetch_ca(invite: Invite) -> x509.Certificate:
    """Take the CA from the enrolment port's chain, trusting nothing but its digest."""
    try:
        chain = presented_chain(invite.enrol_address, timeout_s=TIMEOUT_S)
    except ReachError as error:
        raise TransportError(
            f"the enrolment port cannot be reached: {error}. It is open only while an invite can "
            f"be used: if this one was, ask the admin for a new one (chorale invite ... "
            f"{invite.silo_id})"
        ) from error
    for certificate in chain:
        if hashlib.sha256(certificate.public_bytes(_DER)).digest() == invite.ca_sha256:
            _require_valid_now((chain[0], certificate), invite.enrol_address)
            return certificate
    raise UntrustedCoordinatorError(
        f"{invite.enrol_address} does not present the CA that the invite pins: the invite is of "
        "another coordinator, or from before its CA was replaced, or somebody is in between. "
        "Nothing was sent; ask the admin for a new invite."
    )


def _require_valid_now(certificates: tuple[x509.Certificate, ...], address: str) -> None:
    begins = max(certificate.not_valid_before_utc for certificate in certificates)
    ends = min(certificate.not_valid_after_utc for certificate in certificates)
    now = time.time()
    if not begins.timestamp() <= now < ends.timestamp():
        raise WrongClockError(
            f"this machine's clock says {_shown(now)}, and what {address} presents is valid from "
            f"{begins:%F %R} to {ends:%F %R} UTC: one of the two clocks is wrong"
        )


def _shown(unix_s: float) -> str:
    return f"{dt.datetime.fromtimestamp(unix_s, dt.UTC):%F %R} UTC"


def _redeem(
    invite: Invite,
    ca: x509.Certificate,
    leaf_key: ec.EllipticCurvePrivateKey,
    signing_key: Ed25519PrivateKey,
) -> enrolment_pb2.JoinResponse:
    csr = certificate_request(invite.silo_id, leaf_key)
    request = enrolment_pb2.JoinRequest(
        federation=invite.federation,
        silo_id=invite.silo_id,
        invite_secret=invite.secret,
        csr=csr,
        verification_key=signing_key.public_key().public_bytes_raw(),
        signature=signing_key.sign(join_statement(invite.federation, invite.silo_id, csr)),
    )
    credentials = grpc.ssl_channel_credentials(root_certificates=ca.public_bytes(_PEM))
    with grpc.secure_channel(invite.enrol_address, credentials) as channel:
        try:
            response: enrolment_pb2.JoinResponse = enrolment_pb2_grpc.EnrolmentServiceStub(
                channel
            ).Join(request, timeout=TIMEOUT_S, metadata=this_version().words)
        except grpc.RpcError as error:
            raise _refusal(error, invite) from error
    return response


def _refusal(error: Any, invite: Invite) -> IdentityError | TransportError:
    trailers = dict(error.trailing_metadata() or ())
    reason = str(trailers.get("chorale-reason", ""))[:_MAX_SAID_CHARS]
    details = printable(str(error.details()), max_chars=_MAX_SAID_CHARS)
    if not reason:
        return TransportError(
            f"joining through {invite.enrol_address} failed: {error.code().name}: {details}"
        )
    hint = printable(str(trailers.get("chorale-hint", "")), max_chars=_MAX_SAID_CHARS)
    return InviteRefusedError(
        f"the coordinator refused to enrol {invite.silo_id}: {details} ({hint})",
        reason=reason,
    )

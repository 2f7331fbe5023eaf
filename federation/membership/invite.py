"""The invite: one line that lets one silo join one federation once.

``chorale1.<base64url>``, where the bytes are the fields in a fixed order, each with a two-byte
length, then eight bytes of expiry and four bytes of checksum. Both daemons read the format here;
``join_statement`` and ``silo_spiffe_uri`` are the two other things they must compute alike.

Invariants:

1. An :class:`Invite` that exists is within bounds; ``parse_invite(invite.encode())`` gives it back.
2. The secret is never part of a ``repr``.

Covered: cut or altered pastes (checksum), every field's bounds. Not covered: whether the invite is
still valid, which the coordinator alone decides (its clock, its database).

Errors::

    FederationError
    └── InviteError             the line cannot be used
        └── InviteFormatError   it is not an invite, was cut, or holds a field out of bounds
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import struct
from dataclasses import dataclass, field
from typing import Final

from federation.errors import FederationError
from secagg import canonical

__all__ = [
    "FEDERATION_NAME",
    "SILO_ID",
    "Invite",
    "InviteError",
    "InviteFormatError",
    "join_statement",
    "parse_invite",
    "silo_spiffe_uri",
]

PREFIX: Final = "chorale1."
MAX_CHARS: Final = 2048
SECRET_BYTES: Final = 32
DIGEST_BYTES: Final = 32
_CHECKSUM_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">H")
_EXPIRY: Final = struct.Struct(">Q")
_JOIN_DOMAIN: Final = "chorale/v1/join"

FEDERATION_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
"""A federation's name is the trust domain of its SPIFFE URIs."""
SILO_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_ADDRESS: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")


class InviteError(FederationError):
    """The invite cannot be used."""


class InviteFormatError(InviteError):
    """The line is not an invite, was cut, or holds a field out of bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Invite:
    """Everything a silo needs to join."""

    coordinator_address: str
    """host:port of the mutual TLS port."""
    enrol_address: str
    """host:port of the enrolment port."""
    federation: str
    silo_id: str
    ca_sha256: bytes
    """SHA-256 of the issuing CA's DER certificate."""
    root_sha256: bytes
    """SHA-256 of the consortium root's 32-byte Ed25519 key."""
    secret: bytes = field(repr=False)
    expires_unix_s: int

    def __post_init__(self) -> None:
        for name, text, pattern in (
            ("coordinator address", self.coordinator_address, _ADDRESS),
            ("enrolment address", self.enrol_address, _ADDRESS),
            ("federation", self.federation, FEDERATION_NAME),
            ("silo id", self.silo_id, SILO_ID),
        ):
            if pattern.fullmatch(text) is None:
                raise InviteFormatError(f"the invite's {name} {text[:64]!r} is not well formed")
        for name, value, size in (
            ("CA digest", self.ca_sha256, DIGEST_BYTES),
            ("root digest", self.root_sha256, DIGEST_BYTES),
            ("secret", self.secret, SECRET_BYTES),
        ):
            if len(value) != size:
                raise InviteFormatError(f"the invite's {name} does not have {size} bytes")
        if not 0 < self.expires_unix_s < 2**63:
            raise InviteFormatError("the invite's expiry is not a time")

    def encode(self) -> str:
        """Return the line to paste."""
        fields = (
            self.coordinator_address.encode(),
            self.enrol_address.encode(),
            self.federation.encode(),
            self.silo_id.encode(),
            self.ca_sha256,
            self.root_sha256,
            self.secret,
        )
        body = b"".join(_LENGTH.pack(len(value)) + value for value in fields)
        body += _EXPIRY.pack(self.expires_unix_s)
        return PREFIX + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")


def parse_invite(line: str) -> Invite:
    """Read an invite line as it was pasted; white space around it is ignored.

    Raises:
        InviteFormatError: It is not an invite, was cut or altered, or a field is out of bounds.
    """
    text = line.strip()
    if len(text) > MAX_CHARS or not text.startswith(PREFIX):
        raise InviteFormatError(f"an invite is one line that begins with {PREFIX!r}")
    encoded = text[len(PREFIX) :]
    try:
        content = base64.b64decode(
            encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError) as error:
        raise InviteFormatError("the invite holds characters that do not belong there") from error
    body, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    if not hmac.compare_digest(_checksum(body), checksum):
        raise InviteFormatError("the invite was cut or altered: paste the whole line again")
    fields, rest = _split(body)
    if len(rest) != _EXPIRY.size:
        raise InviteFormatError("the invite does not end with its expiry")
    try:
        invite = Invite(
            coordinator_address=fields[0].decode("ascii"),
            enrol_address=fields[1].decode("ascii"),
            federation=fields[2].decode("ascii"),
            silo_id=fields[3].decode("ascii"),
            ca_sha256=fields[4],
            root_sha256=fields[5],
            secret=fields[6],
            expires_unix_s=_EXPIRY.unpack(rest)[0],
        )
    except UnicodeDecodeError as error:
        raise InviteFormatError("the invite's text is not plain ASCII") from error
    if invite.encode() != text:
        # Unused bits at the end of base64 would give one invite several spellings.
        raise InviteFormatError("the invite was cut or altered: paste the whole line again")
    return invite


def silo_spiffe_uri(federation: str, silo_id: str) -> str:
    """Return the URI that a silo's certificate carries."""
    return f"spiffe://{federation}/silo/{silo_id}"


def join_statement(federation: str, silo_id: str, csr_der: bytes) -> bytes:
    """Return what the silo's Ed25519 key signs to prove possession when it joins."""
    return canonical.encode(_JOIN_DOMAIN, federation, silo_id, hashlib.sha256(csr_der).digest())


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(PREFIX.encode() + body).digest()[:_CHECKSUM_BYTES]


def _split(body: bytes) -> tuple[list[bytes], bytes]:
    fields: list[bytes] = []
    for _ in range(7):
        if len(body) < _LENGTH.size:
            raise InviteFormatError("the invite has too few fields")
        (length,) = _LENGTH.unpack_from(body)
        end = _LENGTH.size + length
        if len(body) < end:
            raise InviteFormatError("a field of the invite runs past its end")
        fields.append(body[_LENGTH.size : end])
        body = body[end:]
    return fields, body

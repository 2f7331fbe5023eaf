"""A signed head: "my audit log stands at record i, and its digest is d".

Each round the coordinator and every silo leave their newest head with the other. Whoever holds a
head can later show that a log was cut or computed anew: its writer signed that the record was
there, and signs no second record under the same index.

A writer is ``coordinator`` or ``silo/<id>``; no silo id holds a slash, so no head of one is ever
another's. The statement is under a domain of its own (``secagg/canonical.py``), so the signature is
good for nothing else.

Ordered checks of ``require_follows``: an index is never below the newest one seen, and the same
index always has the same digest. Heads belong to a key: a writer with a new key begins a new log.

Covered: signing, verifying, comparing, a JSON file that carries heads from one side to the other.
Not covered: a longer log that does not contain the newest head, which a head alone cannot tell;
``audit verify --heads`` does, over the log itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.audit.lines import ChainHead
from federation.errors import AuditHeadConflictError, AuditHeadError
from secagg import bounds, canonical, suite
from secagg.errors import MalformedMessageError

__all__ = [
    "COORDINATOR",
    "MAX_FILE_BYTES",
    "AuditHead",
    "decode_heads",
    "encode_heads",
    "require_follows",
    "sign_head",
    "silo_writer",
]

COORDINATOR: Final = "coordinator"
MAX_FILE_BYTES: Final = 1 << 20
MAX_INDEX: Final = 2**63 - 1
"""What a database column holds."""
FORMAT: Final = "chorale-audit-heads/1"
_DOMAIN: Final = "chorale/v1/audit-head"
_SILO: Final = "silo/"
_WRITER: Final = re.compile(r"coordinator|silo/[a-z0-9][a-z0-9-]{0,62}")
_UNSIGNED: Final = bytes(bounds.SIGNATURE_BYTES)


def silo_writer(silo_id: str) -> str:
    """Return the name under which a silo's heads are signed."""
    return _SILO + silo_id


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditHead:
    """The newest record of one log, as its writer states it; not verified by being one of these."""

    federation: str
    """Its name."""
    writer: str
    """Whose log: ``coordinator`` or ``silo/<id>``."""
    index: int
    """Of the record, from 0."""
    sha256: bytes
    """Of the record."""
    at_unix_s: int
    """When this was signed."""
    signature: bytes
    """By the writer's Ed25519 key."""

    def __post_init__(self) -> None:
        if _WRITER.fullmatch(self.writer) is None:
            raise AuditHeadError("audit head writer is not a writer's name")
        try:
            bounds.require_name(self.federation, "audit head federation")
            bounds.require_integer(self.index, 0, MAX_INDEX, "audit head index")
            bounds.require_bytes(self.sha256, bounds.DIGEST_BYTES, "audit head sha256")
            bounds.require_integer(self.at_unix_s, 0, MAX_INDEX, "audit head at_unix_s")
            bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "audit head signature")
        except MalformedMessageError as error:
            raise AuditHeadError(str(error)) from error

    def signed_bytes(self) -> bytes:
        """Return what the writer signs."""
        return canonical.encode(
            _DOMAIN, self.federation, self.writer, self.index, self.sha256, self.at_unix_s
        )

    def is_signed_by(self, verification_key: bytes) -> bool:
        """Tell whether this key signed it."""
        return suite.verify(verification_key, self.signature, self.signed_bytes())

    def verify(self, verification_key: bytes) -> None:
        """Go on only with a head that this key signed.

        Raises:
            AuditHeadError: It did not.
        """
        if not self.is_signed_by(verification_key):
            raise AuditHeadError(f"the audit head is not signed by {self.writer}")

    def chain_head(self) -> ChainHead:
        """Return what it says about the log."""
        return ChainHead(index=self.index, sha256=self.sha256.hex())


def sign_head(
    head: ChainHead, *, federation: str, writer: str, at_unix_s: int, key: Ed25519PrivateKey
) -> AuditHead:
    """Sign the head of a log.

    Raises:
        AuditHeadError: The log is empty.
    """
    unsigned = AuditHead(
        federation=federation,
        writer=writer,
        index=head.index,
        sha256=bytes.fromhex(head.sha256),
        at_unix_s=at_unix_s,
        signature=_UNSIGNED,
    )
    return replace(unsigned, signature=suite.sign(key, unsigned.signed_bytes()))


def require_follows(newest: AuditHead | None, head: AuditHead) -> None:
    """Go on only with a head that may come after the newest one seen, or None before the first.

    Both are verified, of one writer and one key.

    Raises:
        AuditHeadConflictError: It is behind, or another one of the same index.
    """
    if newest is None:
        return
    if head.index < newest.index:
        raise AuditHeadConflictError(
            f"the audit log of {head.writer} went back: it stands at record {head.index}, and "
            f"record {newest.index} was signed before"
        )
    if head.index == newest.index and head.sha256 != newest.sha256:
        raise AuditHeadConflictError(
            f"the audit log of {head.writer} forks: record {head.index} is not the one that was "
            "signed before"
        )


def encode_heads(heads: Sequence[AuditHead]) -> bytes:
    """Return a file of heads, for ``audit verify --heads``."""
    rows = [
        {
            "federation": head.federation,
            "writer": head.writer,
            "index": head.index,
            "sha256": head.sha256.hex(),
            "at_unix_s": head.at_unix_s,
            "signature": head.signature.hex(),
        }
        for head in heads
    ]
    return json.dumps({"format": FORMAT, "heads": rows}, indent=2).encode() + b"\n"


def decode_heads(content: bytes) -> tuple[AuditHead, ...]:
    """Read a file of heads; their signatures are for the caller to check.

    Raises:
        AuditHeadError: It is not such a file.
    """
    try:
        if len(content) > MAX_FILE_BYTES:
            raise AuditHeadError("the file is too big for audit heads")
        document = json.loads(content)
        if document["format"] != FORMAT or set(document) != {"format", "heads"}:
            raise AuditHeadError("the file does not hold audit heads of this version")
        return tuple(_head(row) for row in document["heads"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise AuditHeadError("the file does not hold audit heads") from error


def _head(row: dict[str, Any]) -> AuditHead:
    sha256, signature = row["sha256"], row["signature"]
    if not re.fullmatch(r"[0-9a-f]{64}", sha256) or not re.fullmatch(r"[0-9a-f]{128}", signature):
        raise AuditHeadError("a digest or signature in the file is not lower-case hex")
    return AuditHead(
        **{**row, "sha256": bytes.fromhex(sha256), "signature": bytes.fromhex(signature)}
    )

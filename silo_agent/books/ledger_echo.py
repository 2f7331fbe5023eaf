"""The coordinator's echo of this silo's own ledger head, against a ledger that went back in time.

Beside a round task the coordinator shows the newest R0 bundle that this silo signed. The bundle
carries the ledger's head of that moment, which was durable before the bundle left. So a ledger
that does not contain it was restored from an older copy, also where ``state.json``, this silo's
own memory of the head, was restored with it.

Ordered invariants:

1. An echo is believed only under this silo's own signature; the coordinator cannot make one up.
2. With a ledger that lacks the echoed head this silo works on nothing and says "ledger".

Covered: rollback of ledger and memory together. Not covered: a coordinator that leaves the echo
out; then the peers notice (``silo_agent/books/peer_heads.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp.errors import LedgerRolledBackError
from dp.ledger.ledger import Ledger
from secagg import suite
from secagg.descriptor import AggregationId
from secagg.errors import Check, VerificationError
from secagg.messages import KeyBundle
from silo_agent.books.ledger_names import identity_name
from silo_agent.policy.refusal import ledger_rolled_back

__all__ = ["LedgerEcho", "require_echoed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEcho:
    """A ledger head that this silo signed, as the coordinator kept it."""

    identity: AggregationId
    """The aggregation it was signed for."""
    bundle: KeyBundle
    """The signed bundle, which carries the head."""
    descriptor_sha256: bytes
    """Of that aggregation's descriptor; the signature covers it."""


def require_echoed(
    ledger: Ledger, echo: LedgerEcho | None, *, silo_id: str, signing_key: Ed25519PrivateKey
) -> None:
    """Go on only if the ledger contains the head that this silo is known to have signed.

    Args:
        ledger: This silo's.
        echo: What the coordinator shows; None if it never saw a bundle of this silo.
        silo_id: This silo.
        signing_key: Of this silo.

    Raises:
        VerificationError: ledger_head: the echo is not of this silo's making.
        PolicyRefusalError: the ledger was rolled back.
    """
    if echo is None:
        return
    bundle = echo.bundle
    own_key = suite.verification_key(signing_key)
    signed_bytes = bundle.signed_bytes(echo.descriptor_sha256)
    if bundle.silo_id != silo_id or not suite.verify(own_key, bundle.signature, signed_bytes):
        raise VerificationError(
            Check.LEDGER_HEAD, "the echoed ledger head is not signed by this silo"
        )
    try:
        ledger.require_contains(bundle.ledger_seq, bundle.ledger_sha256)
    except LedgerRolledBackError as error:
        raise ledger_rolled_back(
            f"this silo signed ledger record {bundle.ledger_seq} for "
            f"{identity_name(echo.identity)}, and privacy.ledger does not contain it ({error}): "
            "stop the silo, put the newest copy of privacy.ledger and state.json back, start it"
        ) from error

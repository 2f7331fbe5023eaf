"""A ledger head that a peer signed, and its form in ``state.json``.

Invariants: what is read back is what was written, or an error; nothing is filled in.

Covered: the fields. Not covered: comparing heads (``silo_agent/books/peer_heads.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from secagg.descriptor import AggregationId
from secagg.errors import MalformedMessageError

__all__ = ["PeerHead"]

_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerHead:
    """The highest ledger head that a peer has signed."""

    verification_key: bytes
    """The key it signed with; a silo that enrolled anew has another key and another ledger."""
    seq: int
    """Sequence number of the record."""
    sha256: bytes
    """Its digest."""
    identity: AggregationId
    """The aggregation it was signed for; the signature covers it."""
    rolled_back: bool = False
    """Whether this peer has signed what no one ledger can hold."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PeerHead:
        """Read one back.

        Raises:
            KeyError: A field is missing.
            ValueError: One is damaged.
        """
        return cls(
            verification_key=_digest(state["verification_key"]),
            seq=int(state["seq"]),
            sha256=_digest(state["sha256"]),
            identity=_identity(state["identity"]),
            rolled_back=state["rolled_back"] is not False,
        )

    def to_state(self) -> dict[str, Any]:
        """As JSON."""
        place = self.identity
        return {
            "verification_key": self.verification_key.hex(),
            "seq": self.seq,
            "sha256": self.sha256.hex(),
            "identity": {
                "run": place.run_id,
                "round": place.round,
                "step": place.step,
                "part": place.part,
                "attempt": place.attempt,
            },
            "rolled_back": self.rolled_back,
        }


def _identity(place: Mapping[str, Any]) -> AggregationId:
    try:
        return AggregationId(
            run_id=place["run"],
            round=place["round"],
            step=place["step"],
            part=place["part"],
            attempt=place["attempt"],
        )
    except MalformedMessageError as error:
        raise ValueError("no aggregation has this name") from error


def _digest(value: str) -> bytes:
    digest = bytes.fromhex(value)
    if len(digest) != _DIGEST_BYTES:
        raise ValueError("not 32 bytes")
    return digest

"""R3 at the coordinator: gather signatures on the survivor set.

Once this state exists the attempt can only be finished or the round skipped: a silo that has signed
refuses every later attempt of the same sum.
"""

from collections.abc import Mapping

from secagg.errors import Check
from secagg.messages import (
    ConsistencySignature,
    ConsistencySignatures,
    agreement_bytes,
)
from secagg.server.collect_unmasking import CollectUnmasking
from secagg.server.dealt import Dealt
from secagg.server.state import Aggregation, ServerState
from secagg.transcript import Members
from secagg.verification import check_signature


class CollectConsistency(ServerState[ConsistencySignature]):
    """Waits for the signature of each survivor; t are enough."""

    __slots__ = ("_dealt", "_members", "_rejected", "_survivors", "_survivors_sha256")

    def __init__(
        self,
        aggregation: Aggregation,
        members: Members,
        rejected: Mapping[str, tuple[str, ...]],
        survivors_sha256: bytes,
        dealt: Dealt,
    ) -> None:
        super().__init__(aggregation, rejected)
        self._members = members
        # Whose pair secrets each survivor masked without.
        self._rejected = rejected
        self._survivors = tuple(rejected)
        self._survivors_sha256 = survivors_sha256
        self._dealt = dealt

    @property
    def survivors(self) -> tuple[str, ...]:
        """U3."""
        return self._survivors

    @property
    def _needed(self) -> int:
        return self._aggregation.parameters.t

    def receive(self, message: ConsistencySignature) -> bool:
        """Take one signature, and say whether it is new.

        Raises:
            UnexpectedMessageError: The state is closed.
            VerificationError: sender, duplicate or agreement_signatures.
        """
        if self._is_repeat(message.silo_id, message):
            return False
        agreed = agreement_bytes(self._members.ctx, self._members.sha256, self._survivors_sha256)
        check_signature(
            self._aggregation.roster,
            message.silo_id,
            message.signature,
            agreed,
            Check.AGREEMENT_SIGNATURES,
        )
        self._received[message.silo_id] = message
        return True

    def close(self) -> tuple[CollectUnmasking, ConsistencySignatures]:
        """Pass the signatures on.

        Raises:
            VerificationError: agreement_size.
        """
        signatures = tuple(self._close(Check.AGREEMENT_SIZE).values())
        following = CollectUnmasking(
            self._aggregation,
            self._members,
            self._rejected,
            self._survivors_sha256,
            self._dealt,
        )
        return following, ConsistencySignatures(signatures=signatures)

"""R1 at the coordinator: gather encrypted shares, then hand each silo what was dealt to it."""

from collections.abc import Mapping

from secagg import transcript
from secagg.errors import Check
from secagg.messages import BoxDelivery, KeyBundle, LeafDelivery, ShareBoxes, ShareLeaves
from secagg.server.boxes import Boxes
from secagg.server.collect_masked_inputs import CollectMaskedInputs
from secagg.server.dealt import Dealt
from secagg.server.leaves import Leaves
from secagg.server.state import Aggregation, ServerState


class CollectShares(ServerState[ShareBoxes | ShareLeaves]):
    """Waits for the boxes of each silo of U1, in suite v2 for its leaves."""

    __slots__ = ("_ctx", "_dealt")

    def __init__(
        self, aggregation: Aggregation, ctx: bytes, bundles: tuple[KeyBundle, ...]
    ) -> None:
        super().__init__(aggregation, [bundle.silo_id for bundle in bundles])
        self._ctx = ctx
        dealt = Leaves if aggregation.descriptor.is_hybrid else Boxes
        self._dealt: Dealt = dealt(aggregation, ctx, {bundle.silo_id: bundle for bundle in bundles})

    @property
    def ctx(self) -> bytes:
        """Context of the aggregation."""
        return self._ctx

    def receive(self, message: ShareBoxes | ShareLeaves) -> bool:
        """Take what one silo deals, and say whether it is new.

        Raises:
            UnexpectedMessageError: The state is closed.
            VerificationError: sender, duplicate, suite, share_signature or share_recipients; in
                suite v2 leaf_count or leaf too.
        """
        if self._is_repeat(message.sender, message):
            return False
        self._dealt.check(message)
        self._received[message.sender] = message
        return True

    def close(self) -> tuple[CollectMaskedInputs, Mapping[str, BoxDelivery | LeafDelivery]]:
        """Fix U2, and give each silo of it every signed header with what was dealt to it.

        Raises:
            VerificationError: shares_size.
        """
        deliveries = self._dealt.deliver(self._close(Check.SHARES_SIZE))
        members = transcript.members(self._ctx, self._dealt.headers.values())
        return CollectMaskedInputs(self._aggregation, members, self._dealt), deliveries

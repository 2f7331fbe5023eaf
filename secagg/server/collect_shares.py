"""R1 at the coordinator: gather encrypted shares, then hand each silo its boxes."""

from collections.abc import Mapping

from secagg import transcript
from secagg.errors import Check
from secagg.messages import BoxDelivery, KeyBundle, ShareBoxes
from secagg.server.collect_masked_inputs import CollectMaskedInputs
from secagg.server.state import Aggregation, ServerState
from secagg.verification import check_share_header


class CollectShares(ServerState[ShareBoxes]):
    """Waits for the boxes of each silo of U1."""

    __slots__ = ("_bundles", "_ctx")

    def __init__(
        self, aggregation: Aggregation, ctx: bytes, bundles: tuple[KeyBundle, ...]
    ) -> None:
        super().__init__(aggregation, [bundle.silo_id for bundle in bundles])
        self._ctx = ctx
        self._bundles = bundles

    @property
    def ctx(self) -> bytes:
        """Context of the aggregation."""
        return self._ctx

    def receive(self, message: ShareBoxes) -> bool:
        """Take one silo's boxes, and say whether they are new.

        Raises:
            UnexpectedMessageError: The state is closed.
            VerificationError: sender, duplicate, share_signature or share_recipients.
        """
        if self._is_repeat(message.sender, message):
            return False
        check_share_header(self._aggregation.roster, self._ctx, message.header(), self._expected)
        self._received[message.sender] = message
        return True

    def close(self) -> tuple[CollectMaskedInputs, Mapping[str, BoxDelivery]]:
        """Fix U2, and give each silo of it every header with its own boxes.

        Raises:
            VerificationError: shares_size.
        """
        received = self._close(Check.SHARES_SIZE)
        headers = {sender: message.header() for sender, message in received.items()}
        boxes = {
            (sender, box.recipient): box.ciphertext
            for sender, message in received.items()
            for box in message.boxes
        }
        ordered = tuple(headers.values())
        deliveries = {
            silo_id: BoxDelivery(
                headers=ordered,
                ciphertexts={
                    sender: boxes[sender, silo_id] for sender in received if sender != silo_id
                },
            )
            for silo_id in received
        }
        following = CollectMaskedInputs(
            self._aggregation,
            transcript.members(self._ctx, ordered),
            {bundle.silo_id: bundle.mask_key for bundle in self._bundles},
            headers,
        )
        return following, deliveries

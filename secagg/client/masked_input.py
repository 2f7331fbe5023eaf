"""R2: mask the vector in place and sign what will be uploaded.

y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(k_ij) - Σ_{j<i} PRG(k_ij) mod 2^32 over the peers j of U2
(Bonawitz et al. 2017 §4). The caller has put the encoded, noised vector into the buffer. The mask
keys and b_i are erased here: a vector can be masked once.

The order that the silo daemon must keep: the durable "spent" mark and the privacy debit come before
the first byte of the masked vector leaves.
"""

import hashlib
from dataclasses import replace

from secagg import prg, suite
from secagg.client.consistency_check import ConsistencyCheck
from secagg.client.setup import Membership
from secagg.client.state import ClientState, RejectedSender
from secagg.client.vault import Vault
from secagg.errors import ParameterError
from secagg.messages import MaskedInputHeader
from secagg.prg import DEFAULT_THREADS, TILE_WORDS, Mask, MaskStreams, Vector
from secagg.transcript import Members


class MaskedInput(ClientState):
    """Holds b_i, the pairwise mask keys, and the shares received."""

    __slots__ = ("_members", "_rejected")

    def __init__(
        self,
        membership: Membership,
        vault: Vault,
        members: Members,
        rejected: tuple[RejectedSender, ...],
    ) -> None:
        super().__init__(membership, vault)
        self._members = members
        self._rejected = rejected

    @property
    def rejected(self) -> tuple[RejectedSender, ...]:
        """The senders whose boxes were corrupt, with the check that failed."""
        return self._rejected

    @property
    def words(self) -> int:
        """Length of the vector to mask."""
        return self._membership.descriptor.words

    @property
    def ctx(self) -> bytes:
        """Context of the aggregation, which the durable "spent" record names."""
        return self._members.ctx

    def handle(self, message: object) -> None:
        """Refuse every message: the next step is `mask`."""
        self._require_live(message)
        raise self._unexpected(message)

    def mask(self, vector: Vector) -> tuple[ConsistencyCheck, MaskedInputHeader]:
        """Mask the vector in place, tile by tile, and sign the statement of the upload.

        The vector holds exactly `words` ring elements, little-endian uint32.

        Raises:
            UnexpectedMessageError: This state is over.
            ParameterError: The vector has another dtype, layout or length; nothing changed.
        """
        self._require_live(vector)
        prg.check_vector(vector, self.words)
        with self._acting():
            sha256 = self._mask(vector)
            unsigned = MaskedInputHeader(
                silo_id=self.silo_id,
                length_bytes=vector.nbytes,
                masked_sha256=sha256,
                signature=bytes(64),
            )
            signed_bytes = unsigned.signed_bytes(self._members.ctx, self._members.sha256)
            header = replace(unsigned, signature=self._membership.sign(signed_bytes))
            self._vault.wipe("own_seed", "mask")
            following = ConsistencyCheck(self._membership, self._vault, self._members, header)
        return following, header

    def _mask(self, vector: Vector) -> bytes:
        own = self.silo_id
        seed = self._vault.get("own_seed", own)
        masks = [Mask(key=suite.derive_key(seed, "self", self._members.ctx, own), sign=1)]
        masks += [
            Mask(key=bytes(self._vault.get("mask", peer)), sign=1 if peer > own else -1)
            for peer in self._members.silo_ids
            if peer != own
        ]
        if len({mask.key for mask in masks}) != len(masks):
            raise ParameterError("two masks share a key")
        masked = hashlib.sha256()
        with MaskStreams(masks, words=vector.size, threads=DEFAULT_THREADS) as streams:
            for start in range(0, vector.size, TILE_WORDS):
                tile = vector[start : start + TILE_WORDS]
                streams.apply(tile)
                masked.update(tile.data)
        return masked.digest()

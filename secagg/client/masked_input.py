"""R2: mask the vector in place and sign what will be uploaded.

y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(k_ij) - Σ_{j<i} PRG(k_ij) mod 2^32 over the peers j of U2
(Bonawitz et al. 2017 §4), in suite v2 less those whose pair secret was no good. The caller has put
the encoded, noised vector into the buffer. The mask keys and b_i are erased here: a vector can be
masked once.

The order that the silo daemon must keep: the durable "spent" mark and the privacy debit come before
the first byte of the masked vector leaves.
"""

import hashlib
from dataclasses import replace
from typing import Protocol

from secagg import digest_tree, hybrid, prg, suite
from secagg.client.consistency_check import ConsistencyCheck
from secagg.client.peers import Peers
from secagg.client.setup import Membership
from secagg.client.state import ClientState, RejectedSender
from secagg.client.vault import Vault
from secagg.errors import ParameterError
from secagg.messages import DebitHead, MaskedInputHeader
from secagg.prg import DEFAULT_THREADS, TILE_WORDS, Mask, MaskStreams, Vector
from secagg.transcript import Members


class MaskedInput(ClientState):
    """Holds b_i, the pairwise mask keys, and the shares received."""

    __slots__ = ("_members", "_peers", "_rejected")

    def __init__(
        self,
        membership: Membership,
        vault: Vault,
        members: Members,
        rejected: tuple[RejectedSender, ...],
        peers: Peers | None = None,
    ) -> None:
        super().__init__(membership, vault)
        self._members = members
        self._rejected = rejected
        # In suite v2.
        self._peers = peers

    @property
    def rejected(self) -> tuple[RejectedSender, ...]:
        """The senders whose boxes or pair secrets were corrupt, with the check that failed."""
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

    def mask(
        self, vector: Vector, debit: DebitHead | None = None
    ) -> tuple[ConsistencyCheck, MaskedInputHeader]:
        """Mask the vector in place, tile by tile, and sign the statement of the upload.

        The vector holds exactly `words` ring elements, little-endian uint32. `debit` is the record
        that charged this attempt, in suite v2 alone.

        Raises:
            UnexpectedMessageError: This state is over.
            ParameterError: The vector has another dtype, layout or length, or there is a charge in
                suite v1, or in suite v2 none that is newer than the ledger of R0; nothing changed.
        """
        self._require_live(vector)
        prg.check_vector(vector, self.words)
        self._check_debit(debit)
        peers = self._peers
        with self._acting():
            digest, leaves = self._mask(vector)
            unsigned = MaskedInputHeader(
                silo_id=self.silo_id,
                length_bytes=vector.nbytes,
                masked_sha256=digest,
                signature=bytes(64),
                debit=debit,
                rejected=() if peers is None else peers.rejected,
            )
            signed_bytes = unsigned.signed_bytes(self._members.ctx, self._members.sha256)
            header = replace(unsigned, signature=self._membership.sign(signed_bytes))
            self._vault.wipe("own_seed", "mask")
            following = ConsistencyCheck(
                self._membership, self._vault, self._members, header, peers=peers, leaves=leaves
            )
        return following, header

    def _check_debit(self, debit: DebitHead | None) -> None:
        if self._peers is None:
            if debit is not None:
                raise ParameterError("an upload of suite v1 names no charge")
            return
        if debit is None or debit.seq <= self._peers.bundles[self.silo_id].ledger_seq:
            raise ParameterError("an upload names the charge that came after the ledger of R0")

    def _mask(self, vector: Vector) -> tuple[bytes, bytes]:
        """Return the digest of the masked vector, and the leaves that it is the root of."""
        masks = self._masks()
        if len({mask.key for mask in masks}) != len(masks):
            raise ParameterError("two masks share a key")
        if self._peers is None:
            masked = hashlib.sha256()
            self._apply(vector, masks, masked)
            return masked.digest(), b""
        digest_id = self._membership.descriptor.digest_id
        with digest_tree.TreeHasher(vector.nbytes, digest_id) as tree:
            self._apply(vector, masks, tree)
            return tree.root(), tree.leaves()

    def _masks(self) -> list[Mask]:
        own, ctx = self.silo_id, self._members.ctx
        seed = self._vault.get("own_seed", own)
        if self._peers is None:
            rejected: tuple[str, ...] = ()
            key = suite.derive_key(seed, "self", ctx, own)
        else:
            rejected = self._peers.rejected
            key = hybrid.self_mask_key(seed, ctx, own)
        return [Mask(key=key, sign=1)] + [
            Mask(key=bytes(self._vault.get("mask", peer)), sign=1 if peer > own else -1)
            for peer in self._members.silo_ids
            if peer != own and peer not in rejected
        ]

    def _apply(self, vector: Vector, masks: list[Mask], digest: "_Digest") -> None:
        with MaskStreams(masks, words=vector.size, threads=DEFAULT_THREADS) as streams:
            for start in range(0, vector.size, TILE_WORDS):
                tile = vector[start : start + TILE_WORDS]
                streams.apply(tile)
                digest.update(tile.data)


class _Digest(Protocol):
    def update(self, piece: memoryview, /) -> None: ...

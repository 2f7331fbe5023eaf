"""The last step: take the masks off the accumulated sum.

What is left is Σ_{i ∈ U3} x_i mod 2^32: the pairwise masks between survivors cancel in the sum, the
self masks of U3 and the pairwise masks towards U2 less U3 are subtracted here.
"""

from dataclasses import dataclass, field

from secagg import prg
from secagg.prg import DEFAULT_THREADS, TILE_WORDS, Mask, MaskStreams, Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmasking:
    """The recovered masks of one aggregation."""

    masks: tuple[Mask, ...] = field(repr=False)
    # Length of the accumulator.
    words: int
    # U3.
    survivors: tuple[str, ...]
    # Silos that sent shares with a wrong hash.
    rejected_senders: tuple[str, ...]
    # Silos that dealt shares which lie on no one polynomial.
    inconsistent_dealers: tuple[str, ...]
    # Silos that dealt a pair secret which is not the signed one, or does not follow from their
    # seed; its mask came off with a survivor's word for it.
    bad_pair_dealers: tuple[str, ...] = ()

    def apply(self, accumulator: Vector, *, threads: int = DEFAULT_THREADS) -> None:
        """Subtract every mask from the accumulator in place, tile by tile.

        The accumulator is Σ y_i mod 2^32 over U3, little-endian uint32, and may be a memory map.
        `threads` threads make keystreams, the caller's included.

        Raises:
            ParameterError: Another dtype, layout or length; nothing changed.
        """
        prg.check_vector(accumulator, self.words)
        with MaskStreams(self.masks, words=self.words, threads=threads) as streams:
            # In tiles, so that one is used while the next are made.
            for start in range(0, self.words, TILE_WORDS):
                streams.apply(accumulator[start : start + TILE_WORDS])

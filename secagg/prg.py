"""Masks: AES-256-CTR keystreams (zero IV) added to a ring vector in place.

One key makes one keystream for one aggregation, so the zero IV never repeats under a key. The
vector holds elements of Z_2^32 as little-endian uint32; numpy's unsigned addition wraps, which is
the ring. Work goes tile by tile with all keystreams inside a tile, so that the vector passes
through the cache once whatever the number of masks, and memory beyond the vector is one tile.

Covered: whole vectors (``add_keystream``) and streams of consecutive tiles (``MaskStreams``).
Not covered: seeking inside a keystream; threads.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.errors import ParameterError

TILE_BYTES: Final = 256 * 1024
WORD_BYTES: Final = 4
TILE_WORDS: Final = TILE_BYTES // WORD_BYTES
_RING_DTYPE: Final = np.dtype("<u4")
_ZEROS: Final = memoryview(bytes(TILE_BYTES))
_ZERO_IV: Final = bytes(16)
# update_into asks for a block less one byte beyond the output.
_SLACK_BYTES: Final = 15

Vector = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mask:
    """One keystream and how it enters the vector."""

    # AES-256 key, 32 bytes.
    key: bytes = field(repr=False)
    # +1 adds the keystream, -1 subtracts it.
    sign: int

    def __post_init__(self) -> None:
        if len(self.key) != 32 or self.sign not in (1, -1):
            raise ParameterError("a mask is a 32-byte key and a sign of +1 or -1")


def check_vector(vector: Vector, words: int | None = None) -> None:
    """Refuse a vector that cannot be masked in place.

    Raises:
        ParameterError: Another dtype, shape, layout or length.
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != _RING_DTYPE or vector.ndim != 1:
        raise ParameterError("the vector is not one-dimensional little-endian uint32")
    if not vector.flags.c_contiguous or not vector.flags.writeable:
        raise ParameterError("the vector is not contiguous and writeable")
    if words is not None and vector.size != words:
        raise ParameterError(f"the vector has {vector.size} coordinates, not {words}")


class MaskStreams:
    """Several keystreams that advance together along a vector.

    Feed consecutive pieces to `apply`; together they are masked as the whole vector would be.
    """

    __slots__ = ("_scratch", "_streams", "_view")

    def __init__(self, masks: Iterable[Mask]) -> None:
        self._streams = [
            (Cipher(algorithms.AES(mask.key), modes.CTR(_ZERO_IV)).encryptor(), mask.sign)
            for mask in masks
        ]
        self._scratch = bytearray(TILE_BYTES + _SLACK_BYTES)
        self._view = np.frombuffer(self._scratch, dtype=_RING_DTYPE, count=TILE_WORDS)

    def __repr__(self) -> str:
        return f"MaskStreams({len(self._streams)} keystreams)"

    def apply(self, piece: Vector) -> None:
        """Mask the next piece of the vector in place."""
        check_vector(piece)
        for start in range(0, piece.size, TILE_WORDS):
            tile = piece[start : start + TILE_WORDS]
            zeros = _ZEROS[: tile.size * WORD_BYTES]
            keystream = self._view[: tile.size]
            for encryptor, sign in self._streams:
                encryptor.update_into(zeros, self._scratch)
                if sign > 0:
                    np.add(tile, keystream, out=tile)
                else:
                    np.subtract(tile, keystream, out=tile)

    def close(self) -> None:
        """Drop the keystreams and overwrite the last tile of output."""
        self._streams.clear()
        self._view.fill(0)


def add_keystream(key: bytes, vector: Vector, sign: int) -> None:
    """Add (sign +1) or subtract (sign -1) one whole keystream to the vector in place."""
    streams = MaskStreams([Mask(key=key, sign=sign)])
    streams.apply(vector)
    streams.close()

"""Masks: AES-256-CTR keystreams added to a ring vector in place.

One key makes one keystream for one aggregation, so the zero IV never repeats under a key. The
vector holds elements of Z_2^32 as little-endian uint32; numpy's unsigned addition wraps, which is
the ring. Work goes tile by tile with all keystreams inside a tile, so that the vector passes
through the cache once whatever the number of masks, and memory beyond the vector is O(tiles).

Keystreams do not depend on the data. With more than one thread, `MaskStreams` therefore makes the
sum of the keystreams for the tiles ahead while its caller encodes, hashes or writes the tile at
hand; a caller that has to wait for a tile makes one itself. Threads take tiles in order and seek:
byte p of a keystream is in the cipher block of counter ⌊p/16⌋ (NIST SP 800-38A §6.5), which is the
IV a thread starts that tile from. The result is the same for any number of threads.

Covered: whole vectors (``add_keystream``) and streams of consecutive pieces (``MaskStreams``).
Not covered: resuming in the middle of a vector.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.errors import ParameterError
from secagg.tiles_ahead import TilesAhead

WORD_BYTES: Final = 4
# What one call of the cipher fills: with the zeros it encrypts and the tile it is added to, this
# stays inside a second-level cache.
BLOCK_BYTES: Final = 256 * 1024
BLOCK_WORDS: Final = BLOCK_BYTES // WORD_BYTES
# Longer additions read a vector that is not in the cache faster than short ones.
TILE_BYTES: Final = 4 * BLOCK_BYTES
TILE_WORDS: Final = TILE_BYTES // WORD_BYTES
# A second thread nearly halves the time; more compete for memory and for the silo's training.
DEFAULT_THREADS: Final = min(2, os.cpu_count() or 1)
_AES_BLOCK_BYTES: Final = 16
_RING_DTYPE: Final = np.dtype("<u4")
_ZEROS: Final = memoryview(bytes(BLOCK_BYTES))
_ZERO_IV: Final = bytes(_AES_BLOCK_BYTES)
# update_into asks for a block less one byte beyond the output.
_SLACK_BYTES: Final = _AES_BLOCK_BYTES - 1

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


class _Keystreams:
    """The ciphers of one thread, with a buffer for what they put out."""

    __slots__ = ("_ciphers", "_output", "_words")

    def __init__(self, masks: tuple[Mask, ...], room_words: int) -> None:
        self._ciphers = [
            (Cipher(algorithms.AES(mask.key), modes.CTR(_ZERO_IV)).encryptor(), mask.sign)
            for mask in masks
        ]
        self._output = memoryview(bytearray(room_words * WORD_BYTES + _SLACK_BYTES))
        self._words = np.frombuffer(self._output, dtype=_RING_DTYPE, count=room_words)

    def seek(self, word: int) -> None:
        """Go to a word at the start of a cipher block."""
        counter = word * WORD_BYTES // _AES_BLOCK_BYTES
        for cipher, _ in self._ciphers:
            cipher.reset_nonce(counter.to_bytes(_AES_BLOCK_BYTES, "big"))

    def add_next(self, tile: Vector) -> None:
        """Add every keystream's next words to a tile, which has no more words than the buffer."""
        output, keystream = self._output, self._words[: tile.size]
        starts = range(0, tile.nbytes, BLOCK_BYTES)
        calls = [
            (_ZEROS[: tile.nbytes - start], output[start : start + BLOCK_BYTES + _SLACK_BYTES])
            for start in starts
        ]
        for cipher, sign in self._ciphers:
            for zeros, room in calls:
                cipher.update_into(zeros, room)
            if sign > 0:
                np.add(tile, keystream, out=tile)
            else:
                np.subtract(tile, keystream, out=tile)

    def wipe(self) -> None:
        """Drop the ciphers and overwrite what they put out last."""
        self._ciphers.clear()
        self._words.fill(0)


class MaskStreams:
    """Several keystreams that advance together along a vector.

    Feed consecutive pieces to `apply`; together they are masked as the whole vector would be. Close
    it, or use it as a context, so that its threads end and its buffers are overwritten.

    `words` is the length of the whole vector, needed for more than one thread, so that nothing is
    made beyond the end. `threads` threads make keystreams, the caller's included.
    """

    __slots__ = ("_ahead", "_count", "_position", "_streams", "_words")

    def __init__(
        self, masks: Iterable[Mask], *, words: int | None = None, threads: int = 1
    ) -> None:
        self._position = 0
        self._words = words
        listed = tuple(masks)
        self._count = len(listed)
        self._streams: _Keystreams | None = None
        self._ahead: TilesAhead | None = None
        if threads > 1 and words is not None and words > BLOCK_WORDS and listed:
            self._ahead = TilesAhead(
                [_Keystreams(listed, BLOCK_WORDS) for _ in range(threads)],
                words=words,
                tile_words=BLOCK_WORDS,
            )
        else:
            room = TILE_WORDS if words is None else min(words, TILE_WORDS)
            self._streams = _Keystreams(listed, room)

    def __repr__(self) -> str:
        return f"MaskStreams({self._count} keystreams)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def apply(self, piece: Vector) -> None:
        """Mask the next piece of the vector in place.

        Raises:
            ParameterError: Another dtype or layout, a piece beyond the end, or after `close`;
                nothing changed.
        """
        check_vector(piece)
        if self._words is not None and self._position + piece.size > self._words:
            raise ParameterError(f"a piece runs past the vector's {self._words} coordinates")
        if self._ahead is not None:
            self._ahead.add_next(piece)
        elif self._streams is not None:
            for start in range(0, piece.size, TILE_WORDS):
                self._streams.add_next(piece[start : start + TILE_WORDS])
        else:
            raise ParameterError("these keystreams were closed")
        self._position += piece.size

    def close(self) -> None:
        """End the threads, drop the keystreams and overwrite their output; idempotent."""
        if self._ahead is not None:
            self._ahead.close()
        if self._streams is not None:
            self._streams.wipe()
        self._ahead = self._streams = None
        self._count = 0


def add_keystream(key: bytes, vector: Vector, sign: int) -> None:
    """Add (sign +1) or subtract (sign -1) one whole keystream to the vector in place."""
    with MaskStreams([Mask(key=key, sign=sign)]) as streams:
        streams.apply(vector)

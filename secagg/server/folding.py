"""Adding an upload to the sum, and hashing the very bytes that are added.

A digest is most of what a fold costs, and it releases the interpreter: a second thread hashes one
tile while this one adds it and the caller reads the next. Chunks that were checked against their
leaves before are added without.

Covered: uploads in memory, memory-mapped, or read tile by tile. Not covered: what to do with an
upload whose digest is not the signed one; it is in the sum by then, so the caller keeps the sum
before.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from secagg import prg
from secagg.errors import ParameterError
from secagg.prg import DEFAULT_THREADS, Vector

_RING_DTYPE: Final = np.dtype("<u4")
Masked = npt.NDArray[np.uint32]


class Hasher(Protocol):
    """A digest that takes bytes piece by piece, as hashlib's."""

    def update(self, piece: memoryview, /) -> None:
        """Take the next bytes."""

    def digest(self) -> bytes:
        """The digest of all of them."""


class Fold:
    """One upload on its way into the sum; a context, so that its thread ends.

    ``hasher`` takes the bytes that are added; without one they are only added.
    """

    __slots__ = ("_executor", "_hasher", "_hashing")

    def __init__(self, hasher: Hasher | None, *, threads: int = DEFAULT_THREADS) -> None:
        self._hasher = hasher
        self._executor = ThreadPoolExecutor(1) if hasher is not None and threads > 1 else None
        self._hashing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown()

    def add(self, total: Vector, masked: Masked) -> None:
        """Add the upload's next tile to the sum's, in place.

        The upload's must stay as it is until the next call.

        Raises:
            ParameterError: Another dtype, layout or length; nothing changed.
        """
        prg.check_vector(total)
        if masked.dtype != _RING_DTYPE or masked.shape != total.shape:
            raise ParameterError(f"an upload's tile is not {total.size} little-endian uint32")
        if not masked.flags.c_contiguous:
            raise ParameterError("an upload is not contiguous")
        self._settle()
        if self._hasher is not None and self._executor is not None:
            self._hashing = self._executor.submit(self._hasher.update, masked.data)
        elif self._hasher is not None:
            self._hasher.update(masked.data)
        np.add(total, masked, out=total)

    def digest(self) -> bytes | None:
        """The digest of all tiles; None if nothing hashes them."""
        self._settle()
        return None if self._hasher is None else self._hasher.digest()

    def _settle(self) -> None:
        hashing, self._hashing = self._hashing, None
        if hashing is not None:
            hashing.result()

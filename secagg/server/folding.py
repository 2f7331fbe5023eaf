"""Adding an upload to the sum, and hashing the very bytes that are added.

SHA-256 is most of what a fold costs, and it releases the interpreter: a second thread hashes one
tile while this one adds it and the caller reads the next.

Covered: uploads in memory, memory-mapped, or read tile by tile. Not covered: what to do with an
upload whose digest is not the signed one; it is in the sum by then, so the caller keeps the sum
before.
"""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from secagg import prg
from secagg.errors import ParameterError
from secagg.prg import DEFAULT_THREADS, Vector

_RING_DTYPE: Final = np.dtype("<u4")
Masked = npt.NDArray[np.uint32]


class Fold:
    """One upload on its way into the sum; a context, so that its thread ends."""

    __slots__ = ("_digest", "_executor", "_hashing")

    def __init__(self, *, threads: int = DEFAULT_THREADS) -> None:
        self._digest = hashlib.sha256()
        self._executor = ThreadPoolExecutor(1) if threads > 1 else None
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
        if self._executor is None:
            self._digest.update(masked.data)
        else:
            self._hashing = self._executor.submit(self._digest.update, masked.data)
        np.add(total, masked, out=total)

    def sha256(self) -> bytes:
        """The digest of all tiles so far."""
        self._settle()
        return self._digest.digest()

    def _settle(self) -> None:
        hashing, self._hashing = self._hashing, None
        if hashing is not None:
            hashing.result()

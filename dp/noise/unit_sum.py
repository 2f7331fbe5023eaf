"""The sum of clipped unit vectors, as integers that only noise may join.

    UnitSum = Σ_u enc(g_u) mod 2³²    enc: clip to C, round to Δ steps, Σq² ≤ Δ² (``dp.noise.grid``)

Invariants:
    1. One unit moves the sum by at most Δ in L2, over the integers and therefore modulo 2³² too:
       adding N_Z(0, (zΔ)²) before the reduction is the same as adding it after.
    2. A vector with a NaN or an infinity counts as a unit and contributes nothing. What the others
       contribute does not change by a bit, and neither does the order of adding matter.
    3. At most ``max_units`` vectors are added; one more raises and ends the sum.
    4. Without noise the sum is never shown: it has no way to floats, no copy and no printed form.
       It can be added once, to ring elements that hold noise already.
    5. A norm that is too long after all ends the sum: it holds zeros then and takes no more.

Covered: sensitivity and count. Not covered: who is sampled (``dp.steps.units``), noise and receipt
(``dp.noise.share``, ``dp.steps.sgd``), the ring's width, which does not bear on privacy
(``dp.noise.share.no_wrap``).
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from dp.errors import NonFiniteError, ReceiptError, SpecError, TooManyUnitsError
from dp.noise.grid import Grid

__all__ = ["UnitSum"]


class UnitSum:
    """Clipped unit vectors of one step, added up."""

    __slots__ = ("_buffer", "_grid", "_max_units", "_null_units", "_units")

    def __init__(self, grid: Grid, *, max_units: int) -> None:
        """Start with nothing, on a grid of one unit's C, Δ and d, for at most B_max units.

        Raises:
            SpecError: If ``max_units`` is not a positive integer.
        """
        if isinstance(max_units, bool) or not isinstance(max_units, int) or max_units < 1:
            raise SpecError(f"a sum holds a positive number of units, got {max_units!r}")
        self._grid = grid
        self._max_units = max_units
        self._units = 0
        self._null_units = 0
        self._buffer: npt.NDArray[np.uint32] | None = np.zeros(grid.dimension, dtype=np.uint32)

    @property
    def grid(self) -> Grid:
        """C, Δ and d of one unit's vector."""
        return self._grid

    @property
    def max_units(self) -> int:
        """Most units that may be added."""
        return self._max_units

    @property
    def null_units(self) -> int:
        """Vectors that were not finite and contributed nothing; never leaves the silo."""
        return self._null_units

    def add(self, vector: npt.NDArray[np.floating]) -> None:
        """Clip one unit's vector and add it; float32 is the fast path.

        Raises:
            SpecError: If it has another length or is not float.
            TooManyUnitsError: If ``max_units`` were added already; the sum is over.
            NormExceededError: If the integers are too long after all; the sum is over.
            ReceiptError: If the sum is over or was used.
        """
        buffer = self._open()
        if self._units >= self._max_units:
            self._close()
            raise TooManyUnitsError(f"a sum of at most {self._max_units} units was given one more")
        try:
            fitted = self._grid.fit(vector)
        except NonFiniteError:
            self._units += 1
            self._null_units += 1
            return
        try:
            fitted.add_into(buffer)
        except BaseException:
            # Also on an interrupt: the buffer lost what was in it and must not pass for a sum.
            self._close()
            raise
        self._units += 1

    def add_to(self, out: npt.NDArray[np.uint32]) -> None:
        """Add the sum to d ring elements, noise included, modulo 2³², once; it is empty afterwards.

        Raises:
            SpecError: If ``out`` has another length or type.
            ReceiptError: If the sum is over or was used.
        """
        buffer = self._open()
        if out.shape != buffer.shape or out.dtype != np.uint32:
            raise SpecError(f"expected {buffer.size} ring elements, got {out.dtype} {out.shape}")
        self._close()
        np.add(out, buffer, out=out)

    def _open(self) -> npt.NDArray[np.uint32]:
        if self._buffer is None:
            raise ReceiptError("this sum of units was used, or failed")
        return self._buffer

    def _close(self) -> None:
        self._buffer = None

    def __repr__(self) -> str:
        return f"<UnitSum d={self._grid.dimension} max_units={self._max_units} sum=redacted>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ReceiptError("a sum of units cannot be copied or stored")

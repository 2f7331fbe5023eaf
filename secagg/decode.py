"""From ring elements back to signed integers, without a copy: a sum may be a read-only memory map.

Z_2^32 is read as [-2^31, 2^31): the centred lift. It is exact because the descriptor's no-wrap
inequality bounds every sum, noise included, below 2^31 in absolute value.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.descriptor import Descriptor
from secagg.errors import ParameterError
from secagg.prg import Vector

_RING_DTYPE: Final = np.dtype("<u4")
SignedVector = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedSum:
    """A sum in grid units."""

    # Integer sum of the deltas, `dimension` coordinates.
    delta: SignedVector
    # Integer sum of the metrics block, one coordinate per name of the layout.
    metrics: SignedVector


def centred_lift(vector: Vector) -> SignedVector:
    """Read ring elements as signed integers; the result shares the vector's memory.

    Raises:
        ParameterError: The vector is not contiguous little-endian uint32.
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != _RING_DTYPE or vector.ndim != 1:
        raise ParameterError("the sum is not one-dimensional little-endian uint32")
    if not vector.flags.c_contiguous:
        raise ParameterError("the sum is not contiguous")
    return vector.view("<i4")


def split_sum(vector: Vector, descriptor: Descriptor) -> DecodedSum:
    """Lift an unmasked sum and part it into delta and metrics, which are views into the vector.

    Raises:
        ParameterError: Another dtype, layout or length.
    """
    lifted = centred_lift(vector)
    if lifted.size != descriptor.words:
        raise ParameterError(f"the sum has {lifted.size} coordinates, not {descriptor.words}")
    return DecodedSum(delta=lifted[: descriptor.dimension], metrics=lifted[descriptor.dimension :])

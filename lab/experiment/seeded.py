"""Noise that can be drawn again: for research only, never for a release.

``dp.noise.source.NoiseSource`` is keyed by the operating system and refuses a second use, which is
what privacy needs and what an experiment that somebody wants to repeat cannot have. Whoever knows
the seed can subtract this noise, so nothing that was noised with it is protected.

Covered: the words that ``dp.noise.dgauss`` reads, from Philox under a key derived from what the
words are for. Not covered: privacy.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

__all__ = ["SeededWords"]

_DOMAIN = b"chorale/lab-noise/v1\0"
_HALF = np.uint64(32)


class SeededWords:
    """A ``dp.noise.source.WordSource`` that gives the same words for the same parts."""

    def __init__(self, *parts: str | int) -> None:
        """Key the words by what they are for; other parts give independent words."""
        text = "\0".join(f"{len(str(part))}:{part}" for part in parts)
        key = hashlib.sha256(_DOMAIN + text.encode()).digest()[:16]
        self._philox = np.random.Philox(key=int.from_bytes(key, "little"))

    def fill_uint64(self, out: npt.NDArray[np.uint64]) -> None:
        """Overwrite ``out`` with the next words."""
        out[:] = self._philox.random_raw(out.size)

    def fill_uint32(self, out: npt.NDArray[np.uint32]) -> None:
        """Overwrite ``out`` with the upper halves of the next words."""
        out[:] = (self._philox.random_raw(out.size) >> _HALF).astype(np.uint32)

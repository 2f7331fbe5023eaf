"""The mean over silos as secure aggregation gives it, in one process.

Both kinds do to each vector what a silo does before it uploads (``dp.noise.grid``,
``dp.noise.share``)::

    q_k = round(clip_C(x_k) · Δ/C)            Σq² ≤ Δ², checked on the integers
    y_k = q_k + N_Z(0, σ_k²)  mod 2^32        σ_k = zΔ/√(n − 1): all n are summed, one may collude
    Σ   = Σ_k y_k  mod 2^32                   plain, or under real masks (``masked.py``)
    mean = centred(Σ) · C / (Δ·n)             ``federation.aggregate.server_step``

Invariants:
    1. ``PlainSum`` and ``MaskedSum`` return the same bits for the same vectors and key: masks
       cancel in the ring, and everything before them is this module's.
    2. A sum that could wrap is refused before anything is added (``dp.noise.share.no_wrap``).
    3. A vector with a NaN or an infinity is refused; it is never replaced.
    4. Noise depends on the key, the number of the sum and the silo's place in it, on nothing else;
       so whoever goes on needs to know how many sums there were, and no more (``go_on_after``).
    5. A silo that breaks the clip is as many copies of one that keeps it (``attack.py``); what may
       wrap is judged with all of them.

The noise comes from ``SeededWords``: it is the right distribution for research and no protection.

Covered: as many silos in each sum; which ones, where only some take part in a round, is the
caller's. Not covered: dropouts, the ledger, the metrics block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dp.errors import PrivacyError
from dp.noise.grid import Grid
from dp.noise.share import add_noise, no_wrap, per_silo_sigma, summed_sigma
from federation.aggregate.server_step import mean_of_sum
from lab.aggregation.method import MeanOf
from lab.experiment.errors import SumError
from lab.experiment.seeded import SeededWords
from lab.experiment.tables import NoiseTable
from secagg.decode import centred_lift

__all__ = ["PlainSum", "RingMean", "RoundMean", "checked_counts"]

RingVector = npt.NDArray[np.uint32]


class RoundMean(Protocol):
    """The mean over silos of one federation, round after round."""

    def among(self, places: Sequence[int]) -> MeanOf:
        """The mean for a round in which the silos at these places take part, in this order."""

    @property
    def counted(self) -> tuple[int, ...]:
        """How many sums there were."""

    def go_on_after(self, counted: Sequence[int]) -> None:
        """Draw what follows what ``counted`` gave in another object.

        Raises:
            SumError: It cannot have given that.
        """


class RingMean(ABC):
    """A ``lab.aggregation.MeanOf`` over integers modulo 2^32."""

    def __init__(self, noise: NoiseTable, *, silos: int, key: Sequence[str | int]) -> None:
        """Set up the sums of one federation, with ``silos`` in every sum.

        Grid and z are the noise table's; its clip is that of deltas, and each call brings its own.
        With the number of the sum and the silo, the key decides the noise.
        """
        self._noise = noise
        self._silos = silos
        self._key = tuple(key)
        self._sums = 0

    def __call__(self, vectors: Sequence[np.ndarray], *, clip_l2: float, what: str) -> np.ndarray:
        """The mean, float64, of one vector for each silo; see the module.

        The vectors have one length and are in the order of the silos. ``clip_l2`` is C of this sum,
        and ``what`` names it in errors.

        Raises:
            SumError: The vectors cannot be encoded, or the sum could wrap.
        """
        return self.mean_of(vectors, clip_l2=clip_l2, what=what, copies=(1,) * len(vectors))

    def mean_of(
        self, vectors: Sequence[np.ndarray], *, clip_l2: float, what: str, copies: Sequence[int]
    ) -> np.ndarray:
        """The same, where the vector of each silo is so many times what its clip leaves of it.

        Raises:
            SumError: As above.
        """
        if len(vectors) != self._silos:
            raise SumError(f"{what}: {len(vectors)} vectors where {self._silos} silos are summed")
        self._sums += 1
        try:
            grid = Grid(clip_l2=clip_l2, steps=self._noise.grid, dimension=int(np.size(vectors[0])))
            sigma = self._sigma(grid)
            no_wrap(sum(copies), 1, grid.steps, summed_sigma(sigma, self._silos))
            shares = [
                self._share(grid, sigma, k, vector, copies[k]) for k, vector in enumerate(vectors)
            ]
        except PrivacyError as error:
            raise SumError(f"{what}: {error}") from error
        total = self._total(shares, grid=grid, sigma=sigma, what=what)
        return mean_of_sum(centred_lift(total), scale=grid.scale, count=self._silos)

    def among(self, places: Sequence[int]) -> MeanOf:
        """The mean of sums of these silos; they are as many in every round."""
        del places
        return self

    @property
    def counted(self) -> tuple[int, ...]:
        """How many sums there were, for ``go_on_after`` of another object."""
        return (self._sums,)

    def go_on_after(self, counted: Sequence[int]) -> None:
        """Draw what follows so many sums.

        Raises:
            SumError: That is no count of these sums.
        """
        (self._sums,) = checked_counts(counted, 1)

    @abstractmethod
    def _total(
        self, shares: list[RingVector], *, grid: Grid, sigma: float, what: str
    ) -> RingVector:
        """Σ y_k modulo 2^32."""

    def _sigma(self, grid: Grid) -> float:
        if self._noise.z == 0:
            return 0.0
        n = self._silos
        return per_silo_sigma(self._noise.z, grid.steps, t=n, n_min=n, c=1)

    def _share(
        self, grid: Grid, sigma: float, silo: int, vector: np.ndarray, copies: int
    ) -> RingVector:
        share: RingVector = np.zeros(grid.dimension, dtype="<u4")
        add_noise(share, sigma, SeededWords(*self._key, self._sums, silo))
        fitted = grid.fit(np.asarray(vector))
        for _ in range(copies):
            fitted.add_into(share)
        return share


def checked_counts(counted: Sequence[int], length: int) -> tuple[int, ...]:
    """So many counts.

    Raises:
        SumError: There are more or fewer, or one is below 0.
    """
    if len(counted) != length or any(count < 0 for count in counted):
        raise SumError(f"{list(counted)} are not the counts of {length} kinds of sums")
    return tuple(counted)


class PlainSum(RingMean):
    """The sum itself: what the coordinator ends up with, without the protocol."""

    def _total(
        self, shares: list[RingVector], *, grid: Grid, sigma: float, what: str
    ) -> RingVector:
        """Add them up."""
        del grid, sigma, what
        total = np.zeros_like(shares[0])
        for share in shares:
            np.add(total, share, out=total)
        return total

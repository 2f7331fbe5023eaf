"""How unlike silos are, measured and expected; and the dial that a dispersion needs.

The measures are FedAgent's: Δ²_pref = (1/N) Σ ‖p_i − p̄‖² over type marginals, Δ²_cov =
(1/N) Σ ((n_i − n̄)/n̄)² over sizes, Δ²_hard = (1/N) Σ (ρ_i − ρ̄)² over shares of solved tasks. With
F = 1 − ‖p0‖² of the pool's type shares and C of ``Bounds.spread``, what a partition is expected to
have is

::

    Δ²_pref   (ω·F + (1 − ω)·F/L) · (1 − 1/N)
    Δ²_cov    C/(ξ + 1) · (1 − 1/N)
    Δ²_hard   C/(ξ′ + 1) · (1 − 1/N)

The paper gives the first term of each. The second of Δ²_pref is the multinomial floor: L tasks
cannot show a preference finer than that (at ω = 0.01, L = 100 it is half of what is measured). The
factor is there because N silos are measured against their own mean.

Invariants: what ``*_of`` inverts is exactly what ``expected_*`` says; a target that no dial reaches
is refused with the range that one does.

Covered: the dispersion that a dial sets, and the floor that sampling leaves where none does. Not
covered: categories that run out, quotas that scaling pushes against a bound (it lowers Δ²_cov at
ξ = 1 and FedAgent's bounds by about 1 %), and the rounding of quotas of few tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.partitions.dealing import Dealt
from lab.partitions.errors import DialError, UnreachableError
from lab.partitions.quotas import Bounds

__all__ = [
    "Expected",
    "coverage_dispersion",
    "expected_preference",
    "expected_quota",
    "hardness_dispersion",
    "omega_of",
    "preference_dispersion",
    "sampling_floor",
    "type_spread",
    "xi_of",
]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What a measure is expected to come to."""

    formula: float
    """The paper's, for as many tasks and silos as one likes."""
    floor: float
    """What drawing a finite number of tasks adds."""
    silos: int
    """N."""

    @property
    def value(self) -> float:
        """With the floor, for so many silos."""
        return (self.formula + self.floor) * (1 - 1 / self.silos)


def preference_dispersion(dealt: Dealt, types: Sequence[int] | npt.NDArray[np.int64]) -> float:
    """Δ²_pref."""
    _, which = np.unique(np.asarray(types), return_inverse=True)
    categories = int(which.max()) + 1
    marginals = np.array(
        [np.bincount(which[places], minlength=categories) / len(places) for places in dealt.silos]
    )
    return float(np.square(marginals - marginals.mean(0)).sum(1).mean())


def coverage_dispersion(dealt: Dealt) -> float:
    """Δ²_cov."""
    return _relative_variance(dealt.sizes)


def hardness_dispersion(dealt: Dealt, solved: Sequence[bool] | npt.NDArray[np.bool_]) -> float:
    """Δ²_hard."""
    flags = np.asarray(solved, dtype=np.float64)
    return float(np.var([flags[places].mean() for places in dealt.silos]))


def expected_preference(
    shares: Sequence[float] | Floats, omega: float, length: float, silos: int
) -> Expected:
    """Of ``preference``; ``length`` of silos of unlike sizes is the harmonic mean of them."""
    spread = type_spread(shares)
    return Expected(formula=omega * spread, floor=(1 - omega) * spread / length, silos=silos)


def expected_quota(bounds: Bounds, unit: float, xi: float, silos: int) -> Expected:
    """Of ``coverage``, where the unit is the average, and of ``hardness``, where it is L."""
    return Expected(formula=bounds.spread(unit) / (xi + 1), floor=0.0, silos=silos)


def sampling_floor(
    spread: float, sizes: Sequence[int] | npt.NDArray[np.int64], pool: int
) -> Expected:
    """What is left of a measure that no dial sets, where silos draw so many tasks of a pool.

    ``spread`` is F for types and ρ̄(1 − ρ̄) for solved tasks. Without replacement a silo that has
    the whole pool differs in nothing from it.
    """
    counts = np.asarray(sizes, dtype=np.float64)
    kept = (pool - counts) / max(1, pool - 1)
    return Expected(formula=0.0, floor=float(spread * (kept / counts).mean()), silos=len(counts))


def omega_of(target: float, shares: Sequence[float] | Floats, length: float, silos: int) -> float:
    """ω with this Δ²_pref.

    Raises:
        UnreachableError: No ω has it.
    """
    spread = type_spread(shares) * _factor(silos)
    least = spread / length
    if length <= 1 or not least < target < spread:  # one task has one type
        raise UnreachableError(
            f"preference: with {silos} silos of {length:g} tasks of these types omega reaches what "
            f"lies between {least:.6g} and {spread:.6g}, not {target:.6g}"
        )
    return (target - least) / (spread - least)


def xi_of(target: float, bounds: Bounds, unit: float, silos: int) -> float:
    """ξ with this Δ²_cov, or ξ′ with this Δ²_hard; for the unit see ``expected_quota``.

    Raises:
        UnreachableError: No ξ has it.
    """
    most = bounds.spread(unit) * _factor(silos)
    if not 0 < target < most:
        raise UnreachableError(
            f"with {silos} silos and from {bounds.least:g} to {bounds.most:g} tasks of "
            f"{bounds.average:g} in the mean xi reaches what lies between 0 and {most:.6g}, not "
            f"{target:.6g}"
        )
    return most / target - 1


def _factor(silos: int) -> float:
    if silos < 2:  # one silo is its own mean
        raise DialError(f"silos: at least 2, or there is no dispersion between them, got {silos}")
    return 1 - 1 / silos


def type_spread(shares: Sequence[float] | Floats) -> float:
    """F = 1 − ‖p0‖²."""
    p = np.asarray(shares, dtype=np.float64)
    if p.ndim != 1 or not len(p) or (p < 0).any() or not np.isclose(p.sum(), 1):
        raise DialError("shares: the share of each type in the pool, which add up to 1")
    return float(1 - np.square(p).sum())


def _relative_variance(sizes: npt.NDArray[np.int64]) -> float:
    return float(np.var(sizes) / np.mean(sizes) ** 2)

"""Noise audit: is the noise there in every coordinate, new every time, and blind to the data?

All three questions are asked of releases in which no unit is present, so that nothing but noise
is left:

``audit_independence``  the noise of two steps, or of two silos, is uncorrelated. The sample
    correlation of two independent noise vectors of length d is about N(0, 1/d), so |ρ| < 5/√d
    fails for one honest pair in 1.7 million. Of m pairs the bound is so much wider that all
    together fail as seldom.
``audit_presence``  every coordinate has at least the claimed variance. A coordinate's T values have
    T·s²/σ² ~ χ²_T, and P[χ²_T ≤ T − 2√(T·x)] ≤ e^{−x} (Laurent and Massart, Annals of Statistics
    28 (2000), Lemma 1); x = ln(d/(1 − confidence)) covers all coordinates at once. The same bound
    on all d·T values together notices noise that is a little too small everywhere.
``audit_scale``  the standard deviation is the same whatever number of units there is. Dividing by
    the number of units would publish that number, and with it whether one more took part.

Covered: mean, variance and pairwise correlation. Not covered: higher moments; the sampler's exact
distribution is tested on its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from dp.errors import SpecError
from lab.audit.bounds import CONFIDENCE, AuditResult

__all__ = ["audit_independence", "audit_presence", "audit_scale"]

_SIGMAS: Final = 5.0


def audit_independence(
    vectors: npt.NDArray[np.float64], *, name: str = "noise independence"
) -> AuditResult:
    """Compare every two of several noise vectors, of several steps or of several silos.

    Their shape is (vectors, d).
    """
    if vectors.ndim != 2 or min(vectors.shape) < 2:
        raise SpecError("independence is a matter of two vectors of two coordinates at least")
    count, dimension = vectors.shape
    centred = vectors - vectors.mean(axis=1, keepdims=True)
    norms = np.sqrt(np.square(centred).sum(axis=1))
    measured = math.nan
    if np.isfinite(norms).all() and norms.min() > 0.0:
        correlation = (centred / norms[:, None]) @ (centred / norms[:, None]).T
        measured = float(np.abs(correlation[~np.eye(count, dtype=bool)]).max())
    pairs = count * (count - 1) // 2
    # Of the standard normal distribution, what one of so many exceeds as seldom as one _SIGMAS.
    widest = float(norm.isf(norm.sf(_SIGMAS) / pairs))
    return AuditResult(
        audit=name,
        quantity="largest |rho|",
        claimed=widest / math.sqrt(dimension),
        measured=measured,
        estimate=measured,
        releases=pairs,
    )


def audit_presence(
    vectors: npt.NDArray[np.float64],
    *,
    sigma: float,
    confidence: float = CONFIDENCE,
    name: str = "noise presence",
) -> tuple[AuditResult, AuditResult]:
    """Bound how much too small the noise is, at the quietest coordinate and over all of them.

    Args:
        vectors: Shape (T, d): noise of several steps. T must exceed 4·ln(2d/(1 − confidence)),
            or the bound at one coordinate says nothing.
        sigma: The claimed standard deviation, in the same unit.
        confidence: That the noise really is too small where ``measured`` exceeds 1.
        name: Shown in the report.

    Returns:
        The claimed variance over an upper bound of the true one, where 1 is claimed: for the
        quietest coordinate and for all together.
    """
    if vectors.ndim != 2 or not (sigma > 0.0 and math.isfinite(sigma)):
        raise SpecError("presence needs noise of shape (steps, coordinates) and a positive sigma")
    steps, dimension = vectors.shape
    energy = np.square(vectors / sigma).sum(axis=0)
    error = (1.0 - confidence) / 2.0
    quietest = _too_quiet(float(energy.min()), steps, math.log(dimension / error))
    overall = _too_quiet(float(energy.sum()), steps * dimension, math.log(1.0 / error))
    return (
        AuditResult(
            audit=f"{name}, each",
            quantity="claimed / true variance",
            claimed=1.0,
            measured=quietest,
            estimate=_ratio(steps, float(energy.min())),
            releases=steps * dimension,
        ),
        AuditResult(
            audit=f"{name}, all",
            quantity="claimed / true variance",
            claimed=1.0,
            measured=overall,
            estimate=_ratio(steps * dimension, float(energy.sum())),
            releases=steps * dimension,
        ),
    )


def audit_scale(
    noise: Mapping[int, npt.NDArray[np.float64]], *, name: str = "noise scale"
) -> AuditResult:
    """Compare the noise of data sets of different sizes.

    ``noise`` is that of the released mean, by number of units, 0 units among them. The result is
    the largest |ln(s/s')| in multiples of its standard error √(1/(2n) + 1/(2n')); at most five is
    claimed.
    """
    if len(noise) < 2 or 0 not in noise:
        raise SpecError("the scale is compared between data sets, one of them without units")
    logs = {
        units: (
            0.5 * math.log(energy) if (energy := float(np.square(v).mean())) > 0.0 else math.nan
        )
        for units, v in noise.items()
    }
    differences = [
        abs(logs[a] - logs[b]) / math.sqrt(0.5 / noise[a].size + 0.5 / noise[b].size)
        for a, b in combinations(noise, 2)
    ]
    # Plain ``max`` would pass over a NaN.
    measured = math.nan if any(map(math.isnan, differences)) else max(differences)
    return AuditResult(
        audit=name,
        quantity="standard errors between sizes",
        claimed=_SIGMAS,
        measured=measured,
        estimate=measured,
        releases=sum(v.size for v in noise.values()),
    )


def _too_quiet(energy: float, count: int, x: float) -> float:
    """count/(energy/(1 − 2√(x/count))): the claim over the upper bound of the variance."""
    least = 1.0 - 2.0 * math.sqrt(x / count)
    if least <= 0.0:
        raise SpecError(f"{count} values are too few to bound a variance")
    return _ratio(count * least, energy)


def _ratio(count: float, energy: float) -> float:
    if math.isnan(energy):
        return math.nan
    return count / energy if energy > 0.0 else math.inf

"""Exact samples from the discrete Gaussian N_Z(0, σ²).

Algorithm: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy"
(arXiv 2004.00010), Algorithms 2 and 3 with both rejections merged into one. With t a power of two
near σ, U uniform on [0, t), V with P(V ≥ v) = e^{−v} and Y = U + tV, accept Y with probability

    p = exp(−[U/t + (Y − σ²/t)² / (2σ²)]),

give it a random sign and reject −0. Any t gives the same distribution; the power of two nearest
to σ on the logarithmic scale makes U a bit mask and accepts between 0.41 and 0.48 of the
candidates, where the largest one below σ would fall to 0.21.

Invariants:
    1. The output distribution is exact, not close: a 64-bit prefix of each uniform real decides in
       float64 only where it cannot be wrong. Every comparison nearer than 2^-44, and every prefix
       too short to resolve V, is decided again with rational arithmetic and further random bits.
    2. σ enters as the exact rational value of the float that was passed.
    3. The sampler reads no data, so it can run before data exist.

Error budget of the float path: the exponent is at most a few ulp wrong and p = e^{−x} damps it,
so |p_float − p| < 2^-49; W is rounded by at most 2^-53. Both are far inside 2^-44.

Covered: distribution, ties, small and large σ. Not covered: constant-time execution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from dp.errors import SpecError
from dp.noise.source import WordSource

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

TIE_MARGIN: Final = 2.0**-44
"""Comparisons closer than this are redone in rationals."""
_SHORT_PREFIX: Final = np.uint64(1 << 44)
"""Below this a 64-bit prefix has fewer than 44 significant bits, too few to resolve V."""
_TILE: Final = 1 << 14
_MIN_TILE: Final = 64
_MAX_SIGMA: Final = 2.0**40
_WORD_BITS: Final = 64


def sample(count: int, sigma: float, source: WordSource) -> Integers:
    """Draw independent samples of N_Z(0, σ²) from fresh uniform words.

    σ > 0 is that of the discrete Gaussian's weight exp(−x²/2σ²).
    """
    if count < 0:
        raise SpecError(f"cannot draw {count} samples")
    out = np.empty(count, dtype=np.int64)
    sample_into(out, sigma, source)
    return out


def sample_into(out: Integers, sigma: float, source: WordSource) -> None:
    """Overwrite ``out`` with independent samples of N_Z(0, σ²)."""
    proposal = _Proposal.nearest(sigma)
    filled = 0
    while filled < out.size:
        # 0.4 is a lower bound on the acceptance rate; what is left over is drawn again.
        wanted = int((out.size - filled) / 0.4) + _MIN_TILE
        accepted = _draw_tile(proposal, min(_TILE, wanted), source)
        taken = min(accepted.size, out.size - filled)
        out[filled : filled + taken] = accepted[:taken]
        filled += taken


@dataclass(frozen=True, kw_only=True, slots=True)
class _Proposal:
    """The discrete Laplace that candidates come from, and σ² twice: fast and exact."""

    log2_t: int
    sigma_sq: float
    sigma_sq_exact: Fraction

    @classmethod
    def nearest(cls, sigma: float) -> _Proposal:
        if not (math.isfinite(sigma) and 2.0**-20 <= sigma <= _MAX_SIGMA):
            raise SpecError(f"sigma must lie in [2^-20, 2^40] grid units, got {sigma!r}")
        return cls(
            log2_t=max(0, round(math.log2(sigma))),
            sigma_sq=sigma * sigma,
            sigma_sq_exact=Fraction(sigma) ** 2,
        )

    def exponent(self, remainder: int, quotient: int) -> Fraction:
        """The exact x of p = e^{−x} for U = remainder and V = quotient."""
        t = 1 << self.log2_t
        excess = remainder + t * quotient - self.sigma_sq_exact / t
        return Fraction(remainder, t) + excess * excess / (2 * self.sigma_sq_exact)


def _draw_tile(proposal: _Proposal, count: int, source: WordSource) -> Integers:
    """Propose ``count`` candidates and return those accepted."""
    words = np.empty(3 * count, dtype=np.uint64)
    source.fill_uint64(words)
    first, second, third = words[:count], words[count : 2 * count], words[2 * count :]
    t = 1 << proposal.log2_t
    signs = first >> np.uint64(63)
    remainder = (first & np.uint64(t - 1)).view(np.int64)
    quotient = _geometric(second, source)

    magnitude = quotient.astype(np.int64)
    magnitude <<= proposal.log2_t
    magnitude += remainder

    # x = U/t + (Y − σ²/t)² / (2σ²); division by the power of two t is exact.
    exponent = magnitude.astype(np.float64)
    exponent -= proposal.sigma_sq / t
    exponent *= exponent
    exponent *= 0.5 / proposal.sigma_sq
    fraction = remainder.astype(np.float64)
    fraction *= 1.0 / t
    exponent += fraction
    np.negative(exponent, out=exponent)
    chance = np.exp(exponent, out=exponent)
    uniform = third.astype(np.float64)
    uniform *= 2.0**-_WORD_BITS
    chance -= uniform
    accepted = chance > 0.0
    np.abs(chance, out=chance)
    if chance.min() < TIE_MARGIN:
        for index in np.flatnonzero(chance < TIE_MARGIN):
            x = proposal.exponent(int(remainder[index]), int(quotient[index]))
            accepted[index] = _LazyUniform(int(third[index]), source).below_exp(x)

    # −0 would count zero twice.
    accepted &= (magnitude != 0) | (signs == 0)
    signed = signs.view(np.int64)
    # Two's complement: (y ^ −s) + s is −y for s = 1 and y for s = 0.
    magnitude ^= -signed
    magnitude += signed
    result: Integers = magnitude[accepted]
    return result


def _geometric(prefixes: Words, source: WordSource) -> Floats:
    """V = ⌊−ln W⌋, so P(V ≥ v) = e^{−v}, with W given by its first 64 bits."""
    log = prefixes.astype(np.float64)
    log *= 2.0**-_WORD_BITS
    short = prefixes.min() < _SHORT_PREFIX
    if short:
        np.maximum(log, 2.0**-_WORD_BITS, out=log)
    np.log(log, out=log)
    np.negative(log, out=log)
    quotient = np.floor(log)
    log -= quotient
    # One margin is the prefix's own width, the other the rounding of the logarithm.
    margin = 2 * TIE_MARGIN
    if short or log.min() < margin or log.max() > 1.0 - margin:
        doubtful = (prefixes < _SHORT_PREFIX) | (log < margin) | (log > 1.0 - margin)
        for index in np.flatnonzero(doubtful):
            uniform = _LazyUniform(int(prefixes[index]), source)
            value = 0
            while uniform.below_exp(Fraction(value + 1)):
                value += 1
            quotient[index] = value
    return quotient


class _LazyUniform:
    """A uniform real in [0, 1) whose bits are drawn as comparisons need them."""

    __slots__ = ("_bits", "_prefix", "_source")

    def __init__(self, prefix: int, source: WordSource) -> None:
        self._prefix = prefix
        self._bits = _WORD_BITS
        self._source = source

    def below_exp(self, x: Fraction) -> bool:
        """Whether this real is below e^{−x}, exactly."""
        while True:
            low, high = exp_bounds(x, self._bits)
            if self._prefix + 1 <= low:
                return True
            if self._prefix >= high:
                return False
            word = np.empty(1, dtype=np.uint64)
            self._source.fill_uint64(word)
            self._prefix = (self._prefix << _WORD_BITS) | int(word[0])
            self._bits += _WORD_BITS


def exp_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    """Integers low ≤ 2^bits · e^{−x} ≤ high, for x ≥ 0, with high − low ≤ 2.

    The argument is halved k times until it is at most 1/2, the alternating Taylor series is summed
    in integers, and the interval is squared k times, outward rounded.
    """
    halvings = 0 if x <= Fraction(1, 2) else (x.numerator // x.denominator).bit_length() + 1
    # Each squaring doubles the relative width; 64 guard bits absorb that and the series' error.
    scale = bits + halvings + _WORD_BITS
    one = 1 << scale
    argument = (x.numerator << scale) // (x.denominator << halvings)
    term, total, order = one, one, 0
    while term:
        order += 1
        term = (term * argument >> scale) // order
        total += -term if order % 2 else term
    # Every term is short by less than 2 units, the argument by 1, the remainder by 1.
    slack = 2 * order + 2
    low, high = max(0, total - slack), min(one, total + slack)
    for _ in range(halvings):
        low = low * low >> scale
        high = (high * high >> scale) + 1
    shift = scale - bits
    return low >> shift, (high >> shift) + 1

"""Shamir secret sharing over GF(2^256 + 297) (Shamir 1979, "How to share a secret").

2^256 + 297 is the least prime above 2^256, so every 32-byte secret is a field element. Silo number
k of the cohort (from 1) holds the value at x = k; a share is that value in 33 big-endian bytes.
Each call of `split` draws a fresh polynomial of degree t - 1.

Covered: any t shares give the secret; t - 1 shares are consistent with every secret. Not covered:
finding a wrong share. Shares are hashed and signed by their dealer, so a wrong one is discarded
before it gets here.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from secagg.errors import Check, ParameterError, VerificationError
from secagg.suite import SECRET_BYTES, Entropy, Secret, draw

PRIME: Final = 2**256 + 297
SHARE_BYTES: Final = 33
# Half of the 257-bit draws fall above the prime; this many in a row do not happen by chance.
_MAX_DRAWS: Final = 256


def evaluate(coefficients: Sequence[int], x: int, prime: int = PRIME) -> int:
    """Evaluate a polynomial, constant term first, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % prime
    return value


@functools.lru_cache(maxsize=4096)
def _inverse(value: int, prime: int) -> int:
    # The arguments are differences of silo numbers, so there are few.
    return pow(value, -1, prime)


def inverse_denominators(xs: Sequence[int], prime: int = PRIME) -> list[int]:
    """Return 1 / Π_{m≠k} (x_k - x_m) for each k (the barycentric weights)."""
    denominators = [math.prod(x - other for other in xs if other != x) % prime for x in xs]
    # One inversion for all: from 1 / Π d_k peel off one factor at a time (Montgomery 1987 §10.3.1).
    below = [1]
    for denominator in denominators:
        below.append(below[-1] * denominator % prime)
    inverse = pow(below.pop(), -1, prime)
    inverses = []
    for denominator, product in zip(reversed(denominators), reversed(below), strict=True):
        inverses.append(inverse * product % prime)
        inverse = inverse * denominator % prime
    return inverses[::-1]


def lagrange_weights(
    xs: Sequence[int], inverses: Sequence[int], target: int, prime: int = PRIME
) -> list[int]:
    """Return w with f(target) = Σ w_k·f(x_k) for every polynomial f of degree < len(xs)."""
    if target in xs:
        return [int(x == target) for x in xs]
    product = math.prod(target - x for x in xs) % prime
    return [
        product * inverse * _inverse(target - x, prime) % prime
        for x, inverse in zip(xs, inverses, strict=True)
    ]


def split(secret: Secret, n: int, t: int, entropy: Entropy) -> tuple[bytes, ...]:
    """Split a 32-byte secret into n shares of 33 bytes of which any t give it back.

    Share k, from 0, belongs to x = k + 1; the entropy makes the polynomial.

    Raises:
        ParameterError: Sizes that make no sense, or an entropy source that is stuck.
    """
    if len(secret) != SECRET_BYTES or not 1 <= t <= n:
        raise ParameterError("splitting needs a 32-byte secret and 1 <= t <= n")
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [_draw_element(entropy) for _ in range(t - 1)]
    return tuple(evaluate(coefficients, x).to_bytes(SHARE_BYTES, "big") for x in range(1, n + 1))


def is_share(share: Secret) -> bool:
    """Tell whether the bytes are a field element."""
    return len(share) == SHARE_BYTES and int.from_bytes(share, "big") < PRIME


def combine(shares: Mapping[int, bytes], t: int) -> bytes:
    """Give back the secret from the t shares of lowest x; there must be at least t, by x.

    Raises:
        VerificationError: Too few shares, or values that cannot come from a 32-byte secret.
    """
    return Interpolation(sorted(shares)[:t], t).open(shares).secret


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What a set of shares gave back."""

    secret: bytes = field(repr=False)
    # Whether every share beyond the first t lies on the same polynomial.
    spares_agree: bool


class Interpolation:
    """The weights of one set of t points, kept for the many secrets shared over it."""

    __slots__ = ("_inverses", "_weights", "_xs")

    def __init__(self, xs: Sequence[int], t: int) -> None:
        if t < 1 or len(xs) != t or len(set(xs)) != t or any(x < 1 for x in xs):
            raise VerificationError(Check.SHARE_COUNT, f"{len(xs)} shares where {t} are needed")
        self._xs = tuple(xs)
        self._inverses = inverse_denominators(xs)
        self._weights: dict[int, list[int]] = {}

    def open(self, shares: Mapping[int, bytes]) -> Opened:
        """Give back the secret behind the shares at this object's points.

        The shares are by x, at these points and perhaps further ones; it says whether the further
        ones agree.

        Raises:
            VerificationError: A share is no field element, or no 32-byte secret is behind them.
        """
        if not all(is_share(share) for share in shares.values()):
            raise VerificationError(Check.SHARE_RANGE, "a share is not a field element")
        values = {x: int.from_bytes(share, "big") for x, share in shares.items()}
        secret = self._value_at(0, values)
        if secret.bit_length() > 8 * SECRET_BYTES:
            raise VerificationError(Check.SHARE_RANGE, "the shares hide no 32-byte secret")
        return Opened(
            secret=secret.to_bytes(SECRET_BYTES, "big"),
            spares_agree=all(
                self._value_at(x, values) == values[x] for x in values.keys() - set(self._xs)
            ),
        )

    def _value_at(self, target: int, values: Mapping[int, int]) -> int:
        if target not in self._weights:
            self._weights[target] = lagrange_weights(self._xs, self._inverses, target)
        weights = self._weights[target]
        return sum(w * values[x] for w, x in zip(weights, self._xs, strict=True)) % PRIME


def _draw_element(entropy: Entropy) -> int:
    # Rejection keeps the element uniform; reducing modulo the prime would not.
    for _ in range(_MAX_DRAWS):
        candidate = int.from_bytes(draw(entropy, SHARE_BYTES), "big") & (2**257 - 1)
        if candidate < PRIME:
            return candidate
    raise ParameterError("the entropy source repeats itself")

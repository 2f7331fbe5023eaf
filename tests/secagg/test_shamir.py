"""Any t shares give the secret back; t - 1 say nothing."""

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import shamir
from secagg.errors import Check, ParameterError, VerificationError
from secagg.shamir import PRIME, Interpolation, combine, is_share, split


def test_the_modulus_is_prime():
    # Miller-Rabin with the first forty primes as bases.
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    bases = [b for b in range(2, 180) if all(b % d for d in range(2, b))]
    for base in bases:
        powers = [pow(base, odd << k, PRIME) for k in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers


@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_t_shares_give_the_secret(secret, data):
    n = data.draw(st.integers(3, 9))
    t = data.draw(st.integers(1, n))
    shares = split(secret, n, t, os.urandom)
    chosen = data.draw(st.permutations(range(n)))[:t]
    assert combine({k + 1: shares[k] for k in chosen}, t) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_extreme_secrets(secret):
    shares = split(secret, 5, 4, os.urandom)
    assert combine({k: shares[k - 1] for k in (2, 3, 4, 5)}, 4) == secret


def test_fewer_shares_are_consistent_with_every_secret():
    # Exhaustively over a small field: each view of t - 1 shares occurs equally often under each
    # secret.
    prime, n, t = 7, 4, 3
    for xs in itertools.combinations(range(1, n + 1), t - 1):
        views = {}
        for secret in range(prime):
            for rest in itertools.product(range(prime), repeat=t - 1):
                view = tuple(shamir.evaluate((secret, *rest), x, prime) for x in xs)
                views.setdefault(view, []).append(secret)
        assert len(views) == prime ** (t - 1)
        assert all(sorted(secrets) == list(range(prime)) for secrets in views.values())


def test_any_t_shares_interpolate_in_a_small_field():
    prime, n, t = 7, 4, 3
    for coefficients in itertools.product(range(prime), repeat=t):
        for xs in itertools.combinations(range(1, n + 1), t):
            inverses = shamir.inverse_denominators(xs, prime)
            for target in range(n + 1):
                weights = shamir.lagrange_weights(xs, inverses, target, prime)
                values = [shamir.evaluate(coefficients, x, prime) for x in xs]
                found = sum(w * y for w, y in zip(weights, values, strict=True)) % prime
                assert found == shamir.evaluate(coefficients, target, prime)


def test_every_call_draws_a_fresh_polynomial():
    assert split(bytes(32), 5, 3, os.urandom) != split(bytes(32), 5, 3, os.urandom)


def test_spare_shares_are_compared():
    shares = {k + 1: share for k, share in enumerate(split(b"s" * 32, 6, 4, os.urandom))}
    interpolation = Interpolation((1, 2, 3, 4), 4)
    assert interpolation.open(shares).spares_agree
    shares[6] = shares[5]
    opened = interpolation.open(shares)
    assert opened.secret == b"s" * 32
    assert not opened.spares_agree


def test_too_few_shares_are_refused():
    shares = split(bytes(32), 5, 4, os.urandom)
    with pytest.raises(VerificationError) as caught:
        combine({1: shares[0], 2: shares[1], 3: shares[2]}, 4)
    assert caught.value.check is Check.SHARE_COUNT


def test_values_outside_the_field_are_refused():
    outside = PRIME.to_bytes(33, "big")
    assert not is_share(outside)
    assert is_share((PRIME - 1).to_bytes(33, "big"))
    with pytest.raises(VerificationError) as caught:
        combine({1: outside, 2: bytes(33)}, 2)
    assert caught.value.check is Check.SHARE_RANGE


def test_a_value_above_32_bytes_is_no_secret():
    constant = (2**256 + 1).to_bytes(33, "big")
    with pytest.raises(VerificationError) as caught:
        combine({1: constant}, 1)
    assert caught.value.check is Check.SHARE_RANGE


@pytest.mark.parametrize(("size", "n", "t"), [(31, 3, 2), (32, 3, 4), (32, 3, 0)])
def test_senseless_sizes_are_refused(size, n, t):
    with pytest.raises(ParameterError):
        split(bytes(size), n, t, os.urandom)


def test_a_stuck_entropy_source_is_noticed():
    with pytest.raises(ParameterError):
        split(bytes(32), 3, 2, lambda size: b"\xff" * size)
    with pytest.raises(ParameterError):
        split(bytes(32), 3, 2, lambda size: bytes(size - 1))

"""Ed25519 keys for which nobody needs a private key, and keys written in a second way.

The points are computed here, from the curve's equation alone: a point of the whole curve times the
order of the large subgroup is of small order, and its multiples are all eight. Where the table in
``secagg.suite`` and this differ, the table is wrong.
"""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from secagg import suite

# RFC 8032 §5.1: the field, the curve -x² + y² = 1 + dx²y², and the order of its large subgroup.
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
L = 2**252 + 27742317777372353535851937790883648493
NEUTRAL = (0, 1)


def x_of(y):
    """An x with that y; None where there is no such point."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    for root in (x, x * pow(2, (P - 1) // 4, P) % P):
        if root * root % P == square:
            return root
    return None


def add(one, other):
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P,
    )


def times(scalar, point):
    result = NEUTRAL
    for bit in f"{scalar:b}":
        result = add(result, result)
        if bit == "1":
            result = add(result, point)
    return result


def torsion():
    """The eight points whose order divides eight."""
    for y in range(2, 100):
        x = x_of(y)
        if x is None:
            continue
        found = [NEUTRAL]
        generator = times(L, (x, y))
        while (point := add(found[-1], generator)) != NEUTRAL:
            found.append(point)
        if len(found) == 8:
            return found
    raise AssertionError("no point of order eight")


def encodings(point):
    """Every 32 bytes that a lenient decoder takes for a point (RFC 8032 §5.1.3 without its checks).

    y may be written without reduction, and the sign of an x of zero may be set.
    """
    x, y = point
    for value in (y, y + P):
        for sign in {x & 1, 1} if x == 0 else {x & 1}:
            if value < 2**255:
                yield (value | sign << 255).to_bytes(32, "little")


SMALL = sorted({encoded for point in torsion() for encoded in encodings(point)})
CANONICAL = sorted((y | (x & 1) << 255).to_bytes(32, "little") for x, y in torsion())
UNREDUCED = sorted(
    (value | sign << 255).to_bytes(32, "little") for value in range(P, 2**255) for sign in (0, 1)
)


def test_there_are_fourteen_encodings_of_the_eight_points():
    """Six of them are second ones, which RFC 8032 §5.1.3 does not decode."""
    assert len(SMALL) == 14
    assert len(CANONICAL) == 8
    assert len(UNREDUCED) == 38
    assert CANONICAL[0] == bytes(32)


@pytest.mark.parametrize("key", SMALL, ids=bytes.hex)
def test_nobody_signs_for_a_key_of_small_order(key):
    """With R of small order and s = 0 OpenSSL takes it for a signature over one message in eight.

    That is the least; under the neutral element it is one over every message.
    """
    taken = 0
    for number in range(64):
        message = f"message {number}".encode()
        for nonce in CANONICAL:
            signature = nonce + bytes(32)
            try:
                Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
            except Exception:  # noqa: BLE001, S112 - only whether it is taken counts
                continue
            taken += 1
            assert not suite.verify(key, signature, message)
    assert taken >= 8, "the library refuses such keys itself"
    assert not suite.is_sound_key(key)


@pytest.mark.parametrize("key", UNREDUCED, ids=bytes.hex)
def test_a_key_has_one_encoding(key):
    assert not suite.is_sound_key(key)


def test_every_other_key_is_sound():
    for seed in range(32):
        key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        public = suite.verification_key(key)
        assert suite.is_sound_key(public)
        assert suite.verify(public, suite.sign(key, b"message"), b"message")
    small = {int.from_bytes(one, "little") & (2**255 - 1) for one in SMALL}
    for y in (*range(100), *range(P - 100, P)):
        encoded = y.to_bytes(32, "little")
        assert suite.is_sound_key(encoded) == (y not in small)


@pytest.mark.parametrize("size_bytes", [0, 31, 33, 64])
def test_a_key_has_32_bytes(size_bytes):
    assert not suite.is_sound_key(b"\x02" * size_bytes)

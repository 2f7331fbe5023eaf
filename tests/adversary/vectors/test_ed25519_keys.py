"""Ed25519 keys for which nobody needs a private key, and keys written in a second way.

The points are computed here, from the curve's equation alone: a point of the whole curve times the
order of the large subgroup is of small order, and its multiples are all eight. Where the table in
``secagg.suite`` and this differ, the table is wrong.
"""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from secagg import suite
from tests.kit.secagg.ed25519_keys import SMALL, UNREDUCED, P, torsion

CANONICAL = sorted((y | (x & 1) << 255).to_bytes(32, "little") for x, y in torsion())


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

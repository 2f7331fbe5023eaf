"""The table of low-order X25519 keys: what an exchange would have said."""

import hashlib

import pytest

from secagg import suite

_P = 2**255 - 19
_SCALARS = [hashlib.sha256(bytes([k])).digest() for k in range(4)]


def _zero_for_all(public_key):
    zero = []
    for scalar in _SCALARS:
        try:
            suite.agree(scalar, public_key)
        except suite.LowOrderError:
            zero.append(True)
        else:
            zero.append(False)
    assert len(set(zero)) == 1
    return zero[0]


def _encodings():
    """Each listed point in every form that 32 bytes allow."""
    for point in sorted(suite._LOW_ORDER):
        u = int.from_bytes(point, "little")
        for value in (u, u + _P):
            for top in (0, 2**255):
                if value < 2**255:
                    yield (value + top).to_bytes(32, "little")


@pytest.mark.parametrize("public_key", list(_encodings()))
def test_a_listed_key_gives_zero_whatever_the_scalar(public_key):
    assert suite.is_low_order(public_key)
    assert _zero_for_all(public_key)


@pytest.mark.parametrize("u", [2, 3, 4, 5, 6, 7, 8, 9, 16, _P - 2, _P - 3, 486662, _P - 486662])
def test_small_numbers_that_are_not_listed_do_not(u):
    public_key = (u % _P).to_bytes(32, "little")
    assert not suite.is_low_order(public_key)
    assert not _zero_for_all(public_key)


def test_every_point_that_doubles_into_the_list_is_in_it():
    listed = {int.from_bytes(point, "little") for point in suite._LOW_ORDER}
    for u in listed:
        denominator = 4 * u * (u * u + 486662 * u + 1) % _P
        if denominator:
            assert (u * u - 1) ** 2 * pow(denominator, -1, _P) % _P in listed
    # The list is as long as there are orders dividing eight: 2; 4 and the twist's 4; 8 twice.
    assert len(listed) == 5


def test_a_loaded_key_agrees_like_its_bytes():
    peer = suite.agreement_public_key(_SCALARS[1])
    loaded = suite.agreement_key(_SCALARS[0])
    assert suite.agree(loaded, peer) == suite.agree(_SCALARS[0], peer)

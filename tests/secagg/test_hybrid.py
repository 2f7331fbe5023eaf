"""Suite v2's primitives: what is bound to what, and which KEM keys are taken."""

import pytest

from secagg import hybrid
from secagg.errors import ParameterError

BOUND, OTHER = bytes(32), bytes([1]) * 32
SEED = bytes(range(32))


def test_no_purpose_is_a_prefix_of_another_and_each_derives_its_own():
    for one in hybrid.PURPOSES:
        for other in hybrid.PURPOSES:
            assert one == other or not other.startswith(one)
    derived = {hybrid.derive(SEED, purpose, BOUND, "a", "b") for purpose in hybrid.PURPOSES}
    assert len(derived) == len(hybrid.PURPOSES)


def test_names_carry_their_length():
    named = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc")]
    assert len({hybrid.derive(SEED, "pair", BOUND, *names) for names in named}) == len(named)


def test_a_derivation_needs_a_known_purpose_and_what_it_is_bound_to():
    for purpose, bound in (("seals", BOUND), ("", BOUND), ("seal", bytes(31))):
        with pytest.raises(ParameterError):
            hybrid.derive(SEED, purpose, bound)


def test_keys_are_bound_to_use_descriptor_and_silo():
    made = [
        keys(SEED, bound, silo)
        for keys in (hybrid.mask_keys, hybrid.box_keys)
        for bound in (BOUND, OTHER)
        for silo in ("a", "b")
    ]
    assert len({one.agreement_public for one in made}) == len(made)
    assert len({one.kem_public for one in made}) == len(made)
    again = hybrid.mask_keys(SEED, BOUND, "a")
    assert (again.agreement_public, again.kem_public) == (
        made[0].agreement_public,
        made[0].kem_public,
    )
    assert "object at" not in repr(again)


def test_a_ciphertext_opens_to_the_same_secret_and_a_bad_one_to_another():
    keys = hybrid.box_keys(SEED, BOUND, "a")
    shared, ciphertext = hybrid.encapsulate(keys.kem_public)
    assert hybrid.decapsulate(keys.kem, ciphertext) == shared
    assert len(shared) == hybrid.SECRET_BYTES
    assert len(ciphertext) == hybrid.KEM_CIPHERTEXT_BYTES
    bad = bytes([ciphertext[0] ^ 1, *ciphertext[1:]])
    assert hybrid.decapsulate(keys.kem, bad) != shared
    assert hybrid.encapsulate(keys.kem_public)[1] != ciphertext


def test_sealing_and_box_keys_are_bound_to_the_ciphertext_and_the_direction():
    made = [
        hybrid.box_key(SEED, OTHER, ctx, names, ciphertext)
        for ctx in (BOUND, OTHER)
        for names in (("a", "b"), ("b", "a"))
        for ciphertext in (b"1", b"2")
    ]
    made += [
        hybrid.seal_key(SEED, ctx, *names, ciphertext)
        for ctx in (BOUND, OTHER)
        for names in (("a", "b"), ("a", "c"))
        for ciphertext in (b"1", b"2")
    ]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("coefficient", [0, 1, 2, 255, 256, 766, 767])
def test_every_coefficient_is_below_the_modulus(coefficient):
    """FIPS 203 §7.2: twelve bits each, little endian."""
    key = hybrid.mask_keys(SEED, BOUND, "a").kem_public
    for value, good in ((3328, True), (3329, False), (4095, False)):
        packed = int.from_bytes(key[:1152], "little")
        packed &= ~(0xFFF << 12 * coefficient)
        packed |= value << 12 * coefficient
        altered = packed.to_bytes(1152, "little") + key[1152:]
        assert hybrid.is_kem_key(altered) is good


def test_a_kem_key_has_its_length():
    key = hybrid.mask_keys(SEED, BOUND, "a").kem_public
    assert hybrid.is_kem_key(key)
    assert not hybrid.is_kem_key(key[:-1])
    assert not hybrid.is_kem_key(key + b"\0")
    assert hybrid.is_available()

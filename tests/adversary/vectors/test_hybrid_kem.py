"""ML-KEM-768: the reference gives NIST's values, and what suite v2 calls agrees with it."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

from secagg import hybrid
from tests.adversary.vectors import reference_mlkem as reference

ACVP = json.loads(Path(__file__).with_name("mlkem_acvp.json").read_text(encoding="utf-8"))
Q = 3329
SEEDS = [(bytes([number]) * 32, bytes([number + 1]) * 32) for number in (0, 7, 254)]


def of(test, *names):
    return [bytes.fromhex(test[name]) for name in names]


def name_of(test):
    return f"tc{test['tcId']}"


@pytest.mark.parametrize("test", ACVP["keyGen"], ids=name_of)
def test_keys_of_nist(test):
    d, z, ek, dk = of(test, "d", "z", "ek", "dk")
    assert reference.keygen(d, z) == (ek, dk)
    private = MLKEM768PrivateKey.from_seed_bytes(d + z)
    assert private.public_key().public_bytes_raw() == ek


@pytest.mark.parametrize("test", ACVP["encapsulation"], ids=name_of)
def test_encapsulations_of_nist(test):
    ek, m, c, k = of(test, "ek", "m", "c", "k")
    assert reference.encaps(ek, m) == (k, c)
    assert hybrid.is_kem_key(ek)


@pytest.mark.parametrize("test", ACVP["decapsulation"]["tests"], ids=name_of)
def test_decapsulations_of_nist(test):
    """Half of them are of altered ciphertexts, which give another secret and no error."""
    c, k = of(test, "c", "k")
    assert reference.decaps(bytes.fromhex(ACVP["decapsulation"]["dk"]), c) == k


def test_nist_altered_some_of_the_ciphertexts():
    reasons = [test["reason"] for test in ACVP["decapsulation"]["tests"]]
    assert set(reasons) == {"modify ciphertext", "no modification"}


@pytest.mark.parametrize("seeds", SEEDS)
def test_each_opens_what_the_other_made(seeds):
    ek, dk = reference.keygen(*seeds)
    private = MLKEM768PrivateKey.from_seed_bytes(b"".join(seeds))
    assert private.public_key().public_bytes_raw() == ek
    shared, ciphertext = reference.encaps(ek, bytes(range(32)))
    assert hybrid.decapsulate(private, ciphertext) == shared
    shared, ciphertext = hybrid.encapsulate(ek)
    assert reference.decaps(dk, ciphertext) == shared


@pytest.mark.parametrize("position", [0, 700, 1087])
def test_a_bad_ciphertext_gives_the_same_other_secret(position):
    ek, dk = reference.keygen(*SEEDS[0])
    private = MLKEM768PrivateKey.from_seed_bytes(b"".join(SEEDS[0]))
    shared, ciphertext = reference.encaps(ek, bytes(32))
    altered = bytearray(ciphertext)
    altered[position] ^= 1
    rejected = reference.decaps(dk, bytes(altered))
    assert rejected == hybrid.decapsulate(private, bytes(altered))
    assert rejected != shared


def with_coefficient(ek, index, value):
    """The key with one of its 768 coefficients replaced."""
    number = int.from_bytes(ek[:1152], "little")
    number += (value - (number >> (12 * index) & 0xFFF)) << (12 * index)
    return number.to_bytes(1152, "little") + ek[1152:]


@pytest.mark.parametrize("index", [0, 1, 255, 256, 766, 767])
@pytest.mark.parametrize(("value", "good"), [(0, True), (Q - 1, True), (Q, False), (4095, False)])
def test_a_key_has_coefficients_below_the_modulus(index, value, good):
    ek = with_coefficient(reference.keygen(*SEEDS[0])[0], index, value)
    assert reference.is_encapsulation_key(ek) == hybrid.is_kem_key(ek) == good
    if not good:
        with pytest.raises(ValueError, match="not an ML-KEM-768 encapsulation key"):
            reference.encaps(ek, bytes(32))


@pytest.mark.parametrize("size", [0, 32, 1183, 1185])
def test_a_key_has_its_length(size):
    assert not reference.is_encapsulation_key(bytes(size))
    assert not hybrid.is_kem_key(bytes(size))

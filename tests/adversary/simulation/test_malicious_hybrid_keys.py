"""Attack 2 in suite v2: ML-KEM keys replaced, repeated, swapped or malformed, and shifted keys.

A failure: a silo that deals shares to a key that is not one of four distinct ones signed by its
peer, or a sum from which masks come off that do not follow from the advertised keys. Not a failure:
an attempt that a malicious silo ends, with its name.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secagg import hybrid
from secagg.errors import Check, VerificationError
from secagg.messages import KemKeys, KeyBundle, KeyBundles
from tests.kit.simulation.secagg_cohort import Cohort, deterministic_entropy
from tests.kit.simulation.secagg_tampering import (
    ME,
    PEER,
    assert_refused,
    bundle_of,
    signed_bundle,
    with_bundle,
)

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)
FRESH = MLKEM768PrivateKey.from_seed_bytes(b"s" * 64).public_key().public_bytes_raw()
# Its first coefficient is q itself, and the last of the polynomials is the largest of twelve bits.
AT_THE_MODULUS = bytes([3329 & 255, 3329 >> 8]) + FRESH[2:]
BEYOND = FRESH[:1151] + b"\xff" + FRESH[1152:]


def shifted(key: bytes, times: int) -> bytes:
    """The key with `times` of a point of order eight added: another key, the same agreements."""
    u = int.from_bytes(key, "little")
    point = edwards(u)
    for _ in range(times):
        point = added(point, torsion())
    y = point[1]
    return ((1 + y) * pow(1 - y, -1, P) % P).to_bytes(32, "little")


def edwards(u: int) -> tuple[int, int]:
    y = (u - 1) * pow(u + 1, -1, P) % P
    return root((y * y - 1) * pow(D * y * y + 1, -1, P) % P), y


def root(square: int) -> int:
    found = pow(square, (P + 3) // 8, P)
    if found * found % P != square:
        found = found * ROOT_OF_MINUS_ONE % P
    assert found * found % P == square
    return found


def added(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    (a, b), (c, d) = left, right
    product = D * a * b * c * d % P
    x = (a * d + b * c) * pow(1 + product, -1, P) % P
    return x, (b * d + a * c) * pow(1 - product, -1, P) % P


def torsion() -> tuple[int, int]:
    """A point of order eight: the u of RFC 7748 §7's list that is not of order one, two or four."""
    return edwards(325606250916557431795983626356110631294008115727848805560023387167927233504)


class Attack(NamedTuple):
    """Keys in PEER's bundle and whether PEER signs them."""

    id: str
    alter: Callable[[KeyBundles], dict[str, object]]
    check: Check
    colludes: bool = True


def kem(**keys: bytes) -> Callable[[KeyBundles], dict[str, object]]:
    return lambda m: {"kem_keys": replace(bundle_of(m, PEER).kem_keys, **keys)}


def copied(use: str, of: str, whose: str = ME) -> Callable[[KeyBundles], dict[str, object]]:
    """One of PEER's KEM keys is a copy of one of another silo, or of its own."""

    def alter(m: KeyBundles) -> dict[str, object]:
        lent = getattr(bundle_of(m, whose).kem_keys, of)
        return {"kem_keys": replace(bundle_of(m, PEER).kem_keys, **{use: lent})}

    return alter


ATTACKS = (
    Attack("A02aa-KEM-mask-key-substituted", kem(mask_key=FRESH), Check.BUNDLE_SIGNATURE, False),
    Attack("A02ab-KEM-box-key-substituted", kem(cipher_key=FRESH), Check.BUNDLE_SIGNATURE, False),
    Attack("A02ac-KEM-keys-taken-out", lambda m: {"kem_keys": None, "debit": None},
           Check.SUITE),
    Attack("A02ad-KEM-mask-key-copied-from-me", copied("mask_key", "mask_key"),
           Check.KEY_DISTINCT),
    Attack("A02ae-KEM-box-key-copied-from-me", copied("cipher_key", "cipher_key"),
           Check.KEY_DISTINCT),
    Attack("A02af-KEM-mask-key-copied-as-box-key", copied("cipher_key", "mask_key"),
           Check.KEY_DISTINCT),
    Attack("A02ag-one-KEM-key-for-both-uses", copied("cipher_key", "mask_key", PEER),
           Check.KEY_DISTINCT),
    Attack("A02ah-KEM-mask-key-at-the-modulus", kem(mask_key=AT_THE_MODULUS), Check.KEM_KEY),
    Attack("A02ai-KEM-mask-key-beyond-it", kem(mask_key=BEYOND), Check.KEM_KEY),
    Attack("A02aj-KEM-box-key-beyond-it", kem(cipher_key=BEYOND), Check.KEM_KEY),
    Attack("A02ak-KEM-box-key-of-ones", kem(cipher_key=b"\xff" * 1184), Check.KEM_KEY),
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_a_bad_kem_key_ends_the_attempt_before_any_share_is_dealt(attack):
    """Attack 2: by every silo, and an honest coordinator refuses the bundle by name."""
    cohort = Cohort(5, suite=2)
    bundles = cohort.bundles_of_all()
    changes = attack.alter(bundles)
    bad: KeyBundle = replace(bundle_of(bundles, PEER), **changes)
    if attack.colludes:
        bad = signed_bundle(cohort, PEER, **changes)
    for name in (ME, "silo-000", "silo-004"):
        assert_refused(cohort.states[name], with_bundle(bundles, PEER, bad), attack.check, PEER)
    for name in cohort.names[: cohort.names.index(PEER)]:
        cohort.server.receive(bundle_of(bundles, name))
    with pytest.raises(VerificationError) as caught:
        cohort.server.receive(bad)
    assert (caught.value.check, caught.value.silo) == (attack.check, PEER)
    assert cohort.server.receive(bundle_of(bundles, PEER))


def test_shifted_keys_agree_as_the_key_itself():
    """What makes them worth trying: X25519 clears the cofactor."""
    private = X25519PrivateKey.from_private_bytes(b"a" * 32)
    public = X25519PrivateKey.from_private_bytes(b"b" * 32).public_key().public_bytes_raw()
    keys = [shifted(public, times) for times in range(8)]
    assert keys[0] == public
    assert len(set(keys)) == 8
    agreed = {private.exchange(X25519PublicKey.from_public_bytes(key)) for key in keys}
    assert len(agreed) == 1


def swapped(bundle: KeyBundle) -> dict[str, object]:
    return {"mask_key": bundle.cipher_key, "cipher_key": bundle.mask_key}


def kem_swapped(bundle: KeyBundle) -> dict[str, object]:
    keys = bundle.kem_keys
    assert keys is not None
    return {"kem_keys": KemKeys(cipher_key=keys.mask_key, mask_key=keys.cipher_key)}


def kem_replaced(bundle: KeyBundle) -> dict[str, object]:
    assert bundle.kem_keys is not None
    return {"kem_keys": replace(bundle.kem_keys, mask_key=FRESH)}


def with_the_mask_key(advertised: bytes) -> Callable[..., hybrid.PrivateKeys]:
    """Box keys as a silo makes them; those of PEER have the private half of what it advertised.

    Its shares come from its state's own seed, so the seed is the one that the others recover.
    """
    box_keys = hybrid.box_keys

    def made(seed: bytes, digest: bytes, silo_id: str) -> hybrid.PrivateKeys:
        keys = box_keys(seed, digest, silo_id)
        if silo_id != PEER:
            return keys
        draw = deterministic_entropy(f"seed/{PEER}")
        masks = hybrid.mask_keys(draw(32), digest, PEER)
        assert masks.agreement_public == advertised
        return replace(keys, agreement=masks.agreement)

    return made


def torsion_shifted(times: int) -> Callable[[KeyBundle], dict[str, object]]:
    return lambda bundle: {"mask_key": shifted(bundle.mask_key, times)}


NOT_FROM_THE_SEED = {
    "swapped": swapped,
    "KEM swapped": kem_swapped,
    "KEM of another seed": kem_replaced,
    "shifted by order eight": torsion_shifted(1),
    "shifted by order four": torsion_shifted(2),
    "shifted by order two": torsion_shifted(4),
}


@pytest.mark.parametrize("case", sorted(NOT_FROM_THE_SEED))
def test_a02al_keys_that_do_not_follow_from_the_shared_seed_are_found_after_a_drop(
    monkeypatch, case
):
    """Attack 2: each key is fit for use, so nobody can tell before the mask seed is recovered."""
    cohort = Cohort(5, suite=2)
    bundles = cohort.bundles_of_all()
    changes = NOT_FROM_THE_SEED[case](bundle_of(bundles, PEER))
    bad = signed_bundle(cohort, PEER, **changes)
    cohort.states[PEER]._bundle = bad
    for bundle in with_bundle(bundles, PEER, bad).bundles:
        cohort.server.receive(bundle)
    if case == "swapped":
        # It agrees on boxes with the key that it advertises for them.
        monkeypatch.setattr(hybrid, "box_keys", with_the_mask_key(bad.cipher_key))
    signatures = cohort.agree(cohort.upload(cohort.share(cohort.announce()), (PEER,)))
    with pytest.raises(VerificationError) as caught:
        cohort.unmask(signatures)
    assert (caught.value.check, caught.value.silo) == (Check.MASK_KEY, PEER)


def test_a02am_a_shifted_key_of_a_silo_that_stays_changes_nothing():
    """Attack 2: the agreements are the same, so its masks cancel."""
    cohort = Cohort(5, suite=2)
    bundles = cohort.bundles_of_all()
    bad = signed_bundle(cohort, PEER, mask_key=shifted(bundle_of(bundles, PEER).mask_key, 1))
    cohort.states[PEER]._bundle = bad
    for bundle in with_bundle(bundles, PEER, bad).bundles:
        cohort.server.receive(bundle)
    signatures = cohort.agree(cohort.upload(cohort.share(cohort.announce())))
    cohort.unmask(signatures).apply(cohort.accumulator)
    np.testing.assert_array_equal(cohort.accumulator.view("<i4"), cohort.expected(cohort.names))

"""Attacks 2, 4 and 12 of the list: one message to one silo is not what an honest coordinator sends.

Each row puts a forged message in front of a silo that runs a real session with a ledger and a spool
on disk. The silo refuses at the named check, nothing leaves it from then on, its secrets are gone,
and the next honest aggregation has all silos in it, exactly.

A failure: any call of the silo after the forged message, another check than the one named, or a
silo that cannot take part again. Not a failure: an attempt that is lost.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from secagg import suite
from secagg.errors import Check
from secagg.messages import ConsistencySignatures, KeyBundles, Survivors
from tests.kit.paths import ROOT
from tests.kit.simulation.forgeries import (
    headers_of,
    of,
    resigned_boxes,
    swapped,
    with_header,
    without,
)
from tests.kit.simulation.secagg_tampering import (
    ME,
    PEER,
    bundle_of,
    flip,
    flip_top_bit,
    resigned_upload,
    signed_bundle,
    with_bundle,
)
from tests.kit.simulation.session_federation import (
    ROUND,
    Attempt,
    Federation,
    assert_not_joined,
    assert_refused,
    assert_usable,
    identity_of,
)

OTHER_KEY = suite.agreement_public_key(b"m" * 32)
P = 2**255 - 19
# Every encoding below 2^255 of a point whose order divides 8 (RFC 7748 §7), zero and one included.
LOW_ORDER = (
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P - 1,
    P,
    P + 1,
)


@dataclass(frozen=True)
class Attack:
    """One forged message: when, what, and at which check it ends."""

    id: str
    step: str
    forge: Callable[[Attempt, Any], Any]
    check: Check
    silo: str | None = None
    drops: Mapping[str, Collection[str]] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


def peer_keys(**keys: bytes) -> Callable[[Attempt, KeyBundles], KeyBundles]:
    """The coordinator writes other keys into a peer's bundle, whose signature it cannot make."""
    return lambda a, m: with_bundle(m, PEER, replace(bundle_of(m, PEER), **keys))


def colluding_keys(
    keys: Callable[[KeyBundles], dict[str, bytes]],
) -> Callable[[Attempt, KeyBundles], KeyBundles]:
    """A colluding peer signs other keys."""
    return lambda a, m: with_bundle(m, PEER, signed_bundle(a, PEER, **keys(m)))


def low_order(point: int, which: str) -> Callable[[Attempt, KeyBundles], KeyBundles]:
    return colluding_keys(lambda _: {which: point.to_bytes(32, "little")})


R0 = [
    Attack("A02a-mask-key-substituted", "share_keys", peer_keys(mask_key=OTHER_KEY),
           Check.BUNDLE_SIGNATURE, PEER),
    Attack("A02b-cipher-key-substituted", "share_keys", peer_keys(cipher_key=OTHER_KEY),
           Check.BUNDLE_SIGNATURE, PEER),
    Attack("A02c-another-silos-keys", "share_keys",
           lambda a, m: with_bundle(m, PEER, replace(bundle_of(m, "silo-000"), silo_id=PEER)),
           Check.BUNDLE_SIGNATURE, PEER),
    Attack("A02d-own-key-altered", "share_keys",
           lambda a, m: with_bundle(m, ME, replace(bundle_of(m, ME), mask_key=OTHER_KEY)),
           Check.OWN_BUNDLE),
    Attack("A02e-own-bundle-signed-in-another-session", "share_keys",
           lambda a, m: with_bundle(m, ME, signed_bundle(a, ME)), Check.OWN_BUNDLE),
    Attack("A02f-own-bundle-left-out", "share_keys", lambda a, m: without(m, ME),
           Check.OWN_BUNDLE),
    Attack("A02g-key-copied-from-me", "share_keys",
           colluding_keys(lambda m: {"mask_key": bundle_of(m, ME).mask_key}),
           Check.KEY_DISTINCT, PEER),
    Attack("A02h-key-copied-in-another-encoding", "share_keys",
           colluding_keys(lambda m: {"mask_key": flip_top_bit(bundle_of(m, ME).mask_key)}),
           Check.KEY_DISTINCT, PEER),
    Attack("A02i-cipher-key-copied-as-mask-key", "share_keys",
           colluding_keys(lambda m: {"mask_key": bundle_of(m, ME).cipher_key}),
           Check.KEY_DISTINCT, PEER),
    Attack("A02j-one-key-for-both-uses", "share_keys",
           colluding_keys(lambda m: dict.fromkeys(("mask_key", "cipher_key"), OTHER_KEY)),
           Check.KEY_DISTINCT, PEER),
    *(
        Attack(f"A02k-low-order-{which}-{number}", "share_keys", low_order(point, which),
               Check.LOW_ORDER_KEY, PEER)
        for which in ("cipher_key", "mask_key")
        for number, point in enumerate(LOW_ORDER)
    ),
    Attack("A02l-one-silo-twice", "share_keys",
           lambda a, m: KeyBundles(bundles=(m.bundles[0], *m.bundles)), Check.BUNDLE_SET),
    Attack("A02m-a-silo-outside-the-cohort", "share_keys",
           lambda a, m: KeyBundles(
               bundles=(*m.bundles, replace(bundle_of(m, PEER), silo_id="stranger"))),
           Check.BUNDLE_SET, "stranger"),
    Attack("A02n-ledger-head-rewritten", "share_keys",
           lambda a, m: with_bundle(m, PEER, replace(bundle_of(m, PEER), ledger_seq=8)),
           Check.BUNDLE_SIGNATURE, PEER),
    Attack("A07a-U1-below-t", "share_keys", lambda a, m: without(m, "silo-000", PEER),
           Check.BUNDLES_SIZE),
    Attack("A07b-U1-below-n_min", "share_keys", lambda a, m: without(m, PEER),
           Check.BUNDLES_SIZE, changes={"n_min": 5}),
]  # fmt: skip

R1 = [
    Attack("A02o-box-replaced", "masked_input",
           lambda a, m: replace(
               m, ciphertexts={**m.ciphertexts, PEER: flip(m.ciphertexts[PEER])}),
           Check.BOX_DIGEST, PEER),
    Attack("A02p-boxes-exchanged", "masked_input",
           lambda a, m: replace(
               m, ciphertexts={**m.ciphertexts, PEER: m.ciphertexts["silo-004"]}),
           Check.BOX_DIGEST, PEER),
    Attack("A02q-box-left-out", "masked_input",
           lambda a, m: replace(
               m, ciphertexts={k: v for k, v in m.ciphertexts.items() if k != PEER}),
           Check.BOX_SET),
    Attack("A02r-commitment-rewritten", "masked_input",
           lambda a, m: with_header(
               m, replace(headers_of(m, PEER), self_seed_commitment=bytes(32))),
           Check.SHARE_SIGNATURE, PEER),
    Attack("A02s-own-header-altered", "masked_input",
           lambda a, m: with_header(m, replace(headers_of(m, ME), self_seed_commitment=bytes(32))),
           Check.OWN_SHARES),
    Attack("A02t-a-recipient-left-out-by-a-colluder", "masked_input",
           lambda a, m: with_header(
               m, resigned_boxes(a, headers_of(m, PEER), boxes=headers_of(m, PEER).boxes[1:])),
           Check.SHARE_RECIPIENTS, PEER),
    Attack("A02u-senders-out-of-order", "masked_input",
           lambda a, m: replace(m, headers=m.headers[::-1]), Check.SHARE_SET),
    Attack("A07c-U2-below-t", "masked_input", lambda a, m: without(m, "silo-000", PEER),
           Check.SHARES_SIZE),
    Attack("A07d-U2-below-n_min", "masked_input", lambda a, m: without(m, PEER),
           Check.SHARES_SIZE, changes={"n_min": 5}),
]  # fmt: skip

R2 = [
    Attack("A04b-self-listed-dead", "consistency_check", lambda a, m: without(m, ME),
           Check.SURVIVORS_SELF),
    Attack("A04c-one-id-twice", "consistency_check",
           lambda a, m: Survivors(headers=(m.headers[0], *m.headers)), Check.SURVIVORS_ORDER),
    Attack("A04d-a-stranger-alive", "consistency_check",
           lambda a, m: Survivors(headers=(*m.headers, replace(of(m, PEER), silo_id="stranger"))),
           Check.SURVIVORS_SUBSET, "stranger"),
    Attack("A04e-alive-though-it-shared-no-keys", "consistency_check",
           lambda a, m: Survivors(
               headers=(*m.headers, replace(of(m, PEER), silo_id="silo-004"))),
           Check.SURVIVORS_SUBSET, "silo-004", drops={"share_keys": ["silo-004"]}),
    Attack("A04f-U3-below-t", "consistency_check", lambda a, m: without(m, "silo-000", PEER),
           Check.SURVIVORS_SIZE),
    Attack("A04g-U3-below-n_min", "consistency_check", lambda a, m: without(m, PEER),
           Check.SURVIVORS_SIZE, changes={"n_min": 5}),
    Attack("A12a-dropped-after-its-upload", "consistency_check", lambda a, m: without(m, ME),
           Check.SURVIVORS_SELF),
    Attack("A12b-own-upload-replaced", "consistency_check",
           lambda a, m: swapped(m, replace(of(m, ME), masked_sha256=bytes(32))),
           Check.OWN_UPLOAD),
    Attack("A12c-own-upload-truncated", "consistency_check",
           lambda a, m: swapped(m, replace(of(m, ME), length_bytes=60)), Check.OWN_UPLOAD),
    Attack("A12d-anothers-upload-replaced", "consistency_check",
           lambda a, m: swapped(m, replace(of(m, PEER), masked_sha256=bytes(32))),
           Check.UPLOAD_SIGNATURE, PEER),
    Attack("A12e-anothers-upload-truncated", "consistency_check",
           lambda a, m: swapped(m, replace(of(m, PEER), length_bytes=60)),
           Check.UPLOAD_SIGNATURE, PEER),
    Attack("A12f-truncated-by-a-colluder", "consistency_check",
           lambda a, m: swapped(m, resigned_upload(a, of(m, PEER), a.members, length_bytes=60)),
           Check.MASKED_LENGTH, PEER),
    Attack("A12g-extended-by-a-colluder", "consistency_check",
           lambda a, m: swapped(m, resigned_upload(a, of(m, PEER), a.members, length_bytes=68)),
           Check.MASKED_LENGTH, PEER),
    Attack("A04h-upload-under-another-U2", "consistency_check",
           lambda a, m: swapped(m, resigned_upload(
               a, of(m, PEER), replace(a.members, sha256=bytes(32)))),
           Check.UPLOAD_SIGNATURE, PEER),
]  # fmt: skip

R3 = [
    Attack("A04i-fewer-than-t-agreed", "unmask", lambda a, m: without(m, "silo-000", PEER),
           Check.AGREEMENT_SIZE),
    Attack("A04j-one-agreement-counted-twice", "unmask",
           lambda a, m: ConsistencySignatures(signatures=(*m.signatures[:3], m.signatures[2])),
           Check.AGREEMENT_SET),
    Attack("A04k-a-lost-silo-agrees", "unmask",
           lambda a, m: ConsistencySignatures(
               signatures=(*m.signatures, replace(m.signatures[0], silo_id="silo-004"))),
           Check.AGREEMENT_SET, "silo-004", drops={"masked_input": ["silo-004"]}),
    Attack("A04l-anothers-signature", "unmask",
           lambda a, m: ConsistencySignatures(
               signatures=(replace(m.signatures[1], silo_id="silo-000"), *m.signatures[1:])),
           Check.AGREEMENT_SIGNATURES, "silo-000"),
    Attack("A04m-signature-rewritten", "unmask",
           lambda a, m: ConsistencySignatures(
               signatures=(
                   replace(m.signatures[0], signature=flip(m.signatures[0].signature)),
                   *m.signatures[1:])),
           Check.AGREEMENT_SIGNATURES, "silo-000"),
]  # fmt: skip

ATTACKS = (*R0, *R1, *R2, *R3)
# What suite v2 deals in R1 has a table of its own: `test_malicious_coordinator_leaves`.
PLAYED = [(attack, 1) for attack in ATTACKS]
PLAYED += [(attack, 2) for attack in ATTACKS if attack not in R1]


@pytest.mark.parametrize(
    ("attack", "suite_played"), PLAYED, ids=[f"{attack.id}-v{played}" for attack, played in PLAYED]
)
def test_a_forged_message_ends_at_its_check_and_the_silo_goes_on(tmp_path, attack, suite_played):
    """Attacks 2, 4, 7, 12: see the table."""
    federation = Federation(tmp_path, suite=suite_played)
    first = federation.attempt(**attack.changes)
    told = first.until(attack.step, attack.drops)
    member = federation[ME]
    assert_refused(member, attack.forge(first, told[ME]), attack.check, attack.silo)
    assert "unmask" not in member.calls()
    if attack.step == "unmask":
        # It has signed survivors, so the round is lost to it, whatever else is declared.
        assert_not_joined(member, federation.attempt(identity_of(attempt=2)).descriptor)
        assert_usable(federation, identity_of(ROUND + 1, 2))
    else:
        assert_usable(federation, identity_of(attempt=2))
    federation.close()


def test_every_attack_of_the_specification_has_a_test():
    """Attacks 1 to 24 are named in test ids or docstrings, 16 and 17 as P01 and P02."""
    here = Path(__file__).parent
    processes = ROOT / "tests" / "system" / "integration"
    files = [*here.glob("test_malicious_*.py"), *processes.rglob("test_malicious_*.py")]
    text = "\n".join(path.read_text() for path in files)
    named = {name.upper() for name in re.findall(r"(?:\"|test_)([AaPp]\d\d)[a-z]?[-_]", text)}
    listed = {f"A{number:02d}" for number in range(1, 25)} - {"A16", "A17"}
    assert named >= listed | {"P01", "P02"}

"""What a silo does with a wrong descriptor, wrong key bundles or wrong boxes (before R0 to R1).

A failure: a client that goes on, keeps a secret or releases anything after a failed check. Not a
failure: a client that aborts.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from secagg import client, server, transcript
from secagg.errors import (
    Check,
    VerificationError,
)
from secagg.messages import (
    KeyBundles,
    ShareBoxHeader,
)
from secagg.suite import agreement_public_key, seal, sign
from secagg.transcript import ShareKind
from tests.kit.secagg.secagg_samples import ROOT_KEY, signed_descriptor, signing_key
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import (
    ME,
    PEER,
    assert_refused,
    bundle_of,
    flip,
    flip_top_bit,
    signed_bundle,
    with_bundle,
)

both_suites = pytest.mark.parametrize("suite", [1, 2])


@both_suites
@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"base_model_sha256": bytes(32)}, Check.MODEL),
        ({"adapter_sha256": bytes(32)}, Check.MODEL),
        ({"silo_id": "stranger"}, Check.MEMBERSHIP),
        ({"signing_key": signing_key("silo-000")}, Check.MEMBERSHIP),
    ],
)
def test_begin_refuses_what_this_silo_does_not_hold(changes, check, suite):
    setup = replace(Cohort(5, suite=suite).setup(ME), **changes)
    with pytest.raises(VerificationError) as caught:
        client.begin(setup)
    assert caught.value.check is check


@both_suites
def test_begin_refuses_an_identity_seen_before(suite):
    cohort = Cohort(5, suite=suite)
    identity = cohort.descriptor.descriptor.identity
    client.begin(replace(cohort.setup(ME), newest_identity=replace(identity, round=3)))
    for newest in (identity, replace(identity, attempt=1), replace(identity, round=5)):
        with pytest.raises(VerificationError) as caught:
            client.begin(replace(cohort.setup(ME), newest_identity=newest))
        assert caught.value.check is Check.IDENTITY


@both_suites
def test_begin_refuses_a_descriptor_the_coordinator_did_not_sign(suite):
    cohort = Cohort(5, suite=suite)
    forged = replace(cohort.descriptor, signature=sign(ROOT_KEY, b""))
    with pytest.raises(VerificationError) as caught:
        client.begin(replace(cohort.setup(ME), descriptor=forged))
    assert caught.value.check is Check.DESCRIPTOR_SIGNATURE
    with pytest.raises(VerificationError):
        server.open(forged, cohort.roster)


@both_suites
def test_begin_refuses_a_silo_left_out_of_the_cohort(suite):
    cohort = Cohort(5, suite=suite)
    smaller = replace(cohort.descriptor.descriptor, cohort=cohort.names[1:], threshold=3)
    setup = replace(cohort.setup("silo-000"), descriptor=signed_descriptor(smaller))
    with pytest.raises(VerificationError) as caught:
        client.begin(setup)
    assert caught.value.check is Check.MEMBERSHIP


def _tampered_bundles(cohort, bundles):
    """(name, altered bundles, check) for what a coordinator or a silo can do to the bundles."""
    listed = bundles.bundles
    peer = bundle_of(bundles, PEER)
    other_d = Cohort(
        5,
        suite=cohort.descriptor.descriptor.suite,
        identity={"run_id": "run-1", "round": 5, "step": 0, "part": 0, "attempt": 0},
    )
    stale = other_d.advertise()
    low = bytes(32)
    other_key = agreement_public_key(b"m" * 32)
    return {
        "reversed": (KeyBundles(bundles=listed[::-1]), Check.BUNDLE_SET),
        "twice": (KeyBundles(bundles=(listed[0], *listed)), Check.BUNDLE_SET),
        "stranger": (
            KeyBundles(bundles=(*listed, replace(peer, silo_id="stranger"))),
            Check.BUNDLE_SET,
        ),
        "too few": (KeyBundles(bundles=listed[:3]), Check.BUNDLES_SIZE),
        "without own": (
            KeyBundles(bundles=tuple(b for b in listed if b.silo_id != ME)),
            Check.OWN_BUNDLE,
        ),
        "own replaced": (
            with_bundle(bundles, ME, signed_bundle(cohort, ME, cipher_key=peer.cipher_key)),
            Check.OWN_BUNDLE,
        ),
        "substituted key": (
            with_bundle(bundles, PEER, replace(peer, mask_key=other_key)),
            Check.BUNDLE_SIGNATURE,
        ),
        "altered ledger head": (
            with_bundle(bundles, PEER, replace(peer, ledger_seq=8)),
            Check.BUNDLE_SIGNATURE,
        ),
        "altered declaration": (
            with_bundle(bundles, PEER, replace(peer, families=("craft", "rare"))),
            Check.BUNDLE_SIGNATURE,
        ),
        "own declaration altered": (
            with_bundle(bundles, ME, signed_bundle(cohort, ME, families=("rare",))),
            Check.OWN_BUNDLE,
        ),
        "another round": (
            with_bundle(bundles, PEER, bundle_of(stale, PEER)),
            Check.BUNDLE_SIGNATURE,
        ),
        "copied key": (
            with_bundle(
                bundles, PEER,
                signed_bundle(cohort, PEER, mask_key=bundle_of(bundles, ME).mask_key),
            ),
            Check.KEY_DISTINCT,
        ),
        "copied key written otherwise": (
            with_bundle(
                bundles, PEER,
                signed_bundle(
                    cohort, PEER, mask_key=flip_top_bit(bundle_of(bundles, ME).mask_key)
                ),
            ),
            Check.KEY_DISTINCT,
        ),
        "one key for both": (
            with_bundle(bundles, PEER, signed_bundle(cohort, PEER, mask_key=peer.cipher_key)),
            Check.KEY_DISTINCT,
        ),
        "low order cipher key": (
            with_bundle(bundles, PEER, signed_bundle(cohort, PEER, cipher_key=low)),
            Check.LOW_ORDER_KEY,
        ),
        "low order mask key": (
            with_bundle(bundles, PEER, signed_bundle(cohort, PEER, mask_key=low)),
            Check.LOW_ORDER_KEY,
        ),
    }  # fmt: skip


@both_suites
@pytest.mark.parametrize(
    "case",
    [
        "reversed",
        "twice",
        "stranger",
        "too few",
        "without own",
        "own replaced",
        "substituted key",
        "altered ledger head",
        "altered declaration",
        "own declaration altered",
        "another round",
        "copied key",
        "copied key written otherwise",
        "one key for both",
        "low order cipher key",
        "low order mask key",
    ],
)
def test_tampered_bundles(case, suite):
    cohort = Cohort(5, suite=suite)
    bundles = cohort.advertise()
    message, check = _tampered_bundles(cohort, bundles)[case]
    assert_refused(cohort.states[ME], message, check)


def test_the_table_of_tampered_bundles_is_all_tested():
    cohort = Cohort(5)
    assert len(_tampered_bundles(cohort, cohort.advertise())) == 16


def _resigned(cohort, header: ShareBoxHeader, **changes) -> ShareBoxHeader:
    altered = replace(header, **changes)
    signed_bytes = altered.signed_bytes(cohort.server.members.ctx)
    return replace(altered, signature=sign(signing_key(altered.sender), signed_bytes))


def _replace_header(delivery, header):
    headers = tuple(header if h.sender == header.sender else h for h in delivery.headers)
    return replace(delivery, headers=headers)


def _header_of(delivery, name):
    return next(header for header in delivery.headers if header.sender == name)


def _without(mapping, name):
    return {key: value for key, value in mapping.items() if key != name}


def test_tampered_deliveries():
    cases = {
        "reversed": (
            lambda c, d: replace(d, headers=d.headers[::-1]), Check.SHARE_SET),
        "too few": (
            lambda c, d: replace(d, headers=d.headers[:3]), Check.SHARES_SIZE),
        "own altered": (
            lambda c, d: _replace_header(
                d, replace(_header_of(d, ME), self_seed_commitment=bytes(32))),
            Check.OWN_SHARES),
        "own left out": (
            lambda c, d: replace(
                d, headers=tuple(h for h in d.headers if h.sender != ME)),
            Check.OWN_SHARES),
        "ciphertext missing": (
            lambda c, d: replace(d, ciphertexts=_without(d.ciphertexts, PEER)), Check.BOX_SET),
        "ciphertext to self": (
            lambda c, d: replace(d, ciphertexts={**d.ciphertexts, ME: bytes(82)}), Check.BOX_SET),
        "header altered": (
            lambda c, d: _replace_header(
                d, replace(_header_of(d, PEER), self_seed_commitment=bytes(32))),
            Check.SHARE_SIGNATURE),
        "recipient left out": (
            lambda c, d: _replace_header(
                d, _resigned(c, _header_of(d, PEER), boxes=_header_of(d, PEER).boxes[1:])),
            Check.SHARE_RECIPIENTS),
        "recipient twice": (
            lambda c, d: _replace_header(
                d, _resigned(c, _header_of(d, PEER),
                             boxes=(_header_of(d, PEER).boxes[0], *_header_of(d, PEER).boxes))),
            Check.SHARE_RECIPIENTS),
        "ciphertext altered": (
            lambda c, d: replace(
                d, ciphertexts={**d.ciphertexts, PEER: flip(d.ciphertexts[PEER])}),
            Check.BOX_DIGEST),
        "ciphertexts swapped": (
            lambda c, d: replace(
                d, ciphertexts={**d.ciphertexts, PEER: d.ciphertexts["silo-004"]}),
            Check.BOX_DIGEST),
    }  # fmt: skip
    for alter, check in cases.values():
        cohort = Cohort(5)
        delivery = cohort.until("masked_input")[ME]
        assert_refused(cohort.states[ME], alter(cohort, delivery), check)


def _corrupt_box(cohort, delivery, how):
    """A delivery in which the peer itself signed a box that is no good for this silo."""
    header = _header_of(delivery, PEER)
    box = header.box_for(ME)
    ctx = cohort.server.members.ctx
    key = bytes(cohort.states[ME]._vault.get("box", PEER))
    associated = transcript.box_associated_data(ctx, PEER, ME)
    if how == "does not open":
        ciphertext, hashes = bytes(82), {}
    elif how == "wrong hash":
        ciphertext, hashes = delivery.ciphertexts[PEER], {"mask_key_share_sha256": bytes(32)}
    elif how == "sealed for another":
        wrong = transcript.box_associated_data(ctx, PEER, "silo-000")
        ciphertext, hashes = seal(key, wrong, bytes(66)), {}
    else:
        outside = b"\xff" * 33
        ciphertext = seal(key, associated, outside + bytes(33))
        hashes = {
            "self_seed_share_sha256": transcript.share_sha256(
                ctx, PEER, ME, ShareKind.SELF_SEED, outside
            )
        }
    altered = replace(box, ciphertext_sha256=hashlib.sha256(ciphertext).digest(), **hashes)
    boxes = tuple(altered if item.recipient == ME else item for item in header.boxes)
    return replace(
        _replace_header(delivery, _resigned(cohort, header, boxes=boxes)),
        ciphertexts={**delivery.ciphertexts, PEER: ciphertext},
    )


@pytest.mark.parametrize(
    ("how", "check"),
    [
        ("does not open", Check.BOX_OPEN),
        ("sealed for another", Check.BOX_OPEN),
        ("wrong hash", Check.SHARE_HASH),
        ("not a field element", Check.SHARE_RANGE),
    ],
)
def test_a_corrupt_sender_is_named_and_none_of_its_shares_kept(how, check):
    cohort = Cohort(5)
    delivery = cohort.until("masked_input")[ME]
    corrupt = _corrupt_box(cohort, delivery, how)
    state, _ = cohort.states[ME].handle(corrupt)
    assert state.rejected == (client.RejectedSender(silo_id=PEER, check=check),)
    assert not any(state._vault.has(kind, PEER) for kind in ShareKind)
    assert state._vault.has(ShareKind.MASK_KEY, "silo-000")


def test_a_sum_is_released_although_one_sender_was_corrupt():
    # The peer signs one bad box; every silo sees the same header, and four good shares remain.
    cohort = Cohort(5)
    boxes_of = {}
    bundles = cohort.advertise()
    for name in cohort.names:
        cohort.states[name], boxes_of[name] = cohort.states[name].handle(bundles)
    peer = boxes_of[PEER]
    spoiled = replace(
        peer,
        boxes=tuple(
            replace(b, ciphertext=flip(b.ciphertext)) if b.recipient == ME else b
            for b in peer.boxes
        ),
    )
    signature = sign(signing_key(PEER), spoiled.header().signed_bytes(cohort.server.ctx))
    boxes_of[PEER] = replace(spoiled, signature=signature)
    cohort.states[PEER]._header = boxes_of[PEER].header()
    for boxes in boxes_of.values():
        cohort.server.receive(boxes)
    cohort.server, deliveries = cohort.server.close()
    signatures = cohort.agree(cohort.upload(deliveries))
    unmasking = cohort.unmask(signatures)
    unmasking.apply(cohort.accumulator)
    expected = (cohort.expected(cohort.names) % 2**32).astype("<u4")
    assert np.array_equal(cohort.accumulator, expected)
    assert PEER not in {share.owner for share in cohort.sent[ME].self_seed_shares}

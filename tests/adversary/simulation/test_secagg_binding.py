"""What keys, digests and signatures are bound to, and two belts behind other checks.

A failure: a field of a message or document that could change while ctx, a digest, a signature or a
key stays the same; a secret that outlives its use. Not a failure: an encoding other than today's,
which the transcripts in ``tests/adversary/vectors`` pin.
"""

import hashlib
import os
from dataclasses import fields, replace

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg import parameters, prg, shamir, transcript
from secagg.errors import Check, ParameterError
from secagg.hybrid import KEM_KEY_BYTES
from secagg.messages import (
    NO_DEBIT,
    MaskedInputHeader,
    Survivors,
    UnmaskingShare,
    UnmaskingShares,
    agreement_bytes,
)
from secagg.prg import Mask, MaskStreams
from secagg.transcript import ShareKind
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import ME, PEER, assert_refused, masked_input_state

CTX, OTHER = hashlib.sha256(b"ctx").digest(), hashlib.sha256(b"other").digest()


def test_ctx_depends_on_every_field_of_every_bundle():
    cohort = Cohort(4, suite=2)
    listed = cohort.advertise().bundles
    d = cohort.descriptor.descriptor
    changes = {
        "silo_id": "silo-009",
        "cipher_key": bytes(32),
        "mask_key": bytes(32),
        "ledger_seq": 8,
        "ledger_sha256": OTHER,
        "families": ("craft",),
        "kem_keys": replace(listed[0].kem_keys, mask_key=bytes(KEM_KEY_BYTES)),
        "debit": NO_DEBIT,
        "cohort_may_vary": True,
        "signature": None,
    }
    assert set(changes) == {field.name for field in fields(listed[0])}
    # A second valid signature of the same content makes no other aggregation.
    del changes["signature"]
    found = [transcript.context(d, listed), transcript.context(d, listed[:-1])]
    for position in range(len(listed)):
        for name, value in changes.items():
            altered = list(listed)
            altered[position] = replace(listed[position], **{name: value})
            found.append(transcript.context(d, altered))
    assert len(set(found)) == len(found) == 2 + 4 * 9


def test_agreement_on_a_set_is_agreement_on_what_its_members_sent():
    cohort = Cohort(4)
    deliveries = cohort.share(cohort.advertise())
    ctx = cohort.server.members.ctx
    boxes = deliveries[ME].headers
    members = [transcript.members(ctx, boxes), transcript.members(OTHER, boxes)]
    members += [
        transcript.members(ctx, (replace(boxes[0], **change), *boxes[1:]))
        for change in ({"self_seed_commitment": OTHER}, {"boxes": boxes[0].boxes[:2]})
    ]
    members.append(transcript.members(ctx, boxes[1:]))
    assert len({one.sha256 for one in members}) == 5
    uploads = cohort.upload(deliveries).headers
    survivors = [transcript.survivors_sha256(ctx, uploads)]
    survivors.append(transcript.survivors_sha256(OTHER, uploads))
    for change in ({"masked_sha256": OTHER}, {"length_bytes": 4}, {"silo_id": "silo-009"}):
        altered = (replace(uploads[0], **change), *uploads[1:])
        survivors.append(transcript.survivors_sha256(ctx, altered))
    survivors.append(transcript.survivors_sha256(ctx, uploads[1:]))
    assert len(set(survivors)) == 6


def test_every_digest_depends_on_all_it_names():
    seed, key = ShareKind.SELF_SEED, ShareKind.MASK_KEY
    made = [
        transcript.share_sha256(ctx, sender, recipient, kind, share)
        for ctx in (CTX, OTHER)
        for sender, recipient in (("a", "b"), ("b", "a"), ("a", "c"))
        for kind in (seed, key)
        for share in (b"1", b"2")
    ]
    made += [
        transcript.self_seed_commitment(ctx, silo, secret)
        for ctx in (CTX, OTHER)
        for silo in ("a", "b")
        for secret in (b"1", b"2")
    ]
    made += [
        transcript.box_associated_data(ctx, sender, recipient)
        for ctx in (CTX, OTHER)
        for sender, recipient in (("a", "b"), ("b", "a"), ("a", "c"))
    ]
    assert len(set(made)) == len(made) == 24 + 8 + 6


def test_every_signature_is_bound_to_all_it_speaks_of():
    cohort = Cohort(4)
    bundles = cohort.advertise()
    bundle = bundles.bundles[0]
    _, boxes = cohort.states[ME].handle(bundles)
    header = boxes.header()
    upload = MaskedInputHeader(silo_id=ME, length_bytes=4, masked_sha256=CTX, signature=bytes(64))
    share = UnmaskingShare(owner=PEER, share=bytes(33))
    seeds = UnmaskingShares(
        silo_id=ME, self_seed_shares=(share,), mask_key_shares=(), signature=bytes(64)
    )
    signed = [
        *(bundle.signed_bytes(d) for d in (CTX, OTHER)),
        *(header.signed_bytes(ctx) for ctx in (CTX, OTHER)),
        replace(header, sender=PEER).signed_bytes(CTX),
        replace(header, own_self_seed_share_sha256=OTHER).signed_bytes(CTX),
        *(upload.signed_bytes(ctx, u2) for ctx in (CTX, OTHER) for u2 in (CTX, OTHER)),
        *(
            agreement_bytes(ctx, u2, u3)
            for ctx in (CTX, OTHER)
            for u2 in (CTX, OTHER)
            for u3 in (CTX, OTHER)
        ),
        *(seeds.signed_bytes(ctx, u3) for ctx in (CTX, OTHER) for u3 in (CTX, OTHER)),
        replace(seeds, silo_id=PEER).signed_bytes(CTX, CTX),
        replace(seeds, self_seed_shares=(), mask_key_shares=(share,)).signed_bytes(CTX, CTX),
    ]
    assert len(set(signed)) == len(signed) == 2 + 4 + 4 + 8 + 6


def _derived(secret: bytes, purpose: bytes, ctx: bytes, *names: str) -> bytes:
    info = b"chorale/v1/" + purpose + ctx
    for name in names:
        info += len(name).to_bytes(2, "big") + name.encode()
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def test_keys_are_derived_as_specified():
    cohort = Cohort(4)
    bundles = cohort.advertise()
    privates = {
        kind: X25519PrivateKey.from_private_bytes(bytes(cohort.states[ME]._vault.get(kind, ME)))
        for kind in ("cipher_private", "mask_private")
    }
    state, boxes = cohort.states[ME].handle(bundles)
    ctx = cohort.server.ctx
    for bundle in bundles.bundles:
        peer = bundle.silo_id
        if peer == ME:
            continue
        cipher, mask = (X25519PublicKey.from_public_bytes(k) for k in
                        (bundle.cipher_key, bundle.mask_key))  # fmt: skip
        channel = privates["cipher_private"].exchange(cipher)
        pair = privates["mask_private"].exchange(mask)
        low, high = sorted((ME, peer))
        assert state._vault.get("mask", peer) == _derived(pair, b"mask", ctx, low, high)
        assert state._vault.get("box", peer) == _derived(channel, b"box", ctx, peer, ME)
        # Its own boxes go out under the key of the other direction, the first and only message.
        sealed = next(box.ciphertext for box in boxes.boxes if box.recipient == peer)
        outgoing = ChaCha20Poly1305(_derived(channel, b"box", ctx, ME, peer))
        associated = transcript.box_associated_data(ctx, ME, peer)
        assert len(outgoing.decrypt(bytes(12), sealed, associated)) == 66


def test_private_keys_do_not_outlive_the_sharing():
    cohort = Cohort(4)
    bundles = cohort.advertise()
    state, _ = cohort.states[ME].handle(bundles)
    for kind in ("cipher_private", "mask_private"):
        assert not state._vault.has(kind, ME)


def test_two_masks_under_one_key_are_refused():
    _, state = masked_input_state()
    state._vault.get("mask", "silo-000")[:] = bytes(state._vault.get("mask", PEER))
    vector = np.zeros(18, dtype="<u4")
    with pytest.raises(ParameterError, match="share a key"):
        state.mask(vector)
    assert not vector.any()
    assert repr(state._vault) == "Vault(0 secrets)"


@pytest.mark.parametrize(("n", "t"), [(3, 2), (3, 3), (5, 4), (10, 7)])
def test_fewer_than_t_shares_do_not_give_the_secret(n, t):
    secret = os.urandom(32)
    shares = {k + 1: share for k, share in enumerate(shamir.split(secret, n, t, os.urandom))}
    assert shamir.combine(shares, t) == secret
    fewer = tuple(shares)[: t - 1]
    inverses = shamir.inverse_denominators(fewer)
    weights = shamir.lagrange_weights(fewer, inverses, 0)
    values = [int.from_bytes(shares[x], "big") for x in fewer]
    found = sum(w * value for w, value in zip(weights, values, strict=True)) % shamir.PRIME
    assert found != int.from_bytes(secret, "big")


def test_a_sum_over_one_honest_silo_is_refused_even_if_t_allowed_it(monkeypatch):
    # t is max(.., c + 2), so this rule never fires first; it holds should that formula be lost.
    monkeypatch.setattr(parameters, "threshold", lambda _n, c: c + 1)
    cohort = Cohort(4, 1, threshold=2, n_min=2)
    survivors = cohort.until("consistency_check", {"masked_input": ["silo-002", "silo-003"]})
    assert len(survivors.headers) == 2
    assert_refused(cohort.states[ME], Survivors(headers=survivors.headers), Check.SURVIVORS_SIZE)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_keystream_is_one_counter_from_zero_and_never_repeats(threads):
    # Several tiles and a rest, in pieces of another size.
    words = 3 * prg.BLOCK_WORDS + 5
    vector = np.zeros(words, dtype="<u4")
    with MaskStreams([Mask(key=CTX, sign=1)], words=words, threads=threads) as streams:
        for start in range(0, words, 100_000):
            streams.apply(vector[start : start + 100_000])
    stream = Cipher(algorithms.AES(CTX), modes.CTR(bytes(16))).encryptor()
    assert vector.tobytes() == stream.update(bytes(vector.nbytes))
    blocks = vector[: words // 4 * 4].reshape(-1, 4)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


def test_the_coordinator_waits_for_t_good_shares_of_every_secret():
    cohort = Cohort(5)
    signatures = cohort.until("unmask")
    for count, name in enumerate(cohort.names[:4], start=1):
        _, shares = cohort.states[name].handle(signatures)
        cohort.server.receive(shares)
        assert cohort.server.ready is (count == 4)

"""What the coordinator does with bad messages: it names the sender and goes on.

A failure: a round lost because one silo sent nonsense. Not a failure: a named dealer whose secret
cannot be recovered.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from secagg import client, shamir, suite, transcript
from secagg.errors import (
    Check,
    MalformedMessageError,
    ParameterError,
    UnexpectedMessageError,
    VerificationError,
)
from secagg.messages import (
    KeyBundles,
    UnmaskingShare,
    UnmaskingShares,
)
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.simulation.secagg_cohort import Cohort, deterministic_entropy, uploaded_digest
from tests.kit.simulation.secagg_tampering import ME, PEER, resigned_upload, signed_bundle

both_suites = pytest.mark.parametrize("suite", [1, 2])


def _server_refuses(receive, message, check, silo):
    with pytest.raises(VerificationError) as caught:
        receive(message)
    assert (caught.value.check, caught.value.silo) == (check, silo)


@both_suites
def test_the_coordinator_refuses_bad_bundles_by_name_and_goes_on(suite):
    cohort = Cohort(5, suite=suite)
    bundles = {name: client.begin(cohort.setup(name))[1] for name in cohort.names}
    collect = cohort.server
    assert collect.pending == frozenset(cohort.names)
    assert collect.receive(bundles[ME])
    assert not collect.receive(bundles[ME])
    _server_refuses(collect.receive, signed_bundle(cohort, ME, ledger_seq=8), Check.DUPLICATE, ME)
    peer = bundles[PEER]
    _server_refuses(collect.receive, replace(peer, silo_id="stranger"), Check.SENDER, "stranger")
    _server_refuses(collect.receive, replace(peer, ledger_seq=1), Check.BUNDLE_SIGNATURE, PEER)
    copied = signed_bundle(cohort, PEER, cipher_key=bundles[ME].cipher_key)
    _server_refuses(collect.receive, copied, Check.KEY_DISTINCT, PEER)
    low = signed_bundle(cohort, PEER, cipher_key=bytes(32))
    _server_refuses(collect.receive, low, Check.LOW_ORDER_KEY, PEER)
    assert collect.pending == frozenset(cohort.names) - {ME}
    assert not collect.ready
    with pytest.raises(VerificationError) as caught:
        collect.close()
    assert caught.value.check is Check.BUNDLES_SIZE
    for bundle in bundles.values():
        collect.receive(bundle)
    assert collect.ready
    collect.close()
    with pytest.raises(UnexpectedMessageError):
        collect.receive(bundles[ME])
    with pytest.raises(UnexpectedMessageError):
        collect.close()


def test_the_coordinator_refuses_bad_boxes_by_name():
    cohort = Cohort(5)
    bundles = cohort.advertise()
    _, boxes = cohort.states[PEER].handle(bundles)
    collect = cohort.server
    _server_refuses(
        collect.receive, replace(boxes, self_seed_commitment=bytes(32)),
        Check.SHARE_SIGNATURE, PEER,
    )  # fmt: skip
    fewer = replace(boxes, boxes=boxes.boxes[1:])
    signed_bytes = fewer.header().signed_bytes(collect.ctx)
    fewer = replace(fewer, signature=suite.sign(signing_key(PEER), signed_bytes))
    _server_refuses(collect.receive, fewer, Check.SHARE_RECIPIENTS, PEER)
    assert collect.receive(boxes)
    assert not collect.receive(boxes)
    _server_refuses(collect.receive, fewer, Check.DUPLICATE, PEER)


@both_suites
def test_the_coordinator_takes_each_upload_once_and_none_late(suite):
    cohort = Cohort(5, suite=suite)
    deliveries = cohort.until("masked_input")
    collect = cohort.server
    headers, digests = {}, {}
    for name, delivery in deliveries.items():
        state, _ = cohort.states[name].handle(delivery)
        vector = np.zeros(18, dtype="<u4")
        _, headers[name] = state.mask(vector, cohort.debit(name))
        digests[name] = uploaded_digest(cohort.descriptor.descriptor, vector)
    with pytest.raises(UnexpectedMessageError):
        collect.completed(PEER, digests[PEER])
    altered = replace(headers[PEER], masked_sha256=bytes(32))
    _server_refuses(collect.expect, altered, Check.UPLOAD_SIGNATURE, PEER)
    longer = resigned_upload(cohort, headers[PEER], collect.members, length_bytes=76)
    _server_refuses(collect.expect, longer, Check.MASKED_LENGTH, PEER)
    assert collect.expect(headers[PEER])
    assert not collect.expect(headers[PEER])
    assert collect.announced == {PEER}
    second = resigned_upload(cohort, headers[PEER], collect.members, masked_sha256=bytes(32))
    _server_refuses(collect.expect, second, Check.DUPLICATE, PEER)
    with pytest.raises(VerificationError) as caught:
        collect.completed(PEER, bytes(32))
    assert caught.value.check is Check.MASKED_DIGEST
    assert PEER in collect.pending
    for name in cohort.names[:4]:
        collect.expect(headers[name])
        assert collect.completed(name, digests[name])
        assert not collect.completed(name, digests[name])
    assert collect.pending == {"silo-004"}
    collect.close()
    with pytest.raises(UnexpectedMessageError):
        collect.expect(headers["silo-004"])
    with pytest.raises(UnexpectedMessageError):
        collect.completed(ME, digests[ME])


@both_suites
def test_the_coordinator_refuses_bad_agreements_by_name(suite):
    cohort = Cohort(5, suite=suite)
    survivors = cohort.until("consistency_check", {"masked_input": ["silo-004"]})
    _, signature = cohort.states[ME].handle(survivors)
    collect = cohort.server
    assert collect.survivors == cohort.names[:4]
    _server_refuses(
        collect.receive, replace(signature, silo_id=PEER), Check.AGREEMENT_SIGNATURES, PEER
    )
    _server_refuses(
        collect.receive, replace(signature, silo_id="silo-004"), Check.SENDER, "silo-004"
    )
    assert collect.receive(signature)
    assert not collect.receive(signature)


def _resigned_shares(cohort, shares: UnmaskingShares, **changes) -> UnmaskingShares:
    altered = replace(shares, **changes)
    collect = cohort.server
    signed_bytes = altered.signed_bytes(collect._members.ctx, collect._survivors_sha256)
    return replace(altered, signature=suite.sign(signing_key(altered.silo_id), signed_bytes))


def _released(cohort, signatures):
    return {
        name: cohort.states[name].handle(signatures)[1]
        for name in sorted(cohort.server.pending)
        if isinstance(cohort.states[name], client.Unmask)
    }


@both_suites
def test_corrupt_shares_are_discarded_and_their_senders_named(suite):
    # n - t = 3 silos send nothing but wrong shares; the sum comes out all the same.
    cohort = Cohort(10, 3, suite=suite)
    released = _released(cohort, cohort.until("unmask"))
    liars = ("silo-000", "silo-004", "silo-009")
    for name in liars:
        wrong = tuple(replace(share, share=bytes(33)) for share in released[name].self_seed_shares)
        released[name] = _resigned_shares(cohort, released[name], self_seed_shares=wrong)
    for shares in released.values():
        cohort.server.receive(shares)
    assert {share.sender for share in cohort.server.rejected} == set(liars)
    assert len(cohort.server.rejected) == 30
    unmasking = cohort.server.finish()
    assert unmasking.rejected_senders == liars
    unmasking.apply(cohort.accumulator)
    expected = (cohort.expected(cohort.names) % 2**32).astype("<u4")
    assert np.array_equal(cohort.accumulator, expected)
    with pytest.raises(UnexpectedMessageError):
        cohort.server.finish()


@both_suites
def test_the_coordinator_refuses_bad_releases_by_name(suite):
    cohort = Cohort(5, suite=suite)
    signatures = cohort.until("unmask", {"masked_input": ["silo-004"]})
    released = _released(cohort, signatures)
    shares = released[ME]
    collect = cohort.server
    assert collect.survivors == cohort.names[:4]
    _server_refuses(
        collect.receive, replace(shares, mask_key_shares=()), Check.UNMASK_SIGNATURE, ME
    )
    both = (*shares.mask_key_shares, UnmaskingShare(owner=PEER, share=bytes(33)))
    wrong_kind = _resigned_shares(
        cohort, shares, mask_key_shares=tuple(sorted(both, key=lambda share: share.owner))
    )
    with pytest.raises(VerificationError) as caught:
        collect.receive(wrong_kind)
    assert caught.value.check is Check.UNMASK_KIND
    assert collect.receive(shares)
    assert not collect.receive(shares)
    _server_refuses(collect.receive, wrong_kind, Check.DUPLICATE, ME)
    with pytest.raises(VerificationError) as caught:
        collect.finish()
    assert caught.value.check is Check.SHARE_COUNT


def test_a_dealer_whose_shares_do_not_hide_its_key_is_named():
    cohort = Cohort(5)

    bundles = cohort.advertise()
    # It advertised one mask key and shares another; its own masks use the other one too.
    secret = cohort.states[PEER]._vault.get("mask_private", PEER)
    secret[:] = hashlib.sha256(b"another").digest()
    deliveries = cohort.share(bundles)
    signatures = cohort.agree(cohort.upload(deliveries, [PEER]))
    with pytest.raises(VerificationError) as caught:
        cohort.unmask(signatures)
    assert (caught.value.check, caught.value.silo) == (Check.MASK_KEY, PEER)


def test_a_dealer_whose_shares_do_not_hide_its_seed_is_named(monkeypatch):
    cohort = Cohort(5)
    honest = transcript.self_seed_commitment

    def lying(ctx, silo_id, seed):
        return bytes(32) if silo_id == PEER else honest(ctx, silo_id, seed)

    bundles = cohort.advertise()
    monkeypatch.setattr(transcript, "self_seed_commitment", lying)
    deliveries = cohort.share(bundles)
    monkeypatch.undo()
    signatures = cohort.agree(cohort.upload(deliveries))
    with pytest.raises(VerificationError) as caught:
        cohort.unmask(signatures)
    assert (caught.value.check, caught.value.silo) == (Check.COMMITMENT, PEER)


def test_a_dealer_whose_shares_hide_no_secret_is_named(monkeypatch):
    cohort = Cohort(5)
    bundles = cohort.advertise()
    # A constant polynomial above every 32-byte secret: each share is a good field element.
    share = (2**256 + 1).to_bytes(33, "big")

    def dealing(name, act):
        with monkeypatch.context() as patched:
            if name == PEER:
                patched.setattr(shamir, "split", lambda _secret, n, _t, _entropy: (share,) * n)
            return act()

    for name, state in cohort.states.items():
        cohort.states[name], boxes = dealing(name, lambda state=state: state.handle(bundles))
        cohort.server.receive(boxes)
    cohort.server, deliveries = cohort.server.close()
    signatures = cohort.agree(cohort.upload(deliveries))
    with pytest.raises(VerificationError) as caught:
        cohort.unmask(signatures)
    assert (caught.value.check, caught.value.silo) == (Check.SHARE_RANGE, PEER)


def test_a_dealer_of_inconsistent_spare_shares_is_named_and_the_sum_stands(monkeypatch):
    cohort = Cohort(5)
    bundles = cohort.advertise()
    split = shamir.split

    def crooked(secret, n, t, entropy):
        shares = split(secret, n, t, entropy)
        return (*shares[:-1], shares[0])

    state = cohort.states[PEER]
    monkeypatch.setattr(shamir, "split", crooked)
    cohort.states[PEER], boxes = state.handle(bundles)
    monkeypatch.undo()
    cohort.server.receive(boxes)
    kept = cohort.states[PEER]
    for name in cohort.names:
        if name != PEER:
            cohort.states[name], others = cohort.states[name].handle(bundles)
            cohort.server.receive(others)
    assert cohort.states[PEER] is kept
    cohort.server, deliveries = cohort.server.close()
    unmasking = cohort.unmask(cohort.agree(cohort.upload(deliveries)))
    assert unmasking.inconsistent_dealers == (PEER,)
    unmasking.apply(cohort.accumulator)
    expected = (cohort.expected(cohort.names) % 2**32).astype("<u4")
    assert np.array_equal(cohort.accumulator, expected)


def test_messages_check_their_own_bounds():
    cohort = Cohort(5)
    bundle = cohort.advertise().bundles[0]
    with pytest.raises(MalformedMessageError):
        replace(bundle, cipher_key=bytes(31))
    with pytest.raises(MalformedMessageError):
        client.LedgerHead(seq=-1, sha256=bytes(32))
    with pytest.raises(MalformedMessageError):
        KeyBundles(bundles=())


def test_a_wrong_entropy_source_is_refused():
    setup = Cohort(5).setup(ME)
    with pytest.raises(ParameterError):
        client.begin(replace(setup, entropy=lambda size: bytes(size + 1)))
    assert deterministic_entropy("a")(8) != deterministic_entropy("b")(8)

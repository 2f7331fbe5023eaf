"""What a silo does with wrong survivor sets and agreements (R2 to R4), and never does twice.

A failure: a client that signs or releases twice, or after a failed check. Not a failure: a client
that aborts.
"""

from dataclasses import replace

import numpy as np
import pytest

from secagg.errors import (
    Check,
    ParameterError,
    UnexpectedMessageError,
)
from secagg.messages import (
    ConsistencySignature,
    ConsistencySignatures,
    Survivors,
    agreement_bytes,
)
from secagg.suite import sign
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.simulation.secagg_cohort import Cohort, uploaded_digest
from tests.kit.simulation.secagg_tampering import (
    ME,
    PEER,
    assert_refused,
    masked_input_state,
    resigned_upload,
)

pytestmark = pytest.mark.parametrize("suite", [1, 2])


@pytest.mark.parametrize("words", [0, 17, 19])
def test_a_vector_of_another_length_is_not_masked(words, suite):
    cohort, state = masked_input_state(suite=suite)
    vector = np.zeros(words, dtype="<u4")
    with pytest.raises(ParameterError):
        state.mask(vector, cohort.debit(ME))
    assert not vector.any()
    # A caller's mistake costs nothing: the right vector is still masked.
    following, header = state.mask(np.zeros(18, dtype="<u4"), cohort.debit(ME))
    assert header.length_bytes == 72
    assert following.aborted is None


def test_a_vector_is_masked_once(suite):
    cohort, state = masked_input_state(suite=suite)
    vector = np.zeros(18, dtype="<u4")
    following, header = state.mask(vector, cohort.debit(ME))
    assert header.masked_sha256 == uploaded_digest(cohort.descriptor.descriptor, vector)
    assert not any(following._vault.has(kind, PEER) for kind in ("mask", "own_seed"))
    with pytest.raises(UnexpectedMessageError):
        state.mask(np.zeros(18, dtype="<u4"), cohort.debit(ME))
    with pytest.raises(UnexpectedMessageError):
        state.handle(object())


def test_masked_input_takes_no_message(suite):
    cohort, state = masked_input_state(suite=suite)
    with pytest.raises(UnexpectedMessageError):
        state.handle(ConsistencySignature(silo_id=ME, signature=bytes(64)))
    assert state.aborted is None
    state.wipe()
    assert state.aborted.check is None
    with pytest.raises(UnexpectedMessageError):
        state.mask(np.zeros(18, dtype="<u4"), cohort.debit(ME))


def test_tampered_survivors(suite):
    def by(name, headers):
        return next(header for header in headers if header.silo_id == name)

    def swap(headers, new):
        return tuple(new if header.silo_id == new.silo_id else header for header in headers)

    def stranger(c, h):
        return (*h, replace(h[0], silo_id="stranger"))

    cases = {
        "reversed": (lambda c, h: h[::-1], Check.SURVIVORS_ORDER),
        "alive twice": (lambda c, h: (h[0], *h), Check.SURVIVORS_ORDER),
        "outside U2": (stranger, Check.SURVIVORS_SUBSET),
        "self listed dead": (
            lambda c, h: tuple(x for x in h if x.silo_id != ME), Check.SURVIVORS_SELF),
        "own header altered": (
            lambda c, h: swap(h, replace(by(ME, h), masked_sha256=bytes(32))), Check.OWN_UPLOAD),
        "too few": (lambda c, h: h[:3], Check.SURVIVORS_SIZE),
        "upload altered": (
            lambda c, h: swap(h, replace(by(PEER, h), masked_sha256=bytes(32))),
            Check.UPLOAD_SIGNATURE),
        "another U2": (
            lambda c, h: swap(h, resigned_upload(
                c, by(PEER, h), replace(c.server._members, sha256=bytes(32)))),
            Check.UPLOAD_SIGNATURE),
        "another length": (
            lambda c, h: swap(h, resigned_upload(
                c, by(PEER, h), c.server._members, length_bytes=76)),
            Check.MASKED_LENGTH),
    }  # fmt: skip
    for alter, check in cases.values():
        cohort = Cohort(5, suite=suite)
        survivors = cohort.until("consistency_check")
        message = Survivors(headers=alter(cohort, survivors.headers))
        assert_refused(cohort.states[ME], message, check)


def test_a_survivor_outside_the_members_is_refused_though_in_the_cohort(suite):
    cohort = Cohort(5, suite=suite)
    survivors = cohort.until("consistency_check", {"share_keys": [PEER]})
    forged = replace(survivors.headers[0], silo_id=PEER)
    headers = tuple(sorted((*survivors.headers, forged), key=lambda header: header.silo_id))
    assert_refused(cohort.states[ME], Survivors(headers=headers), Check.SURVIVORS_SUBSET)


def test_survivors_are_signed_once(suite):
    cohort = Cohort(5, suite=suite)
    survivors = cohort.until("consistency_check")
    state = cohort.states[ME]
    state.handle(survivors)
    smaller = Survivors(headers=survivors.headers[:4])
    for message in (survivors, smaller):
        with pytest.raises(UnexpectedMessageError):
            state.handle(message)


def test_tampered_agreements(suite):
    def signature(name, signed):
        return ConsistencySignature(silo_id=name, signature=sign(signing_key(name), signed))

    def other_set(c, s):
        members = c.server._members
        signed = agreement_bytes(members.ctx, members.sha256, bytes(32))
        return tuple(signature(x.silo_id, signed) if x.silo_id == PEER else x for x in s)

    cases = {
        "reversed": (lambda c, s: s[::-1], Check.AGREEMENT_SET),
        "one twice": (lambda c, s: (*s[:3], s[2]), Check.AGREEMENT_SET),
        "stranger": (
            lambda c, s: (*s, replace(s[0], silo_id="stranger")), Check.AGREEMENT_SET),
        "another survivor set": (other_set, Check.AGREEMENT_SIGNATURES),
        "another's signature": (
            lambda c, s: (replace(s[1], silo_id=s[0].silo_id), *s[1:]),
            Check.AGREEMENT_SIGNATURES),
        "fewer than t": (lambda c, s: s[:3], Check.AGREEMENT_SIZE),
    }  # fmt: skip
    for alter, check in cases.values():
        cohort = Cohort(5, suite=suite)
        signatures = cohort.until("unmask")
        message = ConsistencySignatures(signatures=alter(cohort, signatures.signatures))
        assert_refused(cohort.states[ME], message, check)


def test_a_dropped_silo_cannot_agree(suite):
    cohort = Cohort(5, suite=suite)
    signatures = cohort.until("unmask", {"masked_input": [PEER]})
    forged = replace(signatures.signatures[0], silo_id=PEER)
    listed = sorted((*signatures.signatures, forged), key=lambda item: item.silo_id)
    message = ConsistencySignatures(signatures=tuple(listed))
    assert_refused(cohort.states[ME], message, Check.AGREEMENT_SET)


def test_exactly_one_kind_of_share_leaves_for_each_peer(suite):
    cohort = Cohort(10, 3, suite=suite)
    cohort.run({"masked_input": ["silo-002", "silo-007"], "share_keys": ["silo-009"]})
    for shares in cohort.sent.values():
        alive = {share.owner for share in shares.self_seed_shares}
        dead = {share.owner for share in shares.mask_key_shares}
        assert dead == {"silo-002", "silo-007"}
        assert alive == set(cohort.names) - dead - {"silo-009"}


def test_shares_are_released_once(suite):
    cohort = Cohort(5, suite=suite)
    signatures = cohort.until("unmask")
    state = cohort.states[ME]
    finished, _ = state.handle(signatures)
    assert repr(state._vault) == "Vault(0 secrets)"
    for ended in (state, finished):
        with pytest.raises(UnexpectedMessageError):
            ended.handle(signatures)
    finished.wipe()

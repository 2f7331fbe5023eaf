"""Attacks 1, 4 and 12: what the coordinator holds in the end, share by share.

The coordinator here keeps everything it is ever sent, forks what it says, and is handed everything
that colluding silos hold. A failure: t shares of both secrets of one honest silo under one ctx, or
a single honest silo's vector. Not a failure: a lost round.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from chorale.v1 import secagg_pb2 as pb
from dp.config import Mode
from secagg import shamir
from secagg.errors import Check, UnexpectedMessageError
from secagg.messages import ConsistencySignatures
from secagg.transcript import ShareKind
from tests.kit.simulation.adversary_holdings import (
    advertised_key,
    agreement,
    apply,
    owners_of,
    pair_mask,
    released,
)
from tests.kit.simulation.forgeries import without
from tests.kit.simulation.secagg_tampering import ME, PEER
from tests.kit.simulation.session_federation import (
    ROUND,
    Federation,
    assert_left,
    assert_not_joined,
    assert_refused,
    assert_usable,
    client_threshold,
    identity_of,
)

pytestmark = pytest.mark.usefixtures("both_suites")

# Attack 1 ----------------------------------------------------------------------------------------


def fields_of(message: type) -> set[str]:
    descriptor = message.DESCRIPTOR
    return {field.name for field in descriptor.fields}


def test_a01a_no_message_can_ask_for_both_secrets():
    """Attack 1, in one message: who is lost follows from U2 and U3, it is never said."""
    assert fields_of(pb.Survivors) == {"headers"}
    assert fields_of(pb.ConsistencySignatures) == {"signatures"}
    assert fields_of(pb.MaskedInputHeader) == {
        "silo_id", "length_bytes", "masked_sha256", "signature", "debit", "rejected",
    }  # fmt: skip


@pytest.mark.parametrize("again", ["survivors", "signatures"])
def test_a01b_a_second_question_after_the_signature_ends_the_attempt(tmp_path, again):
    """Attack 1, across messages: U3 with the peer is signed, then U3 without it is shown."""
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    told = attempt.until("consistency_check")
    member = federation[ME]
    member.tell(told[ME])
    smaller = without(told[ME], PEER)
    message: Any = smaller
    check: Check | None = None
    if again == "signatures":
        # t genuine agreements on the other set: the honest ones come from silos lied to.
        signers = [name for name in federation.names if name not in (ME, PEER)]
        everyone = sorted((*signers, ME))
        message = ConsistencySignatures(
            signatures=tuple(agreement(attempt, smaller, name) for name in everyone)
        )
        check = Check.AGREEMENT_SIGNATURES
    if check is not None:
        assert_refused(member, message, check)
    else:
        assert_left(member, message)
    assert "unmask" not in member.calls()
    assert_not_joined(member, federation.attempt(identity_of(attempt=2)).descriptor)
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


def test_a01c_nothing_is_answered_after_the_release(tmp_path):
    """Attack 1, across messages: shares of b are out, then the peer is declared lost."""
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    told = attempt.until("consistency_check")
    survivors = told[ME]
    signatures = attempt.agree(told)
    attempt.unmask(signatures)
    member = federation[ME]
    smaller = without(survivors, PEER)
    forged = ConsistencySignatures(
        signatures=tuple(agreement(attempt, smaller, h.silo_id) for h in smaller.headers)
    )
    # What it was asked before is answered as before, to the byte; nothing else is.
    for message, call in ((survivors, "check_consistency"), (signatures[ME], "unmask")):
        before = member.last(call)
        member.tell(message)
        assert member.sent[-1] == (call, attempt.identity, before)
    for message in (smaller, forged):
        assert_left(member, message)
    kinds = [owners_of(member.last("unmask"), kind) for kind in ShareKind]
    assert kinds == [set(federation.names), set()]
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


@pytest.mark.parametrize("step", ["share_keys", "masked_input", "consistency_check", "unmask"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a01d_a_crash_does_not_make_a_silo_answer_twice(tmp_path, step, lost):
    """Attack 1, across crash and restart: the same question in the other form, before and after.

    Every silo crashes at one step. The coordinator opens the same identity again, then a later
    attempt with the peer lost. No silo ever sends shares of both kinds of one peer under one ctx.
    """
    federation = Federation(tmp_path)
    first = federation.attempt()
    told = first.until(step)
    members = list(federation.members.values())
    if lost and step in ("share_keys", "masked_input", "consistency_check"):
        # The crash comes right after the answer instead of before it.
        for member in members:
            member.tell(told[member.name])
    for member in members:
        member.crash()
    agreed = step == "unmask" or (step == "consistency_check" and lost)
    # The coordinator asks for the very same aggregation a second time.
    again = federation.attempt()
    for member in members:
        assert_not_joined(member, again.descriptor)
    later = federation.attempt(identity_of(attempt=2))
    if agreed:
        for member in members:
            assert_not_joined(member, later.descriptor)
        assert_usable(federation, identity_of(ROUND + 1, 3))
    else:
        later.sum({"masked_input": [PEER]})
    for member in members:
        answers = [sent for sent in member.sent if sent.call == "unmask"]
        for sent in answers:
            both = [owners_of(sent.message, kind) for kind in ShareKind]
            assert not both[0] & both[1]
        assert len({sent.identity for sent in answers}) == len(answers)
    federation.close()


@pytest.mark.parametrize(("n", "c"), [(4, 1), (5, 1), (7, 2)])
def test_a04a_two_survivor_sets_never_yield_both_secrets(tmp_path, n, c):
    """Attack 4 (and 1): every way to tell some silos that the victim is alive, others that not.

    The last c silos are the adversary's: they sign both sets and hand over all their shares.
    """
    federation = Federation(tmp_path, silos=n, colluding=c)
    t = client_threshold(n, c)
    honest, colluding = federation.names[: n - c], federation.names[n - c :]
    victim = honest[0]
    unmasked = 0
    for number, told_lost in enumerate(subsets(honest[1:])):
        # With noise, where survivors of one round say nothing about those of the next.
        attempt = federation.attempt(identity_of(ROUND + number, 1), mode=Mode.SILO)
        alive = attempt.until("consistency_check")[victim]
        lost = without(alive, victim)
        sets = {name: lost if name in told_lost else alive for name in honest}
        for name in honest:
            federation[name].tell(sets[name])
        signed = {name: federation[name].last("check_consistency") for name in honest}
        holds = {kind: set(colluding) for kind in ShareKind}
        for name in honest:
            signatures = [signed[peer] for peer in honest if sets[peer] == sets[name]]
            signatures += [agreement(attempt, sets[name], peer) for peer in colluding]
            member = federation[name]
            message = ConsistencySignatures(signatures=tuple(signatures))
            if len(signatures) < t:
                assert_refused(member, message, Check.AGREEMENT_SIZE)
                continue
            member.tell(message)
            for kind in ShareKind:
                if victim in owners_of(member.last("unmask"), kind):
                    holds[kind].add(name)
        assert min(len(holders) for holders in holds.values()) < t, (told_lost, holds)
        unmasked += max(len(holders) for holders in holds.values()) >= t
    # The table is not empty: the two unanimous answers and their neighbours do release.
    assert unmasked >= 2
    assert_usable(federation, identity_of(ROUND + 2**n, 2))
    federation.close()


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    sizes = range(len(names) + 1)
    return [some for size in sizes for some in itertools.combinations(names, size)]


# Attack 12 ---------------------------------------------------------------------------------------


def test_a12h_a_late_upload_is_refused_and_stays_masked(tmp_path):
    """Attack 12: the coordinator declares the peer lost, gets its mask key, then has its vector.

    The double mask is what keeps the vector hidden: b_peer's shares never leave.
    """
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    signatures = attempt.until("unmask", {"masked_input": [PEER]})
    late = federation[PEER].uploads[attempt.identity]
    total = attempt.unmask(signatures)
    survivors = [name for name in federation.names if name != PEER]
    np.testing.assert_array_equal(total, federation.expected(survivors))
    answers = [federation[name].last("unmask") for name in survivors]
    assert all(owners_of(answer, ShareKind.MASK_KEY) == {PEER} for answer in answers)
    assert not released(attempt, answers, ShareKind.SELF_SEED, PEER)
    shares = released(attempt, answers, ShareKind.MASK_KEY, PEER)
    private = shamir.combine(shares, client_threshold(5, 1))
    bundle = federation[PEER].last("advertise_keys")
    assert advertised_key(attempt, private, PEER) == bundle.mask_key
    residue = late.copy()
    apply(residue, [pair_mask(attempt, private, PEER, peer, PEER) for peer in survivors])
    plain = (federation[PEER].plain() % 2**32).astype("<u4")
    assert not np.any(residue == plain)
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


def test_a12i_the_honest_states_take_no_upload_after_the_survivors(tmp_path):
    """Attack 12, seen by an honest coordinator: the vector of a lost silo cannot enter the sum."""
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    deliveries = attempt.until("masked_input")
    collect = attempt.server
    attempt.upload(deliveries, [PEER])
    header = federation[PEER].last("upload")
    for call in (
        lambda: collect.expect(header),
        lambda: collect.completed(PEER, header.masked_sha256),
    ):
        with pytest.raises(UnexpectedMessageError) as caught:
            call()
        assert caught.value.check is Check.UNEXPECTED_MESSAGE
    federation.close()

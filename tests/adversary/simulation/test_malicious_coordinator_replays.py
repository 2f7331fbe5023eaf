"""Attacks 3, 6, 10 and 15, and a hidden attempt: old messages, repeated attempts, a lost memory.

Silos run real sessions with ledgers on disk. A failure: an answer to an old message, a second
upload or signature for one aggregation, equal key material in two of them, or a second sum about
those who have signed survivors. Not a failure: a lost attempt, a skipped round.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from dp.config import Mode
from secagg import prg, suite
from secagg.errors import Check, VerificationError
from secagg.messages import (
    ConsistencySignatures,
    KeyBundles,
    LeafDelivery,
    Survivors,
)
from silo_agent.errors import SessionError
from tests.kit.simulation.forgeries import headers_of, of, swapped, with_header
from tests.kit.simulation.leaf_forgeries import root_of, with_leaf, with_root
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import ME, PEER, bundle_of, with_bundle
from tests.kit.simulation.session_federation import (
    GRID,
    ROUND,
    Attempt,
    Federation,
    assert_left,
    assert_not_joined,
    assert_refused,
    assert_usable,
    client_threshold,
    identity_of,
    nothing_leaves,
)

pytestmark = pytest.mark.usefixtures("both_suites")
EARLIER = identity_of(ROUND - 1)
STEPS = ("share_keys", "masked_input", "consistency_check", "unmask")


def record(attempt: Attempt) -> dict[str, Any]:
    """Run a whole attempt and keep what each step told the silos."""
    told = {"share_keys": attempt.advertise()}
    told["masked_input"] = attempt.share(told["share_keys"])
    told["consistency_check"] = attempt.upload(told["masked_input"])
    told["unmask"] = attempt.agree(told["consistency_check"])
    attempt.unmask(told["unmask"])
    return {step: by_silo[ME] for step, by_silo in told.items()}


class Replay(NamedTuple):
    """An old message, whole or with this silo's own part made fresh again."""

    id: str
    step: str
    forge: Callable[[Any, Any], Any]
    check: Check
    silo: str | None


def stale_bundle(old: KeyBundles, new: KeyBundles) -> KeyBundles:
    return with_bundle(new, PEER, bundle_of(old, PEER))


def stale_boxes(old: Any, new: Any) -> Any:
    if isinstance(new, LeafDelivery):
        return with_leaf(with_root(new, root_of(old, PEER)), PEER, old.leaves[PEER])
    boxes = {**new.ciphertexts, PEER: old.ciphertexts[PEER]}
    return replace(with_header(new, headers_of(old, PEER)), ciphertexts=boxes)


def stale_ciphertext(old: Any, new: Any) -> Any:
    if isinstance(new, LeafDelivery):
        return with_leaf(new, PEER, old.leaves[PEER])
    return replace(new, ciphertexts={**new.ciphertexts, PEER: old.ciphertexts[PEER]})


def stale_agreements(old: ConsistencySignatures, new: ConsistencySignatures) -> Any:
    fresh = {s.silo_id: s for s in new.signatures}
    return ConsistencySignatures(
        signatures=tuple(fresh[s.silo_id] if s.silo_id == ME else s for s in old.signatures)
    )


def stale_survivors(old: Survivors, new: Survivors) -> Survivors:
    return swapped(new, of(old, PEER))


def is_hybrid(new: Any, replay: Replay) -> bool:
    return isinstance(new, LeafDelivery) and replay.check is Check.BOX_DIGEST


REPLAYS = (
    Replay("A03a-R0-bundles", "share_keys", lambda old, _: old, Check.OWN_BUNDLE, None),
    Replay("A03b-R0-one-bundle", "share_keys", stale_bundle, Check.BUNDLE_SIGNATURE, PEER),
    Replay("A03c-R1-boxes", "masked_input", lambda old, _: old, Check.OWN_SHARES, None),
    Replay("A03d-R1-one-silos-boxes", "masked_input", stale_boxes, Check.SHARE_SIGNATURE, PEER),
    Replay("A03e-R1-one-ciphertext", "masked_input", stale_ciphertext, Check.BOX_DIGEST, PEER),
    Replay("A03f-R2-survivors", "consistency_check", lambda old, _: old, Check.OWN_UPLOAD, None),
    Replay("A03g-R2-one-upload", "consistency_check", stale_survivors,
           Check.UPLOAD_SIGNATURE, PEER),
    Replay("A03h-R3-agreements", "unmask", lambda old, _: old,
           Check.AGREEMENT_SIGNATURES, "silo-000"),
    Replay("A03i-R3-others-agreements", "unmask", stale_agreements,
           Check.AGREEMENT_SIGNATURES, "silo-000"),
)  # fmt: skip


@pytest.mark.parametrize("replay", REPLAYS, ids=lambda replay: replay.id)
def test_a_message_of_an_earlier_round_ends_at_its_check(tmp_path, replay):
    """Attack 3: R0 to R3 of a finished round; peers' parts alone as well."""
    federation = Federation(tmp_path)
    old = record(federation.attempt(EARLIER))[replay.step]
    new = federation.attempt().until(replay.step)[ME]
    # In suite v2 a ciphertext is a part of its leaf.
    check = Check.LEAF if is_hybrid(new, replay) else replay.check
    assert_refused(federation[ME], replay.forge(old, new), check, replay.silo)
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


@pytest.mark.parametrize("replay", REPLAYS[:7], ids=lambda replay: replay.id)
def test_a_message_of_an_earlier_attempt_ends_at_its_check(tmp_path, replay):
    """Attack 3: retry of one attempt with its old messages. R3 has none: see the hidden attempt."""
    federation = Federation(tmp_path)
    old = federation.attempt(identity_of(attempt=0)).until(replay.step)[ME]
    new = federation.attempt().until(replay.step)[ME]
    # In suite v2 a ciphertext is a part of its leaf.
    check = Check.LEAF if is_hybrid(new, replay) else replay.check
    assert_refused(federation[ME], replay.forge(old, new), check, replay.silo)
    assert_usable(federation, identity_of(attempt=2))
    federation.close()


def test_a03j_r4_of_another_aggregation_is_refused_by_name(tmp_path):
    """Attack 3, R4: shares of an earlier round do not count for this one."""
    federation = Federation(tmp_path)
    federation.attempt(EARLIER).sum()
    old = federation[PEER].last("unmask")
    attempt = federation.attempt()
    told = attempt.until("unmask")
    with pytest.raises(VerificationError) as caught:
        attempt.server.receive(old)
    assert (caught.value.check, caught.value.silo) == (Check.UNMASK_SIGNATURE, PEER)
    total = attempt.unmask(told)
    np.testing.assert_array_equal(total, federation.expected(federation.names))
    federation.close()


@pytest.mark.parametrize("step", STEPS)
def test_a03k_a_message_shown_twice_gets_one_answer(tmp_path, step):
    """Attack 3: the same genuine message again is answered with the same bytes, and with no more.

    Another one of the same step ends the attempt for the silo.
    """
    federation = Federation(tmp_path)
    old = record(federation.attempt(EARLIER))
    attempt = federation.attempt()
    told = attempt.until(step)[ME]
    member = federation[ME]
    member.tell(told)
    before = list(member.sent)
    upload = {} if step != "masked_input" else dict(member.uploads)
    spent = member.ledger.head()
    member.tell(told)
    assert member.sent == [*before, before[-1]]
    assert member.ledger.head() == spent
    if upload:
        np.testing.assert_array_equal(
            member.uploads[attempt.identity], upload[attempt.identity]
        )  # fmt: skip
    assert_left(member, old[step])
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("round_number", "attempt"), [(ROUND, 1), (ROUND, 0), (ROUND - 1, 9)]
)  # fmt: skip
def test_a03l_an_identity_is_joined_once(tmp_path, round_number, attempt, step):
    """Attack 3: the same descriptor again, an earlier attempt, an earlier round, in any step."""
    federation = Federation(tmp_path)
    federation.attempt().until(step)
    again = federation.attempt(identity_of(round_number, attempt))
    for member in federation.members.values():
        assert_not_joined(member, again.descriptor)
        member.crash()
        assert_not_joined(member, again.descriptor)
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


def test_a03m_a_second_descriptor_of_one_identity_ends_the_attempt(tmp_path):
    """Attacks 3 and 5: no other keys and no other vector follow under one name."""
    federation = Federation(tmp_path)
    member = federation[ME]
    first = federation.attempt()
    first.until("masked_input")
    second = federation.attempt(plan_sha256=bytes([7]) * 32)
    with nothing_leaves(member), pytest.raises(SessionError) as caught:
        member.tell(second.descriptor)
    assert caught.value.check is Check.IDENTITY
    assert member.secrets_left() == 0
    assert_not_joined(member, second.descriptor)
    assert_usable(federation, identity_of(attempt=2))
    federation.close()


# Attack 6 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_a06a_no_key_is_used_twice_over_many_rounds(monkeypatch, rounds):
    """Attack 6: the IV is always zero, so no (key, IV) repeats if no key does, masks and boxes.

    The silos draw the same "random" bytes in every round, as after a restored snapshot: only ctx
    tells the rounds apart.
    """
    masks: list[bytes] = []
    boxes: list[bytes] = []
    streams, seal = prg.MaskStreams.__init__, suite.seal

    def noted_streams(self: Any, listed: Any, *arguments: Any, **named: Any) -> None:
        listed = list(listed)
        masks.extend(mask.key for mask in listed)
        streams(self, listed, *arguments, **named)

    def noted_seal(key: bytes, associated: bytes, plaintext: bytes) -> bytes:
        boxes.append(key)
        return seal(key, associated, plaintext)

    monkeypatch.setattr(prg.MaskStreams, "__init__", noted_streams)
    monkeypatch.setattr(suite, "seal", noted_seal)
    for number in range(rounds):
        identity = {"run_id": "run-1", "round": number, "step": 0, "part": 0, "attempt": 0}
        Cohort(3, dimension=1, identity=identity, figures=()).until("consistency_check")
    # Three silos: a self mask each, and each of three pair masks at both ends.
    assert len(masks) == rounds * 9
    assert len(set(masks)) == rounds * 6
    assert len(boxes) == len(set(boxes)) == rounds * 6
    assert not set(masks) & set(boxes)


def test_a06b_a_new_attempt_has_new_keys_noise_and_masks(tmp_path):
    """Attack 6: a silo never sends the old masked vector, nor the same vector masked anew.

    The difference of two uploads of one vector would be the difference of masks and noise alone;
    here the vector is zero, so the noise in the sums is all there is, and it differs.
    """
    federation = Federation(tmp_path)
    for member in federation.members.values():
        member.delta = np.zeros(15, dtype=np.float32)
    totals = []
    for attempt_number in (1, 2):
        attempt = federation.attempt(identity_of(attempt=attempt_number), mode=Mode.SILO)
        attempt.until("consistency_check")
    for round_number in (ROUND + 1, ROUND + 2):
        attempt = federation.attempt(identity_of(round_number, 1), mode=Mode.SILO)
        totals.append(attempt.sum())
    for member in federation.members.values():
        keys = [
            key
            for sent in member.sent
            if sent.call == "advertise_keys"
            for key in (sent.message.cipher_key, sent.message.mask_key)
        ]
        assert len(set(keys)) == len(keys) == 8
        first, second, *_ = member.uploads.values()
        assert not np.any(first == second)
    assert not np.array_equal(*totals)
    assert min(float(np.std(total[:-1])) for total in totals) > 0.3 * GRID
    federation.close()


# Attacks 10 and 15, and the hidden attempt -------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_p01a_after_a_hidden_attempt_nobody_joins_another(tmp_path, restart):
    """Attack 10, attempt to attempt: the sum exists, is not published, and is asked for again
    without one silo. Whoever signed survivors refuses for good."""
    federation = Federation(tmp_path)
    hidden = federation.attempt()
    told = hidden.until("unmask")
    if not restart:
        np.testing.assert_array_equal(hidden.unmask(told), federation.expected(federation.names))
    for member in federation.members.values():
        if restart:
            member.crash()
    smaller = tuple(name for name in federation.names if name != PEER)
    for attempt_number in (2, 3, 9):
        for cohort in (smaller, federation.names):
            another = federation.attempt(identity_of(attempt=attempt_number), cohort=cohort)
            for name in cohort:
                assert_not_joined(federation[name], another.descriptor)
    for member in federation.members.values():
        member.crash()
        again = federation.attempt(identity_of(attempt=10), cohort=federation.names)
        assert_not_joined(member, again.descriptor)
    assert_usable(federation, identity_of(ROUND + 1, 11))
    federation.close()


def test_p01b_two_sums_of_one_round_differ_by_t_less_c_honest_silos_or_more(tmp_path):
    """Attack 10: silos that never saw U3 may still be summed in a later attempt of the round.

    What the coordinator can subtract is then a sum over all who had signed.
    """
    n, c = 9, 1
    federation = Federation(tmp_path, silos=n, colluding=c)
    t = client_threshold(n, c)
    signed, unsigned = federation.names[:t], federation.names[t:]
    first = federation.attempt().sum({"consistency_check": unsigned, "unmask": unsigned})
    np.testing.assert_array_equal(first, federation.expected(federation.names))
    # Any silo that signed would spoil the second attempt by staying away.
    mixed = federation.attempt(identity_of(attempt=2))
    for name in signed:
        assert_not_joined(federation[name], mixed.descriptor)
    second = federation.attempt(identity_of(attempt=3), cohort=unsigned).sum()
    np.testing.assert_array_equal(first - second, federation.expected(signed))
    assert len(signed) - c >= t - c >= 2
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


def test_a10a_attempts_given_up_before_the_survivors_give_no_second_sum(tmp_path):
    """Attack 10: uploads of an abandoned attempt stay masked, the later one is the only sum."""
    federation = Federation(tmp_path)
    first = federation.attempt()
    first.until("consistency_check")
    smaller = tuple(name for name in federation.names if name != PEER)
    second = federation.attempt(identity_of(attempt=2), cohort=smaller)
    total = second.sum()
    np.testing.assert_array_equal(total, federation.expected(smaller))
    # The abandoned sum minus the released one is not the silo that was left out.
    leftover = first.accumulator - (total % 2**32).astype("<u4")
    assert not np.any(leftover == (federation[PEER].plain() % 2**32).astype("<u4"))
    assert all(
        call != "unmask" for m in federation.members.values() for call in m.calls(first.identity)
    )
    assert_usable(federation, identity_of(ROUND + 1, 1))
    federation.close()


def test_a10b_rounds_with_one_silo_less_differ_by_it_up_to_the_noise_alone(tmp_path):
    """Attack 10, round to round: NOT prevented by the protocol; only noise stands before it.

    Without noise the difference is exactly the silo that was left out, which is why SECURITY.md
    names it. With noise the difference holds the noise of two sums, and both are charged.
    """
    federation = Federation(tmp_path)
    smaller = tuple(name for name in federation.names if name != PEER)
    plain = federation.attempt(identity_of(4)).sum()
    plain -= federation.attempt(identity_of(5), cohort=smaller).sum()
    np.testing.assert_array_equal(plain, federation[PEER].plain())
    differences = []
    for number in range(6, 22, 2):
        difference = federation.attempt(identity_of(number), mode=Mode.SILO).sum()
        other = federation.attempt(identity_of(number + 1), cohort=smaller, mode=Mode.SILO)
        differences.append((difference - other.sum())[:-1] - federation[PEER].plain()[:-1])
    measured = float(np.std(np.concatenate(differences)))
    # Each released sum holds variance (zΔ)² or more, so their difference at least √2 of zΔ; 120
    # draws lie below 0.75 of it once in a million cases.
    assert measured > 0.75 * np.sqrt(2) * GRID
    assert (
        federation[ME].ledger.spent_epsilons()["silo"]
        > federation[PEER].ledger.spent_epsilons()["silo"]
        > 0
    )
    federation.close()


@pytest.mark.parametrize("step", STEPS)
def test_a15a_a_coordinator_that_forgot_where_it_was_gets_no_second_answer(tmp_path, step):
    """Attack 15: restarted in any step, it opens the same attempt, then the next one.

    The same attempt is answered as before or not at all; the next one with new keys, unless
    survivors were signed.
    """
    federation = Federation(tmp_path)
    first = federation.attempt()
    first.until(step)
    for member in federation.members.values():
        # The very descriptor is answered with the very keys, by the session that has them.
        before = member.last("advertise_keys")
        member.tell(first.descriptor)
        assert member.sent[-1] == ("advertise_keys", first.identity, before)
        member.crash()
        assert_not_joined(member, first.descriptor)
    following = identity_of(ROUND + 1, 1) if step == "unmask" else identity_of(attempt=2)
    assert_usable(federation, following)
    for member in federation.members.values():
        uploads = [sent.identity for sent in member.sent if sent.call == "upload"]
        assert len(uploads) == len(set(uploads))
        keys = {(s.identity, s.message.mask_key) for s in member.sent if s.call == "advertise_keys"}
        assert len(keys) == len({identity for identity, _ in keys}) == 2
    federation.close()


@pytest.mark.parametrize("step", STEPS)
def test_a15b_a_step_shown_out_of_order_ends_the_attempt(tmp_path, step):
    """Attack 15: a coordinator that resumes in another step than the silo is in."""
    federation = Federation(tmp_path)
    old = record(federation.attempt(EARLIER))
    attempt = federation.attempt()
    attempt.until(step)
    later = STEPS[(STEPS.index(step) + 1) % len(STEPS)]
    assert_left(federation[ME], old[later])
    assert_usable(federation, identity_of(ROUND + 1, 1))
    federation.close()

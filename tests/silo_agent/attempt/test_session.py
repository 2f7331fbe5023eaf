"""A silo's side of one attempt: what is durable before what, and what a failure leaves behind.

One silo runs the real session; its peers are real protocol states, and so is the coordinator.
"""

from dataclasses import replace

import numpy as np
import pytest

from dp.config import Mode
from dp.errors import BudgetExceededError
from dp.ledger.ledger import Ledger
from secagg import client
from secagg.client import Finished, RejectedSender
from secagg.descriptor import AggregationId
from secagg.errors import Check, UnexpectedMessageError, VerificationError
from silo_agent.errors import SessionError, TransportError
from tests.kit.secagg.secagg_samples import signed_descriptor
from tests.kit.silo_agent.session_round import CLIP, DIMENSION, GRID, NAMES, Round
from tests.kit.silo_agent.wiped import require_wiped


@pytest.fixture
def rounds(tmp_path):
    made = []

    def make(**arguments):
        one = Round(tmp_path, **arguments)
        made.append(one)
        return one

    yield make
    for one in made:
        one.ledger.close()


def test_a_whole_attempt_yields_the_silos_vector_and_leaves_nothing(rounds):
    one = rounds()
    decoded = one.finish()
    np.testing.assert_array_equal(decoded.delta, np.full(DIMENSION, 0.25 * GRID / CLIP))
    assert decoded.metrics.tolist() == [32 / 64 * 4096]
    assert [name for name, _ in one.wire.sent] == [
        "advertise_keys",
        "share_keys",
        "upload",
        "check_consistency",
        "unmask",
    ]
    assert isinstance(one.session._state, Finished)
    assert one.session._contribution is None
    assert one.session._noise is None
    one.session.close()
    assert one.spools() == []
    assert one.session._answers == {}
    assert one.ledger.has_agreed("run-1", 4, 0, 0)
    assert one.ledger.unprotected_releases == 1


def test_the_upload_is_masked_and_noised(rounds):
    one = rounds(mode=Mode.SILO)
    one.survivors()
    plain = np.rint(one.delta * GRID / CLIP).astype(np.int64) % 2**32
    assert not np.any(one.wire.uploaded[:DIMENSION] == plain)


def test_noise_of_the_descriptors_size_is_in_the_sum(rounds):
    one = rounds(mode=Mode.SILO)
    decoded = one.finish()
    noise = decoded.delta - 0.25 * GRID / CLIP
    # σ = Δ/√2; forty draws lie within a third of it but for one case in a thousand million.
    assert 0.3 < np.std(noise) / (GRID / np.sqrt(2)) < 1.8


# Order -------------------------------------------------------------------------------------------


def test_the_debit_is_on_disk_before_the_first_byte_leaves(rounds, tmp_path):
    one = rounds(mode=Mode.SILO)
    delivery = one.delivery()
    assert not one.ledger.has_spent(one.identity())
    one.wire.fails_at = "upload"
    with pytest.raises(TransportError):
        one.session.handle(delivery)
    assert one.wire.uploaded is None
    assert one.wire.ledger_at["upload"] == one.wire.ledger_at["share_keys"] + 1
    one.session.close()
    one.ledger.close()
    # As a restarted silo reads it.
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"silo": 1e9}) as again:
        assert again.has_spent(one.identity())
        assert again.spent_epsilons()["silo"] > 1


def test_the_mark_is_on_disk_before_the_signature_leaves(rounds):
    one = rounds()
    survivors = one.survivors()
    one.wire.fails_at = "check_consistency"
    before = one.ledger.head()[0]
    with pytest.raises(TransportError):
        one.session.handle(survivors)
    assert one.wire.ledger_at["check_consistency"] == before + 1
    assert one.ledger.has_agreed("run-1", 4, 0, 0)


def test_a_budget_that_is_used_up_lets_nothing_out(rounds, tmp_path):
    ledger = Ledger.open(tmp_path / "small", delta=1e-5, caps={"silo": 0.5})
    one = rounds(mode=Mode.SILO, ledger=ledger)
    delivery = one.delivery()
    with pytest.raises(BudgetExceededError):
        one.session.handle(delivery)
    assert [name for name, _ in one.wire.sent] == ["advertise_keys", "share_keys"]
    assert one.spools() == []
    assert not ledger.has_spent(one.identity())
    require_wiped(one.session)


# What may not happen twice -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round_number", "attempt", "accepted"),
    [(4, 1, False), (4, 0, False), (3, 9, False), (4, 2, True), (5, 0, True)],
)
def test_an_identity_that_is_not_newer_is_refused(rounds, round_number, attempt, accepted):
    first = rounds()
    first.survivors()
    first.session.close()
    second = rounds(
        ledger=first.ledger,
        identity=AggregationId(run_id="run-1", round=round_number, step=0, part=0, attempt=attempt),
    )
    if accepted:
        second.open().close()
        return
    with pytest.raises(VerificationError) as refused:
        second.open()
    assert refused.value.check is Check.IDENTITY
    # No key was made, so none was sent.
    assert second.wire.sent == []


def test_after_survivors_were_signed_no_later_attempt_is_joined(rounds):
    first = rounds()
    first.signatures()
    first.session.close()
    for round_number, attempt, accepted in ((4, 2, False), (5, 1, True)):
        later = rounds(
            ledger=first.ledger,
            identity=AggregationId(
                run_id="run-1", round=round_number, step=0, part=0, attempt=attempt
            ),
        )
        if accepted:
            later.open().close()
            continue
        with pytest.raises(SessionError, match="already signed"):
            later.open()
        assert later.wire.sent == []


# The same again, and something else ---------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.SILO])
def test_every_message_again_gets_the_byte_identical_answer(rounds, mode):
    one = rounds(mode=mode)
    messages = {}
    one.heard = lambda message: messages.setdefault(type(message).__name__, message)
    one.finish()
    first, body, head = dict(one.wire.sent), one.wire.uploaded.copy(), one.ledger.head()
    assert list(messages) == ["KeyBundles", "LeafDelivery", "Survivors", "ConsistencySignatures"]
    for message in (one.signed, *messages.values(), one.signed):
        one.wire.sent.clear()
        one.session.handle(message)
        ((name, answer),) = one.wire.sent
        assert first[name] == answer
        assert one.wire.uploaded.tobytes() == body.tobytes()
        assert one.session.finished
    assert one.ledger.head() == head


def test_an_answer_that_was_lost_is_given_again(rounds):
    one = rounds()
    one.loses_answers = True
    decoded = one.finish()
    np.testing.assert_array_equal(decoded.delta, np.full(DIMENSION, 0.25 * GRID / CLIP))
    assert [name for name, _ in one.wire.sent] == [
        "advertise_keys", "share_keys", "upload", "check_consistency", "unmask",
    ]  # fmt: skip


def test_a_different_message_of_an_answered_step_ends_the_session(rounds):
    seen = {}
    other = rounds(identity=AggregationId(run_id="run-0", round=1, step=0, part=0, attempt=1))
    other.heard = lambda message: seen.setdefault(type(message).__name__, message)
    other.finish()
    other.session.close()
    for number, kind in enumerate(seen, start=1):
        one = rounds(
            ledger=other.ledger,
            identity=AggregationId(run_id="run-1", round=number, step=0, part=0, attempt=1),
        )
        heard = []

        def note(message, heard=heard):
            heard.append(type(message).__name__)

        one.heard = note
        step = {
            "KeyBundles": one.delivery,
            "LeafDelivery": one.survivors,
            "Survivors": one.signatures,
            "ConsistencySignatures": one.finish,
        }[kind]
        step()
        assert heard[-1] == kind
        one.wire.sent.clear()
        with pytest.raises(SessionError, match=f"second, different {kind}") as refused:
            one.session.handle(seen[kind])
        assert refused.value.check is Check.UNEXPECTED_MESSAGE
        assert one.wire.sent == []
        assert one.spools() == []
        assert one.session._answers == {}
        if kind != "ConsistencySignatures":
            require_wiped(one.session)


def test_a_second_descriptor_of_one_identity_gets_no_second_bundle(rounds):
    one = rounds()
    one.session = one.open()
    (first,) = one.wire.sent
    other = signed_descriptor(replace(one.descriptor, deadlines_unix_s=(9, 10, 11, 12, 13)))
    one.wire.sent.clear()
    with pytest.raises(SessionError, match="second, different SignedDescriptor") as refused:
        one.session.handle(other)
    assert refused.value.check is Check.IDENTITY
    require_wiped(one.session)
    # Neither of them opens another session, before a restart or after.
    for descriptor in (one.signed, other):
        one.signed = descriptor
        with pytest.raises(VerificationError) as again:
            one.open()
        assert again.value.check is Check.IDENTITY
    assert one.wire.sent == []
    assert first[0] == "advertise_keys"


def test_the_identity_is_on_disk_before_the_keys_leave(rounds, tmp_path):
    one = rounds()
    one.wire.fails_at = "advertise_keys"
    before = one.ledger.head()[0]
    with pytest.raises(TransportError):
        one.open()
    assert one.wire.ledger_at["advertise_keys"] == before + 1
    one.ledger.close()
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"silo": 1e9}) as again:
        assert again.has_joined(one.identity(), one.descriptor.sha256)
        assert again.highest_identity("run-1") == one.identity()
        assert again.spent_epsilons()["silo"] == 0.0
        one.ledger, one.wire.fails_at = again, ""
        with pytest.raises(VerificationError) as refused:
            one.open()
        assert refused.value.check is Check.IDENTITY
        assert one.wire.sent == []


def test_a_descriptor_that_is_refused_burns_no_identity(rounds):
    one = rounds()
    honest = one.signed
    one.signed = replace(honest, signature=bytes(64))
    with pytest.raises(VerificationError):
        one.open()
    assert one.ledger.highest_identity("run-1") is None
    one.signed = honest
    one.open().close()


def test_a_sender_of_corrupt_shares_is_named_in_one_line_and_counted(rounds, capsys, monkeypatch):
    corrupt = (RejectedSender(silo_id=NAMES[2], check=Check.SHARE_HASH),)
    monkeypatch.setattr(client.MaskedInput, "rejected", property(lambda _self: corrupt))
    one = rounds()
    one.survivors()
    lines = [line for line in capsys.readouterr().out.splitlines() if "corrupt_shares" in line]
    (line,) = lines
    for said in (NAMES[2], "share_hash", "run-1/4/0/0/1"):
        assert said in line
    assert one.value("chorale_silo_failed_checks_total", check="share_hash") == 1


# Failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_delta_that_is_not_finite_goes_up_as_zeros(rounds, bad, capsys):
    delta = np.full(DIMENSION, 0.25, np.float32)
    delta[7] = bad
    one = rounds(delta=delta)
    decoded = one.finish()
    assert not decoded.delta.any()
    assert not decoded.metrics.any()
    assert one.nonfinite() == 1
    assert "delta_not_finite" in capsys.readouterr().out


def test_zeros_carry_the_full_noise(rounds):
    one = rounds(mode=Mode.SILO, delta=np.full(DIMENSION, np.nan, np.float32))
    decoded = one.finish()
    assert 0.3 < np.std(decoded.delta) / (GRID / np.sqrt(2)) < 1.8
    assert one.ledger.spent_epsilons()["silo"] > 1


@pytest.mark.parametrize("step", ["delivery", "survivors", "signatures"])
def test_a_message_out_of_order_ends_the_session_and_wipes(rounds, tmp_path, step):
    other = rounds()
    messages = {"delivery": other.delivery} | {
        "survivors": other.survivors,
        "signatures": other.signatures,
    }
    wrong = messages[step]()
    other.session.close()
    later = AggregationId(run_id="run-2", round=1, step=0, part=0, attempt=1)
    one = rounds(ledger=other.ledger, identity=later)
    bundles = one.bundles()
    with pytest.raises(SessionError, match="does not fit HybridAdvertiseKeys"):
        one.session.handle(wrong)
    require_wiped(one.session)
    assert one.session._contribution is None
    assert one.session._noise is None
    # Nothing brings it back, the right message neither.
    with pytest.raises(UnexpectedMessageError):
        one.session.handle(bundles)
    assert [name for name, _ in one.wire.sent] == ["advertise_keys"]


def test_a_failed_check_wipes_and_releases_no_share(rounds):
    one = rounds()
    signatures = one.signatures()
    forged = tuple(replace(s, signature=bytes(64)) for s in signatures.signatures)
    with pytest.raises(VerificationError):
        one.session.handle(replace(signatures, signatures=forged))
    require_wiped(one.session)
    assert "unmask" not in [name for name, _ in one.wire.sent]
    one.session.close()
    assert one.spools() == []


def test_keys_that_could_not_be_advertised_are_wiped(rounds, monkeypatch):
    one = rounds()
    one.wire.fails_at = "advertise_keys"
    states = []
    begin = client.begin

    def noted(setup):
        state, bundle = begin(setup)
        states.append(state)
        return state, bundle

    monkeypatch.setattr("silo_agent.attempt.session.protocol.begin", noted)
    with pytest.raises(TransportError):
        one.open()
    (state,) = states
    assert repr(state._vault) == "Vault(0 secrets)"


def test_closing_twice_is_allowed_and_secrets_are_not_printed(rounds):
    one = rounds()
    session = one.open()
    assert "0.25" not in repr(session._contribution)
    assert "redacted" in repr(session._contribution)
    session.close()
    session.close()
    one.session = session
    assert one.spools() == []

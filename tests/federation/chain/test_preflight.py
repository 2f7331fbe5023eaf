"""The pre-flight's documents: what is signed, what is refused, and figures in offers alone."""

from dataclasses import fields, replace

import pytest

from chorale.v1 import aggregation_pb2
from federation import wire
from federation.chain.preflight import ASKED_TOO_OFTEN, REASONS, Preflight, PreflightAnswer, Verdict
from federation.errors import ChainError
from federation.plan.negotiation import MAX_QUARTERS, Offer
from federation.plan.tables import MAX_UNIX_S
from secagg import canonical, suite
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, signing_key

ME = "silo-000"
KEY = signing_key(ME)
ASKED = Preflight(
    plan_sha256=bytes([1]) * 32, roster_sha256=bytes([2]) * 32, submit_token="t"
).sign(COORDINATOR_KEY)
REFUSED = PreflightAnswer(
    preflight_sha256=ASKED.sha256, silo_id=ME, verdict=Verdict.REFUSE, rule="rounds"
).sign(KEY)


def test_both_documents_survive_their_way_and_verify():
    asked = wire.preflight_from_proto(wire.preflight_to_proto(ASKED))
    assert asked == ASKED
    asked.verify(suite.verification_key(COORDINATOR_KEY))
    answer = wire.preflight_answer_from_proto(wire.preflight_answer_to_proto(REFUSED))
    assert answer == REFUSED
    answer.verify(suite.verification_key(KEY))
    assert answer.reason == REASONS["rounds"]


@pytest.mark.parametrize(
    "change",
    [{"plan_sha256": bytes(32)}, {"roster_sha256": bytes(32)}, {"submit_token": "u"}],
)
def test_a_question_is_of_one_plan_roster_and_token(change):
    other = replace(ASKED, **change)
    assert other.sha256 != ASKED.sha256
    with pytest.raises(ChainError, match="not signed"):
        other.verify(suite.verification_key(COORDINATOR_KEY))


@pytest.mark.parametrize(
    "change",
    [
        {"preflight_sha256": bytes(32)},
        {"silo_id": "silo-001"},
        {"verdict": Verdict.ACCEPT, "rule": ""},
        {"rule": "clip"},
    ],
)
def test_an_answer_is_of_one_silo_to_one_question(change):
    with pytest.raises(ChainError, match="not signed"):
        replace(REFUSED, **change).verify(suite.verification_key(KEY))


def test_no_signature_of_another_document_counts():
    forged = replace(REFUSED, signature=suite.sign(KEY, ASKED.signed_bytes()))
    with pytest.raises(ChainError, match="not signed"):
        forged.verify(suite.verification_key(KEY))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("preflight_sha256", bytes(31)),
        ("silo_id", "Silo"),
        ("verdict", "maybe"),
        ("verdict", "accept"),
        ("rule", ""),
        ("rule", "epsilon 3.2"),
        ("rule", "x" * 4096),
        ("signature", bytes(63)),
    ],
)
def test_a_hostile_answer_is_a_typed_error(field, value):
    message = wire.preflight_answer_to_proto(REFUSED)
    setattr(message, field, value)
    with pytest.raises(ChainError):
        wire.preflight_answer_from_proto(message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("plan_sha256", b""),
        ("roster_sha256", bytes(33)),
        ("submit_token", ""),
        ("submit_token", "t" * 129),
        ("submit_token", "a b"),
        ("signature", bytes(65)),
    ],
)
def test_a_hostile_question_is_a_typed_error(field, value):
    message = wire.preflight_to_proto(ASKED)
    setattr(message, field, value)
    with pytest.raises(ChainError):
        wire.preflight_from_proto(message)


def test_an_answer_has_no_place_for_a_figure_but_in_an_offer():
    names = {field.name for field in fields(PreflightAnswer)}
    assert names == {"preflight_sha256", "silo_id", "verdict", "rule", "offer", "signature"}
    assert {field.name for field in aggregation_pb2.PreflightAnswer.DESCRIPTOR.fields} == names
    terms = {field.name for field in aggregation_pb2.Offer.DESCRIPTOR.fields}
    assert terms == {field.name for field in fields(Offer)}
    assert terms == {"local_epochs", "start_after_unix_s", "epsilon_quarters"}
    assert ASKED_TOO_OFTEN in REASONS


# Offers -------------------------------------------------------------------------------------------

TERMS = Offer(local_epochs=2, start_after_unix_s=1_800_000_000, epsilon_quarters=9)
OFFERED = PreflightAnswer(
    preflight_sha256=ASKED.sha256, silo_id=ME, verdict=Verdict.OFFER, rule="schedule", offer=TERMS
).sign(KEY)


def test_an_offer_survives_its_way_and_verifies():
    answer = wire.preflight_answer_from_proto(wire.preflight_answer_to_proto(OFFERED))
    assert answer == OFFERED
    answer.verify(suite.verification_key(KEY))
    assert answer.reason == REASONS["schedule"]


@pytest.mark.parametrize(
    "change",
    [
        {"preflight_sha256": bytes(32)},
        {"silo_id": "silo-001"},
        {"rule": "clip"},
        {"offer": replace(TERMS, local_epochs=1)},
        {"offer": replace(TERMS, local_epochs=0)},
        {"offer": replace(TERMS, start_after_unix_s=1_800_000_060)},
        {"offer": replace(TERMS, epsilon_quarters=10)},
        # A signature for the refusal is none for the offer, and the other way round.
        {"verdict": Verdict.REFUSE, "offer": None},
    ],
)
def test_every_term_is_signed_for_one_question(change):
    with pytest.raises(ChainError, match="not signed"):
        replace(OFFERED, **change).verify(suite.verification_key(KEY))


def test_what_was_signed_without_an_offer_is_signed_as_before():
    """Silos and coordinators of before know these bytes."""
    plain = canonical.encode("chorale/v1/preflight-answer", ASKED.sha256, ME, "refuse", "rounds")
    assert REFUSED.signed_bytes() == plain


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("local_epochs", 101),
        ("local_epochs", 2**32 - 1),
        ("start_after_unix_s", 1_800_000_001),
        ("start_after_unix_s", MAX_UNIX_S + 60),
        ("start_after_unix_s", 2**64 - 1),
        ("epsilon_quarters", MAX_QUARTERS + 1),
        ("epsilon_quarters", 2**32 - 1),
    ],
)
def test_terms_out_of_bounds_are_a_typed_error(field, value):
    message = wire.preflight_answer_to_proto(OFFERED)
    setattr(message.offer, field, value)
    with pytest.raises(ChainError, match=field):
        wire.preflight_answer_from_proto(message)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None])
def test_terms_are_whole_numbers(value):
    with pytest.raises(ChainError, match="local_epochs"):
        Offer(local_epochs=value)


def test_an_offer_belongs_to_its_verdict_and_says_something():
    for verdict, rule in (("refuse", "schedule"), ("accept", ""), ("waits_for_approval", "")):
        message = wire.preflight_answer_to_proto(OFFERED)
        message.verdict, message.rule = verdict, rule
        with pytest.raises(ChainError, match="belong together"):
            wire.preflight_answer_from_proto(message)
    message = wire.preflight_answer_to_proto(OFFERED)
    message.ClearField("offer")
    with pytest.raises(ChainError, match="belong together"):
        wire.preflight_answer_from_proto(message)
    message.offer.SetInParent()
    with pytest.raises(ChainError, match="offers nothing"):
        wire.preflight_answer_from_proto(message)
    message = wire.preflight_answer_to_proto(OFFERED)
    message.rule = "no rule"
    with pytest.raises(ChainError, match="rule"):
        wire.preflight_answer_from_proto(message)

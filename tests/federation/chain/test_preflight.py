"""The pre-flight's documents: what is signed, what is refused, and no place for a figure."""

from dataclasses import fields, replace

import pytest

from chorale.v1 import aggregation_pb2
from federation import wire
from federation.chain.preflight import ASKED_TOO_OFTEN, REASONS, Preflight, PreflightAnswer, Verdict
from federation.errors import ChainError
from secagg import suite
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


def test_an_answer_has_no_place_for_a_figure():
    names = {field.name for field in fields(PreflightAnswer)}
    assert names == {"preflight_sha256", "silo_id", "verdict", "rule", "signature"}
    assert {field.name for field in aggregation_pb2.PreflightAnswer.DESCRIPTOR.fields} == names
    assert ASKED_TOO_OFTEN in REASONS

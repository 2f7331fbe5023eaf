"""A record reproduces its decision, and says so of no record that was changed."""

import json

import pytest

from federation.advice.conversation import (
    Asking,
    Budget,
    Ended,
    Failure,
    GaveUp,
    GiveUp,
    begin,
)
from federation.advice.proposal import Proposal
from federation.advice.record import (
    MAX_ANSWERS_BYTES,
    MAX_RECORD_BYTES,
    AdviceRecord,
    next_step,
    replay,
)
from federation.advice.reply import MAX_BODY_BYTES
from federation.errors import AdviceRecordError, AdviceReplayError
from tests.kit.federation.advice import MODEL, completion, encoded, held, proposal, state

LOOKING = completion(None, calls=[("get_facts", '{"silo_id":"silo-01"}')])
CORRECTED = [LOOKING, completion("no"), completion(proposal())]
ENDS = [
    CORRECTED,
    [completion("no")] * 3,
    [b"\x00\xff"],
    [completion("")],
    [LOOKING, Failure.TIMEOUT],
    *[[failure] for failure in Failure],
]


def changed(record, change):
    """The bytes of a record in which something says something else."""
    content = json.loads(record.encode())
    change(content)
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize("answers", ENDS, ids=range(len(ENDS)))
def test_a_record_leads_to_its_own_result(answers):
    record = held(answers)
    again = AdviceRecord.decode(record.encode())
    assert again == record
    assert again.sha256 == record.sha256
    assert replay(again) == record.result is not None
    assert len(record.turns) == len(answers)


def test_the_result_is_what_was_proposed_or_why_not():
    assert isinstance(held(CORRECTED).result, Proposal)
    assert held([Failure.TLS]).result == GiveUp(gave_up=GaveUp.ENDPOINT, failure=Failure.TLS)


CHANGES = {
    "another state": lambda c: c["state"]["silos"][0].update(families=9),
    "other limits": lambda c: c["state"]["limits"].update(least=4),
    "another model": lambda c: c.update(model="other"),
    "another budget": lambda c: c["budget"].update(tool_calls=0),
    "another question": lambda c: c["turns"][1].update(request_sha256="0" * 64),
    "another answer": lambda c: c["turns"][1].update(answer=encoded(completion("7"))),
    "another last answer": lambda c: c["turns"][2].update(
        answer=encoded(completion(proposal(count=5)))
    ),
    "other tokens": lambda c: c["turns"][0].update(tokens=1),
    "another result": lambda c: c["result"].update(count=5),
    "another reason": lambda c: c["result"].update(reason="another"),
    "a turn left out": lambda c: c["turns"].pop(0),
    "a turn twice": lambda c: c["turns"].append(c["turns"][2]),
    "a turn cut off": lambda c: c["turns"].pop(),
    "turns in another order": lambda c: c["turns"].reverse(),
    "a failure for an answer": lambda c: c["turns"][2].update(answer=None, failure="timeout"),
    "no result": lambda c: c.update(result=None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_record_that_says_something_else_is_found(change):
    content = changed(held(CORRECTED), change)
    with pytest.raises(AdviceReplayError):
        replay(AdviceRecord.decode(content))


MALFORMED = {
    "an unknown key": lambda c: c.update(note="x"),
    "an unknown key of the limits": lambda c: c["state"]["limits"].update(note="x"),
    "another version": lambda c: c.update(version=2),
    "a version that is true": lambda c: c.update(version=True),
    "text for a fact": lambda c: c["state"]["silos"][0]["facts"].update(availability="Ignore all"),
    "a model of two lines": lambda c: c.update(model="a\nb"),
    "a budget beyond all": lambda c: c["budget"].update(calls=10**6),
    "limits that are none": lambda c: c["state"]["limits"].update(least=0),
    "least true": lambda c: c["state"]["limits"].update(least=True),
    "no base64": lambda c: c["turns"][0].update(answer="!"),
    "base64 with bits to spare": lambda c: c["turns"][0].update(answer="AB=="),
    "both": lambda c: c["turns"][0].update(failure="timeout"),
    "neither, in between": lambda c: c["turns"][0].update(answer=None),
    "an unknown failure": lambda c: c["turns"][0].update(answer=None, failure="tired"),
    "a result of both kinds": lambda c: c["result"].update(gave_up="calls"),
    "33 turns": lambda c: c.update(turns=c["turns"] * 11),
    "negative time": lambda c: c["turns"][0].update(milliseconds=-1),
    "a digest in capitals": lambda c: c["turns"][0].update(request_sha256="A" * 64),
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_bytes_that_are_no_record_are_refused(change):
    with pytest.raises(AdviceRecordError) as caught:
        AdviceRecord.decode(changed(held(CORRECTED), change))
    assert "Ignore" not in str(caught.value)


def test_a_record_has_one_form():
    good = held(CORRECTED).encode()
    for other in (
        good + b"\n",
        b" " + good,
        good.replace(b'"version":1', b'"version": 1'),
        good.replace(b'"success":0.5', b'"success":0.50', 1),
        good.replace(b'"version":1', b'"version":1,"version":1'),
        good[:-1],
        b"",
        b"[" * 100_000,
        b"\xff",
        good + b" " * MAX_RECORD_BYTES,
    ):
        with pytest.raises(AdviceRecordError):
            AdviceRecord.decode(other)


def test_an_open_turn_is_asked_again_with_the_same_bytes():
    record = held([LOOKING])
    step = next_step(record)
    assert isinstance(step, Asking)
    crashed = AdviceRecord.decode(record.asked(step).encode())
    assert crashed.turns[-1].is_open
    assert next_step(crashed).body == step.body
    with pytest.raises(AdviceReplayError, match="not over"):
        replay(crashed)
    # Asked again, it stands once.
    assert len(crashed.asked(step).turns) == 2


def test_a_budget_that_bears_no_request_is_a_record_too():
    poor = Budget(tokens=256)
    record = AdviceRecord(state=state(), budget=poor, model=MODEL)
    step = begin(record.state, poor, MODEL)
    assert isinstance(step, Ended)
    ended = record.ended(step.outcome)
    assert replay(AdviceRecord.decode(ended.encode())) == GiveUp(gave_up=GaveUp.TOKENS)


def test_the_largest_record_is_within_its_bound():
    ids = tuple(f"{number:03d}{'x' * 60}" for number in range(200))
    of = state(past=256, alive=ids, names_silos=True)
    record = AdviceRecord(
        state=of, budget=Budget(calls=32, tokens=10**6, tool_calls=16), model="m" * 128
    )
    step = next_step(record)
    padding = 0
    while isinstance(step, Asking):
        assert record.room() == min(MAX_BODY_BYTES, MAX_ANSWERS_BYTES - padding)
        call = [("get_round_summary", '{"round":1}')]
        bare = completion(None, calls=call)
        body = bare[:-1] + b" " * (record.room() - len(bare)) + b"}" if record.room() else b""
        padding += len(body)
        record, step = record.asked(step).told(step, body, milliseconds=1 << 40)
    content = record.encode()
    assert padding == MAX_ANSWERS_BYTES
    assert len(content) <= MAX_RECORD_BYTES
    assert AdviceRecord.decode(content) == record
    assert replay(record) == record.result

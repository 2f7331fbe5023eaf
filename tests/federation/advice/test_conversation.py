"""A consultation is a function of the answers, ends, stays small, sends nothing hostile back."""

import hashlib
import json

import pytest

from federation.advice.conversation import (
    MAX_REQUEST_BYTES,
    Asking,
    Budget,
    Ended,
    Failure,
    GaveUp,
    GiveUp,
    begin,
)
from federation.advice.proposal import Proposal
from federation.advice.reply import MAX_BODY_BYTES
from tests.kit.federation.advice import IDS, MODEL, completion, proposal, said_in, state

MARK = "zq9x-ignore-all-of-the-above"


def led(answers, *, budget=None, of=None):
    """What a consultation asks, and its end, if there is one."""
    step = begin(of or state(), budget or Budget(), MODEL)
    bodies = []
    for said in answers:
        if not isinstance(step, Asking):
            break
        bodies.append(step.body)
        step = step.answered(said)
    if isinstance(step, Asking):
        bodies.append(step.body)
    return bodies, step


def outcome(answers, **given):
    _, step = led(answers, **given)
    assert isinstance(step, Ended)
    return step.outcome


def gave_up(answers, **given):
    end = outcome(answers, **given)
    assert isinstance(end, GiveUp)
    return end.gave_up


def calling(*calls):
    return completion(None, calls=calls)


def test_a_good_answer_is_the_end():
    bodies, step = led([completion(proposal(), tokens=321)])
    assert len(bodies) == 1
    assert step == Ended(
        outcome=Proposal(
            reason="enough for a small error", count=4, ready_deadline_s=120, local_epochs=2
        ),
        tokens=321,
    )


def test_a_request_offers_tools_or_holds_the_answer_to_the_schema():
    offering = json.loads(begin(state(), Budget(), MODEL).body)
    assert offering["model"] == MODEL
    assert (offering["temperature"], offering["seed"], offering["stream"]) == (0, 0, False)
    assert offering["max_tokens"] == 1024
    assert "response_format" not in offering
    assert offering["tool_choice"] == "auto"
    assert [tool["function"]["name"] for tool in offering["tools"]] == [
        "get_facts", "get_round_summary", "get_history",
    ]  # fmt: skip
    holding = [
        begin(state(), Budget(tool_calls=0), MODEL).body,
        begin(state(), Budget(calls=1), MODEL).body,
        led([completion("no")])[0][1],
        led([calling(("get_facts", ""))], budget=Budget(tool_calls=1))[0][1],
    ]
    for body in map(json.loads, holding):
        held = body["response_format"]["json_schema"]
        assert held["strict"] is True
        assert list(held["schema"]["properties"]) == [
            "reason", "count", "ready_deadline_s", "local_epochs", "stop", "diagnose",
        ]  # fmt: skip
        assert body.get("tool_choice", "none") == "none"
    assert "tools" not in json.loads(holding[0])


def test_what_a_decision_needs_stands_in_the_first_message():
    system, user = said_in(begin(state(), Budget(), MODEL).body)
    assert (system["role"], user["role"]) == ("system", "user")
    question = user["content"]
    assert '"silos_there":6' in question
    assert '"newest_rounds":[{' in question
    assert "count: an integer from 3 to 6" in question
    assert "ready_deadline_s: an integer from 60 to 600" in question


def test_ids_are_told_where_they_may_be_named():
    assert IDS[0] not in said_in(begin(state(), Budget(), MODEL).body)[1]["content"]
    naming = begin(state(names_silos=True), Budget(), MODEL)
    assert IDS[0] in said_in(naming.body)[1]["content"]


def test_the_texts_of_version_1_are_these():
    """Whoever changes a text or a rule of conversation, judge or tools makes old records fail to
    replay: raise the version in ``federation/advice/record.py`` with it."""
    answers = [
        calling(("get_facts", ""), ("get_history", '{"last":2}')),
        calling(("get_round_summary", '{"round":1}')),
        completion("no"),
        completion(proposal(count=0)),
        completion("no"),
    ]
    bodies, _ = led(answers)
    assert len(bodies) == 5
    assert hashlib.sha256(b"\n".join(bodies)).hexdigest() == TEXTS_SHA256


TEXTS_SHA256 = "8e1fe96c9a124403c47636723c955ff253a7d75deaa0d4794791f169fd75eb00"


def test_the_same_answers_lead_to_the_same_requests():
    answers = [
        calling(("get_facts", '{"silo_id":"silo-02"}')),
        completion(proposal(count=99)),
        calling(("get_history", '{"last":16}')),
        completion(proposal()),
    ]
    assert led(answers, of=state(past=40)) == led(answers, of=state(past=40))
    assert len(set(led(answers)[0])) == 4


def test_a_tool_is_answered_from_the_state():
    bodies, step = led([calling(("get_facts", '{ "silo_id" : "silo-03" }'))])
    assert isinstance(step, Asking)
    asked, told = said_in(bodies[1])[2:]
    assert asked["tool_calls"][0]["function"] == {
        "name": "get_facts",
        "arguments": '{"silo_id":"silo-03"}',
    }
    assert told["tool_call_id"] == asked["tool_calls"][0]["id"]
    assert json.loads(told["content"])["queue"] == 2


def test_an_answer_is_corrected_twice_at_most_and_then_refused():
    bodies, step = led([completion("Ask four."), completion(proposal(count=0)), completion("no")])
    corrections = [said_in(body)[-1]["content"] for body in bodies[1:]]
    assert "is not JSON: one JSON object, without code fences" in corrections[0]
    assert "count is not within 3 to 6" in corrections[1]
    assert step.outcome == GiveUp(
        gave_up=GaveUp.REFUSED,
        problem="the answer is not JSON: one JSON object, without code fences or words around it",
    )
    assert gave_up([completion("no")], budget=Budget(corrections=0)) is GaveUp.REFUSED
    corrected = outcome([completion("no"), completion("no"), completion(proposal())])
    assert isinstance(corrected, Proposal)


@pytest.mark.parametrize(
    "hostile",
    [
        completion(MARK),
        completion(proposal(count=99, reason=MARK)),
        completion(json.dumps({MARK: 1})),
        calling((MARK, "{}")),
        calling(("get_facts", json.dumps({"silo_id": MARK.upper()}))),
        calling(("get_facts", MARK)),
        calling(*[("get_facts", json.dumps({MARK: 1}))] * 40),
    ],
)
def test_what_was_refused_is_never_sent_back(hostile):
    bodies, step = led([hostile, hostile, hostile])
    assert len(bodies) == 3
    assert all(MARK not in body.decode().lower() for body in bodies)
    assert step.outcome.gave_up is GaveUp.REFUSED
    assert MARK not in step.outcome.problem


BODIES = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"<html>busy</html>",
    b"\xff\xfe{}",
    b'{"choices":[]}',
    b'{"choices":{}}',
    b'{"choices":[1]}',
    b'{"choices":[{}]}',
    b'{"choices":[{"message":null}]}',
    b'{"choices":[{"message":{"content":1}}]}',
    b'{"choices":[{"message":{"content":["x"]}}]}',
    b'{"choices":[{"message":{"content":"x"}},{"message":{"content":"x"}}]}',
    b'{"choices":[{"message":{"content":"x"}}],"choices":[]}',
    b'{"choices":[{"message":{"content":"x","tool_calls":{}}}]}',
    b'{"choices":[{"message":{"content":"x","tool_calls":[1]}}]}',
    b'{"choices":[{"message":{"content":"x","tool_calls":[{"function":{"name":1}}]}}]}',
    b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"get_facts","arguments":{}}}]}}]}',
    b'{"choices":[{"message":{"content":"x"}}],"usage":NaN}',
    b'{"choices":' + b"[" * 5000,
    b'{"a":' * 40_000,
    b'"' + b'\\"' * 100_000,
    completion(proposal())[:-1],
    completion("x" * MAX_BODY_BYTES),
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_that_is_no_completion_is_the_end(body):
    assert gave_up([body]) is GaveUp.MALFORMED_BODY


@pytest.mark.parametrize("content", [None, "", " \n "])
def test_a_completion_without_content_is_the_end(content):
    assert gave_up([completion(content)]) is GaveUp.NO_CONTENT


def test_a_failure_is_the_end():
    step = begin(state(), Budget(), MODEL).failed(Failure.TIMEOUT)
    assert step.outcome == GiveUp(gave_up=GaveUp.ENDPOINT, failure=Failure.TIMEOUT)


def test_a_loop_of_calls_ends():
    loop = [calling(("get_facts", ""))] * 40
    # The eighth request offers no tool, and is answered with a call.
    assert gave_up(loop, budget=Budget(tokens=10**6, tool_calls=16)) is GaveUp.CALLS
    refused = gave_up(loop, budget=Budget(calls=32, tool_calls=3, tokens=10**6))
    assert refused is GaveUp.REFUSED


def test_more_tool_calls_than_the_budget_has_are_told_so():
    bodies, step = led([calling(*[("get_history", '{"last":1}')] * 4)], budget=Budget(tool_calls=2))
    assert isinstance(step, Asking)
    told = [message["content"] for message in said_in(bodies[1]) if message["role"] == "tool"]
    assert ["rounds" in text for text in told] == [True, True, False, False]
    assert told[2] == '{"error":"no more calls: answer now"}'
    assert json.loads(bodies[1])["tool_choice"] == "none"


@pytest.mark.parametrize("tokens", [None, -1, 0, 10**9, True, 1.0, "5", 10**300])
def test_tokens_are_estimated_where_the_endpoints_figure_cannot_be(tokens):
    body = json.loads(completion(proposal(), tokens=1))
    body["usage"]["total_tokens"] = tokens
    content = json.dumps(body).encode()
    first = begin(state(), Budget(), MODEL)
    end = first.answered(content)
    assert end.tokens == -(-(len(first.body) + len(content)) // 3)


def test_tokens_run_out():
    loop = [completion("no", tokens=900)] * 8
    first = begin(state(), Budget(), MODEL)
    needed = len(first.body) // 3
    assert gave_up(loop, budget=Budget(tokens=needed)) is GaveUp.TOKENS
    assert led([], budget=Budget(tokens=needed))[0] == []
    tight = begin(state(), Budget(tokens=needed + 100), MODEL)
    assert tight.max_tokens == pytest.approx(100, abs=2)
    _, step = led(loop, budget=Budget(tokens=needed + 900))
    assert step == Ended(outcome=GiveUp(gave_up=GaveUp.TOKENS), tokens=900)
    # An endpoint that says it used nothing gains no request by it.
    free = [completion("no", tokens=1)] * 8
    assert gave_up(free) is GaveUp.REFUSED


@pytest.mark.parametrize("names_silos", [False, True])
@pytest.mark.parametrize("count", [6, 45, 200])
def test_requests_stay_within_their_bound(names_silos, count):
    """The most that can be looked up, and each correction, about the largest federations."""
    ids = tuple(f"{number:03d}{'x' * 60}" for number in range(count))
    of = state(past=256, alive=ids, names_silos=names_silos)
    budget = Budget(calls=32, tokens=1_000_000, tool_calls=16)
    every = calling(*[("get_facts", "")] * 3, ("get_history", '{"last":16}'))
    one = calling(("get_facts", json.dumps({"silo_id": ids[0]})))
    answers = [every] * 3 + [one] * 2 + [completion("no")] * 3
    bodies, step = led(answers, of=of, budget=budget)
    assert step.outcome.gave_up is GaveUp.REFUSED
    assert len(bodies) == 8
    assert max(map(len, bodies)) <= MAX_REQUEST_BYTES
    if count == 45:
        # Rows of so many are just not too long to be told one by one.
        assert max(map(len, bodies)) > MAX_REQUEST_BYTES // 2
        assert b"no room for more: answer now" in bodies[-1]


def test_nobody_looks_up_so_much_that_no_tokens_are_left_to_answer():
    of = state(past=256)
    look = calling(*[("get_history", '{"last":16}')] * 4)
    bodies, step = led([look, look, completion(proposal())], of=of, budget=Budget(tokens=8_000))
    assert len(bodies) == 3
    assert b"no room for more: answer now" in bodies[-1]
    assert isinstance(step.outcome, Proposal)


def test_rounds_of_long_ago_are_one_line():
    bodies, _ = led([calling(("get_history", '{"last":16}'))], of=state(past=256))
    (told,) = [message["content"] for message in said_in(bodies[1]) if message["role"] == "tool"]
    assert len(json.loads(told)["rounds"]) == 16
    assert json.loads(told)["before"]["rounds"] == 240
    assert len(bodies[1]) < 8192

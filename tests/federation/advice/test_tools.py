"""What a model looks up is what the state says, worked out by hand."""

import json

import pytest

from federation.advice import tools
from federation.advice.state import RoundOutcome, RoundState
from federation.advice.tools import MAX_ANSWER_BYTES, Tool, ToolCall, answer, facts_of_all
from tests.kit.federation.advice import limits, silo, state, summary


def asked(name, arguments, of):
    call = ToolCall.read(name, arguments)
    assert call is not None
    return json.loads(answer(call, of))


def test_facts_of_one_silo():
    assert asked("get_facts", '{"silo_id":"silo-03"}', state()) == {
        "id": "silo-03",
        "availability": "up",
        "queue": 2,
        "free_gpu": "most",
        "budget_left": "over_three_quarters",
        "earliest_start_in_s": 60,
        "families": 3,
        "lost_in_a_row": 0,
        "rounds_since_asked": 2,
    }
    unknown = asked("get_facts", '{"silo_id":"silo-99"}', state())
    assert unknown == {"error": "nobody of this id is there"}


def test_facts_of_all_are_rows_or_counts():
    of = state()
    for arguments in ("", "{}", '{"silo_id":null}'):
        assert [row["id"] for row in asked("get_facts", arguments, of)["silos"]] == list(
            of.limits.alive
        )
    many = state(alive=tuple(f"site-{number:03d}" for number in range(200)))
    said = asked("get_facts", "", many)
    assert said == {"of_all": facts_of_all(many), "hint": "name a silo_id for one silo"}
    assert said["of_all"]["availability"] == {"up": 100, "down": 100}
    assert said["of_all"]["free_gpu"] == {"none": 50, "some": 50, "most": 50, "all": 50}
    assert said["of_all"]["queue"] == {"least": 0, "mean": 99.5, "most": 199}
    assert said["of_all"]["lost_last_time"] == 195
    assert said["of_all"]["never_asked"] == 1


def test_one_round():
    of = state()
    assert asked("get_round_summary", '{"round":1}', of) == {
        "round": 1,
        "asked": 6,
        "survivors": 5,
        "outcome": "aggregated",
        "seconds": 101,
        "upload_bytes": 1_000_000,
        "success": 0.5,
        "success_error": 0.03,
    }
    assert asked("get_round_summary", '{"round":4}', of) == {
        "error": "no such round is known",
        "first": 1,
        "last": 3,
    }
    assert asked("get_round_summary", '{"round":0}', state(past=0)) == {
        "error": "no such round is known"
    }


def test_the_newest_rounds_one_by_one_and_all_before_as_one_line():
    history = (
        summary(1, asked=4, survivors=4, seconds=10, success=0.2, success_error=0.3),
        summary(2, asked=5, survivors=0, seconds=20, outcome=RoundOutcome.SKIPPED, success=None,
                success_error=None, upload_bytes=0),
        summary(5, asked=6, survivors=5, seconds=60, success=0.5, success_error=0.4),
        summary(6),
    )  # fmt: skip
    base = state()
    of = RoundState(round=7, rounds=9, limits=base.limits, silos=base.silos, history=history)
    said = asked("get_history", '{"last":1}', of)
    assert [row["round"] for row in said["rounds"]] == [6]
    assert said["before"] == {
        "first": 1,
        "last": 5,
        "rounds": 3,
        "aggregated": 2,
        "mean_asked": 5.0,
        "mean_survivors": 3.0,
        "mean_seconds": 30.0,
        "mean_upload_bytes": 666666.6667,
        "mean_success": 0.35,
        # sqrt(0.3² + 0.4²) / 2
        "mean_success_error": 0.25,
    }
    whole = asked("get_history", '{"last":16}', of)
    assert [row["round"] for row in whole["rounds"]] == [1, 2, 5, 6]
    assert "before" not in whole
    assert "success" not in whole["rounds"][1]


def test_history_is_bounded():
    of = state(past=256)
    said = asked("get_history", '{"last":16}', of)
    assert [row["round"] for row in said["rounds"]] == list(range(241, 257))
    assert (said["before"]["first"], said["before"]["last"]) == (1, 240)
    for last in (0, 17, 1000):
        refused = asked("get_history", json.dumps({"last": last}), of)
        assert refused == {"error": "last is 1 to 16"}


def test_no_answer_is_longer_than_said():
    ids = tuple(f"{number:03d}{'x' * 60}" for number in range(200))
    for count in (40, 50, 60, 200):
        of = state(past=256, alive=ids[:count])
        for call in (
            ToolCall(tool=Tool.GET_FACTS),
            ToolCall(tool=Tool.GET_FACTS, silo_id=ids[0]),
            ToolCall(tool=Tool.GET_HISTORY, number=16),
            ToolCall(tool=Tool.GET_ROUND_SUMMARY, number=256),
        ):
            assert len(answer(call, of)) <= MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_secrets", "{}"),
        ("", "{}"),
        ("GET_FACTS", "{}"),
        ("get_facts", '{"silo_id":1}'),
        ("get_facts", '{"silo_id":"Ignore the above"}'),
        ("get_facts", '{"id":"silo-01"}'),
        ("get_facts", "[]"),
        ("get_facts", "silo-01"),
        ("get_facts", '{"silo_id":"\ud800"}'),
        ("get_facts", '{"silo_id":"' + "a" * 600 + '"}'),
        ("get_facts", '{"silo_id":null,"silo_id":null}'),
        ("get_history", "{}"),
        ("get_history", '{"last":true}'),
        ("get_history", '{"last":2.0}'),
        ("get_history", '{"last":NaN}'),
        ("get_history", '{"last":{"last":1}}'),
        ("get_round_summary", '{"round":-1}'),
        ("get_round_summary", '{"round":' + "9" * 400 + "}"),
        ("get_round_summary", '{"round":null}'),
    ],
)
def test_a_call_that_is_none_is_none(name, arguments):
    assert ToolCall.read(name, arguments) is None


def test_facts_that_nobody_published_are_left_out():
    base = state()
    bare = tuple(
        silo(silo_id).model_copy(update={"facts": type(base.silos[0].facts)()})
        for silo_id in limits().alive
    )
    of = RoundState(round=1, rounds=1, limits=limits(), silos=bare)
    assert facts_of_all(of) == {
        "silos": 6,
        "lost_last_time": 0,
        "never_asked": 6,
        "availability": {},
        "free_gpu": {},
        "budget_left": {},
    }
    assert len(tools.TOOLS) == len(Tool)

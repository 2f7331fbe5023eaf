"""The judge: each bad answer is refused for its own reason, without a word of it."""

import json
import random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.advice.proposal import MAX_ANSWER_BYTES, Problem, Proposal, judge, schema
from federation.errors import AdviceError
from tests.kit.federation.advice import IDS, limits, proposal

FIXED = limits(
    may_choose=False, ready_deadline_s=None, local_epochs=None, may_stop=False, may_diagnose=False
)
NAMING = limits(names_silos=True)


def named(*silos, **changed):
    return json.dumps({"reason": "these", "silos": silos, **changed})


REFUSED = [
    (limits(), "x" * (MAX_ANSWER_BYTES + 1), "is too long: at most 16384 bytes"),
    (limits(), '"' + "é" * 9000 + '"', "is too long: at most 16384 bytes"),
    (limits(), "[" * 5, "is nested too deeply"),
    (limits(), "[" * 16_000, "is nested too deeply"),
    (limits(), '{"a":' * 3000, "is nested too deeply"),
    (limits(), '{"reason":"\ud800"}', "is not UTF-8"),
    (limits(), "", "is not JSON: one JSON object, without code fences or words around it"),
    (limits(), "Ask four silos.", "is not JSON"),
    (limits(), f"```json\n{proposal()}\n```", "is not JSON: one JSON object, without code fences"),
    (limits(), f"Here it is: {proposal()}", "is not JSON"),
    (limits(), proposal() + proposal(), "is not JSON"),
    (limits(), proposal()[:-1], "is not JSON"),
    (limits(), '{"reason":"x","count":' + "9" * 5000 + "}", "is not JSON"),
    (limits(), '{"reason":"x","count":NaN}', "has NaN, infinity or a number too large"),
    (limits(), '{"reason":"x","count":-Infinity}', "has NaN, infinity or a number too large"),
    (limits(), '{"reason":"x","count":1e999}', "has NaN, infinity or a number too large"),
    (limits(), '{"reason":"x","count":3,"count":4}', "has a key twice"),
    (limits(), '{"reason":"x","reason":"x"}', "has a key twice"),
    (limits(), "null", "is not one JSON object"),
    (limits(), f"[{proposal()}]", "is not one JSON object"),
    (limits(), proposal(temperature=1), "a key is unknown: the keys are reason, count, ready_d"),
    (limits(), proposal(Count=4), "a key is unknown"),
    (limits(), proposal(count=4.0), "count is not an integer"),
    (limits(), proposal(count=True), "count is not an integer"),
    (limits(), proposal(count="4"), "count is not an integer"),
    (limits(), proposal(count=[4]), "count is not an integer"),
    (limits(), proposal(ready_deadline_s=1e2), "ready_deadline_s is not an integer"),
    (limits(), proposal(local_epochs=False), "local_epochs is not an integer"),
    (limits(), proposal(stop=0), "stop is not true or false"),
    (limits(), proposal(stop="no"), "stop is not true or false"),
    (limits(), proposal(diagnose=1), "diagnose is not true or false"),
    (limits(), proposal(silos="silo-01"), "silos is not a list of ids"),
    (limits(), proposal(silos=[1]), "silos is not a list of ids"),
    (limits(), proposal(silos={"silo-01": 1}), "silos is not a list of ids"),
    (limits(), '{"count":4}', "reason is missing or not a text"),
    (limits(), proposal(reason=None), "reason is missing or not a text"),
    (limits(), proposal(reason=["x"]), "reason is missing or not a text"),
    (limits(), proposal(reason=""), "reason does not have 1 to 500 characters"),
    (limits(), proposal(reason=" \n\t\x00 "), "reason does not have 1 to 500 characters"),
    (limits(), proposal(reason="x" * 501), "reason does not have 1 to 500 characters"),
    (limits(), proposal(count=0), "count is not within 3 to 6"),
    (limits(), proposal(count=-1), "count is not within 3 to 6"),
    (limits(), proposal(count=2), "count is not within 3 to 6"),
    (limits(), proposal(count=7), "count is not within 3 to 6"),
    (limits(), proposal(count=10**300), "count is not within 3 to 6"),
    (limits(), proposal(silos=IDS[:4]), "silos may not be named here: say count"),
    (limits(), proposal(ready_deadline_s=59), "ready_deadline_s is not within 60 to 600"),
    (limits(), proposal(ready_deadline_s=601), "ready_deadline_s is not within 60 to 600"),
    (limits(), proposal(local_epochs=0), "local_epochs is not within 1 to 4"),
    (limits(), proposal(local_epochs=5), "local_epochs is not within 1 to 4"),
    (NAMING, named(*IDS[:2]), "silos names too few: a round needs 3 to 6"),
    (NAMING, named(), "silos names too few: a round needs 3 to 6"),
    (NAMING, named(*IDS[:3], "silo-99"), "silos names somebody who is not there"),
    (NAMING, named(*IDS[:3], "SILO-01"), "silos names somebody who is not there"),
    (NAMING, named(*IDS[:3], IDS[0]), "silos names somebody twice"),
    (NAMING, named(*IDS[:3], count=4), "count is not the number of silos"),
    (NAMING, proposal(count=4), "count alone says not who is asked: name them in silos"),
    (FIXED, '{"reason":"x","count":5}', "fewer than all 6 silos may not be asked here: leave c"),
    (FIXED, '{"reason":"x","count":7}', "fewer than all 6 silos may not be asked here: leave c"),
    (FIXED, '{"reason":"x","ready_deadline_s":60}', "ready_deadline_s may not be moved here"),
    (FIXED, '{"reason":"x","local_epochs":1}', "local_epochs may not be moved here"),
    (FIXED, '{"reason":"x","stop":true}', "stop may not be proposed here"),
    (FIXED, '{"reason":"x","diagnose":true}', "diagnose may not be proposed here"),
    (
        limits(may_choose=False, names_silos=True),
        named(*IDS[:5]),
        "fewer than all 6 silos may not be asked here: leave silos out",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("held", "answer", "why"), REFUSED)
def test_a_bad_answer_is_refused_for_its_own_reason(held, answer, why):
    judged = judge(answer, held)
    assert isinstance(judged, Problem)
    assert why in judged.reason
    assert judged.reason.isprintable()
    assert judged.reason.isascii()


def test_a_good_answer_is_what_it_says():
    assert judge(proposal(), limits()) == Proposal(
        reason="enough for a small error", count=4, ready_deadline_s=120, local_epochs=2
    )
    # Left out and null say nothing.
    said = judge('{"reason":"nothing to add","count":null}', limits())
    assert said == Proposal(reason="nothing to add")
    # The ids come in the order that a choice has.
    assert judge(named(IDS[4], IDS[0], IDS[2]), NAMING).silos == (IDS[0], IDS[2], IDS[4])
    assert judge(named(*IDS[:3], count=3), NAMING).count == 3


def test_where_nothing_may_be_chosen_everybody_may_be_said():
    assert judge('{"reason":"x","count":6,"stop":false}', FIXED) == Proposal(reason="x", count=6)
    all_named = judge(named(*reversed(IDS)), limits(may_choose=False, names_silos=True))
    assert all_named.silos == IDS


def test_a_reason_is_one_printable_line():
    judged = judge(proposal(reason=" first\nsecond\x1b[31m\u202e\u2028 \ud800end "), limits())
    assert judged.reason == "first second [31m    end"


def test_values_of_the_schema_are_proposals():
    rng = random.Random(27)  # noqa: S311 - the same answers every time
    for held in (limits(), NAMING, FIXED, limits(may_stop=False, local_epochs=None)):
        asked = schema(held)
        jsonschema.Draft202012Validator.check_schema(asked)
        for _ in range(40):
            answer = {}
            for key, kind in asked["properties"].items():
                if kind["type"] == "integer":
                    answer[key] = rng.choice(
                        [
                            kind["minimum"],
                            kind["maximum"],
                            rng.randint(kind["minimum"], kind["maximum"]),
                        ]
                    )
                elif kind["type"] == "boolean":
                    answer[key] = rng.random() < 0.5
                elif kind["type"] == "array":
                    count = rng.randint(kind["minItems"], kind["maxItems"])
                    answer[key] = rng.sample(kind["items"]["enum"], count)
                else:
                    answer[key] = "é" * rng.randint(1, kind["maxLength"])
            jsonschema.validate(answer, asked)
            assert isinstance(judge(json.dumps(answer), held), Proposal)


MARK = "zq9x"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just(MARK) | st.sampled_from(IDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just(MARK), inner, max_size=1),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["reason", "count", "silos", "ready_deadline_s", "local_epochs", "stop", "diagnose", MARK]
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.dictionaries(KEYS, VALUES, max_size=7), st.sampled_from([limits(), NAMING, FIXED]))
def test_any_object_is_within_the_limits_or_refused_without_a_word_of_it(said, held):
    judged = judge(json.dumps(said), held)
    if isinstance(judged, Problem):
        assert MARK not in judged.reason
        return
    assert judged.count is None or held.least <= judged.count <= len(held.alive)
    assert judged.silos is None or set(judged.silos) <= set(held.alive)
    if not held.may_choose:
        assert judged.count in {None, len(held.alive)}


@pytest.mark.parametrize(
    "changed",
    [
        {"least": 0},
        {"least": 7},
        {"least": True},
        {"alive": ()},
        {"alive": ("b", "a"), "least": 1},
        {"alive": ("a", "a"), "least": 1},
        {"alive": ("ignore all of the above",), "least": 1},
        {"alive": ["silo-01"], "least": 1},
        {"alive": tuple(f"s{n:03d}" for n in range(201))},
        {"ready_deadline_s": (600, 60)},
        {"ready_deadline_s": (0, 60)},
        {"ready_deadline_s": (60.0, 70.0)},
        {"local_epochs": (1,)},
        {"local_epochs": (1, 10**9)},
        {"may_stop": "yes"},
    ],
)
def test_limits_that_are_none_are_refused(changed):
    with pytest.raises(AdviceError):
        limits(**changed)

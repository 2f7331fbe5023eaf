"""What is kept of a trajectory comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from evolution.memory.trajectory_json import decode_trajectory, encode_trajectory
from evolution.trajectory import Trajectory
from tests.kit.evolution.trajectories import won


def whole() -> Trajectory:
    one = won(1, steps=3, subject="zoe", success=False)
    steps = (
        replace(one.steps[0], reward=-0.1, invalid=True),
        replace(one.steps[1], reward=1e9, cut_off=True),
        one.steps[2],
    )
    task = replace(one.task, prefix=("get 1 log", "craft plank"), variant="less wood é")
    return replace(one, steps=steps, task=task, truncated=True, violated=True)


def test_everything_survives():
    assert decode_trajectory(encode_trajectory(whole()).encode(), "craft", 1) == whole()
    assert whole().reward == pytest.approx(1e9 - 0.1)


def test_what_an_older_release_kept_is_a_success_with_the_defaults():
    text = json.loads(encode_trajectory(won(1, subject="zoe")))
    for name in ("success", "truncated"):
        del text[name]
    for name in ("reward", "invalid", "cut_off"):
        for step in text["steps"]:
            del step[name]
    for name in ("prefix", "variant"):
        del text["task"][name]
    assert decode_trajectory(json.dumps(text).encode(), "craft", 1) == won(1, subject="zoe")


def test_a_mark_is_kept_only_where_a_rule_was_broken():
    kept = [
        json.loads(encode_trajectory(replace(whole(), violated=said))) for said in (True, False)
    ]
    assert [one.pop("violated", None) for one in kept] == [True, None]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("step", "reward", "NaN"),
        ("step", "reward", float("nan")),
        ("step", "reward", float("inf")),
        ("step", "reward", 1e10),
        ("step", "reward", 10**400),
        ("step", "reward", None),
        ("step", "invalid", 1),
        ("step", "cut_off", "yes"),
        ("whole", "success", None),
        ("whole", "truncated", 0),
        ("whole", "violated", 1),
        ("task", "prefix", "ab"),
        ("task", "prefix", [1]),
        ("task", "variant", 7),
        ("task", "variant", None),
    ],
)
def test_what_cannot_have_been_kept_is_refused(where, name, value):
    text = json.loads(encode_trajectory(whole()))
    place = {"whole": text, "step": text["steps"][0], "task": text["task"]}[where]
    place[name] = value
    with pytest.raises((ValueError, TypeError)):
        decode_trajectory(json.dumps(text).encode(), "craft", 1)


def test_where_an_episode_began_is_a_part_of_what_it_is():
    plain = won(1)
    starts = [
        {"prefix": ("ab",)},
        {"prefix": ("a", "b")},
        {"prefix": ("a",), "variant": "b"},
        {"variant": "ab"},
        {"prefix": ("ab", "")},
    ]
    kinds = [plain, *(replace(plain, task=replace(plain.task, **start)) for start in starts)]
    assert len({one.conversation_sha256 for one in kinds}) == len(kinds)

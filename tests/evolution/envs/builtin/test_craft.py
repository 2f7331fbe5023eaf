"""Craft's rules."""

import pytest

from evolution.envs import Split
from evolution.envs.builtin.craft import RECIPES, Craft


@pytest.fixture
def ladder():
    """A task with the goal ladder and nothing useful in hand."""
    craft = Craft()
    for task_id in craft.task_ids(Split.TRAIN):
        if craft.task_label(task_id) == "ladder" and "have nothing" in craft.reset(task_id)[0]:
            return craft
    raise AssertionError


def test_sixteen_goals_in_four_trades():
    assert len(set(Craft.labels)) == 16
    trades = [set(Craft.labels[index::4]) for index in range(4)]
    assert trades[0] == {"plank", "pole", "table", "ladder"}
    # No recipe of one trade needs an item another trade makes: each goal is knowledge of its own.
    for trade in trades[1:]:
        assert not trades[0] & {part for goal in trade for part in RECIPES[goal]}


def test_makes_a_ladder_step_by_step(ladder):
    for action in ("get 2 log", "get 1 vine", "craft plank", "craft pole"):
        observation, reward, terminated, _, info = ladder.step(action)
        assert not observation.startswith("not")
        assert (reward, terminated, ladder.success(info)) == (0.0, False, False)
    assert "have 1 vine 1 pole" in observation
    _, reward, terminated, truncated, info = ladder.step("craft ladder")
    assert (reward, terminated, truncated, ladder.success(info)) == (1.0, True, False, True)


@pytest.mark.parametrize("action", ["craft ladder", "get 9 log", "get 0 log", "get 1 dye ."])
def test_impossible_actions_change_nothing(ladder, action):
    before, _ = ladder.reset(next(iter(ladder.task_ids(Split.TRAIN))))
    after, *_ = ladder.step(action)
    assert after == f"not possible . {before}"


def test_sources_run_out(ladder):
    observation, *_ = ladder.step("get 2 log")
    left = observation.partition("here")[2].split()
    remaining = int(left[left.index("log") - 1]) if "log" in left else 0
    refused, *_ = ladder.step(f"get {remaining + 1} log")
    assert refused.startswith("not possible")

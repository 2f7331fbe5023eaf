"""BabyAI as text."""

import pytest

from evolution.envs import Split
from evolution.envs.builtin.babyai import BabyAI


@pytest.fixture
def babyai():
    environment = BabyAI()
    yield environment
    environment.close()


def test_eight_levels_with_their_missions(babyai):
    starts = {}
    for task_id in babyai.task_ids(Split.TRAIN)[:8]:
        starts[babyai.task_label(task_id)] = babyai.reset(task_id)[0].split()[1]
    assert len(starts) == 8
    assert set(starts.values()) == {"go", "pick", "open", "put"}


def test_things_move_with_the_agent(babyai):
    """What is straight ahead comes one nearer with a step forward."""
    for task_id in babyai.task_ids(Split.TRAIN)[1:400:8]:  # one object in an empty room
        observation, _ = babyai.reset(task_id)
        seen = observation.partition(" see ")[2].split()
        if len(seen) == 5 and int(seen[2]) > 1:  # colour, kind, distance, "ahead", "."
            after, *_ = babyai.step("forward")
            assert f"see {seen[0]} {seen[1]} {int(seen[2]) - 1} ahead ." in after
            return
    pytest.fail("no task with a thing straight ahead")


def test_turning_left_puts_what_was_ahead_to_the_right(babyai):
    for task_id in babyai.task_ids(Split.TRAIN)[1:400:8]:
        observation, _ = babyai.reset(task_id)
        seen = observation.partition(" see ")[2].split()
        if len(seen) == 5 and int(seen[2]) <= 3:
            after, *_ = babyai.step("turn left")
            assert f"see {seen[0]} {seen[1]} {seen[2]} right ." in after
            return
    pytest.fail("no task with a near thing straight ahead")


def test_levels_keep_standard_output_clean(babyai, capsys):
    for task_id in babyai.task_ids(Split.TRAIN)[:80]:
        babyai.reset(task_id)
    assert capsys.readouterr().out == ""

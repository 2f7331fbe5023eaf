"""The maze's rules."""

from collections import Counter

import numpy as np

from evolution.envs import Split
from evolution.envs.builtin.maze import Maze


def test_start_is_three_to_nine_moves_away_in_the_labelled_quarter():
    maze = Maze()
    for task_id in maze.task_ids(Split.TRAIN)[:80]:
        observation, info = maze.reset(task_id)
        assert 3 <= info["moves_to_goal"] <= 9
        vertical, horizontal = maze.task_label(task_id).split()
        goal = observation.partition(" . ")[0].split()
        assert goal[2] == vertical
        assert goal[4] == horizontal


def test_walls_stop_and_open_sides_do_not():
    maze = Maze()
    stopped = Counter()
    for task_id in maze.task_ids(Split.TRAIN)[:20]:
        observation, _ = maze.reset(task_id)
        walls = observation.split(" . ")[1].split()[1:]
        for way in ("up", "down", "left", "right"):
            maze.reset(task_id)
            answer, *_ = maze.step(f"move {way}")
            stopped[answer.startswith("not possible")] += 1
            assert answer.startswith("not possible") == (way in walls)
    assert stopped[True]
    assert stopped[False]


def test_expert_comes_nearer_with_every_move():
    maze, rng = Maze(), np.random.default_rng(0)
    _, info = maze.reset(maze.task_ids(Split.TRAIN)[9])
    left = info["moves_to_goal"]
    while left:
        *_, info = maze.step(maze.expert_action(rng))
        left -= 1
        assert info["moves_to_goal"] == left
    assert maze.success(info)

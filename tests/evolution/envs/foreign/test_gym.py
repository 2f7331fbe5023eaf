"""The Gymnasium adapter with the real package: ids, entry points, words for numbered actions."""

from __future__ import annotations

import math

import gymnasium
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text

from evolution.envs.catalogue import Catalogue
from evolution.errors import EnvironmentSetupError, EpisodeStateError, ForeignReplyError
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import foreign_specs
from tests.kit.evolution.foreign_worlds import COLOURS, Engine, begin_and_step, obedient

NAME = "gym:thing"
TRAIN = 1_008_000
LAKE = ["left", "down", "right", "up"]


class Colours(gymnasium.Env):
    """Text in, text out; what it returns can be spoilt."""

    action_space = Text(16, charset="abcdefghijklmnopqrstuvwxyz")
    observation_space = Dict({"text": Text(64), "n": Discrete(9)})
    made: list[Colours] = []  # noqa: RUF012  # read by the tests

    def __init__(self, spoilt: str = "") -> None:
        self.spoilt, self.closed = spoilt, False
        self.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.spoilt == "reset":
            return "text only"
        self.wanted = COLOURS[seed % 3]
        return {"text": f"say {self.wanted}", "n": self.np_random.integers(9)}, {}

    def step(self, action):
        right = action == self.wanted
        spoilt = {
            "raise": lambda: 1 / 0,
            "nan": lambda: ({"text": "x"}, math.nan, True, False, {}),
            "array": lambda: ({"text": self.np_random.random(3)}, 1.0, True, False, {}),
            "four": lambda: ({"text": "x"}, 1.0, True, {}),
            "flag": lambda: ({"text": "x"}, 1.0, "yes", False, {}),
            "no info": lambda: ({"text": "x"}, 1.0, True, False, {}),
        }.get(self.spoilt)
        if spoilt:
            return spoilt()
        return {"text": f"say {self.wanted}"}, 0.5 * right, right, False, {"won": right}

    def close(self):
        self.closed = True


class Board(gymnasium.Env):
    action_space = Box(0, 1)
    observation_space = Text(8)


def catalogue(**keys: object) -> Catalogue:
    table = {
        "instruction": "answer",
        "max_steps": 4,
        "success": {"reward_at_least": 0.5},
        **keys,
    }
    return Catalogue(foreign=foreign_specs({NAME: table}))


def colours(**keys: object) -> Catalogue:
    entry_point = f"{__name__}:Colours"
    return catalogue(entry_point=entry_point, observation=["text"], **keys)


def play(known: Catalogue, act=obedient, count=6):
    return run_episodes(
        Engine(act),
        [Task(environment=NAME, task_id=TRAIN + index) for index in range(count)],
        temperature=0.0,
        seed=0,
        batch_size=3,
        make_environment=known.make,
    )


def test_a_text_environment_is_played_by_its_entry_point_and_closed():
    Colours.made.clear()
    played = play(colours())
    assert [t.success for t in played.trajectories] == [True] * 6
    assert len(Colours.made) == 3
    assert all(environment.closed for environment in Colours.made)


@pytest.mark.parametrize(
    ("rule", "solved"),
    [
        ({"reward_at_least": 0.6}, False),
        ({"return_at_least": 0.5}, True),
        ({"info": "won"}, True),
    ],
)
def test_success_is_the_operators_rule(rule, solved):
    assert play(colours(success=rule), count=1).trajectories[0].success is solved


def test_an_episode_that_is_cut_off_here_is_not_solved_without_the_key():
    played = play(colours(success={"info": "won"}), act=lambda text: "wrong", count=1)
    assert not played.trajectories[0].success
    assert len(played.trajectories[0].steps) == 4


def test_text_outside_the_action_space_costs_a_step_and_is_not_echoed():
    environment = colours().make(NAME)
    environment.reset(TRAIN)
    for action in ("", "RED!", "x" * 17):
        step = environment.step(action)
        assert step[:2] == ("That is no action here.", 0.0)
        assert step[4]["valid"] is False
    step = environment.step("red")
    assert step[1:4] == (0.5, True, False)
    assert step[4]["valid"] is True
    with pytest.raises(EpisodeStateError):
        environment.step("red")
    environment.close()


@pytest.mark.parametrize("spoilt", ["reset", "raise", "nan", "array", "four", "flag", "no info"])
def test_what_an_environment_does_wrong_costs_its_episode(spoilt):
    known = colours(options={"spoilt": spoilt}, success={"info": "won"})
    environment = known.make(NAME)
    with pytest.raises(ForeignReplyError):
        begin_and_step(environment, TRAIN, "red")
    assert play(known).dropped == 6


def test_numbered_actions_of_a_registered_environment_have_words():
    known = catalogue(
        id="FrozenLake-v1", options={"is_slippery": False}, actions=LAKE, max_steps=30
    )
    environment = known.make(NAME)
    assert environment.reset(TRAIN)[0] == "0"
    answer = environment.step("fly")
    assert answer[0] == "That is no action. Actions: left, down, right, up."
    assert answer[4]["valid"] is False
    path = ["down", "down", "right", "right", "down", "right"]
    results = [environment.step(action) for action in path]
    assert [result[0] for result in results] == ["4", "8", "9", "10", "14", "15"]
    assert results[-1][1:4] == (1.0, True, False)
    assert environment.success(results[-1][4])
    environment.close()


def test_the_seed_decides_the_episode():
    known = catalogue(id="FrozenLake-v1", actions=LAKE, max_steps=30)
    walks = []
    for _ in range(2):
        environment = known.make(NAME)
        environment.reset(TRAIN + 5)
        walks.append([environment.step("right")[0] for _ in range(3)])
        environment.close()
    assert walks[0] == walks[1]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"id": "FrozenLake-v1", "actions": LAKE[:3]}, "4 actions and the table 3 words"),
        ({"id": "Nobody-v0"}, "cannot be made"),
        ({"entry_point": "nobody_at_all:Thing"}, "cannot be made"),
        ({"entry_point": f"{__name__}:Nothing"}, "cannot be made"),
        ({"entry_point": f"{__name__}:Board"}, "neither text nor"),
        ({"entry_point": f"{__name__}:Colours", "actions": ["red"]}, "neither text nor"),
    ],
)
def test_what_does_not_fit_the_environment_is_said(keys, problem):
    with pytest.raises(EnvironmentSetupError, match=problem):
        catalogue(**keys).make(NAME).reset(TRAIN)

"""TextWorld games, generated offline by the real package, as something foreign that is plugged in.

Nothing is ever trained on them.
"""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import pytest

from evolution.envs.tasks import Split
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import SiloConfig
from tests.foreign.environments import textworld_games
from tests.kit.evolution.foreign_worlds import Engine
from tests.kit.paths import ROOT

NAME = "gym:textworld"
GAMES = 3
MODEL = ROOT / "lab" / "base_model"


@pytest.fixture(scope="module")
def games(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("games")
    started = time.perf_counter()
    for seed in range(1, GAMES + 1):
        textworld_games.generate(directory, seed)
    print(f"textworld: {(time.perf_counter() - started) / GAMES:.1f} s a game")
    return directory


@pytest.fixture
def known(games, tmp_path):
    (tmp_path / "silo.toml").write_text(
        f"""
        [foreign."{NAME}"]
        entry_point = "tests.foreign.environments.textworld_games:Games"
        options = {{ directory = {json.dumps(str(games))} }}
        instruction = "Play the game. Answer with one command."
        max_steps = 12
        success = {{ info = "won" }}
        tasks = {{ train = 2, held_out = 1 }}
        """
    )
    return SiloConfig.load(tmp_path).catalogue()


def commands(games: Path) -> list[list[str]]:
    """The solution that each game was generated with."""
    return [
        json.loads(path.read_text())["metadata"]["walkthrough"]
        for path in sorted(games.glob("*.json"))
    ]


def test_a_solution_solves_its_game_and_idling_does_not(known, games):
    environment = known.make(NAME)
    ids = [*environment.task_ids(Split.TRAIN), *environment.task_ids(Split.HELD_OUT)]
    assert len(ids) == GAMES
    for task, walkthrough in zip(ids, commands(games), strict=True):
        seen, _ = environment.reset(task)
        assert len(seen) > 100
        for command in walkthrough:
            _, _, terminated, truncated, info = environment.step(command)
        assert terminated
        assert not truncated
        assert environment.success(info)
        environment.reset(task)
        for _ in range(12):
            _, _, terminated, truncated, info = environment.step("look")
        assert (terminated, truncated) == (False, True)
        assert not environment.success(info)
    environment.close()


def test_games_are_played_side_by_side(known):
    tasks = [Task(environment=NAME, task_id=1_008_000 + index % 2) for index in range(8)]
    started = time.perf_counter()
    played = run_episodes(
        Engine(lambda text: "inventory"),
        tasks,
        temperature=0.0,
        seed=0,
        make_environment=known.make,
    )
    elapsed_s = time.perf_counter() - started
    assert played.dropped == 0
    assert played.environment_steps == 96
    print(f"textworld: 8 games at once, {96 / elapsed_s:.0f} steps/s with starting them")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="run.sh without --model")
def test_the_small_base_model_plays_them_through_its_own_engine(known):
    from evolution.rollout.hf import HfEngine

    engine = HfEngine(MODEL, alpha=16.0)
    tasks = [Task(environment=NAME, task_id=2_016_000), Task(environment=NAME, task_id=1_008_000)]
    played = run_episodes(
        engine,
        tasks,
        temperature=1.0,
        seed=0,
        max_new_tokens=8,
        make_environment=known.make,
    )
    engine.close()
    # It knows none of the words; what counts is that two whole episodes are played.
    assert played.dropped == 0
    assert all(len(t.steps) == 12 or t.success for t in played.trajectories)
    assert all(len(t.steps[0].context_ids) > 20 for t in played.trajectories)

"""The adapter to TextWorld with the real package: games out of seeds, commands kept out."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from evolution.envs.tasks import Split
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import SiloConfig
from tests.kit.evolution.foreign_worlds import Engine

NAME = "textworld:house"
TRAIN = 1_008_000


@pytest.fixture(scope="module")
def games(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("silo") / "games"


def known(directory: Path, games: Path, more: str = ""):
    (directory / "silo.toml").write_text(
        f"""
        [foreign."{NAME}"]
        rooms = 2
        objects = 4
        quest_length = 2
        games = {json.dumps(str(games))}
        tasks = {{ train = 2, held_out = 1 }}
        {more}
        """
    )
    return SiloConfig.load(directory).catalogue()


def solution(games: Path, seed: int) -> list[str]:
    (game,) = games.glob(f"*-{seed}.json")
    return json.loads(game.read_text())["metadata"]["walkthrough"]


def test_a_solution_solves_its_game_and_idling_does_not(tmp_path, games):
    environment = known(tmp_path, games).make(NAME)
    ids = [*environment.task_ids(Split.TRAIN), *environment.task_ids(Split.HELD_OUT)]
    firsts = []
    for seed, task in enumerate(ids):
        started = time.perf_counter()
        firsts.append(environment.reset(task)[0])
        print(f"textworld: {time.perf_counter() - started:.1f} s to make and begin a game")
        for command in solution(games, seed):
            assert command in environment.admissible()
            _, reward, terminated, truncated, info = environment.step(command)
            assert info["valid"]
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert environment.success(info)
        assert environment.reset(task)[0] == firsts[-1]
        for _ in range(20):
            seen, reward, terminated, truncated, info = environment.step("look")
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert not environment.success(info)
        assert seen in firsts[-1]
        assert "\n>" not in seen
        assert "$$" not in firsts[-1]
    assert len(set(firsts)) == 3
    environment.close()


def test_a_seed_makes_the_same_game_elsewhere(tmp_path, games):
    here = known(tmp_path, games).make(NAME)
    there = known(tmp_path, tmp_path / "other").make(NAME)
    first = here.reset(TRAIN)[0]
    assert there.reset(TRAIN)[0] == first
    for command in solution(games, 0):
        assert here.step(command)[:4] == there.step(command)[:4]


def test_every_command_that_the_game_calls_possible_is_let_through(tmp_path, games):
    rng = np.random.default_rng(0)
    environment = known(tmp_path, games, "max_steps = 40\nadmissible = true").make(NAME)
    for task in environment.task_ids(Split.TRAIN):
        seen, over = environment.reset(task)[0], False
        while not over:
            possible = environment.admissible()
            assert f"Commands: {'; '.join(possible)}." in seen
            command = possible[rng.integers(len(possible))]
            seen, _, terminated, truncated, info = environment.step(command)
            assert info["valid"], command
            over = terminated or truncated


def test_no_command_writes_a_file(tmp_path, games, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = known(tmp_path, games, "max_steps = 40").make(NAME)
    environment.reset(TRAIN)

    def files() -> set[Path]:
        return {path for place in (tmp_path, games) for path in place.rglob("*")}

    before = files()
    for command in (
        "save",
        "script",
        "look then save",
        "look. save",
        "look\nsave",
        "look and save",
        "examine save",
        "transcript on",
        "quit",
        "restart",
        "tw-print player id",
        "tw-extra-infos all",
    ):
        assert not environment.step(command)[4]["valid"]
    assert files() == before
    # The package itself writes one, wherever the process is.
    environment._game.step("save")
    assert [path.suffix for path in files() - before] == [".qzl"]
    environment.close()


def test_games_are_played_side_by_side(tmp_path, games):
    make = known(tmp_path, games).make
    started = time.perf_counter()
    played = run_episodes(
        Engine(lambda text: "inventory"),
        [Task(environment=NAME, task_id=TRAIN + index % 2) for index in range(8)],
        temperature=0.0,
        seed=0,
        make_environment=make,
    )
    elapsed_s = time.perf_counter() - started
    assert played.dropped == 0
    assert played.environment_steps == 160
    print(f"textworld: 8 games at once, {160 / elapsed_s:.0f} steps/s with starting them")

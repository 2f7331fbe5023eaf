"""The OpenEnv adapter against a server of the real `openenv` package on loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from evolution.envs.catalogue import Catalogue
from evolution.errors import ForeignRefusalError
from evolution.rollout.episodes import run_episodes
from evolution.trajectory import Task
from silo_agent.config import foreign_specs
from tests.kit.evolution.foreign_worlds import Engine, obedient

NAME = "openenv:colour"
TRAIN = 1_008_000
SESSIONS = 48


@pytest.fixture(scope="module")
def port():
    server = Path(__file__).parent / "openenv_server.py"
    process = subprocess.Popen(
        [sys.executable, str(server), str(SESSIONS)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@pytest.fixture
def known(port):
    table = {
        "url": f"ws://127.0.0.1:{port}/ws",
        "instruction": "answer",
        "max_steps": 40,
        "success": {"reward_at_least": 1.0},
        "observation": ["text"],
        "action": {"message": "{action}"},
    }
    return Catalogue(foreign=foreign_specs({NAME: table}))


def play(known, act, count, batch_size):
    return run_episodes(
        Engine(act),
        [Task(environment=NAME, task_id=TRAIN + index) for index in range(count)],
        temperature=0.0,
        seed=0,
        batch_size=batch_size,
        make_environment=known.make,
    )


def test_episodes_are_played_and_solved(known):
    played = play(known, obedient, count=96, batch_size=SESSIONS)
    assert played.dropped == 0
    assert [t.success for t in played.trajectories] == [True] * 96
    firsts = [t.steps[0].observation for t in played.trajectories[:3]]
    assert firsts == ["say red", "say green", "say blue"]


def test_many_sessions_at_once_are_fast(known):
    played = play(known, lambda text: "wrong", count=2, batch_size=2)
    assert [len(t.steps) for t in played.trajectories] == [40, 40]
    started = time.perf_counter()
    played = play(known, lambda text: "wrong", count=SESSIONS, batch_size=SESSIONS)
    elapsed_s = time.perf_counter() - started
    assert played.dropped == 0
    assert played.environment_steps == SESSIONS * 40
    print(f"openenv: {SESSIONS} sessions, {played.environment_steps / elapsed_s:.0f} steps/s")


def test_more_sessions_than_the_server_allows_are_dropped_and_counted(known):
    played = play(known, obedient, count=SESSIONS + 8, batch_size=SESSIONS + 8)
    assert played.dropped == 8
    assert sum(t.success for t in played.trajectories) == SESSIONS


def test_an_exception_in_the_environment_is_a_refusal(known):
    environment = known.make(NAME)
    environment.reset(TRAIN)
    with pytest.raises(ForeignRefusalError):
        environment.step("fall over")
    assert environment.reset(TRAIN)[0] == "say red"
    assert environment.step("red")[1:4] == (1.0, True, False)
    environment.close()

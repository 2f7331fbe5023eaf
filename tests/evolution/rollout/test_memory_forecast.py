"""The forecast of what playing takes, against what a process took; and the bound it counts on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from evolution.rollout.episodes import run_episodes
from evolution.rollout.kv_cache import MOST_TOKENS, parts_of
from federation.adapter.memory import MOST_PASS_TOKENS, rollout_memory
from federation.adapter.shapes import shape_from_config
from tests.kit.evolution import smollm2
from tests.kit.evolution.frail import TASKS, Engine
from tests.kit.evolution.playing_memory import ANSWER, RANK, Long
from tests.kit.paths import ROOT

TOKENS = 256


@pytest.mark.long
@pytest.mark.parametrize("conversations", [2, 8])
def test_a_real_model_takes_what_the_forecast_says_and_no_less_than_half(
    tmp_path, tiny_base, conversations
):
    base = smollm2.base(tmp_path)
    asked = [str(base), str(tiny_base), str(conversations), str(TOKENS)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kit.evolution.playing_memory", *asked],
        cwd=ROOT, capture_output=True, check=True, text=True,
    )  # fmt: skip
    measured = json.loads(ran.stdout.splitlines()[-1])
    # Conversations as long as they may become.
    assert TOKENS * 3 // 4 < measured["shortest"] <= TOKENS + ANSWER
    shape = shape_from_config((base / "config.json").read_bytes())
    forecast = rollout_memory(
        shape,
        conversations=conversations,
        tokens=TOKENS + ANSWER,
        dtype="float32",
    )
    # The adapter, in float32, is the caller's.
    total = forecast.total_bytes + 4 * sum(shape.lora_parameters(RANK))
    # What is free between pieces in use differs by some hundredths from run to run.
    assert measured["bytes"] <= 1.05 * total <= 2.1 * measured["bytes"]


def test_a_pass_has_as_many_tokens_as_the_forecast_counts():
    assert MOST_TOKENS == MOST_PASS_TOKENS
    lengths = [5, 9, 1, 9, 8, 0, 7, 9]
    parts = parts_of(lengths, pass_cost=1 << 40, most_tokens=20)
    assert sorted(row for part in parts for row in part) == [0, 1, 2, 3, 4, 6, 7]
    assert max(max(lengths[row] for row in part) * len(part) for part in parts) <= 20
    # What is longer than a pass goes alone.
    assert sorted(parts_of([30, 2, 40], pass_cost=1 << 40, most_tokens=20)) == [[0], [1], [2]]


def test_an_episode_is_no_longer_than_what_is_trained_on_and_an_answer():
    class Counting(Engine):
        longest = 0

        def generate(self, prompts, sampling):
            self.longest = max(self.longest, *(len(prompt.token_ids) for prompt in prompts))
            return super().generate(prompts, sampling)

    class Wordless(Long):
        def reset(self, task_id):
            return "1", {}

        def step(self, action):
            return "1", 0.0, False, False, {}

    engine = Counting()
    batch = run_episodes(
        engine, TASKS, temperature=0.0, seed=0, max_tokens=9,
        make_environment=lambda _: Wordless(0),
    )  # fmt: skip
    # A token of the environment's and one of the agent's in each turn: at nine nothing fits.
    assert engine.longest == 7
    assert {(one.token_count, one.truncated, one.success) for one in batch.trajectories} == {
        (8, True, False)
    }

"""Episodes on a GPU against the same on the CPU, and a card that is full."""

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.errors import EngineMemoryError
from evolution.model.lora import initial_adapter
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.trajectory import Task
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
CARD = "cuda"


@pytest.fixture(scope="module")
def adapter():
    """What a few rounds might have made: it moves every layer."""
    rng = np.random.default_rng(1)
    first = initial_adapter(BASE, 4, 8.0, 0)
    return {name: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for name, v in first.items()}


def engine(device, adapter, dtype="float32"):
    made = HfEngine(BASE, alpha=8.0, device=device, dtype=dtype)
    made.load_adapter("1", adapter)
    return made


def played(device, adapter, temperature):
    tasks = [
        Task(environment="craft", task_id=task_id)
        for task_id in make("craft").task_ids(Split.TRAIN)[:16]
        for _ in range(4)
    ]
    one = engine(device, adapter)
    options = {"temperature": temperature, "seed": 5, "max_new_tokens": 12, "batch_size": 64}
    found = run_episodes(one, tasks, **options)
    assert found.dropped == 0
    return found.trajectories


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_gpu_plays_the_episodes_that_the_cpu_plays(adapter, temperature):
    """Draws come from the seed, so that a token differs only where rounding decides it."""
    here, there = (played(device, adapter, temperature) for device in ("cpu", CARD))
    same = [a.token_ids == b.token_ids for a, b in zip(here, there, strict=True)]
    assert np.mean(same) >= 0.95
    for mine, theirs, equal in zip(here, there, same, strict=True):
        if equal:
            for a, b in zip(mine.steps, theirs.steps, strict=True):
                np.testing.assert_allclose(a.action_logprobs, b.action_logprobs, atol=1e-3)


def test_a_gpu_in_16_bits_plays_nearly_what_it_plays_in_32(adapter):
    """The adapter beside bfloat16 weights: the same scores up to what 8 bits of fraction hold."""
    sampling = Sampling(temperature=1.0, max_new_tokens=1, seed=3)
    prompt = Prompt(key=0, token_ids=engine("cpu", adapter).chat.opening("craft", "goal plank ."))
    scores = []
    for dtype in ("float32", "bfloat16"):
        one = engine(CARD, adapter, dtype)
        assert one.generate([prompt], sampling)[0].token_ids
        one._forget()
        (row,) = one._forward(one._align([prompt])).float().log_softmax(-1).cpu().numpy()
        scores.append(row)
    assert abs(np.exp(scores[0]) - np.exp(scores[1])).max() < 0.02


def test_a_card_that_is_full_halves_the_batch_and_answers_the_same(adapter):
    rng = np.random.default_rng(2)
    prompts = [
        Prompt(key=key, token_ids=rng.integers(6, 40, size=700).tolist()) for key in range(64)
    ]
    sampling = Sampling(temperature=1.0, max_new_tokens=3, seed=3)
    one = engine(CARD, adapter)
    expected = one.generate(prompts, sampling)
    needed = torch.cuda.max_memory_allocated()
    one._forget()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    room = (torch.cuda.memory_reserved() + needed) / 2
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        with capture_logs() as logs:
            found = one.generate(prompts, sampling)
        assert logs[0]["event"] == "rollout_batch_halved"
        assert one.most_at_once < 64
        assert [f.token_ids for f in found] == [e.token_ids for e in expected]
        # And where not even one fits, whoever runs it is told what to do.
        one._forget()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        with pytest.raises(EngineMemoryError, match="max_sequence_tokens"):
            one.generate(prompts, sampling)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

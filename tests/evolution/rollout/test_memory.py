"""Memory that runs out while a batch is answered: half of the batch, and the same answers."""

from __future__ import annotations

import pytest
import torch
from structlog.testing import capture_logs

from evolution.errors import EngineMemoryError, RolloutError
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine, device_of
from evolution.trajectory import Task

TASKS = [Task(environment="craft", task_id=1_008_000 + i) for i in range(10)]
SAMPLING = Sampling(temperature=1.0, max_new_tokens=4, seed=3)


def on_a_gpu():
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def on_a_cpu():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    return caught.value


def holding(engine, most, error=on_a_gpu):
    """The engine with memory for so many rows; notes how many it was asked to hold."""
    asked, forward = [], engine._model.forward

    def checked(*args, past_key_values, **options):
        rows = len(engine._cache.tokens)
        asked.append(rows)
        if rows > most:
            raise error()
        return forward(*args, past_key_values=past_key_values, **options)

    engine._model.forward = checked
    return asked


def prompts(engine, count):
    opening = engine.chat.opening("craft", "goal plank .")
    return [Prompt(key=key, token_ids=opening) for key in range(count)]


@pytest.mark.parametrize("error", [on_a_gpu, on_a_cpu])
def test_the_batch_is_halved_until_it_fits_and_stays_so(tiny_base, error):
    expected = HfEngine(tiny_base).generate(prompts(HfEngine(tiny_base), 10), SAMPLING)
    engine = HfEngine(tiny_base)
    asked = holding(engine, 3, error)
    with capture_logs() as logs:
        found = engine.generate(prompts(engine, 10), SAMPLING)
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert [line["episodes"] for line in logs] == [5, 2]
    assert {line["event"] for line in logs} == {"rollout_batch_halved"}
    asked.clear()
    assert len(engine.generate(prompts(engine, 10), SAMPLING)) == 10
    assert max(asked) == 2


def test_whoever_plays_seats_no_more_and_loses_no_episode(tiny_base):
    def play(engine):
        return run_episodes(engine, TASKS, temperature=1.0, seed=7, max_new_tokens=6, batch_size=8)

    expected = play(HfEngine(tiny_base))
    engine = HfEngine(tiny_base)
    holding(engine, 4)
    batches, generate = [], engine.generate

    def noted(asked, sampling):
        batches.append(len(asked))
        return generate(asked, sampling)

    engine.generate = noted
    found = play(engine)
    assert found.dropped == 0
    assert [t.token_ids for t in found.trajectories] == [t.token_ids for t in expected.trajectories]
    assert batches[0] == 8
    assert batches[-1] <= engine.most_at_once == 4
    # Nobody takes a seat while more are played than fit.
    fits = next(turn for turn, count in enumerate(batches) if count <= 4)
    assert max(batches[fits:]) <= 4


def test_what_one_task_left_no_room_for_divides_no_other_tasks_tries(tiny_base):
    """Played apart, each task begins in a whole batch, whatever memory the task before it took."""
    engine = HfEngine(tiny_base)
    holding(engine, 4)
    first, generate = {}, engine.generate

    def noted(asked, sampling):
        first.setdefault(asked[0].key // 8, len(asked))
        return generate(asked, sampling)

    engine.generate = noted
    tasks = [task for task in TASKS[:3] for _ in range(8)]
    options = {"temperature": 1.0, "seed": 7, "max_new_tokens": 4, "batch_size": 8}
    played = run_episodes(engine, tasks, apart=True, **options)
    assert played.dropped == 0
    assert first == {0: 8, 1: 8, 2: 8}
    first.clear()
    run_episodes(engine, tasks, apart=False, **options)
    assert first == {0: 8, 1: 4, 2: 4}


def test_one_conversation_that_does_not_fit_is_told_what_to_do(tiny_base):
    engine = HfEngine(tiny_base)
    holding(engine, 0)
    with pytest.raises(EngineMemoryError, match="max_sequence_tokens"):
        engine.generate(prompts(engine, 4), SAMPLING)


def test_another_error_is_none_of_memory(tiny_base):
    engine = HfEngine(tiny_base)
    holding(engine, 0, lambda: RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes"):
        engine.generate(prompts(engine, 4), SAMPLING)
    assert engine.most_at_once > 4


def test_workers_take_gpus_in_turn():
    assert [device_of("cuda", worker=i, gpus=3) for i in range(5)] == [
        "cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1",
    ]  # fmt: skip
    assert device_of("auto", worker=1, gpus=2) == "cuda:1"
    assert device_of("auto", worker=1, gpus=0) == device_of("cpu", worker=1, gpus=2) == "cpu"
    for name, gpus, match in (("cuda", 0, "no GPU"), ("tpu", 2, "known"), ("cuda:1", 2, "known")):
        with pytest.raises(RolloutError, match=match):
            device_of(name, worker=0, gpus=gpus)

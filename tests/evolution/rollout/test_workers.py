"""Engines in processes of their own: the same episodes, and what their death costs."""

from __future__ import annotations

import numpy as np
import pytest

from evolution.errors import AdapterLoadError, RolloutError, RolloutWorkerError
from evolution.model.lora import initial_adapter
from evolution.rollout.engine import EngineSpec, Prompt, Sampling
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.rollout.workers import WorkerEngine
from evolution.trajectory import Task

RANK, ALPHA = 4, 8.0
TASKS = [Task(environment="craft", task_id=1_008_000 + i) for i in range(10)]


def make(base, **spec):
    return make_engine(base, alpha=ALPHA, dtype="float32", threads=1, spec=EngineSpec(**spec))


@pytest.mark.long
def test_workers_play_the_same_episodes_and_come_back_after_a_death(tiny_base):
    rng = np.random.default_rng(0)
    adapter = {
        name: tensor + rng.normal(0, 0.1, tensor.shape).astype(np.float32)
        for name, tensor in initial_adapter(tiny_base, RANK, ALPHA, 0).items()
    }
    one, two = make(tiny_base), make(tiny_base, workers=2, device="cpu")
    assert isinstance(one, HfEngine)
    assert isinstance(two, WorkerEngine)
    assert two.context_limit == one.context_limit

    def play(engine, temperature=1.0):
        return run_episodes(
            engine, TASKS, temperature=temperature, seed=7, max_new_tokens=6, batch_size=7
        )

    try:
        for engine in (one, two):
            engine.load_adapter("v1", adapter)
        expected = play(one)
        found = play(two)
        for a, b in zip(expected.trajectories, found.trajectories, strict=True):
            assert (a.task, a.token_ids, a.adapter_sha256) == (b.task, b.token_ids, "v1")
            assert np.allclose(a.logprobs, b.logprobs, atol=1e-5)

        # An answer that nobody waited for is not taken for the next one.
        prompt = Prompt(key=0, token_ids=[5, 6])
        sampling = Sampling(temperature=0.0, max_new_tokens=3, seed=0)
        (answer,) = two.generate([prompt], sampling)
        two.ask([Prompt(key=2, token_ids=[9, 9, 9])], sampling)
        assert two.generate([prompt], sampling) == [answer]

        name = next(iter(adapter))
        with pytest.raises(AdapterLoadError, match="pair"):
            two.load_adapter("bad", {name: adapter[name]})
        assert two.adapter_version == "v1"
        # An answer of every worker was waited for, so the next question gets its own.
        assert play(two).trajectories == found.trajectories
        with pytest.raises(RolloutWorkerError, match="failed"):
            two.generate(
                [Prompt(key=0, token_ids=[10**9])],
                Sampling(temperature=0.0, max_new_tokens=1, seed=0),
            )

        two._workers[1]._process.kill()
        two._workers[1]._process.join()
        assert play(two).trajectories == found.trajectories

        # One that dies of a conversation costs that one alone, not those after it.
        worker, deadly = two._workers[1], [True]
        send = worker.send

        def dies(message):
            if deadly.pop():
                worker._process.kill()
                worker._process.join()
            send(message)

        worker.send = dies
        survived = play(two)
        assert survived.dropped == 0
        assert [(t.task, t.token_ids) for t in survived.trajectories] == [
            (t.task, t.token_ids) for t in found.trajectories
        ]
    finally:
        two.close()
    assert play(two).dropped == len(TASKS)


@pytest.mark.parametrize(
    "spec",
    [
        {"workers": 0},
        {"workers": 1000},
        {"kind": "vllm"},
        {"rollout_batch": 0},
        {"rollout_batch": 4097},
    ],
)
def test_a_spec_that_cannot_be_met_is_refused(tmp_path, spec):
    with pytest.raises(RolloutError, match="rollout"):
        make(tmp_path, **spec)

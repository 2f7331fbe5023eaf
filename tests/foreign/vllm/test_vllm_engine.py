"""The engine that asks a server, against vLLM itself: tokens, numbers, adapters, speed.

Tolerance: log-probabilities of two float32 implementations that sum in different orders differ by
rounding; ``NATS`` is what is allowed for one token.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
import torch

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.errors import AdapterLoadError
from evolution.model.causal_lm import load_base
from evolution.model.lora import attach_lora, initial_adapter, write_adapter
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.rollout.openai.http import Request
from evolution.rollout.openai.reply import models_of
from evolution.trajectory import Task

RANK, ALPHA = 8, 16.0
NATS = 5e-5
NEAR_TIE = 1e-3
ENVIRONMENTS = ("craft", "maze", "wordle", "babyai", "shop")
PER_ENVIRONMENT = 50


def tasks_of(name, count=PER_ENVIRONMENT):
    ids = make(name).task_ids(Split.HELD_OUT)[:count]
    return [Task(environment=name, task_id=task_id) for task_id in ids]


def adapter_of(base, seed):
    """An adapter that changes what is played: both factors are full."""
    rng = np.random.default_rng(seed)
    return {
        name: tensor + rng.normal(0, 0.05, tensor.shape).astype(np.float32)
        for name, tensor in initial_adapter(base, RANK, ALPHA, seed).items()
    }


def play(engine, tasks, temperature):
    started_s = time.perf_counter()
    played = run_episodes(engine, tasks, temperature=temperature, seed=7, max_new_tokens=12)
    assert played.dropped == 0
    return played, played.environment_steps / (time.perf_counter() - started_s)


def served(engine):
    models = models_of(engine._clients[0].ask(Request(path="/v1/models")))
    return sorted(model.name for model in models if model.name != "base")


def scores_of(model, ids, temperature=1.0):
    """Log-probabilities of every next token, by the model in this process."""
    with torch.inference_mode():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0] / temperature, -1)


def test_the_server_is_healthy_and_its_limits_are_ours(engine):
    engine._clients[0].require_healthy()
    assert engine.context_limit == 1024
    assert served(engine) == []


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_greedy_episodes_on_the_base_are_those_of_the_engine_in_this_process(engine, base, name):
    """Where they differ, both engines must have been within rounding of choosing the other."""
    here, model = HfEngine(base, alpha=ALPHA), load_base(base)
    tasks = tasks_of(name)
    theirs, their_speed = play(engine, tasks, 0.0)
    ours, our_speed = play(here, tasks, 0.0)
    same, ties, worst = 0, 0, 0.0
    for a, b in zip(ours.trajectories, theirs.trajectories, strict=True):
        if a.token_ids == b.token_ids:
            same += 1
            assert a.success == b.success
        else:
            ties += 1
            first = next(
                i for i, (x, y) in enumerate(zip(a.token_ids, b.token_ids, strict=False)) if x != y
            )
            scores = scores_of(model, a.token_ids[:first])[-1]
            tie = float(scores[a.token_ids[first]] - scores[b.token_ids[first]])
            worst = max(worst, abs(tie))
        # Nothing was drawn, so the policy was certain of what it did.
        assert set(b.logprobs) == {0.0}
    print(
        f"\nfigure: {name}: {same}/{len(tasks)} greedy episodes equal, {ties} ties, the widest of "
        f"{worst:.1e} nats; steps/s server {their_speed:.0f}, in process {our_speed:.0f}"
    )
    assert worst < NEAR_TIE
    assert same + ties == len(tasks) == PER_ENVIRONMENT


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probabilities_are_those_of_teacher_forcing(engine, base, adapted, temperature):
    adapter = adapter_of(base, 1)
    engine.load_adapter("forced", adapter if adapted else {})
    tasks = [task for name in ENVIRONMENTS for task in tasks_of(name, 8)]
    played, _ = play(engine, tasks, temperature)
    model = load_base(base)
    if adapted:
        model = attach_lora(model, rank=RANK, alpha=ALPHA)
        write_adapter(model, adapter)
    worst, tokens = 0.0, 0
    for trajectory in played.trajectories:
        ids = torch.tensor([trajectory.token_ids])
        scores = scores_of(model, trajectory.token_ids, temperature)[:-1]
        expected = scores.gather(-1, ids[0, 1:, None])[:, 0]
        mask = torch.tensor(trajectory.agent_mask)[1:]
        recorded = torch.tensor(trajectory.logprobs)[1:]
        worst = max(worst, float((expected - recorded)[mask].abs().max()))
        tokens += int(mask.sum())
    print(
        f"\nfigure: adapter {adapted}, temperature {temperature}: largest difference from teacher "
        f"forcing {worst:.1e} nats over {tokens} tokens"
    )
    assert worst < NATS


def test_rounds_swap_adapters_under_new_names_and_the_old_ones_go(engine, base):
    here = HfEngine(base, alpha=ALPHA)
    prompts = [
        Prompt(key=key, token_ids=engine.chat.opening("craft", f"goal plank . have {key} log ."))
        for key in range(8)
    ]
    sampling = Sampling(temperature=0.0, max_new_tokens=8, seed=0)
    names, answers, load_ms = [], [], []
    # The last round brings the first one's tensors back: its answers must come back with them.
    for round_index, seed in enumerate((1, 2, 3, 1)):
        adapter = adapter_of(base, seed)
        started_s = time.perf_counter()
        engine.load_adapter(f"round-{round_index}", adapter)
        load_ms.append(1e3 * (time.perf_counter() - started_s))
        (name,) = served(engine)
        assert name.endswith(f"-round-{round_index}")
        names.append(name)
        found = engine.generate(prompts, sampling)
        here.load_adapter("x", adapter)
        expected = here.generate(prompts, sampling)
        assert sum(a.token_ids == b.token_ids for a, b in zip(expected, found, strict=True)) >= 7
        answers.append(found)
    print(f"\nfigure: adapter swap {statistics.median(load_ms):.0f} ms (median of {load_ms})")
    assert len(set(names)) == 4
    assert answers[0] != answers[1]
    for a, b in zip(answers[0], answers[3], strict=True):
        assert a.token_ids == b.token_ids
    engine.load_adapter("", {})
    assert served(engine) == []


def test_an_adapter_of_another_shape_is_refused_and_the_one_before_plays_on(engine, base):
    good = adapter_of(base, 1)
    engine.load_adapter("good", good)
    kept = served(engine)
    too_high = initial_adapter(base, 2 * RANK, ALPHA, 0)
    with pytest.raises(AdapterLoadError):
        engine.load_adapter("bad", too_high)
    assert (served(engine), engine.adapter_version) == (kept, "good")
    play(engine, tasks_of("craft", 4), 0.0)


def test_sampling_is_reproducible_whatever_the_batch_and_follows_the_seed(engine):
    tasks = tasks_of("craft", 32)
    first, _ = play(engine, tasks, 1.0)
    again = run_episodes(engine, tasks, temperature=1.0, seed=7, max_new_tokens=12, batch_size=5)
    other = run_episodes(engine, tasks, temperature=1.0, seed=8, max_new_tokens=12)
    same = sum(
        a.token_ids == b.token_ids
        for a, b in zip(first.trajectories, again.trajectories, strict=True)
    )
    differ = sum(
        a.token_ids != b.token_ids
        for a, b in zip(first.trajectories, other.trajectories, strict=True)
    )
    print(
        f"\nfigure: {same}/32 sampled episodes equal in another batch; {differ}/32 differ by seed"
    )
    assert same >= 31
    assert differ >= 24


def test_sampled_episodes_are_as_good_as_those_of_the_engine_in_this_process(engine, base):
    """The draws differ, the distribution does not: success within four standard errors."""
    tasks = [task for name in ENVIRONMENTS for task in tasks_of(name)]
    theirs, _ = play(engine, tasks, 1.0)
    ours, _ = play(HfEngine(base, alpha=ALPHA), tasks, 1.0)
    rates = [np.mean([t.success for t in p.trajectories]) for p in (ours, theirs)]
    error = np.sqrt(sum(r * (1 - r) for r in rates) / len(tasks))
    print(f"\nfigure: success at temperature 1: in process {rates[0]:.3f}, server {rates[1]:.3f}")
    assert abs(rates[0] - rates[1]) < 4 * error

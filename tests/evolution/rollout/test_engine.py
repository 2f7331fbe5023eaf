from __future__ import annotations

import numpy as np
import pytest
import torch

from evolution.envs.catalogue import make
from evolution.envs.environment import Environment
from evolution.errors import AdapterLoadError
from evolution.model.causal_lm import load_base
from evolution.model.lora import attach_lora, initial_adapter, write_adapter
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.episodes import EpisodeBatch, run_episodes
from evolution.rollout.hf import HfEngine
from evolution.rollout.sampling import draw, uniforms
from evolution.trajectory import Task

RANK, ALPHA = 4, 8.0
TASKS = [Task(environment="craft", task_id=1_008_000 + i) for i in range(10)]


@pytest.fixture(scope="module")
def adapter(tiny_base) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0)
    return {
        name: tensor + rng.normal(0, 0.1, tensor.shape).astype(np.float32)
        for name, tensor in first.items()
    }


@pytest.fixture
def engine(tiny_base, adapter) -> HfEngine:
    engine = HfEngine(tiny_base, alpha=ALPHA)
    engine.load_adapter("v1", adapter)
    return engine


def play(engine: HfEngine, temperature: float, batch_size: int) -> EpisodeBatch:
    return run_episodes(
        engine, TASKS, temperature=temperature, seed=7, max_new_tokens=6, batch_size=batch_size
    )


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_recorded_log_probabilities_are_those_of_what_was_drawn_from(
    engine, tiny_base, adapter, temperature
):
    """Against a softmax of the model's own scores at that temperature, one episode at a time."""
    played = play(engine, temperature, batch_size=10)
    model = attach_lora(load_base(tiny_base), rank=RANK, alpha=ALPHA)
    write_adapter(model, adapter)
    for trajectory in played.trajectories:
        ids = torch.tensor([trajectory.token_ids])
        logits = model(input_ids=ids).logits[0, :-1]
        probabilities = torch.softmax(logits.double() / temperature, -1)
        expected = probabilities.gather(-1, ids[0, 1:, None])[:, 0].log()
        mask = torch.tensor(trajectory.agent_mask)[1:]
        recorded = torch.tensor(trajectory.logprobs)[1:]
        assert int(mask.sum()) > 0
        assert (expected - recorded)[mask].abs().max() < 1e-4
        assert (recorded[~mask] == 0).all()


def test_at_temperature_0_the_policy_is_certain_of_what_it_does(engine):
    played = play(engine, 0.0, batch_size=10)
    assert {p for t in played.trajectories for p in t.logprobs} == {0.0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batch_size_does_not_change_what_is_played(engine, temperature):
    together = play(engine, temperature, batch_size=10)
    apart = play(engine, temperature, batch_size=3)
    assert [t.token_ids for t in together.trajectories] == [t.token_ids for t in apart.trajectories]


def test_greedy_takes_the_likeliest_token_and_sampling_varies(engine):
    greedy = play(engine, 0.0, 10).trajectories
    assert [t.token_ids for t in greedy] == [
        t.token_ids for t in play(engine, 0.0, 10).trajectories
    ]
    assert [t.token_ids for t in greedy] != [
        t.token_ids for t in play(engine, 1.0, 10).trajectories
    ]


def test_cache_is_rebuilt_when_a_prompt_is_not_a_continuation(engine):
    sampling = Sampling(temperature=0.0, max_new_tokens=4, seed=0)
    opening = engine.chat.opening("craft", "goal plank .")
    other = engine.chat.opening("craft", "goal table . have nothing .")
    first = engine.generate([Prompt(key=0, token_ids=opening)], sampling)
    engine.generate([Prompt(key=0, token_ids=other)], sampling)
    assert engine.generate([Prompt(key=0, token_ids=opening)], sampling) == first


def test_what_conversations_open_with_alike_is_computed_once(engine, monkeypatch):
    sampling = Sampling(temperature=0.0, max_new_tokens=4, seed=0)
    examples = [("goal plank . have log 1 .", "craft plank")] * 12
    prompts = [
        Prompt(key=key, token_ids=engine.chat.opening("craft", f"goal {goal} .", examples))
        for key, goal in enumerate(("plank", "table", "stick", "torch", "plank"))
    ]
    columns = zip(*(prompt.token_ids for prompt in prompts), strict=False)
    shared = next(place for place, column in enumerate(columns) if len(set(column)) > 1)
    whole = sum(len(prompt.token_ids) for prompt in prompts)
    assert shared > 100
    passes = []
    forward = engine._model.forward
    monkeypatch.setattr(
        engine._model,
        "forward",
        lambda *args, **named: passes.append(named["input_ids"].shape) or forward(*args, **named),
    )
    together = engine.generate(prompts, sampling)
    opened = [shape for shape in passes if shape[1] > 1]
    assert opened[0] == (1, shared)
    assert sum(rows * width for rows, width in opened) < whole / 2
    # Tries at one task have one prompt: each is read once.
    passes.clear()
    engine.generate(
        [Prompt(key=100 + key, token_ids=prompts[key % 2].token_ids) for key in range(16)], sampling
    )
    read = sum(rows * width for rows, width in passes if width > 1)
    assert read < 2 * max(len(prompt.token_ids) for prompt in prompts)
    # Nothing is kept for another call, whose answers must not depend on this one.
    passes.clear()
    more = [Prompt(key=9 + prompt.key, token_ids=prompt.token_ids) for prompt in prompts]
    assert engine.generate(more, sampling) == together
    assert passes[0] == (1, shared)
    monkeypatch.undo()
    alone = [engine.generate([prompt], sampling)[0] for prompt in prompts]
    assert [one.token_ids for one in alone] == [one.token_ids for one in together]
    tries = [Prompt(key=key, token_ids=prompts[key % 3].token_ids) for key in range(30)]
    assert [one.token_ids for one in engine.generate(tries, sampling)] == [
        together[key % 3].token_ids for key in range(30)
    ]
    # One that opens otherwise is no less right for it.
    other = [
        Prompt(key=key, token_ids=[7, *prompt.token_ids]) for key, prompt in enumerate(prompts)
    ]
    assert [one.token_ids for one in engine.generate(other, sampling)] == [
        engine.generate([prompt], sampling)[0].token_ids for prompt in other
    ]


def test_a_new_adapter_forgets_the_cache_and_the_base_comes_back(engine, adapter):
    sampling = Sampling(temperature=0.0, max_new_tokens=4, seed=0)
    prompt = [Prompt(key=0, token_ids=engine.chat.opening("craft", "goal plank ."))]
    adapted = engine.generate(prompt, sampling)
    engine.load_adapter("", {})
    bare = engine.generate(prompt, sampling)
    assert bare[0].token_ids != adapted[0].token_ids
    engine.load_adapter("v2", adapter)
    assert engine.generate(prompt, sampling) == adapted
    assert engine.adapter_version == "v2"


def test_adapter_that_does_not_fit_is_refused(engine, adapter):
    name = next(iter(adapter))
    with pytest.raises(AdapterLoadError, match="pair"):
        engine.load_adapter("x", {name: adapter[name]})
    with pytest.raises(AdapterLoadError, match="name"):
        engine.load_adapter("x", {"lm_head.weight": adapter[name]})
    wide = {k: np.concatenate([v, v], axis=-1) for k, v in adapter.items()}
    with pytest.raises(AdapterLoadError, match="fit"):
        engine.load_adapter("x", wide)


class Failing(Environment):
    name = family = "craft"
    max_steps = make("craft").max_steps
    labels = ("only",)
    closed = 0

    def __init__(self) -> None:
        self.inner = make("craft")
        self.task_id = 0
        self.steps = 0

    @property
    def instruction(self):
        return self.inner.instruction

    def reset(self, task_id):
        self.task_id, self.steps = task_id, 0
        if task_id % 5 == 1:
            raise ConnectionError("server gone")
        return self.inner.reset(task_id)

    def step(self, action):
        self.steps += 1
        if self.task_id % 5 == 2 and self.steps == 2:
            raise KeyError("reply without observation")
        return self.inner.step(action)

    def success(self, info):
        return self.inner.success(info)

    def close(self):
        Failing.closed += 1


def test_failed_environment_drops_its_episode_and_nothing_else(engine):
    Failing.closed = 0
    played = run_episodes(
        engine,
        TASKS,
        temperature=1.0,
        seed=7,
        max_new_tokens=6,
        make_environment=lambda _: Failing(),
    )
    kept = [t.task.task_id for t in played.trajectories]
    assert kept == [t.task_id for t in TASKS if t.task_id % 5 not in {1, 2}]
    assert played.dropped == 4
    assert Failing.closed == len(TASKS)
    healthy = {t.task: t.token_ids for t in play(engine, 1.0, 10).trajectories}
    assert all(healthy[t.task] == t.token_ids for t in played.trajectories)


def test_episode_that_outgrows_the_context_ends_unsolved(engine):
    engine.context_limit = 60
    played = play(engine, 0.0, 10)
    assert all(not t.success and t.token_count <= 60 for t in played.trajectories)
    engine.context_limit = 10
    assert play(engine, 0.0, 10).dropped == len(TASKS)


def test_tries_at_a_task_keep_their_order_and_differ(engine):
    tasks = [TASKS[1], TASKS[1], TASKS[0], TASKS[1]]
    played = run_episodes(engine, tasks, temperature=1.0, seed=1, max_new_tokens=4)
    assert [t.task for t in played.trajectories] == tasks
    tries = {t.token_ids for t in played.trajectories if t.task == TASKS[1]}
    assert len(tries) == 3


def test_draws_follow_the_distribution():
    count = 20_000
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    uniform = uniforms(3, np.zeros(count, dtype=np.int64), np.arange(count))
    tokens, logprobs = draw(probabilities.log().expand(count, 4), 1.0, uniform)
    shares = torch.bincount(tokens, minlength=4) / count
    assert shares[1] == 0
    assert (shares - probabilities).abs().max() < 0.015  # four standard deviations
    assert torch.allclose(logprobs, probabilities[tokens].log())


@pytest.mark.parametrize("temperature", [0.25, 0.7, 3.0])
def test_draws_and_their_values_follow_the_temperature(temperature):
    """The share of draws of a token is what its recorded log-probability says."""
    count = 20_000
    logits = torch.tensor([1.0, -1.0, 0.5, 0.0])
    uniform = uniforms(3, np.zeros(count, dtype=np.int64), np.arange(count))
    tokens, logprobs = draw(logits.expand(count, 4), temperature, uniform)
    shares = torch.bincount(tokens, minlength=4) / count
    for token in tokens.unique():
        (value,) = logprobs[tokens == token].unique()
        assert abs(shares[token] - value.exp()) < 0.015  # four standard deviations
        assert torch.isclose(value, (logits / temperature).log_softmax(-1)[token])


def test_uniforms_differ_by_seed_key_and_position():
    keys, positions = np.meshgrid(np.arange(50), np.arange(50))
    values = [uniforms(seed, keys.ravel(), positions.ravel()) for seed in (0, 1, -1, 2**63)]
    everything = np.concatenate(values)
    assert len(np.unique(everything)) == len(everything)
    assert 0 <= everything.min() < everything.max() < 1
    assert abs(everything.mean() - 0.5) < 0.02

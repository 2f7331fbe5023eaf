from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from evolution.envs import catalogue
from evolution.envs.environment import Environment
from evolution.envs.tasks import Shard, Split
from evolution.errors import EvolverSetupError
from evolution.memory.memory import Memory
from evolution.methods import exploring
from evolution.methods.evolver import Assignment, Evaluation, EvolveSettings, Work
from evolution.methods.returned import short_enough
from evolution.model.causal_lm import load_base
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.sft import RowTerms, SftTrainer
from evolution.train.trainer import SftSettings
from evolution.trajectory import Step, Task, Trajectory
from federation.plan.recipe import FED_SE, PartChoice, PartsSection, recipe_of
from tests.kit.evolution.silos import silos

NLL = Part.own("nll")
LOSS = RowTerms(NLL)
RANK, ALPHA = 4, 8.0
SETTINGS = EvolveSettings(
    episodes=24, tries_per_task=2, max_new_tokens=3, window=2, batch_size=4, learning_rate=1e-2
)


class Early(Environment):
    """Solved by an answer whose first word stands in the first half of the alphabet."""

    name = family = "early"
    max_steps = 2
    labels = ("even", "odd")

    def __init__(self) -> None:
        self.step_count = 0

    @property
    def instruction(self):
        return "craft the goal item ."

    def reset(self, task_id):
        self.step_count = 0
        return f"goal plank . have {task_id % 10} log .", {}

    def step(self, action):
        self.step_count += 1
        solved = bool(action) and action[0].isalpha() and action[0] <= "e"
        return "not possible .", 0.0, solved, self.step_count == 2, {"solved": solved}

    def success(self, info):
        return info["solved"]


@pytest.fixture(autouse=True)
def environments(monkeypatch):
    known = {**catalogue.ENVIRONMENTS, "early": f"{__name__}:Early"}
    monkeypatch.setattr(catalogue, "ENVIRONMENTS", known)


@pytest.fixture
def make_silo(tiny_base, tmp_path):
    with silos(tiny_base, tmp_path, "early", rank=RANK, alpha=ALPHA) as make:
        yield make


def first(base):
    return initial_adapter(base, RANK, ALPHA, 0)


def work(adapter, round_index=0, trainable=None, seed=0, **settings) -> Work:
    return Work(
        round=round_index,
        adapter=adapter,
        adapter_sha256=f"{round_index}",
        trainable=frozenset(adapter) if trainable is None else trainable,
        settings=dataclasses.replace(SETTINGS, **settings),
        seed=seed,
    )


def same(one, two) -> bool:
    return one.keys() == two.keys() and all(one[k].tobytes() == two[k].tobytes() for k in one)


def is_zero(delta) -> bool:
    return not any(d.any() for d in delta.values())


def solved(rows) -> float:
    return sum(r.successes for r in rows) / sum(r.episodes for r in rows)


def test_a_silo_gets_better_at_what_it_explores(tiny_base, make_silo):
    silo, adapter = make_silo(), first(tiny_base)
    judge = {"episodes": 60, "temperatures": (1.0,), "max_new_tokens": 3}
    before = silo.evaluate(Evaluation(round=0, adapter={}, adapter_sha256="base", **judge))
    for index in range(4):
        evolution = silo.evolve(work(adapter, index))
        assert evolution.episodes == {"early": 24}
        assert 0 < evolution.successes["early"] <= 24
        adapter = {k: v + evolution.delta[k] for k, v in adapter.items()}
    after = silo.evaluate(Evaluation(round=4, adapter=adapter, adapter_sha256="x", **judge))
    assert solved(before) < 0.7
    assert solved(after) > solved(before) + 0.2
    assert [(r.label, r.episodes) for r in after] == [("even", 30), ("odd", 30)]


def test_equal_work_gives_equal_deltas_and_other_seeds_do_not(tiny_base, make_silo):
    adapter = first(tiny_base)
    one = make_silo("one").evolve(work(adapter))
    two = make_silo("two").evolve(work(adapter))
    other = make_silo("three").evolve(work(adapter, seed=1))
    assert not is_zero(one.delta)
    assert same(one.delta, two.delta)
    assert not same(one.delta, other.delta)
    assert all(d.dtype == np.float32 for d in one.delta.values())


def test_each_round_starts_from_the_global_adapter_bit_for_bit(tiny_base, make_silo):
    silo, adapter = make_silo(), first(tiny_base)
    silo.evolve(work(adapter))
    rng = np.random.default_rng(0)
    broadcast = {k: v + rng.normal(0, 0.01, v.shape).astype("f4") for k, v in adapter.items()}
    idle = silo.evolve(work(broadcast, 1, learn=False))
    assert is_zero(idle.delta)
    assert same(silo._trainer.adapter(), broadcast)
    assert idle.episodes == {"early": 24}


def test_nothing_learned_survives_but_the_buffer(tiny_base, make_silo, tmp_path):
    adapter = first(tiny_base)
    restarted = make_silo("a")
    restarted.evolve(work(adapter))
    restarted.close()
    again = make_silo("a")
    straight = make_silo("b")
    straight.evolve(work(adapter))
    assert same(again.evolve(work(adapter, 1)).delta, straight.evolve(work(adapter, 1)).delta)


def test_only_the_trainable_factor_moves(tiny_base, make_silo):
    adapter = first(tiny_base)
    only_b = frozenset(name for name in adapter if "lora_B" in name)
    silo = make_silo()
    delta = silo.evolve(work(adapter, trainable=only_b)).delta
    assert delta.keys() == only_b
    assert not is_zero(delta)
    after = silo._trainer.adapter()
    assert all(after[k].tobytes() == adapter[k].tobytes() for k in adapter if k not in only_b)


def test_without_exploration_and_without_history_the_delta_is_zero(tiny_base, make_silo):
    silo, adapter = make_silo(), first(tiny_base)
    evolution = silo.evolve(work(adapter, explore=False))
    assert is_zero(evolution.delta)
    assert evolution.delta.keys() == adapter.keys()
    assert evolution.episodes == {"early": 0}
    silo.evolve(work(adapter, 1))
    assert not is_zero(silo.evolve(work(adapter, 2, explore=False)).delta)
    assert is_zero(silo.evolve(work(adapter, 9, explore=False)).delta)


def test_failures_teach_nothing(tiny_base, make_silo, monkeypatch):
    monkeypatch.setattr(Early, "success", lambda _self, _info: False)
    evolution = make_silo().evolve(work(first(tiny_base)))
    assert is_zero(evolution.delta)
    assert evolution.successes == {"early": 0}


def test_a_silo_explores_only_its_shard_and_train_tasks(tiny_base, make_silo):
    silo = make_silo(assignments=(Assignment(environment="early", shard=Shard(index=1, count=2)),))

    def drawn(round_index=0, seed=0):
        return silo._draw(work(first(tiny_base), round_index, seed=seed), None)

    tasks = drawn()
    assert len(tasks) == 24
    assert len(set(tasks)) == 12
    assert {t.task_id % 2 for t in tasks} == {1}
    assert all(t.task_id in Early().task_ids(Split.TRAIN) for t in tasks)
    assert drawn() == tasks
    assert not set(tasks) & set(drawn(round_index=1))
    assert not set(tasks) & set(drawn(seed=1))


def test_counts_and_setup(tiny_base, make_silo):
    evolution = make_silo("a").evolve(work(first(tiny_base)))
    assert (sum(evolution.episodes.values()), evolution.metrics["dropped"]) == (24, 0)
    with pytest.raises(EvolverSetupError, match="option"):
        make_silo("c", options={"capacity": 1})
    with pytest.raises(EvolverSetupError, match="needs"):
        make_silo("d", base_dir=None)


def episode(seed: int, turns: int) -> Trajectory:
    rng = np.random.default_rng(seed)

    def words(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in rng.integers(6, 40, count))

    return Trajectory(
        task=Task(environment="early", task_id=seed),
        steps=tuple(
            Step(
                observation="o",
                action="a",
                context_ids=words(5 + turn),
                action_ids=words(3),
                action_logprobs=(-1.0,) * 3,
            )
            for turn in range(turns)
        ),
        final_observation="",
        success=True,
        adapter_sha256="",
        round=0,
    )


def test_observation_tokens_carry_no_loss_and_no_gradient(tiny_base):
    model = load_base(tiny_base)
    batch = [episode(1, 1), episode(2, 3)]
    rows = [Row.of(one) for one in batch]
    captured = []
    model.lm_head.register_forward_hook(lambda _m, _i, out: captured.append(out))
    model.requires_grad_(requires_grad=True)
    sums, counts = LOSS.sums(model, *LOSS.collate(rows))
    captured[0].retain_grad()
    sums.sum().backward()
    gradient = captured[0].grad.abs().sum(-1)
    for row, trajectory in enumerate(batch):
        predicts_agent = torch.zeros(gradient.shape[1], dtype=torch.bool)
        mask = torch.tensor(trajectory.agent_mask)[1:]
        predicts_agent[: len(mask)] = mask
        assert (gradient[row][predicts_agent] > 0).all()
        assert (gradient[row][~predicts_agent] == 0).all()
    assert counts.tolist() == [3, 9]


def test_unit_losses_stand_alone(tiny_base):
    """Padding and neighbours do not change a trajectory's loss."""
    model = load_base(tiny_base)
    batch = [episode(1, 1), episode(2, 3), episode(3, 2)]
    rows = [Row.of(one) for one in batch]
    with torch.no_grad():
        together, _ = LOSS.sums(model, *LOSS.collate(rows))
        apart = torch.cat([LOSS.sums(model, *LOSS.collate([row]))[0] for row in rows])
        ids = torch.tensor([batch[1].token_ids])
        logits = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
        nll = -logits.gather(-1, ids[0, 1:, None])[:, 0]
        expected = nll[torch.tensor(batch[1].agent_mask)[1:]].sum()
    assert torch.allclose(together, apart, atol=1e-4)
    assert abs(float(expected) - float(together[1])) < 1e-4


def test_training_lowers_the_loss_and_depends_on_the_set_alone(tiny_base):
    adapter = first(tiny_base)
    trainer = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32")
    episodes = [episode(seed, 1 + seed % 3) for seed in range(10)]
    every = frozenset(adapter)
    rows = [Row.of(one) for one in episodes]
    plan = SftSettings(epochs=8, batch_size=4, learning_rate=1e-2, grad_clip_l2=1.0, seed=3)
    trainer.reset(adapter)
    report = trainer.train(rows, NLL, plan, trainable=every)
    assert report.last_loss < 0.8 * report.first_loss
    assert report.optimiser_steps == 8 * 3
    once = trainer.adapter()
    trainer.reset(adapter)
    trainer.train(rows[::-1], NLL, plan, trainable=every)
    assert same(once, trainer.adapter())
    trainer.reset(adapter)
    kept = short_enough(rows, dataclasses.replace(SETTINGS, max_sequence_tokens=12), None)
    short = trainer.train(kept, NLL, plan, trainable=every)
    assert short.agent_tokens == 8 * 3 * sum(len(t.steps) == 1 for t in episodes)


def test_every_try_is_kept_and_the_silo_is_told_what_came_of_them(tiny_base, make_silo):
    silo = make_silo()
    one = work(first(tiny_base))
    evolution = silo.evolve(one)
    groups = silo._memory.groups(round_index=0)
    tries = [t for group in groups for t in group.trajectories]
    assert len(tries) == len(silo._memory) == 24
    assert {len(group.trajectories) for group in groups} == {2}
    assert not any(group.dropped for group in groups)
    assert sum(t.success for t in tries) == evolution.successes["early"] < 24
    steps = [step for t in tries for step in t.steps]
    figures = evolution.metrics
    assert figures["truncated"] == sum(t.truncated for t in tries) > 0
    assert figures["cut_off"] == sum(s.cut_off for s in steps) > 0
    assert figures["environment_steps"] == len(steps)
    assert (figures["invalid_actions"], figures["dropped"]) == (0.0, 0.0)
    # The same round again, and the same silo begun anew: nothing is there twice.
    silo.evolve(one)
    assert silo._memory.groups(round_index=0) == groups


def test_what_is_too_long_to_be_trained_on_is_counted_and_said_once(tiny_base, make_silo):
    silo, adapter = make_silo(), first(tiny_base)
    whole = silo.evolve(work(adapter))
    lengths = [t.token_count for t in silo._memory.select(round_index=0, best_per_task=True)]
    assert whole.metrics["too_long"] == 0.0
    limit = min(lengths)
    left_out = sum(length > limit for length in lengths)
    with capture_logs() as logs:
        short = silo.evolve(work(adapter, max_sequence_tokens=limit))
    assert short.metrics["too_long"] == left_out > 0
    assert short.metrics["selected"] == len(lengths)
    said = [line for line in logs if line["event"] == "trajectories_too_long"]
    assert [(line["trajectories"], line["max_tokens"]) for line in said] == [(left_out, limit)]


@pytest.mark.parametrize("fails", ["whole", "one"])
def test_a_try_that_cannot_be_stored_costs_no_other_success_its_place(
    tiny_base, make_silo, monkeypatch, fails
):
    honest = make_silo("honest").evolve(work(first(tiny_base)))
    add, refused = Memory.add, []

    def picky(self, trajectories):
        tries = list(trajectories)
        bad = [t for t in tries if not t.success]
        if bad and (fails == "whole" or len(tries) > 1 or not refused):
            refused.extend(bad)
            raise OverflowError("a token that fits no column")
        return add(self, tries)

    monkeypatch.setattr(Memory, "add", picky)
    silo = make_silo("picky")
    evolution = silo.evolve(work(first(tiny_base)))
    assert refused
    # No failure was stored, or hardly one, and imitation does not notice.
    assert same(evolution.delta, honest.delta)
    assert not is_zero(honest.delta)


def test_without_the_filter_what_was_played_is_imitated_as_it_was_from_memory(
    tiny_base, make_silo, monkeypatch
):
    """What is read from disk is what the process held: every round's tries, once each."""
    every = recipe_of(FED_SE, PartsSection(credit=PartChoice(name="all-tries")))
    silo, adapter = make_silo(recipe=every), first(tiny_base)
    held = {}
    honest = exploring.run_episodes

    def noted(*args, **options):
        batch = honest(*args, **options)
        for t in batch.trajectories:
            held[t.task.environment, t.task.task_id, t.conversation_sha256] = t
        return batch

    monkeypatch.setattr(exploring, "run_episodes", noted)
    for index in range(3):
        one = work(adapter, index, window=0, use_expert=False)
        evolution = silo.evolve(one)
        found = silo._credit(one, exploring.NOTHING_PLAYED, epoch=0)
        assert found == [Row.of(held[key]) for key in sorted(held)]
        adapter = {k: v + evolution.delta[k] for k, v in adapter.items()}

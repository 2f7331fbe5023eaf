"""Training with a value head: what is noted, which rates and clips, and in several processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from evolution.errors import EvolverSetupError
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from evolution.train.trainer import TrainerSpec
from evolution.train.trainers import make_trainer
from federation.adapter.value_head import VALUE_HEAD, without_head
from federation.plan.methods import Normaliser
from tests.kit.evolution.sft import ALPHA, EPISODES, PLAN, RANK, ROUNDING, apart

RNG = np.random.default_rng(3)


def rewarded(one):
    """A row with a reward on its last token, played by a policy that is near."""
    weights = np.zeros(one.token_count)
    weights[-1] = float(RNG.integers(0, 2))
    return Row.of(one, weight=weights.tolist())


ROWS = [rewarded(one) for one in EPISODES[:11]]
# Every recorded probability is e⁻¹, and the tiny base thinks otherwise: the clip would hide it all.
WIDE = {"clip_high": 100.0, "dual_clip": 0.0, "value_clip": 0.0}
PPO = Part.own("ppo", **WIDE)
SETTINGS = replace(PLAN, normaliser=Normaliser.CONSTANT, constant=50.0, value_learning_rate=0.05)


@pytest.fixture(scope="module")
def adapter(tiny_base):
    rng = np.random.default_rng(1)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0, value_head=True)
    return {k: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for k, v in first.items()}


def trainer_of(base, adapter, **spec):
    made = SftTrainer(base, rank=RANK, alpha=ALPHA, dtype="float32", spec=TrainerSpec(**spec))
    made.reset(adapter)
    return made


def trained(base, adapter, objective=PPO, *, names=None, **changes):
    trainer = trainer_of(base, adapter)
    names = frozenset(adapter) if names is None else names
    report = trainer.train(ROWS, objective, replace(SETTINGS, **changes), trainable=names)
    return trainer.adapter(), report


def test_the_value_before_the_first_step_is_that_of_every_pass(tiny_base, adapter, monkeypatch):
    told = {}
    plain = PPO.load().terms

    def told_of(self, out, row):
        told.setdefault(len(out.logprob), []).append(
            (out.value.detach().clone(), out.old_value.clone(), row.mask)
        )
        return plain(self, out, row)

    monkeypatch.setattr(PPO.load(), "terms", told_of)
    rows = ROWS[3:4]
    trainer = trainer_of(tiny_base, adapter)
    before = trainer.values(rows)[0]
    assert len(before) == len(rows[0])
    assert before[rows[0].mask].any()
    trainer.train(rows, PPO, replace(SETTINGS, epochs=3), trainable=frozenset(adapter))
    ((_, found),) = told.items()
    assert len(found) == 3
    for _, old, mask in found:
        np.testing.assert_allclose(old[mask], before[1:][mask.numpy()], atol=1e-6)
    first, *_, last = found
    np.testing.assert_allclose(first[0][first[2]], first[1][first[2]], atol=1e-6)
    assert (last[0] - last[1])[last[2]].abs().max() > 1e-3


def test_a_value_learns_what_rows_come_to(tiny_base, adapter):
    """At a rate of its own, and the policy's steps are none of its business."""
    _, report = trained(tiny_base, adapter, epochs=30)
    figures = report.figures
    assert figures["explained_variance"] <= 1.0
    first = trained(tiny_base, adapter, epochs=1)[1].figures["value_loss"]
    assert figures["value_loss"] < 0.8 * first


def test_the_adapters_steps_are_the_same_whatever_the_value_learns(tiny_base, adapter):
    """Its gradient ends at the hidden state, and its clip is its own."""
    one, _ = trained(tiny_base, adapter, epochs=1, batch_size=len(ROWS))
    fast = Part.own("ppo", **WIDE, value_coefficient=100.0)
    other, _ = trained(tiny_base, adapter, fast, epochs=1, batch_size=len(ROWS))
    assert apart(without_head(one), without_head(other)) == 0.0
    assert apart(without_head(one), without_head(adapter)) > 1e-4
    # AdamW's first step is as long as its rate, which is the head's own.
    moved = np.abs(one[VALUE_HEAD] - adapter[VALUE_HEAD])
    assert moved.max() == pytest.approx(0.05, rel=1e-2)
    through = Part.own("ppo", **WIDE, value_trains_adapter=True)
    another, _ = trained(tiny_base, adapter, through, epochs=1, batch_size=len(ROWS))
    assert apart(without_head(one), without_head(another)) > 1e-5


def test_a_schedule_is_over_both_rates(tiny_base, adapter):
    plain, _ = trained(tiny_base, adapter, schedule="constant", epochs=1, batch_size=len(ROWS))
    falling, _ = trained(tiny_base, adapter, schedule="cosine", epochs=2, batch_size=len(ROWS))
    twice, _ = trained(tiny_base, adapter, schedule="constant", epochs=2, batch_size=len(ROWS))
    way = [
        float(np.abs(one[VALUE_HEAD] - adapter[VALUE_HEAD]).sum())
        for one in (plain, falling, twice)
    ]
    # Its second step is half as long.
    assert way[0] < way[1] < way[2]


def test_a_head_that_is_not_trained_stays(tiny_base, adapter):
    found, _ = trained(tiny_base, adapter, names=frozenset(without_head(adapter)))
    assert found[VALUE_HEAD].tobytes() == adapter[VALUE_HEAD].tobytes()
    assert apart(found, adapter) > 1e-4


def test_without_a_head_the_objective_is_refused_and_nothing_changes(tiny_base, adapter):
    factors = without_head(adapter)
    trainer = trainer_of(tiny_base, adapter)
    trainer.reset(factors)
    with pytest.raises(EvolverSetupError, match=r"'ppo' learns a value.*'value_head\.weight'"):
        trainer.train(ROWS, PPO, SETTINGS, trainable=frozenset(factors))
    with pytest.raises(EvolverSetupError, match="learns a value"):
        trainer.gradients(sorted(factors), PPO, backend="loop")
    assert trainer.adapter().keys() == factors.keys()
    assert apart(trainer.adapter(), factors) == 0.0


@pytest.mark.parametrize("tokens", [0, 48])
def test_dividing_a_batch_and_computing_fewer_logits_changes_nothing(tiny_base, adapter, tokens):
    expected, said = trained(tiny_base, adapter, batch_size=len(ROWS))
    trainer = trainer_of(
        tiny_base, adapter, micro_batch_tokens=tokens, gradient_checkpointing=not tokens
    )
    report = trainer.train(
        ROWS, PPO, replace(SETTINGS, batch_size=len(ROWS)), trainable=frozenset(adapter)
    )
    assert apart(trainer.adapter(), expected) < 1e-4
    assert report.figures["value_loss"] == pytest.approx(said.figures["value_loss"], rel=1e-3)


@pytest.mark.parametrize("backend", ["loop", "hooks", "functorch"])
def test_a_units_gradient_holds_the_heads(tiny_base, adapter, backend):
    trainer, names = trainer_of(tiny_base, adapter), sorted(adapter)
    old, base = trainer.values(ROWS[:2]), trainer.logprobs(ROWS[:2], base=True)
    known = [
        row.knowing({"old_value": one, "reference": other})
        for row, one, other in zip(ROWS[:2], old, base, strict=True)
    ]
    gradients = trainer.gradients(names, PPO, backend=backend, divisor=50.0)
    (found,) = gradients.unit_gradients([known])
    size = adapter[VALUE_HEAD].size
    # The head is the last by name. By hand: Σ (V − R)·h over the unit's tokens, over the divisor.
    expected = np.zeros(size)
    for row, values in zip(ROWS[:2], old, strict=True):
        ids = torch.from_numpy(row.token_ids)[None]
        with torch.no_grad():
            hidden = trainer._model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        for t in np.flatnonzero(row.mask):
            returns = float(row.weights[t:].sum())
            expected += (values[t] - returns) * hidden[t - 1].numpy() / 50.0
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found[-size:], -expected, atol=1e-5)
    assert np.abs(found[:-size]).max() > 1e-4


def test_noisy_steps_move_the_head_at_a_rate_of_its_own(tiny_base, adapter):
    trainer, names = trainer_of(tiny_base, adapter), sorted(adapter)
    size = sum(one.size for one in adapter.values())
    trainer.descend(
        names,
        lambda: np.ones(size, dtype=np.float32),
        steps=1,
        learning_rate=0.001,
        value_learning_rate=0.1,
    )
    after = trainer.adapter()
    np.testing.assert_allclose(after[VALUE_HEAD] - adapter[VALUE_HEAD], 0.1, rtol=1e-3)
    assert apart(without_head(after), without_head(adapter)) == pytest.approx(0.001, rel=1e-2)


@pytest.mark.parametrize("sharding", ["ddp", pytest.param("fsdp", marks=pytest.mark.long)])
@pytest.mark.parametrize("through", [False, pytest.param(True, marks=pytest.mark.long)])
def test_two_processes_train_the_head_as_one_does(tiny_base, tmp_path, adapter, sharding, through):
    objective = Part.own("ppo", **WIDE, value_trains_adapter=through)
    found = {}
    for name, spec in (
        ("here", {}),
        ("there", {"processes": 2, "sharding": sharding, "micro_batch_tokens": 48}),
    ):
        trainer = make_trainer(
            tiny_base,
            rank=RANK,
            alpha=ALPHA,
            dtype="float32",
            target="all-linear",
            state_dir=tmp_path / name,
            spec=TrainerSpec(device="cpu", **spec),
        )
        trainer.reset(adapter)
        report = trainer.train(ROWS, objective, SETTINGS, trainable=frozenset(adapter))
        found[name] = trainer.adapter(), report.figures
    (one, said), (other, told) = found["here"], found["there"]
    assert one.keys() == other.keys() == adapter.keys()
    assert apart(one, adapter) > 1e-2
    # The head's steps are 0.05 long.
    assert apart(one, other) < 10 * ROUNDING
    assert said.keys() == told.keys()
    for name in ("value_loss", "explained_variance", "return_mean"):
        assert told[name] == pytest.approx(said[name], rel=1e-3, abs=1e-4)

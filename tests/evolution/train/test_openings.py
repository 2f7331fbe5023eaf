"""What rows open with alike is read once, and nothing else about a training changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evolution.model.lora import initial_adapter
from evolution.train.loss import as_batch, batch_total, keeps_agent_logits
from evolution.train.openings import goes_on, reads_openings_once
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer, choose
from evolution.train.trainer import SftSettings, TrainerSpec
from tests.kit.evolution.sft import ALPHA, NLL, RANK, apart

OPENING = 60
SPARING = TrainerSpec(device="cpu", micro_batch_tokens=1000)


def row(seed: int, *, opening: int = OPENING, looks_back: bool = False) -> Row:
    """An opening that does not depend on the seed, a context of its own, an answer."""
    rng = np.random.default_rng(seed)
    context, answer = 3 + seed % 4, 1 + seed % 3
    ids = np.concatenate(
        [
            np.random.default_rng(99).integers(6, 40, opening),
            rng.integers(6, 40, context + answer),
        ]
    )
    mask = np.arange(len(ids)) >= opening + context
    if looks_back:
        mask[2] = True
    return Row(
        token_ids=ids,
        mask=mask,
        weights=np.ones(len(ids), dtype=np.float32),
        logprobs=np.zeros(len(ids), dtype=np.float32),
        name=str(seed),
    )


class Counted:
    """A model that knows how many tokens it read."""

    def __init__(self, model):
        self._model = model
        self.read = []

    def __call__(self, **named):
        self.read.append(named["input_ids"].numel())
        return self._model(**named)


@pytest.fixture(scope="module")
def trainer(tiny_base):
    trainer = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32", spec=SPARING)
    rng = np.random.default_rng(0)
    trainer.reset(
        {
            name: tensor + rng.normal(0, 0.1, tensor.shape).astype(np.float32)
            for name, tensor in initial_adapter(tiny_base, RANK, ALPHA, 0).items()
        }
    )
    return trainer


def loss_and_gradient(trainer, model, rows):
    chosen = choose(trainer._model, frozenset(trainer.adapter()))
    loss = batch_total(model, as_batch(rows), NLL.make(), keep=True)
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in chosen.values()])


def test_the_gradient_is_that_of_whole_rows(trainer):
    rows = [row(seed) for seed in range(8)]
    counted = Counted(trainer._model)
    loss, gradient = loss_and_gradient(trainer, reads_openings_once(counted), rows)
    whole, whole_gradient = loss_and_gradient(trainer, trainer._model, rows)
    assert counted.read[0] == OPENING
    assert sum(counted.read) < 8 * OPENING / 2
    assert abs(loss - whole) < 1e-4
    assert (gradient - whole_gradient).abs().max() < 1e-4 * whole_gradient.abs().max()


@pytest.mark.parametrize(
    "rows",
    [
        [row(seed, looks_back=True) for seed in range(8)],
        [row(seed, opening=8) for seed in range(8)],
        [row(3)],
    ],
    ids=["a loss looks into it", "too short to be worth it", "one row"],
)
def test_rows_are_read_whole_where_nothing_is_saved(trainer, rows):
    counted = Counted(trainer._model)
    loss, gradient = loss_and_gradient(trainer, reads_openings_once(counted), rows)
    whole, whole_gradient = loss_and_gradient(trainer, trainer._model, rows)
    assert counted.read == [len(rows) * max(map(len, rows))]
    assert torch.equal(loss, whole)
    assert torch.equal(gradient, whole_gradient)


def test_a_silo_that_saves_memory_trains_so_and_ends_where_others_do(
    trainer, tiny_base, monkeypatch
):
    settings = SftSettings(epochs=2, batch_size=8, learning_rate=1e-3, grad_clip_l2=1.0, seed=3)
    start = trainer.adapter()
    rows = [row(seed) for seed in range(16)]
    plain = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32")
    plain.reset(start)
    plain.train(rows, NLL, settings, trainable=frozenset(start))
    counted = Counted(trainer._model)
    assert trainer._reader() is not trainer._model
    assert plain._reader() is plain._model
    monkeypatch.setattr(trainer, "_model", counted._model)
    monkeypatch.setattr(
        "evolution.train.sft.reads_openings_once", lambda _: reads_openings_once(counted)
    )
    trainer.train(rows, NLL, settings, trainable=frozenset(start))
    assert sum(counted.read) < 2 * sum(map(len, rows)) / 2
    assert apart(trainer.adapter(), plain.adapter()) < 1e-4
    trainer.reset(start)


def test_activations_that_are_recomputed_read_rows_whole(tiny_base):
    spec = TrainerSpec(device="cpu", micro_batch_tokens=1000, gradient_checkpointing=True)
    trainer = SftTrainer(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32", spec=spec)
    assert trainer._reader() is trainer._model


def test_a_model_that_does_not_go_on_from_a_cache_is_found_out(trainer):
    assert keeps_agent_logits(trainer._model, "cpu")
    assert goes_on(trainer._model, "cpu")

    def forgetful(**named):
        named.pop("past_key_values", None)
        return trainer._model(**named)

    def without_cache(**named):
        answer = trainer._model(**named)
        answer.past_key_values = None
        return answer

    assert not goes_on(forgetful, "cpu")
    assert not goes_on(without_cache, "cpu")

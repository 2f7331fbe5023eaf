"""Gradients of single units on real models: in passes of fixed shapes no unit changes another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from tests.kit.evolution import smollm2
from tests.kit.paths import ROOT


def row(seed, tokens, vocabulary):
    rng = np.random.default_rng([seed, tokens])
    mask = rng.random(tokens) < 0.4
    mask[-1] = True
    return Row(
        token_ids=rng.integers(3, vocabulary, tokens),
        mask=mask,
        weights=np.ones(tokens, dtype=np.float32),
        logprobs=np.zeros(tokens, dtype=np.float32),
        name=f"{seed}",
    )


def gradients(base, *, dtype="float32", rank=4):
    trainer = SftTrainer(base, rank=rank, alpha=8.0, dtype=dtype)
    adapter = trainer.adapter()
    rng = np.random.default_rng(0)
    trainer.reset(
        {name: (0.05 * rng.standard_normal(a.shape)).astype("f4") for name, a in adapter.items()}
    )
    names = sorted(adapter)
    made = {
        name: trainer.gradients(names, Part.own("nll"), backend=name) for name in ("fixed", "loop")
    }
    return made["fixed"], made["loop"]


def stands_apart(base, lengths, *, allowed=1e-5):
    fixed, loop = gradients(base)
    units = [
        tuple(row(10 * index + place, length, 150) for place in range(1 + index % 3))
        for index, length in enumerate(lengths)
    ]
    together = [vector.tobytes() for vector in fixed.unit_gradients(units)]
    assert not fixed.one_by_one
    backwards = [vector.tobytes() for vector in fixed.unit_gradients(units[::-1])]
    assert backwards[::-1] == together
    for index, unit in enumerate(units):
        (alone,) = fixed.unit_gradients([unit])
        assert alone.tobytes() == together[index]
        (expected,) = loop.unit_gradients([unit])
        assert np.linalg.norm(alone - expected) <= allowed * np.linalg.norm(expected)


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.long)])
def test_on_the_shipped_base(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        stands_apart(ROOT / "lab" / "base_model", [12, 14, 30, 61, 63, 64, 64, 64, 130, 250])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", ["loop", "fixed", "hooks"])
def test_only_a_unit_that_is_alone_decides_how_many_logits_there_are(backend):
    trainer = SftTrainer(ROOT / "lab" / "base_model", rank=4, alpha=8.0, dtype="float32")
    names = sorted(trainer.adapter())
    units = [(row(index, 30, 150), row(index, 48, 150)) for index in range(3)]
    made = trainer.gradients(names, Part.own("nll"), backend=backend)
    widths = []
    trainer._model.get_output_embeddings().register_forward_hook(
        lambda _layer, _inputs, logits: widths.append(logits.shape[:-1].numel())
    )
    found = list(made.unit_gradients(units))
    if backend == "loop":
        assert widths == [sum(int(one.mask[1:].sum()) for one in unit) for unit in units]
    else:
        assert {width % 48 for width in widths} == {0}
    trainer._keep, trainer._backend = False, None
    widths.clear()
    plain = list(trainer.gradients(names, Part.own("nll"), backend="loop").unit_gradients(units))
    assert widths[-3:] == [96, 96, 96]
    for vector, expected in zip(found, plain, strict=True):
        assert np.linalg.norm(vector - expected) <= 1e-5 * np.linalg.norm(expected)


def test_a_unit_alone_without_a_token_of_the_loss_has_no_gradient():
    _, loop = gradients(ROOT / "lab" / "base_model")
    silent = replace(row(0, 12, 150), mask=np.zeros(12, dtype=np.bool_))
    (vector,) = loop.unit_gradients([(silent,)])
    assert not vector.any()


@pytest.mark.long
def test_on_a_pretrained_model(tmp_path):
    # The last is longer than passes of several rows of such a model are.
    stands_apart(smollm2.base(tmp_path), [30, 31, 62, 64, 64, 120], allowed=2e-4)


@pytest.mark.long
def test_on_a_pretrained_model_in_16_bits_units_are_computed_one_by_one(tmp_path):
    """Hooks round it otherwise than autograd does, by more than is allowed for."""
    fixed, loop = gradients(smollm2.base(tmp_path), dtype="bfloat16")
    units = [(row(index, length, 150),) for index, length in enumerate([30, 64, 64])]
    got = [vector.tobytes() for vector in fixed.unit_gradients(units)]
    assert fixed.one_by_one.startswith("all units: ")
    assert got == [vector.tobytes() for vector in loop.unit_gradients(units)]

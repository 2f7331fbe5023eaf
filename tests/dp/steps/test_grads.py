"""Per-unit gradients: every backend against the gradient by the book; what a unit depends on."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule

from dp.errors import SpecError
from dp.steps import grads
from dp.steps.backends import BACKENDS
from tests.kit.dp import tiny_lm as tiny

UNITS = (
    (tiny.row(1, 7),),
    (tiny.row(2, 12), tiny.row(3, 5), tiny.row(4, 12)),
    (),
    (tiny.row(5, 5),),
    (tiny.row(6, 20), tiny.row(7, 3)),
    ((tiny.row(8, 6)[0], (True, *(False,) * 5)),),
)
"""One row; several with equal lengths among them; none; short; long with short; no loss at all."""


def backend(name, model=None, **changes):
    model = tiny.model() if model is None else model
    options = {"parameters": tiny.trained(model), "loss": tiny.RowSums(), "probe": tiny.PROBE}
    return BACKENDS[name](model=model, **{**options, **changes})


def close(got, expected, tolerance=1e-6):
    return np.linalg.norm(got - expected) <= tolerance * max(1e-9, np.linalg.norm(expected))


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_equals_the_gradient_by_the_book(name):
    model = tiny.model()
    got = list(backend(name, model).unit_gradients(UNITS))
    assert len(got) == len(UNITS)
    for vector, unit in zip(got, UNITS, strict=True):
        expected = tiny.naive(model, unit)
        assert vector.dtype == np.float32
        assert vector.shape == expected.shape
        assert close(vector, expected)
    assert np.linalg.norm(got[1]) > 1e-3
    assert not got[2].any()
    assert not got[5].any()


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("budget", [1, 24, 4096])
def test_a_unit_does_not_depend_on_its_neighbours_order_or_chunk(name, budget, monkeypatch):
    monkeypatch.setattr(grads, "_CHUNK_TOKENS", budget)
    made = backend(name)
    together = list(made.unit_gradients(UNITS))
    backwards = list(made.unit_gradients(UNITS[::-1]))[::-1]
    for unit, one, two in zip(UNITS, together, backwards, strict=True):
        (alone,) = made.unit_gradients([unit])
        assert close(one, alone)
        assert close(two, alone)


def test_in_the_loop_not_one_bit_depends_on_other_units():
    made = backend("loop")
    together = list(made.unit_gradients(UNITS))
    for unit, vector in zip(UNITS, together, strict=True):
        (alone,) = made.unit_gradients([unit])
        (repeated,) = made.unit_gradients([tuple(reversed(unit))])
        assert vector.tobytes() == alone.tobytes()
        assert close(repeated, alone)


def test_the_loop_computes_a_units_rows_at_once_and_no_two_units(monkeypatch):
    made = backend("loop")
    passes = []
    collate = tiny.RowSums.collate
    monkeypatch.setattr(
        tiny.RowSums,
        "collate",
        lambda self, rows: passes.append(tuple(rows)) or collate(self, rows),
    )
    list(made.unit_gradients(UNITS))
    assert [sorted(map(repr, rows)) for rows in passes] == [
        sorted(map(repr, rows)) for rows in UNITS if rows
    ]


def test_every_array_is_the_callers_to_keep():
    for name in BACKENDS:
        made = backend(name).unit_gradients(UNITS)
        kept = [(vector, vector.copy()) for vector in made]
        assert all(np.array_equal(now, then) for now, then in kept)
        assert len({id(now.base) if now.base is not None else id(now) for now, _ in kept}) > 1


@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_is_left_on_the_model(name):
    model = tiny.model()
    made = backend(name, model)
    list(made.unit_gradients(UNITS))
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    iterator = made.unit_gradients(UNITS)
    next(iterator)
    iterator.close()
    assert all(p.grad is None for p in model.parameters())


def test_gradients_follow_the_parameters_as_they_change():
    model = tiny.model()
    for name in BACKENDS:
        made = backend(name, model)
        with torch.no_grad():
            model.blocks[0].out.weight.mul_(1.5)
        (vector,) = made.unit_gradients(UNITS[:1])
        assert close(vector, tiny.naive(model, UNITS[0]))


def test_a_16_bit_base_still_gives_float32():
    model = tiny.model()
    model.head.to(torch.bfloat16)

    class Mixed(tiny.RowSums):
        def sums(self, made, *batch, alone=False):
            return super().sums(made, *batch)

    model.head.register_forward_pre_hook(lambda _m, inputs: (inputs[0].bfloat16(),))
    model.head.register_forward_hook(lambda _m, _i, output: output.float())
    expected = tiny.naive(model, UNITS[0])
    for name in BACKENDS:
        (vector,) = backend(name, model, loss=Mixed()).unit_gradients(UNITS[:1])
        assert vector.dtype == np.float32
        assert close(vector, expected, 0.02)


def test_hooks_agree_with_opacus():
    model = tiny.model()
    rows = [tiny.row(seed, 10) for seed in range(6)]
    ours = list(backend("hooks", model).unit_gradients([(row,) for row in rows]))
    # Opacus records activations in training mode only; nothing in this model behaves differently.
    wrapped = GradSampleModule(model.train(), loss_reduction="sum", strict=False)
    loss = tiny.RowSums()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        sums, counts = loss.sums(wrapped, *loss.collate(rows))
        sums.sum().backward()
    theirs = torch.cat(
        [p.grad_sample.reshape(len(rows), -1) for p in tiny.trained(model).values()], dim=1
    )
    for index, vector in enumerate(ours):
        assert close(vector, -(theirs[index] / counts[index]).numpy())


def test_a_layer_used_twice_adds_both_uses():
    model = tiny.model()
    model.blocks[1] = model.blocks[0]
    for name in ("loop", "hooks"):
        (vector,) = backend(name, model).unit_gradients(UNITS[:1])
        assert close(vector, tiny.naive(model, UNITS[0]))
    with pytest.raises(SpecError, match="exactly one place"):
        backend("functorch", model)


def test_an_unused_parameter_has_a_zero_gradient():
    model = tiny.model()
    spare = torch.nn.Linear(3, 2, bias=False)
    model.last = torch.nn.Sequential()
    model.last.register_module("spare", spare)
    model.last.forward = lambda x: x
    parameters = {**tiny.trained(model), "spare": spare.weight}
    for name in BACKENDS:
        (vector,) = backend(name, model, parameters=parameters).unit_gradients(UNITS[:1])
        assert not vector[-6:].any()
        assert close(vector[:-6], tiny.naive(model, UNITS[0]))


def test_what_cannot_be_differentiated_is_refused():
    model = tiny.model()
    embedding = {"embed": model.embed.weight.requires_grad_()}
    with pytest.raises(SpecError, match="linear layer"):
        backend("hooks", model, parameters=embedding)
    for name in ("loop", "functorch"):
        assert backend(name, model, parameters=embedding).dimension == 8 * tiny.VOCABULARY
    with pytest.raises(SpecError, match="exactly one place"):
        backend("functorch", model, parameters={"x": torch.nn.Parameter(torch.ones(2))})
    with pytest.raises(SpecError, match="no parameter"):
        backend("loop", model, parameters={})
    with pytest.raises(SpecError, match="float32"):
        backend("loop", model, parameters={"head": model.head.weight})
    with pytest.raises(SpecError, match="different lengths"):
        backend("loop", model, probe=[tiny.row(1, 5), tiny.row(2, 5)])


def test_a_backend_that_would_miss_a_part_is_refused():
    class Detour(torch.nn.Module):
        """Runs a trained layer where hooks do not see its gradient."""

        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return torch.nn.functional.linear(x, self.layer.weight) + x

    model = tiny.model()
    model.last = Detour(model.blocks[0].out)
    parameters = tiny.trained(model)
    with pytest.raises(SpecError, match="misses a part"):
        backend("hooks", model, parameters=parameters)
    assert backend("loop", model, parameters=parameters).dimension > 0


def test_other_trainable_weights_are_left_alone():
    model = tiny.model()
    model.head.weight.requires_grad = True
    for name in BACKENDS:
        (vector,) = backend(name, model).unit_gradients(UNITS[:1])
        assert close(vector, tiny.naive(model, UNITS[0]))
        assert model.head.weight.grad is None
        assert model.head.weight.requires_grad

"""The coupling guard: models and losses in which a row's gradient depends on other rows."""

from __future__ import annotations

import pytest
import torch

from dp.errors import CouplingError
from dp.steps.backends import BACKENDS
from tests.kit.dp import tiny_lm as tiny


def make(name, model, loss=None):
    return BACKENDS[name](
        model=model,
        parameters=tiny.trained(model),
        loss=tiny.RowSums() if loss is None else loss,
        probe=tiny.PROBE,
    )


class BatchMean(tiny.RowSums):
    """What ``model(labels=…)`` returns: one mean over all tokens of the batch."""

    def sums(self, model, *batch, alone=False):
        sums, counts = super().sums(model, *batch)
        return sums.sum() / counts.sum(), counts.sum()


class SpreadMean(tiny.RowSums):
    """The batch mean again, cut into rows so that its shape looks right."""

    def sums(self, model, *batch, alone=False):
        sums, counts = super().sums(model, *batch)
        return sums / counts.sum() * counts.float().mean(), counts


class SharedCount(tiny.RowSums):
    def sums(self, model, *batch, alone=False):
        sums, counts = super().sums(model, *batch)
        return sums, counts.sum().expand(len(counts))


class FloatCount(tiny.RowSums):
    def sums(self, model, *batch, alone=False):
        sums, counts = super().sums(model, *batch)
        return sums, counts.float()


class Baseline(tiny.RowSums):
    """Weights a row by how it compares with the mean of the batch, as group baselines do."""

    def sums(self, model, *batch, alone=False):
        sums, counts = super().sums(model, *batch)
        return sums * (1 + sums.detach() - sums.detach().mean()), counts


class BatchCentred(torch.nn.Module):
    """A layer that looks across rows without being called batch norm."""

    def forward(self, x):
        return x - x.mean(dim=(0, 1), keepdim=True)


class Noisy(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, training=True)


def test_the_gradient_of_a_batch_mean_depends_on_the_other_rows():
    """What the guard is about: record 0 changes though only record 1 did."""
    model, loss = tiny.model(), BatchMean()
    parameters = list(tiny.trained(model).values())

    def first_row_part(second):
        model.zero_grad()
        rows = [tiny.PROBE[0], second]
        sums, counts = tiny.RowSums().sums(model, *loss.collate(rows))
        return torch.autograd.grad(sums[0] / counts.sum(), parameters)[0].norm()

    ids, mask = tiny.PROBE[1]
    less = (ids, (*(False,) * (len(mask) - 1), True))
    assert first_row_part(less) > 1.2 * first_row_part((ids, (True,) * len(ids)))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("loss", [BatchMean, SpreadMean, SharedCount, FloatCount, Baseline])
def test_a_loss_that_ties_rows_together_is_refused(name, loss):
    with pytest.raises(CouplingError):
        make(name, tiny.model(), loss())


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("extra", [BatchCentred, Noisy])
def test_a_model_that_ties_rows_together_is_refused(name, extra):
    with pytest.raises(CouplingError, match="beside it"):
        make(name, tiny.model(last=extra()))


@pytest.mark.parametrize("name", BACKENDS)
def test_training_mode_of_batch_norm_and_dropout_is_refused(name):
    for extra in (torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1)):
        model = tiny.model(last=torch.nn.Sequential(torch.nn.Identity(), extra))
        model.last.forward = lambda x: x
        make(name, model)
        model.train()
        with pytest.raises(CouplingError, match="training mode"):
            make(name, model)
    model = tiny.model()
    model.attention_dropout = 0.1
    make(name, model)
    model.train()
    with pytest.raises(CouplingError, match="dropout"):
        make(name, model)
    model.attention_dropout = 0.0
    make(name, model)


@pytest.mark.parametrize("name", ["hooks", "functorch"])
def test_the_shapes_are_checked_on_every_batch(name):
    class Later(tiny.RowSums):
        calls = 0

        def sums(self, model, *batch, alone=False):
            self.calls += 1
            sums, counts = super().sums(model, *batch)
            return (sums, counts) if self.calls <= 5 else (sums.sum(), counts)

    made = make(name, tiny.model(), Later())
    with pytest.raises(CouplingError, match="each row"):
        list(made.unit_gradients([(tiny.row(1, 4),), (tiny.row(2, 6),)]))


def test_hooks_refuse_a_layer_that_merges_the_rows():
    class Merge(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 8, bias=False)

        def forward(self, x):
            return self.inner(x.reshape(1, -1, 8)).reshape(x.shape)

    model = tiny.model(last=Merge())
    model.last.inner.weight.requires_grad = True
    parameters = {**tiny.trained(model), "inner": model.last.inner.weight}
    made = BACKENDS["hooks"](
        model=model, parameters=parameters, loss=tiny.RowSums(), probe=tiny.PROBE
    )
    with pytest.raises(CouplingError, match="apart"):
        list(made.unit_gradients([(tiny.row(1, 4),), (tiny.row(2, 6),)]))

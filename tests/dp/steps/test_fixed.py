"""Passes of fixed shapes: not a bit from other units, tested where it is used, else one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from dp.steps import fixed
from dp.steps.fixed import FixedBackend, passes_up_to
from dp.steps.grads import LoopBackend
from tests.kit.dp import tiny_lm as tiny


def made(model=None, backend=FixedBackend, **changes):
    model = tiny.model() if model is None else model
    options = {"parameters": tiny.trained(model), "loss": tiny.RowSums(), "probe": tiny.PROBE}
    return backend(model=model, **{**options, **changes})


def units(seed, count=40, longest=60):
    """Units of one to four rows of any length, sorted as a step sorts them."""
    rng = np.random.default_rng(seed)
    found = [
        tuple(
            tiny.row(1000 * seed + 10 * index + place, int(rng.integers(2, longest)))
            for place in range(int(rng.integers(1, 5)))
        )
        for index in range(count)
    ]
    return sorted(found, key=lambda rows: max(len(row[0]) for row in rows))


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_not_one_bit_depends_on_other_units_their_order_or_number(threads):
    backend, mine = made(), units(1)
    together = [vector.tobytes() for vector in backend.unit_gradients(mine)]
    assert not backend.one_by_one
    rng = np.random.default_rng(2)
    for size in (1, 2, 3, 7, len(mine)):
        for _ in range(3):
            chosen = rng.permutation(len(mine))[:size]
            some = backend.unit_gradients([mine[index] for index in chosen])
            assert [vector.tobytes() for vector in some] == [together[index] for index in chosen]
    others = units(3)
    beside = list(backend.unit_gradients([*others[:20], mine[5], *others[20:]]))
    assert beside[20].tobytes() == together[5]


def test_a_neighbour_whose_gradient_is_no_number_changes_no_bit():
    class Steep(tiny.RowSums):
        def sums(self, model, *batch, alone=False):
            sums, counts = super().sums(model, *batch)
            # Rows that begin with a one have an infinite loss.
            return torch.where(batch[0][:, 0] == 1, torch.inf, 1.0) * sums, counts

    backend = made(loss=Steep(), probe=[((2, *ids), (False, *mask)) for ids, mask in tiny.PROBE])
    well = [(((2, *ids), (False, *mask)),) for ids, mask in map(tiny.row, range(6), [14] * 6)]
    ill = [(((1, *ids), (False, *mask)),) for ids, mask in map(tiny.row, range(9), [14] * 9)]
    alone = [vector.tobytes() for vector in backend.unit_gradients(well)]
    mixed = list(backend.unit_gradients([*ill[:4], *well, *ill[4:]]))
    assert [vector.tobytes() for vector in mixed[4:10]] == alone
    assert all(not np.isfinite(vector).all() for vector in (*mixed[:4], *mixed[10:]))


def test_units_share_passes_and_each_is_of_a_few_shapes(monkeypatch):
    backend, shapes = made(), []
    mine = units(4)
    list(backend.unit_gradients(mine))
    honest = backend._hooks.row_gradients
    monkeypatch.setattr(
        backend._hooks,
        "row_gradients",
        lambda batch: shapes.append(tuple(batch[0].shape)) or honest(batch),
    )
    list(backend.unit_gradients(mine))
    rows = sum(map(len, mine))
    assert len(shapes) < rows / 3
    assert {tokens for _, tokens in shapes} <= set(passes_up_to(60))
    assert {count & (count - 1) for count, _ in shapes} == {0}


def test_lengths_of_passes_are_at_most_a_half_apart():
    sizes = passes_up_to(1000)
    assert sizes[:7] == [16, 24, 32, 48, 64, 96, 128]
    assert (sizes[-1], passes_up_to(16), passes_up_to(17)) == (1024, [16], [16, 24])
    assert all(after <= 1.5 * before for before, after in pairwise(sizes))


def test_units_of_which_a_pass_would_or_should_hold_one_row_have_no_mates_and_no_test(monkeypatch):
    """And a model whose rows are tied beside each other ties nobody there."""
    monkeypatch.setattr(fixed, "_PASS_TOKENS", 100)
    model = tiny.model(last=Tied())
    backend, mine = made(model), [(tiny.row(index, 51 + index),) for index in range(4)]
    got = [vector.tobytes() for vector in backend.unit_gradients(mine)]
    assert backend.one_by_one.startswith("units of 16 tokens:")  # the probe's
    assert backend.tested_up_to(55) == [16, 24, 32, 48]
    loop = made(model, LoopBackend)
    assert got == [next(iter(loop.unit_gradients([unit]))).tobytes() for unit in mine]
    monkeypatch.setattr(fixed, "_ROW_PRODUCTS", 48 * sum(p.numel() for p in model.parameters()))
    monkeypatch.setattr(fixed, "_PASS_TOKENS", 1000)
    assert backend.tested_up_to(100) == [16, 24, 32, 48]
    assert got == [vector.tobytes() for vector in backend.unit_gradients(mine)]
    monkeypatch.setattr(fixed, "_ROW_PRODUCTS", 1 << 34)
    monkeypatch.setattr(fixed, "_PASS_TOKENS", 128)
    list(backend.unit_gradients(mine))
    assert backend.one_by_one.startswith("units of 16, 64 tokens:")


class Tied(torch.nn.Module):
    """A millionth of the other rows: no probe with a tolerance sees it."""

    def forward(self, x):
        return x + 1e-6 * x.mean(dim=0, keepdim=True)


class TiedByPlace(torch.nn.Module):
    """As a kernel that rounds the last rows of a batch in another way."""

    def forward(self, x):
        return torch.cat([x[:-1], x[-1:] * (1 + 1e-6)]) if len(x) > 1 else x


class TiedByNumber(torch.nn.Module):
    """As a kernel that is chosen by the size of a batch."""

    def forward(self, x):
        return x * (1 + 1e-6 * (len(x) > 8))


@pytest.mark.parametrize("layer", [Tied, TiedByPlace])
def test_a_model_that_couples_rows_by_a_rounding_is_computed_one_by_one(layer):
    model = tiny.model(last=layer())
    backend, mine = made(model), units(5, longest=16)
    got = list(backend.unit_gradients(mine))
    assert "16 tokens" in backend.one_by_one
    loop = list(made(model, LoopBackend).unit_gradients(mine))
    assert [vector.tobytes() for vector in got] == [vector.tobytes() for vector in loop]


def test_without_the_test_such_a_model_would_couple_units(monkeypatch):
    """The control: what the test of shapes is for."""
    monkeypatch.setattr(fixed, "_counts_apart", lambda *_: (1, 2, 4, 8, 16, 32, 64))
    backend = made(tiny.model(last=Tied()))
    rows = [(tiny.row(index, 14),) for index in range(6)]
    alone = next(iter(backend.unit_gradients(rows[:1])))
    assert next(iter(backend.unit_gradients(rows))).tobytes() != alone.tobytes()


def test_numbers_of_rows_at_which_bits_differ_are_not_used():
    backend = made(tiny.model(last=TiedByNumber()))
    mine = [(tiny.row(index, 14),) for index in range(20)]
    together = [vector.tobytes() for vector in backend.unit_gradients(mine)]
    assert not backend.one_by_one
    assert backend._apart(backend._hooks, 16) == (16, 32, 64, 128)
    for index, unit in enumerate(mine):
        assert next(iter(backend.unit_gradients([unit]))).tobytes() == together[index]


def test_shapes_are_tested_once_and_again_when_renewed_or_on_other_threads(monkeypatch):
    tested, honest = [], fixed._counts_apart
    monkeypatch.setattr(
        fixed, "_counts_apart", lambda *given: tested.append(given[3]) or honest(*given)
    )
    backend, unit = made(), (tiny.row(1, 30),)
    for _ in range(2):
        list(backend.unit_gradients([unit]))
    assert tested.count(32) == 1
    backend.renew()
    list(backend.unit_gradients([unit]))
    assert tested.count(32) == 2
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    list(backend.unit_gradients([unit]))
    torch.set_num_threads(before)
    assert tested.count(32) == 3


@pytest.mark.parametrize("late", [Tied, TiedByPlace, TiedByNumber])
def test_a_library_that_begins_to_couple_rows_is_found_out_when_shapes_are_tested_again(late):
    class Late(late):
        began = False

        def forward(self, x):
            return super().forward(x) if self.began else x

    layer = Late()
    backend, mine = made(tiny.model(last=layer)), [(tiny.row(9, 14),)]
    list(backend.unit_gradients(mine))
    assert backend._apart(backend._hooks, 16)[0] == 1
    layer.began = True
    list(backend.unit_gradients(mine))
    assert not backend.one_by_one
    backend.renew()
    list(backend.unit_gradients(mine))
    if late is TiedByNumber:
        assert backend._apart(backend._hooks, 16) == (16, 32, 64, 128)
    else:
        assert "16 tokens" in backend.one_by_one


def test_where_hooks_see_no_gradient_everything_is_computed_one_by_one():
    model = tiny.model()
    embedding = {"embed": model.embed.weight.requires_grad_()}
    backend = made(model, parameters=embedding)
    assert backend.one_by_one.startswith("all units: embed is not the weight of one linear layer")
    mine = units(6, count=4)
    loop = made(model, LoopBackend, parameters=embedding)
    for one, other in zip(backend.unit_gradients(mine), loop.unit_gradients(mine), strict=True):
        assert one.tobytes() == other.tobytes()

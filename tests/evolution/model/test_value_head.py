"""A value head on a model: where it looks, what it leaves alone, how far its gradient goes."""

import numpy as np
import pytest
import torch

from evolution.errors import AdapterMismatchError, EvolverSetupError
from evolution.model.lora import (
    first_value_head,
    initial_adapter,
    lora_parameters,
    read_adapter,
    write_adapter,
)
from evolution.model.value_head import head_on
from evolution.train.loss import as_batch, values_of
from evolution.train.openings import goes_on, reads_openings_once
from evolution.train.sft import adapted_base
from federation.adapter.value_head import VALUE_HEAD
from tests.kit.evolution.sft import ALPHA, RANK, ROWS


@pytest.fixture(scope="module")
def adapter(tiny_base):
    rng = np.random.default_rng(1)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0, value_head=True)
    return {k: (v + rng.normal(0, 0.05, v.shape)).astype("f4") for k, v in first.items()}


@pytest.fixture
def model(tiny_base, adapter):
    made = adapted_base(tiny_base, rank=RANK, alpha=ALPHA, dtype="float32")
    write_adapter(made, adapter)
    return made


def test_a_value_is_the_heads_product_with_the_last_hidden_state_before_the_token(model, adapter):
    batch = as_batch(ROWS[:3])
    hidden = model(input_ids=batch.ids, output_hidden_states=True).hidden_states[-1]
    expected = (hidden @ torch.from_numpy(adapter[VALUE_HEAD][0]))[:, :-1]
    expected = torch.where(batch.mask[:, 1:], expected, 0.0)
    assert expected.abs().max() > 0.01
    for keep in (False, True):
        torch.testing.assert_close(values_of(model, batch, keep=keep), expected)
    assert goes_on(model, "cpu")
    once = reads_openings_once(model, least=1)
    torch.testing.assert_close(values_of(once, batch, keep=True), expected, rtol=1e-4, atol=1e-4)


def test_with_a_head_every_token_is_as_likely_as_without(model, adapter):
    ids = as_batch(ROWS[:3]).ids
    found = model(input_ids=ids).logits
    factors = {name: value for name, value in adapter.items() if name != VALUE_HEAD}
    write_adapter(model, factors)
    assert head_on(model) is None
    without = model(input_ids=ids)
    assert torch.equal(without.logits, found)
    assert getattr(without, "value", None) is None
    with pytest.raises(EvolverSetupError, match=r"has no 'value_head\.weight'"):
        values_of(model, as_batch(ROWS[:1]), keep=False)


def test_what_was_written_is_what_is_read_and_a_head_that_is_written_again_stays_one(
    model, adapter
):
    other = {name: value * np.float32(2) for name, value in adapter.items()}
    write_adapter(model, other)
    read = read_adapter(model)
    assert read.keys() == adapter.keys()
    assert all(read[name].tobytes() == other[name].tobytes() for name in other)
    value = model(input_ids=as_batch(ROWS[:1]).ids).value
    assert value.shape == as_batch(ROWS[:1]).ids.shape


@pytest.mark.parametrize("through", [False, True])
def test_its_gradient_ends_at_the_hidden_state_unless_it_is_let_through(model, through):
    head_on(model).trains_adapter = through
    for parameter in lora_parameters(model).values():
        parameter.requires_grad = True
    values_of(model, as_batch(ROWS[:2]), keep=False).sum().backward()
    assert head_on(model).weight.grad.abs().max() > 0
    reached = [p.grad is not None and p.grad.any() for p in lora_parameters(model).values()]
    assert any(reached) is through


def test_a_head_of_another_base_is_refused(model, adapter):
    narrow = {**adapter, VALUE_HEAD: np.zeros((1, 3), dtype=np.float32)}
    with pytest.raises(EvolverSetupError, match="of another base model"):
        write_adapter(model, narrow)
    width = adapter[VALUE_HEAD].shape[1]
    flat = {**adapter, VALUE_HEAD: np.zeros((2, width), dtype=np.float32)}
    with pytest.raises(AdapterMismatchError, match="shape"):
        write_adapter(model, flat)


def test_the_first_head_is_zero_and_as_wide_as_the_base(tiny_base, adapter):
    first = first_value_head(tiny_base)
    assert first.keys() == {VALUE_HEAD}
    assert first[VALUE_HEAD].shape == adapter[VALUE_HEAD].shape
    assert not first[VALUE_HEAD].any()

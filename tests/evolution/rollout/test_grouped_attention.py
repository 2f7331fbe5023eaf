"""Shared heads of keys and values are read in place: the bits of transformers' copies."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from evolution.model.causal_lm import load_base
from evolution.rollout.grouped_attention import _attend, share_heads
from evolution.rollout.hf import HfEngine


def drawn(seed, *, heads, shared, queries, keys):
    """Queries, keys, values and a causal mask, laid out as a model's layer has them."""
    source = torch.Generator().manual_seed(seed)
    query = torch.randn(3, queries, heads, 32, generator=source).transpose(1, 2)
    store = torch.randn(2, 3, shared, 2 * keys, 32, generator=source)
    key, value = store[:, :, :, :keys]
    last = torch.tensor([keys, keys - 5, queries])[:, None] - queries + torch.arange(queries)
    seen = torch.arange(keys) <= last[:, :, None]
    mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None]
    return query, key, value, mask


@pytest.mark.parametrize(("heads", "shared"), [(4, 2), (9, 3), (2, 2)])
@pytest.mark.parametrize(("queries", "keys"), [(1, 40), (2, 40), (33, 70), (70, 200)])
def test_the_bits_are_those_of_copied_heads(heads, shared, queries, keys):
    module = SimpleNamespace(num_key_value_groups=heads // shared, is_causal=True)
    asked = drawn(7, heads=heads, shared=shared, queries=queries, keys=keys)
    expected, _ = sdpa_attention_forward(module, *asked, scaling=0.2)
    found, _ = _attend(module, *asked, scaling=0.2)
    assert torch.equal(found, expected)
    assert found.is_contiguous()


def test_what_is_asked_beyond_the_plain_kind_is_left_to_transformers():
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    asked = drawn(8, heads=4, shared=2, queries=6, keys=20)
    bias = torch.randn(1, 4, 6, 20, generator=torch.Generator().manual_seed(9))
    expected, _ = sdpa_attention_forward(module, *asked, position_bias=bias)
    found, _ = _attend(module, *asked, position_bias=bias)
    assert torch.equal(found, expected)
    assert not torch.equal(found, _attend(module, *asked)[0])
    with pytest.raises(ValueError, match="softcap"):
        _attend(module, *asked, softcap=30.0)


def test_an_engine_on_a_cpu_plays_with_it_and_a_model_that_trains_does_not(tiny_base):
    assert HfEngine(tiny_base)._model.config._attn_implementation == "shared_heads"
    trained = load_base(tiny_base)
    assert trained.config._attn_implementation == "sdpa"
    ids = torch.arange(6, 36)[None]
    seen = torch.ones(1, 1, 30, 30, dtype=torch.bool).tril()
    expected = trained(input_ids=ids, attention_mask=seen).logits
    share_heads(trained)
    assert torch.equal(trained(input_ids=ids, attention_mask=seen).logits, expected)

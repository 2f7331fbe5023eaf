"""Ragged batches: the cache without gaps, and the cutting of a chunk into parts."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch

from evolution.errors import RolloutError
from evolution.model.causal_lm import load_base
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.hf import HfEngine
from evolution.rollout.kv_cache import RaggedCache, parts_of

PASS_COSTS = [0, 6, 1 << 40]


@pytest.fixture(scope="module")
def model(tiny_base):
    return load_base(tiny_base)


@pytest.fixture
def new_memory_is_no_number():
    """What storage has room for and nobody wrote to may hold anything; torch then fills it so."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)


def chunks_of(rng, rows):
    lengths = rng.choice([0, 1, 1, 2, 7, 30, 90], size=rows)
    if not lengths.any():
        lengths[0] = 3
    return [rng.integers(6, 40, size=n).tolist() for n in lengths]


@pytest.mark.usefixtures("new_memory_is_no_number")
@pytest.mark.parametrize("pass_cost", PASS_COSTS)
@torch.inference_mode()
def test_logits_of_ragged_chunks_are_those_of_each_row_alone(model, pass_cost):
    rng = np.random.default_rng(5)
    cache = RaggedCache(6)
    alone: list[list[int]] = [[] for _ in range(6)]
    passes = []
    for step in range(12):
        chunks = chunks_of(rng, len(alone))
        given = 0
        for inputs in cache.feed(chunks, pass_cost=pass_cost):
            given += 1
            logits = model(
                input_ids=inputs.input_ids,
                position_ids=inputs.position_ids,
                attention_mask=inputs.attention_mask,
                past_key_values=cache.layers,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            for row, row_logits in zip(inputs.rows, logits, strict=True):
                if chunks[row]:
                    whole = torch.tensor([alone[row] + chunks[row]])
                    assert (model(input_ids=whole).logits[0, -1] - row_logits).abs().max() < 1e-4
        passes.append(given)
        alone = [held + chunk for held, chunk in zip(alone, chunks, strict=True)]
        assert cache.tokens == alone
        if step in {4, 8}:
            # Some conversations end, and the others come in another order.
            kept = [3, 0, 2, 1][: len(alone) - 2]
            cache.arrange(kept)
            alone = [alone[row] for row in kept]
        if step in {1, 3, 6, 9}:
            # Others begin: in the seat of one that ended, beside those that stay, among moved ones.
            kept = {1: [0, -1, 2, 3, -1, 5], 3: [5, 1, -1, 3, 0, 4], 6: [0, 1, 2, 3, -1]}.get(
                step, [-1, 1]
            )
            cache.arrange(kept)
            alone = [[] if row < 0 else alone[row] for row in kept]
            assert cache.tokens == alone
    assert (max(passes) > 1) == (pass_cost < 1 << 40)


@torch.inference_mode()
def test_a_row_that_is_taken_over_holds_nothing_of_the_one_before(model):
    """What a conversation left may be no number at all: zero times that is none either."""
    cache = RaggedCache(2)
    feed(model, cache, [[7, 8, 9], [10, 11]])
    for layer in cache.layers.layers:
        layer.keys[1] = layer.values[1] = torch.nan
    keys = cache.layers.layers[0].keys
    cache.arrange([0, -1])
    # Whoever stays in its seat is not copied.
    assert cache.layers.layers[0].keys is keys
    found = feed(model, cache, [[12], [13, 14]])
    for row, tokens in enumerate(([7, 8, 9, 12], [13, 14])):
        expected = model(input_ids=torch.tensor([tokens])).logits[0, -1]
        assert (expected - found[row]).abs().max() < 1e-4


def feed(model, cache, chunks):
    (inputs,) = cache.feed(chunks, pass_cost=1 << 40)
    return model(
        input_ids=inputs.input_ids,
        position_ids=inputs.position_ids,
        attention_mask=inputs.attention_mask,
        past_key_values=cache.layers,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]


def test_parts_cost_as_little_as_the_best_of_all_partitions():
    def cost(parts, lengths, pass_cost):
        return sum(pass_cost + max(lengths[r] for r in part) * len(part) for part in parts)

    def partitions(rows):
        if not rows:
            yield []
            return
        first, *rest = rows
        for size in range(len(rest) + 1):
            for others in itertools.combinations(rest, size):
                left = [row for row in rest if row not in others]
                for more in partitions(left):
                    yield [[first, *others], *more]

    rng = np.random.default_rng(1)
    for pass_cost in (0, 3, 20):
        for _ in range(20):
            lengths = rng.integers(0, 30, size=6).tolist()
            lengths[2] = 12
            rows = [row for row, n in enumerate(lengths) if n]
            found = parts_of(lengths, pass_cost=pass_cost)
            assert sorted(row for part in found for row in part) == rows
            best = min(cost(parts, lengths, pass_cost) for parts in partitions(rows))
            assert cost(found, lengths, pass_cost) == best


def test_a_step_of_single_tokens_is_one_pass_over_all_rows_until_half_of_them_have_ended():
    assert parts_of([1, 0, 1, 1], pass_cost=0) == [[0, 1, 2, 3]]
    assert parts_of([1, 0, 1, 0], pass_cost=0) == [[0, 2]]
    assert parts_of([0, 0, 0, 1], pass_cost=1 << 40) == [[3]]


@pytest.mark.usefixtures("new_memory_is_no_number")
@pytest.mark.parametrize("pass_cost", PASS_COSTS)
def test_answers_do_not_depend_on_how_chunks_are_cut(tiny_base, pass_cost):
    engine = HfEngine(tiny_base)
    sampling = Sampling(temperature=1.0, max_new_tokens=5, seed=3)
    rng = np.random.default_rng(2)
    prompts = [
        Prompt(key=key, token_ids=rng.integers(6, 40, size=n).tolist())
        for key, n in enumerate([3, 80, 5, 79, 31, 1])
    ]
    alone = [engine.generate([prompt], sampling)[0].token_ids for prompt in prompts]
    engine._pass_cost = pass_cost
    assert [g.token_ids for g in engine.generate(prompts, sampling)] == alone


def test_a_device_that_is_not_there_is_refused(tiny_base):
    with pytest.raises(RolloutError, match="known"):
        HfEngine(tiny_base, device="tpu")
    assert HfEngine(tiny_base, device="auto").context_limit == 1024
    if not torch.cuda.is_available():
        with pytest.raises(RolloutError, match="GPU"):
            HfEngine(tiny_base, device="cuda")


def test_a_cache_that_is_dropped_is_gone_at_once(model):
    """Each holds hundreds of megabytes of a large model; a circle would wait for the collector."""
    cache = RaggedCache(2)
    other = RaggedCache(2)
    with torch.inference_mode():
        for inputs in other.feed([[7, 8, 9], [9, 10]], pass_cost=0):
            model(
                input_ids=inputs.input_ids,
                position_ids=inputs.position_ids,
                attention_mask=inputs.attention_mask,
                past_key_values=other.layers,
                use_cache=True,
            )
    cache.copy(other, {0: 1, 1: 0})
    assert cache.tokens == [[9, 10], [7, 8, 9]]
    held = [weakref.ref(one.layers.layers[0].keys) for one in (cache, other)]
    gc.disable()
    try:
        del cache, other, inputs
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()

"""Objectives: what they are told, how their terms are added up and divided, against plain torch."""

import sys
import types
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from evolution.errors import EvolverSetupError, RowError
from evolution.model.causal_lm import load_base
from evolution.model.lora import initial_adapter, lora_parameters
from evolution.part import BasePart, Part
from evolution.train.loss import as_batch, row_sums
from evolution.train.objective import Batchwise, TokenOut
from evolution.train.rows import Row
from evolution.train.sft import RowTerms, SftTrainer, adapted_base
from evolution.train.trainer import TrainerSpec
from federation.plan.methods import Couples, NoOptions, Normaliser, PartCard, Reads
from tests.kit.evolution.sft import ALPHA, EPISODES, PLAN, RANK, apart

NLL = Part.own("nll")
RNG = np.random.default_rng(3)
WEIGHTED = [Row.of(one, weight=RNG.normal(size=one.token_count).tolist()) for one in EPISODES[:6]]


@pytest.fixture(scope="module")
def adapter(tiny_base):
    rng = np.random.default_rng(1)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0)
    return {k: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for k, v in first.items()}


@pytest.fixture
def part(monkeypatch):
    """An objective of a class of the test's own."""

    def make(kind, needs=()):
        kind.couples, kind.reads, kind.needs = Couples.TRY, Reads.UNIT, frozenset(needs)
        module = types.ModuleType("own_objective")
        module.Own = kind
        monkeypatch.setitem(sys.modules, "own_objective", module)
        card = PartCard(
            kind="objective",
            name="own",
            code="own_objective:Own",
            says="of a test",
            couples=Couples.TRY,
            reads=Reads.UNIT,
            needs=frozenset(needs),
        )
        return Part(card=card, options=NoOptions())

    return make


def plain_logprobs(model, row):
    ids = torch.from_numpy(row.token_ids)
    logits = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1].float(), -1)
    return logits.gather(-1, ids[1:, None])[:, 0], logits


def trainer_of(base, adapter, **spec):
    made = SftTrainer(base, rank=RANK, alpha=ALPHA, dtype="float32", spec=TrainerSpec(**spec))
    made.reset(adapter)
    return made


def test_what_a_token_out_says_is_what_torch_says(tiny_base):
    model, row = load_base(tiny_base), WEIGHTED[0]
    logprob, logits = plain_logprobs(model, row)
    out = TokenOut(
        logprob, model(input_ids=torch.from_numpy(row.token_ids)[None]).logits[0, :-1], {}
    )
    torch.testing.assert_close(out.entropy, -(logits.exp() * logits).sum(-1))
    values, likeliest = out.top(3)
    expected = logits.sort(dim=-1, descending=True)
    torch.testing.assert_close(values, expected.values[:, :3])
    assert torch.equal(likeliest, expected.indices[:, :3])
    with pytest.raises(EvolverSetupError, match="does not say that it needs 'old'"):
        _ = out.old


@pytest.mark.parametrize("keep", [False, True])
def test_terms_are_weighted_and_those_outside_the_mask_count_as_nothing(tiny_base, keep):
    model = load_base(tiny_base)
    wider = [replace(row, mask=np.ones(len(row), dtype=np.bool_)) for row in WEIGHTED[:2]]
    rows = [*WEIGHTED, *wider]
    sums = row_sums(model, as_batch(rows), NLL.make(), keep=keep)
    for row, found in zip(rows, sums, strict=True):
        logprob, _ = plain_logprobs(model, row)
        weights, mask = torch.from_numpy(row.weights[1:]), torch.from_numpy(row.mask[1:])
        torch.testing.assert_close(found, -(logprob * weights)[mask].sum(), rtol=1e-4, atol=1e-4)


def plain_gradient(base, adapter, rows, scale_of):
    """∇ Σ_rows scale · Σ_mask −weight·log π, by the model's own backward pass."""
    model = adapted_base(base, rank=RANK, alpha=ALPHA, dtype="float32")
    parameters = lora_parameters(model)
    for name, parameter in parameters.items():
        parameter.data = torch.from_numpy(adapter[name].copy())
        parameter.requires_grad = True
    total = torch.zeros(())
    for row in rows:
        logprob, _ = plain_logprobs(model, row)
        weights, mask = torch.from_numpy(row.weights[1:]), torch.from_numpy(row.mask[1:])
        total = total - scale_of(row) * (logprob * weights)[mask].sum()
    total.backward()
    return {name: parameter.grad.numpy() for name, parameter in parameters.items()}


@pytest.mark.parametrize("normaliser", list(Normaliser))
@pytest.mark.parametrize("tokens", [0, 24])
def test_the_three_normalisers(tiny_base, adapter, normaliser, tokens):
    # Two rows of one unit: their tokens are one mean.
    rows = [*WEIGHTED, replace(WEIGHTED[0], unit=WEIGHTED[1].unit, name="another")]
    of_unit = {}
    for row in rows:
        of_unit[row.unit] = of_unit.get(row.unit, 0) + row.loss_tokens
    scale_of = {
        Normaliser.BATCH_TOKENS: lambda _: 1.0 / sum(row.loss_tokens for row in rows),
        Normaliser.UNIT_TOKENS: lambda row: 1.0 / of_unit[row.unit] / len(of_unit),
        Normaliser.CONSTANT: lambda _: 1.0 / 50.0,
    }[normaliser]
    settings = replace(
        PLAN,
        epochs=1,
        batch_size=len(rows),
        grad_clip_l2=1e9,
        normaliser=normaliser,
        constant=50.0,
    )
    zeros = {name: np.zeros_like(value) for name, value in adapter.items()}
    trainer = trainer_of(tiny_base, adapter, micro_batch_tokens=tokens)
    report = trainer.train(rows, NLL, settings, trainable=frozenset(adapter), correction=zeros)
    expected = plain_gradient(tiny_base, adapter, rows, scale_of)
    assert report.optimiser_steps == 1
    assert apart(report.mean_gradient, expected) < 1e-5
    assert max(float(np.abs(value).max()) for value in expected.values()) > 1e-3


def test_what_the_factors_said_before_is_what_the_objective_is_told(tiny_base, adapter, part):
    told = []

    class Own(BasePart):
        def terms(self, out, row):
            told.append(
                [t.detach().clone() for t in (out.logprob, out.old, out.reference, out.first)]
            )
            return -out.logprob

    rows = WEIGHTED[:1]
    elsewhere = {name: value + np.float32(0.01) for name, value in adapter.items()}
    trainer = trainer_of(tiny_base, adapter)
    before = trainer.logprobs(rows)[0]
    trainer.reset(elsewhere)
    anchored = trainer.logprobs(rows)[0]
    trainer.reset(adapter)
    trainer.train(
        rows,
        part(Own, ("old", "reference", "first")),
        replace(PLAN, epochs=3),
        trainable=frozenset(adapter),
        anchor=elsewhere,
    )
    mask = rows[0].mask[1:]
    assert len(told) == 3
    for now, old, reference, first in told:
        np.testing.assert_allclose(old.numpy()[mask], before[1:][mask], atol=1e-5)
        np.testing.assert_allclose(first.numpy()[mask], before[1:][mask], atol=1e-5)
        np.testing.assert_allclose(reference.numpy()[mask], anchored[1:][mask], atol=1e-5)
        del now
    # The factors themselves were put back, and have moved since.
    np.testing.assert_allclose(told[0][0].numpy()[mask], before[1:][mask], atol=1e-5)
    assert np.abs(told[2][0].numpy()[mask] - before[1:][mask]).max() > 1e-3


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_rows_first_pass_is_under_the_factors_of_that_moment(tiny_base, adapter, part, epochs):
    told = []

    class Own(BasePart):
        def terms(self, out, row):
            told.append((out.logprob.detach().clone(), out.first.clone(), row.mask))
            return -out.logprob

    # A row a batch: the second batch's first pass comes after a step.
    trainer = trainer_of(tiny_base, adapter)
    trainer.train(
        WEIGHTED[:2],
        part(Own, ("first",)),
        replace(PLAN, epochs=epochs, batch_size=1),
        trainable=frozenset(adapter),
    )
    assert len(told) == 2 * epochs
    for now, first, mask in told[:2]:
        torch.testing.assert_close(now[mask], first[mask], atol=1e-5, rtol=0.0)
    for now, first, mask in told[2:]:
        assert (now - first)[mask].abs().max() > 1e-4
    before = trainer_of(tiny_base, adapter).logprobs(WEIGHTED[:2])
    lengths = [len(first) for _, first, _ in told[:2]]
    moved = [
        np.abs(told[i][1].numpy() - one[1:])[told[i][2].numpy()].max()
        for i, one in enumerate(sorted(before, key=lambda one: lengths.index(len(one) - 1)))
    ]
    # One of the two had its first pass before any step, the other after one.
    assert sorted(value > 1e-4 for value in moved) == [False, True]


def test_log_probabilities_are_those_of_the_present_factors(tiny_base, adapter):
    trainer = trainer_of(tiny_base, adapter, micro_batch_tokens=24)
    found = trainer.logprobs(WEIGHTED)
    with torch.no_grad():
        for row, values in zip(WEIGHTED, found, strict=True):
            logprob, _ = plain_logprobs(trainer._model, row)
            expected = np.where(row.mask[1:], logprob.numpy(), 0.0)
            assert (len(values), values[0]) == (len(row), 0.0)
            np.testing.assert_allclose(values[1:], expected, atol=1e-4)


def test_an_objective_over_batches_needs_them_whole(tiny_base, adapter, part):
    class Whole(BasePart, Batchwise):
        def batch_terms(self, outs, rows):
            return torch.cat([-out.logprob * row.mask for out, row in zip(outs, rows, strict=True)])

    objective, every = part(Whole), frozenset(adapter)
    rows = [Row.of(one) for one in EPISODES[:4]]
    whole = trainer_of(tiny_base, adapter)
    whole.train(rows, objective, PLAN, trainable=every)
    plain = trainer_of(tiny_base, adapter)
    plain.train(rows, NLL, PLAN, trainable=every)
    assert apart(whole.adapter(), plain.adapter()) < 1e-5
    with pytest.raises(EvolverSetupError, match="micro_batch_tokens to 0"):
        trainer_of(tiny_base, adapter, micro_batch_tokens=8).train(
            rows, objective, PLAN, trainable=every
        )
    with pytest.raises(EvolverSetupError, match="no row stands alone"):
        RowTerms(objective)


@pytest.mark.parametrize("backend", ["loop", "hooks", "functorch"])
@pytest.mark.parametrize("divisor", [None, 50.0])
def test_a_units_gradient_is_of_its_weighted_terms_and_its_divisor(
    tiny_base, adapter, backend, divisor
):
    names = sorted(adapter)
    trainer = trainer_of(tiny_base, adapter)
    gradients = trainer.gradients(names, NLL, backend=backend, divisor=divisor)
    unit = WEIGHTED[:3]
    (found,) = gradients.unit_gradients([unit])
    by = divisor or sum(row.loss_tokens for row in unit)
    expected = plain_gradient(tiny_base, adapter, unit, lambda _: 1.0 / by)
    flat = -np.concatenate([expected[name].reshape(-1) for name in names])
    np.testing.assert_allclose(found, flat, atol=1e-5)


def test_a_units_gradient_has_what_its_objective_needs_or_is_refused(tiny_base, adapter, part):
    class Ratio(BasePart):
        def terms(self, out, row):
            return -(out.logprob - out.old).exp() * row.weights

    objective = part(Ratio, ("old",))
    trainer, names = trainer_of(tiny_base, adapter), sorted(adapter)
    gradients = trainer.gradients(names, objective, backend="loop")
    with pytest.raises(EvolverSetupError, match="needs 'old'"):
        list(gradients.unit_gradients([WEIGHTED[:1]]))
    known = WEIGHTED[0].knowing({"old": trainer.logprobs(WEIGHTED[:1])[0]})
    (found,) = gradients.unit_gradients([[known]])
    # At the factors that it was computed under the ratio is 1, and its gradient that of log π.
    expected = plain_gradient(tiny_base, adapter, WEIGHTED[:1], lambda row: 1.0 / row.loss_tokens)
    flat = -np.concatenate([expected[name].reshape(-1) for name in names])
    np.testing.assert_allclose(found, flat, atol=1e-5)


def test_a_row_is_of_one_length_and_finite():
    one = EPISODES[3]
    for wrong in (
        {"weight": [1.0]},
        {"weight": float("nan")},
        {"mask": [True]},
    ):
        with pytest.raises(RowError, match="row"):
            Row.of(one, **wrong)


@pytest.mark.parametrize("keep", [False, True])
def test_at_a_temperature_all_of_it_is_of_the_tempered_distribution(tiny_base, keep, part):
    seen = []

    class Looks(BasePart):
        def terms(self, out, row):
            seen.append((out.logprob.detach(), out.entropy.detach()))
            return -out.logprob

    model, (row, *_) = load_base(tiny_base), WEIGHTED
    sums = row_sums(model, as_batch([row]), part(Looks).make(), keep=keep, temperature=0.5)
    ids = torch.from_numpy(row.token_ids)
    tempered = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1].float() / 0.5, -1)
    mask = torch.from_numpy(row.mask[1:])
    own = tempered.gather(-1, ids[1:, None])[:, 0]
    torch.testing.assert_close(sums[0], -own[mask].sum())
    logprob, entropy = seen[0]
    expected = -(tempered.exp() * tempered).sum(-1)
    kept = mask if keep else torch.ones_like(mask)
    torch.testing.assert_close(entropy, expected[kept])
    torch.testing.assert_close(logprob if keep else logprob[mask], own[mask])


@pytest.mark.parametrize("frozen", [None, ".lora_A."])
def test_the_base_is_asked_without_its_adapter_and_training_goes_on_as_before(
    tiny_base, adapter, part, frozen
):
    rows = WEIGHTED[:4]
    names = frozenset(name for name in adapter if frozen is None or frozen not in name)
    found = []

    class Looks(BasePart):
        def terms(self, out, row):
            found.append(torch.where(row.mask, out.base, 0.0))
            return -out.logprob * row.weights

    trained, plain = trainer_of(tiny_base, adapter), trainer_of(tiny_base, adapter)
    settings = replace(PLAN, epochs=1, batch_size=len(rows))
    trained.train(rows, part(Looks, ["base"]), settings, trainable=names)
    plain.train(rows, NLL, settings, trainable=names)
    assert apart(trained.adapter(), plain.adapter()) == 0.0
    assert apart(trained.adapter(), adapter) > 0
    alone = {
        name: np.zeros_like(value) if ".lora_B." in name else value
        for name, value in adapter.items()
    }
    expected = trainer_of(tiny_base, alone).logprobs(rows)
    told = sorted(float(one.sum()) for one in found)
    assert told == pytest.approx(sorted(float(one.sum()) for one in expected), abs=1e-4)
    again = trainer_of(tiny_base, adapter).logprobs(rows, base=True)
    for one, other in zip(again, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_batches_by_a_public_constant_are_of_tries_of_any_length(tiny_base, adapter):
    rows = sorted(WEIGHTED + [Row.of(one) for one in EPISODES[6:16]], key=len)
    settings = replace(PLAN, batch_size=4, normaliser=Normaliser.CONSTANT, constant=9.0)
    loop = trainer_of(tiny_base, adapter)._loop(settings, frozenset())
    batches = loop._batches(rows)
    assert sorted(row.name for batch in batches for row in batch) == sorted(r.name for r in rows)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4]
    shortest = {row.name for row in rows[:4]}
    assert all({row.name for row in batch} != shortest for batch in batches)
    by_tokens = replace(settings, normaliser=Normaliser.BATCH_TOKENS)
    loop = trainer_of(tiny_base, adapter)._loop(by_tokens, frozenset())
    assert {row.name for row in loop._batches(rows)[0]} == shortest


class Told(BasePart):
    """Notes how far its training is said to be."""

    told: ClassVar[list[float]] = []

    def terms(self, out, row):
        self.told.append(self.progress)
        return -out.logprob * row.weights


def test_before_each_step_an_objective_is_told_how_far_its_training_is(tiny_base, adapter, part):
    Told.told.clear()
    trainer = trainer_of(tiny_base, adapter)
    plan = replace(PLAN, epochs=2, batch_size=3)
    trainer.train(WEIGHTED, part(Told), plan, trainable=frozenset(adapter))
    # Two batches of three rows, twice.
    assert Told.told == [value for value in (0.0, 0.25, 0.5, 0.75) for _ in range(3)]
    # The next training begins anew.
    Told.told.clear()
    trainer.train(WEIGHTED, part(Told), replace(plan, epochs=1), trainable=frozenset(adapter))
    assert Told.told == [0.0] * 3 + [0.5] * 3


@pytest.mark.parametrize("backend", ["loop", "functorch"])
def test_units_gradients_are_of_the_step_that_is_taken(tiny_base, adapter, part, backend):
    trainer, names = trainer_of(tiny_base, adapter), sorted(adapter)
    gradients = trainer.gradients(names, part(Told), backend=backend, progress=0.5)
    Told.told.clear()
    list(gradients.unit_gradients([WEIGHTED[:1]]))
    assert Told.told == [0.5]

    def direction():
        (found,) = gradients.unit_gradients([WEIGHTED[:1]])
        return found

    Told.told.clear()
    trainer.descend(names, direction, steps=4, learning_rate=1e-3)
    assert Told.told == [0.0, 0.25, 0.5, 0.75]

"""Clip-Cov and KL-Cov: which tokens of a mini-batch are taken, and what becomes of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dp.config import Mode
from evolution.errors import EvolverSetupError
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.parts.objectives.clip_cov import by_hash
from evolution.train.objective import RowTensors, TokenOut, Watch
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from evolution.train.trainer import TrainerSpec
from federation.errors import UnknownPartError
from federation.plan.methods import PARTS, Normaliser
from federation.plan.recipe import PartChoice, PartsSection, recipe_of, refusal
from tests.kit.evolution.sft import ALPHA, EPISODES, PLAN, RANK, apart
from tests.kit.evolution.silos import silos

F64 = torch.float64
BOTH = ("clip-cov", "kl-cov")


def terms(name, rows, *, watch=None, **options):
    """Terms and gradients, over the masks, of rows of (mask, log π, credit, ratio) a token."""
    outs, about, tensors = [], [], []
    for row in rows:
        mask, said, credit, ratio = zip(*row, strict=True)
        now = torch.tensor(said, dtype=F64, requires_grad=True)
        behaviour = now.detach() - torch.log(torch.tensor(ratio, dtype=F64))
        tensors.append(now)
        outs.append(TokenOut(now, torch.zeros(len(row), 8, dtype=F64), {}))
        about.append(RowTensors(torch.tensor(mask), torch.tensor(credit, dtype=F64), behaviour))
    made = Part.own(name, **options).make()
    made.watch = watch
    found = made.batch_terms(outs, about)
    gradients = torch.autograd.grad(found.sum(), tensors)
    kept = [g[row.mask].tolist() for g, row in zip(gradients, about, strict=True)]
    return found.tolist(), [value for one in kept for value in one]


# Four tokens of two masks and one outside, which is left out of both means. mean log π = −2, mean A
# = 0: cov is (−1+2)·2, (−3+2)·1, (−2+2)·0 and (−2+2)·(−3).
ROWS = [
    [(True, -1.0, 2.0, 1.0), (False, -50.0, 90.0, 1.0), (True, -3.0, 1.0, 1.0)],
    [(True, -2.0, 0.0, 1.0), (True, -2.0, -3.0, 1.0)],
]


def test_clip_cov_takes_the_loss_of_what_lies_between_its_bounds():
    found, gradient = terms("clip-cov", ROWS)
    assert found == pytest.approx([0.0, -1.0, 0.0, 3.0])
    assert gradient == pytest.approx([0.0, -1.0, 0.0, 3.0])
    # 2 is no longer between: nothing is taken.
    for bounds in ({"low": 2.0}, {"high": 2.0}):
        assert terms("clip-cov", ROWS, **bounds)[0] == pytest.approx([-2.0, -1.0, 0.0, 3.0])
    assert terms("clip-cov", ROWS, low=-2.0, high=-0.5)[0] == pytest.approx([-2.0, 0.0, 0.0, 3.0])


def test_kl_cov_draws_the_greatest_back_to_where_they_were_sampled():
    rows = [[(True, -1.0, 2.0, 1.1), (True, -3.0, -2.0, 0.9)]]
    # mean A = 0, mean log π = −2: both cov are 2; of equal ones there is one, of half of two.
    found, gradient = terms("kl-cov", rows, share=0.5)
    plain, slope = [-2.2, 1.8], [-2.2, 1.8]
    further = [np.log(1.1), np.log(0.9)]
    taken = [i for i in (0, 1) if found[i] != pytest.approx(plain[i])]
    assert len(taken) == 1
    for i in (0, 1):
        pull = i in taken
        assert found[i] == pytest.approx(plain[i] + pull * abs(further[i]))
        assert gradient[i] == pytest.approx(slope[i] + pull * np.sign(further[i]))
    found, gradient = terms("kl-cov", rows, share=1.0, kl="k2", coefficient=0.5)
    # ½·½d²·r, whose gradient is ½·d·r.
    assert found == pytest.approx(
        [p + 0.25 * d**2 * r for p, d, r in zip(plain, further, (1.1, 0.9), strict=True)]
    )
    assert gradient == pytest.approx(
        [s + 0.5 * d * r for s, d, r in zip(slope, further, (1.1, 0.9), strict=True)]
    )


def test_kl_cov_takes_by_covariance_and_not_by_divergence():
    found, _ = terms("kl-cov", [[(*row[:3], 1.5) for row in one] for one in ROWS], share=0.3)
    # The ratio is cut at 1.2 where credit is positive; |d| = log 1.5 on the first token alone.
    assert found == pytest.approx([-2.4 + np.log(1.5), -1.2, 0.0, 4.5])


@pytest.mark.parametrize(
    ("name", "credit", "ratio", "loss"),
    [
        # Cut above 2; a bad token that became likely counts, up to ten times.
        ("clip-cov", 1.0, 1.9, -1.9),
        ("clip-cov", 1.0, 2.5, -2.0),
        ("clip-cov", 1.0, 0.01, -0.01),
        ("clip-cov", -1.0, 5.0, 5.0),
        ("clip-cov", -1.0, 12.0, 10.0),
        ("kl-cov", 1.0, 1.5, -1.2),
        ("kl-cov", -1.0, 0.5, 0.8),
        ("kl-cov", -1.0, 12.0, 10.0),
    ],
)
def test_the_ratio_is_bounded_as_each_has_it(name, credit, ratio, loss):
    # The second token has the greatest covariance, so the first is not the one that is taken.
    rows = [[(True, -2.0, credit, ratio), (True, -1.0, 2.0, 1.0), (True, -3.0, -2.0, 1.0)]]
    assert terms(name, rows, share=0.3)[0][0] == pytest.approx(loss)


def test_kl_cov_without_any_clip_is_the_authors_loss():
    rows = [[(True, -2.0, 1.0, 50.0), (True, -2.0, -1.0, 50.0), (True, -1.0, 2.0, 1.0)]]
    bounds = {"clip_low": 1.0, "clip_high": 100.0, "dual_clip": 0.0, "share": 0.3}
    assert terms("kl-cov", rows, **bounds)[0][:2] == pytest.approx([-50.0, 50.0])


def test_a_token_whose_ratio_is_cut_anyway_is_no_candidate():
    first, *rest = ROWS[0]
    cut = [[(*first[:3], 3.0), *rest], ROWS[1]]
    assert terms("clip-cov", cut)[0] == pytest.approx([-4.0, -1.0, 0.0, 3.0])


def many(count):
    """Tokens that are all candidates, but for one that evens out the mean credit."""
    spread = torch.linspace(1.0, 2.0, count).tolist()
    last = (True, -1.0, -float(sum(spread)), 1.0)
    return [[*((True, 0.0, one, 1.0) for one in spread), last]]


@pytest.mark.parametrize(("share", "taken"), [(2e-4, 1), (0.019, 1), (0.021, 2), (0.25, 25)])
def test_the_share_is_of_all_tokens_rounded_down_and_at_least_one(share, taken):
    rows = many(100)
    bounds = {"low": -1e3, "high": 1e3}
    found, _ = terms("clip-cov", rows, share=share, **bounds)
    assert sum(value == 0.0 for value in found) == taken
    plain, _ = terms("kl-cov", rows, share=share)
    assert sum(value == 0.0 for value in plain) == 0


def test_the_draw_needs_no_generator_and_is_the_same_again():
    bounds = {"low": -1e3, "high": 1e3, "share": 0.1}
    before = torch.get_rng_state()
    first, _ = terms("clip-cov", many(400), **bounds)
    again, _ = terms("clip-cov", many(400), **bounds)
    assert first == again
    assert torch.equal(before, torch.get_rng_state())
    taken = {place for place, value in enumerate(first) if value == 0.0}
    assert len(taken) == 40
    # Neither the first ones, nor the greatest or least, and others in another mini-batch.
    assert 100 < np.mean(sorted(taken)) < 300
    other, _ = terms("clip-cov", [[(m, s, c * 1.01, r) for m, s, c, r in many(400)[0]]], **bounds)
    assert {place for place, value in enumerate(other) if value == 0.0} != taken


def test_an_order_by_hash_says_nothing_of_size():
    values = torch.linspace(1.0, 5.0, 1000)
    order = by_hash(values)
    assert sorted(order.tolist()) == list(range(1000))
    ranks = np.corrcoef(np.arange(1000), order.numpy())[0, 1]
    assert abs(ranks) < 0.15
    assert torch.equal(by_hash(values.flip(0)), 999 - order)


def test_a_mini_batch_without_a_token_has_no_loss():
    for name in BOTH:
        rows = [[(False, -1.0, 2.0, 1.0)]]
        assert terms(name, rows) == ([], [])


def test_what_it_notes():
    watched = Part.own("clip-cov").load().watches
    watch = Watch(watched)
    terms("clip-cov", ROWS, watch=watch)
    said = watch.figures(lambda x: x, lambda x: x)
    assert set(said) == set(watched)
    assert said["cov_taken"] == pytest.approx(0.25)
    assert said["cov_max"] == pytest.approx(2.0)
    assert said["entropy"] == pytest.approx(np.log(8))
    assert (said["ratio_min"], said["ratio_max"]) == (1.0, 1.0)


@pytest.fixture(scope="module")
def adapter(tiny_base):
    rng = np.random.default_rng(1)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0)
    return {k: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for k, v in first.items()}


def trained(base, adapter, name, *, spec=None, options=None, **changes):
    trainer = SftTrainer(
        base, rank=RANK, alpha=ALPHA, dtype="float32", spec=TrainerSpec(**spec or {})
    )
    trainer.reset(adapter)
    weights = np.random.default_rng(7).normal(size=8)
    rows = [Row.of(one, weight=float(w)) for one, w in zip(EPISODES, weights, strict=False)]
    plan = replace(PLAN, **{"normaliser": Normaliser.CONSTANT, "constant": 30.0, **changes})
    objective = Part.own(name, **options or {})
    report = trainer.train(rows, objective, plan, trainable=frozenset(adapter))
    return trainer.adapter(), report


@pytest.mark.parametrize(
    ("name", "options"), [("clip-cov", {"share": 1.0}), ("kl-cov", {"share": 0.3, "kl": "k2"})]
)
def test_it_trains_and_says_what_it_saw(tiny_base, adapter, name, options):
    found, report = trained(tiny_base, adapter, name, options=options)
    assert apart(found, adapter) > 1e-3
    assert set(report.figures) == set(Part.own(name).load().watches)
    assert 0.0 < report.figures["cov_taken"] < 0.5
    # The same where logits are computed for the mask alone.
    sparing = {"gradient_checkpointing": True}
    kept, _ = trained(tiny_base, adapter, name, options=options, spec=sparing)
    assert apart(found, kept) < 1e-4


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("spec", "normaliser", "words"),
    [
        ({"micro_batch_tokens": 64}, None, r"micro_batch_tokens to 0"),
        ({"processes": 2}, None, r"processes to 1"),
        ({}, "unit_tokens", r"'unit_tokens' scales.*'batch_tokens' or 'constant'"),
    ],
)
def test_what_divides_a_mini_batch_is_refused_before_anything_is_played(
    tmp_path, name, spec, normaliser, words
):
    recipe = recipe_of("grpo", PartsSection(objective=PartChoice(name=name)), normaliser)
    # There is no base model here: it is found out before one is read.
    with (
        silos(tmp_path, tmp_path, "words", rank=RANK, alpha=ALPHA) as make,
        pytest.raises(EvolverSetupError, match=words),
    ):
        make(recipe=recipe, trainer=TrainerSpec(**spec))


@pytest.mark.parametrize("name", BOTH)
def test_rows_of_a_scale_of_their_own_are_refused_by_the_trainer_too(tiny_base, adapter, name):
    with pytest.raises(EvolverSetupError, match="unit_tokens"):
        trained(tiny_base, adapter, name, normaliser=Normaliser.UNIT_TOKENS)


@pytest.mark.parametrize("name", BOTH)
def test_it_couples_all_and_runs_where_no_unit_is_protected(name):
    for mode in (Mode.RECORD_LOCAL, Mode.RECORD_DISTRIBUTED):
        assert f"objective {name!r} couples 'all'" in refusal(PARTS[name], mode, "task")
    assert refusal(PARTS[name], Mode.SILO, "task") is None


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("clip-cov", {"low": 5.0}, "low is below high"),
        ("clip-cov", {"dual_clip": 0.5}, "dual_clip is above 1"),
        ("kl-cov", {"dual_clip": 1.0}, "dual_clip is above 1"),
        ("kl-cov", {"share": 0.0}, "share"),
        ("clip-cov", {"kl": "k2"}, "kl"),
    ],
)
def test_options_that_mean_nothing_are_refused(name, options, words):
    with pytest.raises(UnknownPartError, match=words):
        recipe_of("grpo", PartsSection(objective=PartChoice(name=name, **options)))

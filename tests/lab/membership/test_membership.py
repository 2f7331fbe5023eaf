"""Canaries, trade-off curves, the real mechanism under attack, verdicts, and all of it in small."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from dp.accounting.charge import training_charges
from dp.accounting.compose import epsilon_of
from lab.membership import run
from lab.membership.attack import Gradients
from lab.membership.canaries import plant, unit_of
from lab.membership.rates import Sample
from lab.membership.tradeoff import gaussian_mu, gaussian_power, sampled_gaussian
from lab.membership.training import (
    BACKEND,
    Settings,
    record_spec,
    train_privately,
    trainer_of,
)
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"


def test_canaries_are_distinct_and_their_coins_are_fair():
    planted = plant(BASE, 600, seed=1)
    assert len({row.token_ids for row in planted.rows}) == 600
    assert len(set(planted.population)) == 600
    assert 240 <= planted.included.sum() <= 360
    assert [unit_of(row) for row in planted.members] == [
        unit for unit, there in zip(planted.population, planted.included, strict=True) if there
    ]
    again, other = plant(BASE, 600, seed=1), plant(BASE, 600, seed=2)
    assert again.rows == planted.rows
    assert (again.included == planted.included).all()
    assert other.rows != planted.rows
    row = planted.rows[0]
    assert 0 < sum(row.agent_mask) < row.token_count


def test_the_published_figures_of_one_gaussian():
    powers = [gaussian_power(gaussian_mu(eps, 1e-5), 0.01) for eps in (8.0, 1.0)]
    assert powers == [pytest.approx(0.255, abs=0.003), pytest.approx(0.020, abs=0.001)]


def test_mu_and_the_curve_agree_with_the_accountant():
    accountant = PLDAccountant().compose(GaussianDpEvent(2.0), 4)
    # Four releases of z = 2 are one Gaussian of mu = 1.
    assert gaussian_mu(accountant.get_epsilon(1e-5), 1e-5) == pytest.approx(1.0, rel=1e-3)
    curve = sampled_gaussian(q=1.0, z=2.0, steps=4, epsilon_max=10.0)
    for rate in (0.001, 0.01, 0.1, 0.5):
        assert curve.power(rate) == pytest.approx(gaussian_power(1.0, rate), rel=0.01)
        assert curve.power(rate) >= gaussian_power(1.0, rate) - 1e-9


def test_sampling_lowers_the_curve():
    full = sampled_gaussian(q=1.0, z=2.0, steps=4, epsilon_max=10.0)
    half = sampled_gaussian(q=0.5, z=2.0, steps=4, epsilon_max=10.0)
    assert half.power(0.01) < full.power(0.01)
    assert half.epsilon(1e-5) < full.epsilon(1e-5)


def test_the_noise_is_the_least_that_reaches_epsilon():
    spec = record_spec(Settings(base_dir=BASE, seed=0), canaries=2000, epsilon=8.0)
    charged = epsilon_of(training_charges(spec), spec.delta)["task"]
    assert 7.99 < charged <= 8.0
    assert spec.record.expected_units == 1000


COUNT = 34


def test_what_is_seen_of_a_step_is_a_sum_of_some_members_clipped_gradients(tmp_path):
    settings = Settings(base_dir=BASE, seed=0, rank=4, steps=2)
    # So many that a step samples none of them once in a hundred thousand times.
    planted = plant(BASE, COUNT, seed=3)
    # So little noise that the sum is all there is to see.
    spec = record_spec(settings, canaries=COUNT, epsilon=1e6)
    trained = train_privately(settings, planted, spec, ledger_file=tmp_path / "ledger")
    gradients = Gradients(
        trainer_of(settings), settings.trainable(), backend=BACKEND, clip_l2=settings.clip_l2
    )
    assert len(trained.steps) == 2
    for step in trained.steps:
        rows = gradients.of(planted, step.adapter).astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1)
        assert lengths == pytest.approx(np.full(COUNT, settings.clip_l2), rel=1e-5)
        sampled = np.linalg.lstsq(rows.T, step.noisy_sum.astype(np.float64), rcond=None)[0]
        assert sampled == pytest.approx(np.round(sampled), abs=0.05)
        assert set(np.round(sampled)) == {0.0, 1.0}
        assert np.round(sampled[~planted.included]).sum() == 0
    first, second = (step.adapter for step in trained.steps)
    assert any((first[name] != second[name]).any() for name in settings.trainable())


def several(make, *, members=1000, others=1000):
    """Three seeds of scores by a function of a generator and a count of members and others."""
    included = np.arange(members + others) < members
    return [
        Sample(scores=make(np.random.default_rng(seed), included), included=included)
        for seed in range(3)
    ]


def blind(rng, included):
    return rng.standard_normal(included.size)


def perfect(rng, included):
    return included + rng.random(included.size) / 2


def gaussian(mu):
    return lambda rng, included: rng.standard_normal(included.size) + mu * included


STRONG = gaussian(1.2)
"""Finds about the 0.17 that the curve of ``runs`` allows."""


def a_run(name, allowed, **scores):
    return run.Run(
        name=name,
        epsilon=8.0,
        noise_multiplier=1.0,
        allowed=allowed,
        samples={getattr(run, score): several(make) for score, make in scores.items()},
    )


def runs(*, plain=perfect, final=blind, seen=STRONG):
    curve = sampled_gaussian(q=0.5, z=1.7, steps=20, epsilon_max=12.0)
    tight = sampled_gaussian(q=0.5, z=9.3, steps=20, epsilon_max=3.0)
    return [
        a_run("no noise", None, LOSS=plain, RIDGE=blind),
        a_run("ε = 8", curve, LOSS=final, RIDGE=blind, STEPS=blind, STEPS_KNOWN=seen),
        a_run("ε = 1", tight, LOSS=blind, RIDGE=blind, STEPS=blind, STEPS_KNOWN=blind),
    ]


def test_an_attack_that_is_strong_enough_and_finds_no_leak_passes():
    assert run.weak_or_leaking(runs()) == []


def test_a_weak_attack_fails_with_noise_and_without():
    (without,) = run.weak_or_leaking(runs(plain=blind))
    assert "without noise" in without
    # A final adapter that gives much away does not stand for an attack on the steps.
    (under,) = run.weak_or_leaking(runs(seen=blind, final=STRONG))
    assert "with all steps seen" in under
    assert "less than 0.5 of the bound 0.17" in under


def test_every_score_of_every_run_is_held_against_its_curve():
    found = run.weak_or_leaking(runs(final=perfect, seen=gaussian(3.0)))
    assert [problem.split(":")[0] for problem in found] == [
        "ε = 8, final adapter",
        "ε = 8, all steps, other members known",
    ]


def test_two_seeds_are_no_verdict(capsys):
    with pytest.raises(SystemExit):
        run.main(["--seeds", "1", "2", "2"])
    assert "at least 3 different seeds" in capsys.readouterr().err


@pytest.mark.long
def test_the_whole_machinery_in_small(tmp_path, capsys, monkeypatch):
    small = functools.partial(Settings, rank=2, epochs=1, steps=2)
    monkeypatch.setattr(run, "Settings", small)
    # Forty canaries find less than any share of the bound: each part still has to do its work.
    monkeypatch.setattr(run, "LEAST_SHARE", 1000.0)
    picture = tmp_path / "img" / "membership.png"
    seeds = ["--seeds", "1", "2", "3"]
    status = run.main(["--base", str(BASE), "--canaries", "40", *seeds, "--plot", str(picture)])
    shown = capsys.readouterr().out
    assert status == 1
    assert "less than 1000 of the bound" in shown
    summary = json.loads(shown.splitlines()[-1])
    plain, eight, one = summary["runs"]
    assert [part["run"] for part in summary["runs"]] == ["no noise", "ε = 8", "ε = 1"]
    assert plain["epsilon"] is None
    assert eight["epsilon"] <= 8.0
    assert one["allowed"] < eight["allowed"] < 1.0
    assert list(plain["scores"]) == [run.LOSS, run.RIDGE]
    assert list(one["scores"]) == [run.LOSS, run.RIDGE, run.STEPS, run.STEPS_KNOWN]
    assert all(len(score["tpr_seeds"]) == 3 for score in eight["scores"].values())
    assert "one_run_epsilon_seeds" not in eight["scores"][run.STEPS_KNOWN]
    assert picture.read_bytes().startswith(b"\x89PNG")

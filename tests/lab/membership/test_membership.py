"""The membership attack: canaries, trade-off curves, rates, and the whole machinery in small."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from dp.accounting.charge import epsilon_of, training_charges
from lab.membership import run
from lab.membership.attack import rates_at, roc
from lab.membership.canaries import plant, unit_of
from lab.membership.tradeoff import gaussian_mu, gaussian_power, sampled_gaussian
from lab.membership.training import Settings, record_spec
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


def test_rates_count_at_the_threshold_of_the_others():
    scores = np.concatenate((np.arange(200.0), np.arange(200.0) + 100.0))
    included = np.arange(400) >= 200
    rates = rates_at(scores, included, target=0.01)
    # Two of the 200 others lie above 197, and so do 102 of the members.
    assert (rates.false_positive_rate, rates.true_positive_rate) == (0.01, 0.51)
    assert rates.true_positive_low < 0.51 < rates.true_positive_high
    assert rates.false_positive_high > 0.01
    assert rates.exceeds(0.4)
    assert not rates.exceeds(0.5)
    false, true = roc(scores, included)
    assert false[-1] == true[-1] == 1.0
    assert (np.diff(false) >= 0).all()


def test_the_noise_is_the_least_that_reaches_epsilon():
    spec = record_spec(Settings(base_dir=BASE), canaries=2000, epsilon=8.0)
    charged = epsilon_of(training_charges(spec), spec.delta)["task"]
    assert 7.99 < charged <= 8.0
    assert spec.record.expected_units == 1000


def outcome(scores, included, allowed=None):
    return run.Outcome(
        name="x",
        epsilon=8.0,
        noise_multiplier=1.0,
        scores=scores,
        rates=rates_at(scores, included, target=run.TARGET),
        allowed=allowed,
        one_run=None,
        seconds=0.0,
    )


def test_a_weak_attack_and_a_leak_are_both_failures():
    rng = np.random.default_rng(0)
    included = rng.random(2000) < 0.5
    blind, strong = rng.standard_normal(2000), included + rng.random(2000) / 2
    curve = sampled_gaussian(q=0.5, z=1.7, steps=20, epsilon_max=12.0)
    safe, leaking = outcome(blind, included, curve), outcome(strong, included, curve)
    assert run.weak_or_leaking([outcome(strong, included), safe, safe]) == []
    assert "too weak" in run.weak_or_leaking([outcome(blind, included), safe, safe])[0]
    assert "leaks" in run.weak_or_leaking([outcome(strong, included), leaking, safe])[0]


def test_the_whole_machinery_in_small(tmp_path, capsys, monkeypatch):
    small = Settings(base_dir=BASE, rank=2, epochs=1, steps=2)
    monkeypatch.setattr(run, "Settings", lambda base_dir: small)
    picture = tmp_path / "img" / "membership.png"
    status = run.main(["--base", str(BASE), "--canaries", "60", "--plot", str(picture)])
    shown = capsys.readouterr().out
    # One pass over sixty canaries teaches nothing: the attack is weak and says so.
    assert status == 1
    assert "too weak" in shown
    assert "leaks" not in shown
    summary = json.loads(shown.splitlines()[-1])
    assert [one["run"] for one in summary["runs"]] == ["DP off", "ε = 8", "ε = 1"]
    assert summary["runs"][0]["epsilon"] is None
    assert summary["runs"][1]["epsilon"] <= 8.0
    assert summary["runs"][2]["allowed"] < summary["runs"][1]["allowed"] < 1.0
    assert picture.read_bytes().startswith(b"\x89PNG")

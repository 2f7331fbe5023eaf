"""How many seeds tell a difference: against scipy, published numbers, and by drawing."""

import json

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from typer.testing import CliRunner

from lab.cli.main import app
from lab.evidence.errors import FigureError, PowerError
from lab.evidence.figure import Figure, difference_of
from lab.evidence.power import detectable, planned, power, seeds_needed
from lab.report.paired import Difference
from tests.kit.lab.lab_results import (
    eval_line,
    federation_one,
    federation_two,
    loaded,
    run_line,
    write,
)
from tests.kit.paths import ROOT


@pytest.mark.parametrize(
    ("effect", "exact", "seeds"),
    [(0.2, 198.1513, 199), (0.5, 33.36713, 34), (0.8, 14.30276, 15), (1.0, 9.937864, 10)],
)
def test_seeds_for_a_power_of_80_percent_are_the_published_ones(effect, exact, seeds):
    """R's power.t.test(delta=, sd=1, power=0.8, type="paired"), as pwr's table has them too."""
    assert seeds_needed(effect, 1.0, 0.8) == seeds
    # Its number of pairs is not whole; ours is the next one.
    assert seeds - 1 < exact <= seeds


@pytest.mark.parametrize("seeds", [3, 5, 12, 60])
@pytest.mark.parametrize("effect", [0.01, 0.4, 1.5])
def test_power_is_that_of_scipys_noncentral_t(seeds, effect):
    limit = scipy.stats.t.ppf(0.975, seeds - 1)
    told = scipy.stats.nct(seeds - 1, effect * np.sqrt(seeds))
    assert power(seeds, effect, 1.0) == pytest.approx(told.sf(limit) + told.cdf(-limit), abs=1e-7)
    assert power(seeds, -2 * effect, 2.0) == pytest.approx(power(seeds, effect, 1.0))


@pytest.mark.parametrize(("seeds", "effect"), [(2, 6.0), (2, 40.0), (5, 12.0), (60, 6.0)])
def test_power_far_out_is_the_integral_over_the_deviation(seeds, effect):
    """Given s the mean is normal: P(|x̄|·√n > t·s) by quadrature over s² ~ χ²/(n − 1)."""
    limit = scipy.stats.t.ppf(0.975, seeds - 1)
    shift = effect * np.sqrt(seeds)

    def told(chi2):
        s = np.sqrt(chi2 / (seeds - 1))
        outside = scipy.stats.norm.sf(limit * s - shift) + scipy.stats.norm.cdf(-limit * s - shift)
        return outside * scipy.stats.chi2.pdf(chi2, seeds - 1)

    # The root of χ² takes away the pole that one degree of freedom has at 0.
    integral, _ = scipy.integrate.quad(lambda u: told(u * u) * 2 * u, 0, 20, limit=200)
    assert power(seeds, effect, 1.0) == pytest.approx(integral, abs=1e-6)


def test_power_is_how_often_the_test_tells():
    rng = np.random.default_rng(9)
    drawn = rng.normal(0.05, 0.04, (20_000, 5))
    p_values = scipy.stats.ttest_1samp(drawn, 0.0, axis=1).pvalue
    # Binomial(20 000, 0.5) has a standard deviation of 0.0035.
    assert power(5, 0.05, 0.04) == pytest.approx(np.mean(p_values <= 0.05), abs=0.012)


def test_a_detectable_difference_is_told_with_the_power_and_no_less():
    for seeds in (2, 3, 5, 40):
        least = detectable(seeds, 0.03, 0.8)
        assert power(seeds, least, 0.03) == pytest.approx(0.8, abs=1e-6)
        if seeds > 2:
            assert seeds_needed(least * 1.0001, 0.03, 0.8) == seeds
    assert seeds_needed(1e-4, 1.0, 0.8) is None
    assert seeds_needed(8.0, 1.0, 0.5) == 2


def test_the_deviation_has_its_chi_square_interval():
    differences = [0.02, 0.07, 0.03, 0.09, 0.01]
    plan = planned(differences, difference=0.05, wanted=0.8)
    s = np.std(differences, ddof=1)
    ends = scipy.stats.chi2.ppf([0.975, 0.025], 4)
    assert plan.deviation.estimate == pytest.approx(s)
    assert (plan.deviation.low, plan.deviation.high) == pytest.approx(s * np.sqrt(4 / ends))
    assert plan.seeds == 5
    for n, deviation in zip(plan.needed, (s, plan.deviation.low, plan.deviation.high), strict=True):
        assert power(n, 0.05, deviation) >= 0.8
        assert n == 2 or power(n - 1, 0.05, deviation) < 0.8
    assert planned(differences, difference=0.05, wanted=0.8, seeds=20).detectable < plan.detectable
    # Three seeds know a deviation to a factor of 6.3 above.
    three = planned(differences[:3], difference=0.05, wanted=0.8).deviation
    assert three.high / three.estimate == pytest.approx(6.285, abs=1e-3)


def test_no_spread_is_no_number():
    with pytest.raises(PowerError, match="1 seed has no spread"):
        planned([0.1], difference=0.05, wanted=0.8)
    with pytest.raises(PowerError, match=r"\+10.00 points at all 3 seeds"):
        planned([0.1, 0.1, 0.1], difference=0.05, wanted=0.8)


def test_figures_are_those_of_the_report(tmp_path):
    lines = [
        line | {"rounds": 0} if (line["kind"], line["setting"]) == ("run", "pretrained") else line
        for line in federation_one()
    ]
    one = loaded(tmp_path / "1", lines)
    last, fourth, second = (
        difference_of(one, "fedse", "pretrained", Figure(round=number)) for number in ("last", 4, 2)
    )
    assert isinstance(last, Difference)
    assert last == fourth
    # The base is judged once, and is what it is at any round.
    assert second.value < fourth.value
    assert difference_of(one, "fedse", "fedit", Figure(temperature=0.0)).value != last.value
    for setting, words in (("fedsa", "'fedsa'"), ("fedse (personal)", "there are: pretrained")):
        with pytest.raises(FigureError, match=words):
            difference_of(one, setting, "fedit", Figure())
    with pytest.raises(FigureError, match=r"'fedse' \(all tasks, temperature 1, round 3\)"):
        difference_of(one, "fedse", "fedit", Figure(round=3))
    two = loaded(tmp_path / "2", federation_two())
    own = difference_of(two, "fedse (personal)", "local_evolution", Figure(tasks="own"))
    assert own.value != difference_of(two, "fedse", "local_evolution", Figure(tasks="own")).value
    with pytest.raises(FigureError, match="'fedit'"):
        difference_of(two, "fedit", "local_evolution", Figure(tasks="unseen"))


def invoke(*words):
    return CliRunner().invoke(app, ["power", *map(str, words)])


def test_the_command_reads_kept_rows():
    """Of docs/experiments/words.md: together − alone at five seeds."""
    kept = ROOT / "docs" / "experiments" / "data" / "words"
    words = (kept, "--setting", "together", "--reference", "pretrained", "--seeds", 8)
    told = json.loads(invoke(*words, "--format", "json").stdout)["data"]
    assert told["at"] == [40, 41, 42, 43, 44]
    assert told["mean"] == pytest.approx(0.464, abs=5e-4)
    s = np.std(told["differences"], ddof=1)
    assert told["deviation"]["estimate"] == pytest.approx(s)
    assert power(told["needed"][0], 0.05, s) >= 0.8
    assert told["seeds"] == 8
    text = invoke(*words, "--difference", 0.03).stdout
    assert "together − pretrained: all tasks, temperature 1, last round; seeds 40, 41" in text
    assert "seeds for 3.00 points" in text
    assert "least difference of 8 seeds" in text


def test_what_the_rows_do_not_hold_is_said(tmp_path):
    write(
        tmp_path, [*[eval_line(name, 0, "10") for name in "ab"], run_line("a", 0), run_line("b", 0)]
    )
    for words, code in (
        (("--setting", "a", "--reference", "c"), 1),
        (("--setting", "a", "--reference", "b"), 1),
        (("--setting", "a", "--reference", "b", "--tasks", "most"), 4),
    ):
        done = invoke(tmp_path, *words)
        assert done.exit_code == code, done.output

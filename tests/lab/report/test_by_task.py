"""The interval that counts a task once: against scipy, by hand, by coverage, and in the report."""

import itertools
import json

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

from lab.cli.main import app
from lab.report.by_task import ByTask
from lab.report.interval import Stratum, combined
from lab.report.scores import compare, rows_of, score
from lab.report.silos import Option, Silos
from lab.wilson import wilson
from tests.kit.lab.lab_results import (
    ENVIRONMENTS,
    SEEDS,
    TASKS,
    eval_line,
    federation_one,
    federation_two,
    loaded,
    run_line,
    write,
)


def text(values):
    return "".join("1" if value else "0" for value in values)


def of_seeds(matrix, environment="craft"):
    """Outcomes by task and seed."""
    found = ByTask()
    for column in np.asarray(matrix).T:
        found.add(environment, environment, "", text(column))
    return found


def test_it_is_scipys_bootstrap_of_whole_tasks():
    rng = np.random.default_rng(3)
    outcomes = rng.random((80, 3)) < rng.beta(0.6, 0.9, 80)[:, None]
    found = of_seeds(outcomes).rate()
    expected = scipy.stats.bootstrap(
        (outcomes.mean(1),), np.mean, n_resamples=20_000, method="percentile", rng=7
    ).confidence_interval
    assert found.value == pytest.approx(outcomes.mean())
    # Quantiles of that many draws have a standard deviation of some 0.002 here.
    assert (found.low, found.high) == pytest.approx(expected, abs=0.008)
    assert found.tasks == 80


def test_it_is_the_distribution_over_all_draws_by_hand():
    """Five tasks of one environment and three of another can be drawn in 5⁵ and 3³ ways."""
    craft = [[1, 1], [0, 1], [0, 0], [1, 0], [1, 1]]
    maze = [[0, 1], [0, 0], [1, 1]]
    found = of_seeds(craft)
    for column in np.asarray(maze).T:
        found.add("maze", "maze", "", text(column))
    means = [
        [np.mean(drawn) for drawn in itertools.product(np.mean(rows, 1), repeat=len(rows))]
        for rows in (craft, maze)
    ]
    every = np.add.outer(*map(np.array, means)).ravel() / 2
    interval = found.rate()
    assert interval.value == pytest.approx(np.mean([np.mean(craft), np.mean(maze)]))
    # A quantile of the draws lies between those of all ways at probabilities near it.
    for end, probability in ((interval.low, 0.025), (interval.high, 0.975)):
        least, most = np.quantile(every, [probability - 0.012, probability + 0.012])
        assert least - 1e-9 <= end <= most + 1e-9


def test_seeds_that_agree_are_one_seed_and_a_pooled_interval_is_not():
    rng = np.random.default_rng(4)
    once = rng.random((60, 1)) < 0.5
    thrice = np.repeat(once, 3, axis=1)
    one, three = of_seeds(once).rate(), of_seeds(thrice).rate()
    assert (one.low, one.high) == pytest.approx((three.low, three.high))
    solved = int(once.sum())
    pooled = wilson(3 * solved, 180)
    assert three.high - three.low > 1.6 * (pooled.high - pooled.low)


def test_it_covers_as_often_as_it_says_where_the_pooled_interval_does_not():
    rng = np.random.default_rng(5)
    truth, covered, pooled = 0.4, 0, 0
    times, tasks, seeds = 500, 60, 3
    for _ in range(times):
        # Tasks differ, and seeds agree about them: the mean over tasks is 0.4.
        rates = rng.beta(0.4, 0.6, tasks)
        outcomes = rng.random((tasks, seeds)) < rates[:, None]
        found = of_seeds(outcomes).rate()
        covered += found.low <= truth <= found.high
        interval = wilson(int(outcomes.sum()), outcomes.size)
        pooled += interval.low <= truth <= interval.high
    # Binomial(500, 0.95) has a standard deviation of 0.0097.
    assert 0.92 <= covered / times <= 0.98
    assert pooled / times < 0.85


def test_outcomes_that_are_all_alike_have_wilsons_limits_of_each_task_once():
    none = of_seeds(np.zeros((40, 3))).rate()
    assert (none.value, none.low, none.high) == (0.0, 0.0, pytest.approx(wilson(0, 40).high))
    two = of_seeds(np.ones((40, 3)))
    two.add("maze", "maze", "", "0" * 10)
    limits = combined(
        [Stratum(weight=0.5, successes=40, tasks=40), Stratum(weight=0.5, successes=0, tasks=10)]
    )
    found = two.rate()
    assert (found.low, found.high) == pytest.approx((limits.low, limits.high))
    same = ByTask()
    same.add_pair("craft", "craft", "", "0110", "0110")
    assert (same.difference().low, same.difference().high) == (0.0, 0.0)
    assert ByTask().rate() is None
    with pytest.raises(ValueError):
        same.add_pair("craft", "craft", "", "01", "010")


def test_many_tasks_are_drawn_in_blocks():
    """As many as a file may judge on would not fit at once; two thousand are four blocks."""
    rng = np.random.default_rng(6)
    outcomes = rng.random((2_000, 2)) < 0.3
    found = of_seeds(outcomes).rate()
    half = 1.959964 * outcomes.mean(1).std() / np.sqrt(2_000)
    assert (found.low, found.high) == pytest.approx(
        (found.value - half, found.value + half), abs=2e-3
    )


def test_tasks_judged_less_often_count_in_their_own_cells():
    """A silo was judged on all four tasks, another on the first two: means of means, as drawn."""
    found = ByTask()
    found.add("a", "craft", "", "1100")
    found.add("b", "craft", "", "11")
    # Each stratum is alike, so that Wilson stands in: two of four tasks, and two of two.
    limits = combined(
        [Stratum(weight=0.5, successes=2, tasks=4), Stratum(weight=0.5, successes=2, tasks=2)]
    )
    interval = found.rate()
    assert (interval.value, interval.low, interval.high) == pytest.approx(
        (0.75, limits.low, limits.high)
    )
    assert interval.tasks == 4
    assert found.rate({"a": 1.0, "b": 0.0}).value == pytest.approx(0.5)
    difference = found.difference()
    assert difference.low == difference.high == pytest.approx(0.75)


def test_scores_comparisons_and_silos_count_each_task_once(tmp_path):
    one = loaded(tmp_path / "1", federation_one())
    rows = {row.name: row for row in rows_of(one)}
    macro = score(rows["fedse"].final(), 1.0, ENVIRONMENTS).macro
    assert macro.by_task.tasks == len(ENVIRONMENTS) * TASKS
    assert macro.by_task.value == pytest.approx(macro.interval.rate)
    difference = compare(rows["fedse"], rows["local"], 1.0, ENVIRONMENTS).macro
    assert difference.tasks == len(SEEDS) * difference.by_task.tasks
    assert difference.by_task.value == pytest.approx(difference.value)
    assert difference.by_task.low < difference.value < difference.by_task.high
    silos = Silos(loaded(tmp_path / "2", federation_two()), 1.0)
    option = Option(setting="fedse", scope="global")
    alone = Option(setting="local_evolution", scope="alone")
    for group in ("own", "unseen", "other"):
        mean = silos.mean(option, group)
        assert mean.by_task.value == pytest.approx(mean.spread.mean)
        assert mean.by_task.low < mean.by_task.value < mean.by_task.high
    for gain in (silos.gain(option, alone, "own"), silos.difference(option, alone, 1)):
        assert gain.by_task.value == pytest.approx(gain.value)
        assert gain.tasks == len(SEEDS) * gain.by_task.tasks


def test_the_report_shows_both_intervals_and_is_the_same_twice(tmp_path):
    lines = [
        *[eval_line("a", seed, "1101" * 5) for seed in (0, 1, 2)],
        *[eval_line("b", seed, "0101" * 5) for seed in (0, 1, 2)],
        *[run_line(name, seed) for name in "ab" for seed in (0, 1, 2)],
    ]
    write(tmp_path, lines)
    arguments = ["report", str(tmp_path)]
    said = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert "| macro | macro over tasks | macro over seeds |" in said
    assert "| difference | over tasks | over seeds | p | p (Holm) |" in said
    assert said == CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    content = json.loads(CliRunner().invoke(app, [*arguments, "--format", "json"]).stdout)
    (family,) = content["experiments"][0]["families"]
    interval = family["comparisons"][0]["macro"]["by_task"]
    row = next(line for line in said.splitlines() if line.startswith("| b | 0, 1, 2 | 60 |"))
    assert f"[{100 * interval['low']:+.1f}, {100 * interval['high']:+.1f}]" in row
    assert interval["tasks"] == 20

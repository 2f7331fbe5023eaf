"""Differences over seeds: within an experiment, silo by silo, and over several experiments."""

import json

import pytest
import scipy.stats
from typer.testing import CliRunner

from lab.cli.main import app
from lab.report.errors import UnpairedError
from lab.report.interval import over_seeds
from lab.report.paired import Discordance, paired_difference
from lab.report.pooled import pooled
from lab.report.report import Choices, build_report
from lab.report.results import load_results
from lab.report.scores import compare, rows_of, score
from lab.report.silos import Option, Silos
from tests.kit.lab.lab_results import (
    ENVIRONMENTS,
    SEEDS,
    SHARDS,
    eval_line,
    federation_one,
    federation_two,
    loaded,
    run_line,
    write,
)


def t_interval(rates):
    return scipy.stats.t.interval(
        0.95, len(rates) - 1, loc=sum(rates) / len(rates), scale=scipy.stats.sem(rates)
    )


def test_a_comparison_has_the_t_interval_of_its_seeds(tmp_path):
    rows = {row.name: row for row in rows_of(loaded(tmp_path, federation_one()))}
    found = compare(rows["fedse"], rows["fedit"], 1.0, ENVIRONMENTS).macro
    first, second = (
        score(rows[name].final(), 1.0, ENVIRONMENTS).macro.spread.rates
        for name in ("fedse", "fedit")
    )
    rates = [a - b for a, b in zip(first, second, strict=True)]
    assert found.seeds == SEEDS
    assert found.spread.rates == pytest.approx(rates)
    assert (found.spread.low, found.spread.high) == pytest.approx(t_interval(rates))
    assert found.value == pytest.approx(sum(rates) / 3)


def test_the_gain_is_the_mean_over_silos(tmp_path):
    silos = Silos(loaded(tmp_path, federation_two()), 1.0)
    option = Option(setting="fedse", scope="personal")
    alone = Option(setting="local_evolution", scope="alone")
    for group in ("own", "unseen"):
        found = silos.gain(option, alone, group)
        sides = [
            [silos.rate(side, silo, group).spread.rates for silo in SHARDS]
            for side in (option, alone)
        ]
        rates = [
            sum(mine[at] - base[at] for mine, base in zip(*sides, strict=True)) / len(SHARDS)
            for at in range(len(SEEDS))
        ]
        assert found.spread.rates == pytest.approx(rates)
        assert found.value == pytest.approx(sum(rates) / 3)
        assert found.low < found.value < found.high
    one = silos.difference(option, alone, 2)
    assert one.spread == over_seeds(one.spread.rates)
    assert one.value == pytest.approx(one.spread.mean)


def test_seeds_without_the_same_strata_are_no_difference(tmp_path):
    counts = Discordance(tasks=4, only_first=1, only_second=0)
    with pytest.raises(ValueError):
        paired_difference({0: [counts, counts], 1: [counts]})
    lines = [
        *[eval_line(name, seed, "10") for name in "ab" for seed in (0, 1)],
        *[eval_line(name, 0, "01", environment="maze", family="maze") for name in "ab"],
        *[run_line(name, seed) for name in "ab" for seed in (0, 1)],
    ]
    first, second = rows_of(loaded(tmp_path, lines))
    with pytest.raises(UnpairedError, match="share no task in maze"):
        compare(first, second, 1.0, ("craft", "maze"))


def of_seeds(seeds, experiment, *, held_out, rounds=4):
    """`a` against `b` of one experiment: four tasks, of which the seed's last digits succeed."""
    lines = []
    for seed in seeds:
        for setting, outcomes in (("a", "1110"), ("b", f"{seed % 4:04b}")):
            config = {
                "experiment": experiment, "seed": seed, "setting": setting, "rounds": rounds,
                "judge": {"held_out": held_out},
            }  # fmt: skip
            lines += [
                eval_line(setting, seed, outcomes * held_out),
                run_line(setting, seed, experiment, config=config),
            ]
    return lines


def all_pooled(tmp_path, *parts):
    directories = [write(tmp_path / str(at), lines) for at, lines in enumerate(parts)]
    results = load_results(directories)
    return pooled(build_report(results, Choices()), results)


def test_seeds_of_alike_experiments_are_one_sample(tmp_path):
    (found,) = all_pooled(
        tmp_path,
        of_seeds((0, 1), "first", held_out=1),
        # Seed 1 again: it counts once, in the first.
        [*of_seeds((3, 5), "second", held_out=2), *of_seeds((1,), "second", held_out=3)],
    )
    assert (found.first, found.second, found.temperature) == ("a", "b", 1.0)
    assert found.experiments == ("first", "second")
    assert found.seeds == (0, 1, 3, 5)
    rates = [0.75 - f"{seed % 4:04b}".count("1") / 4 for seed in found.seeds]
    assert found.spread.rates == pytest.approx(rates)
    assert (found.spread.low, found.spread.high) == pytest.approx(t_interval(rates))
    assert found.worst is None


def test_experiments_that_train_otherwise_are_not_pooled(tmp_path):
    one = of_seeds((0, 1), "first", held_out=1)
    assert all_pooled(tmp_path, one, of_seeds((2, 3), "second", held_out=1, rounds=5)) == ()
    assert all_pooled(tmp_path, one) == ()


def test_silos_are_pooled_one_by_one(tmp_path):
    lines = federation_two()
    again = [
        line | {"seed": line["seed"] + 3} | ({"experiment": "third"} if "config" in line else {})
        for line in lines
    ]
    found = all_pooled(tmp_path, lines, again)
    personal = next(one for one in found if one.first == "fedse (personal)")
    silos = Silos(loaded(tmp_path, lines), 1.0)
    option = Option(setting="fedse", scope="personal")
    alone = Option(setting="local_evolution", scope="alone")
    gain, worst = silos.gain(option, alone, "own"), silos.worst(option, alone)
    assert personal.seeds == (0, 1, 2, 3, 4, 5)
    assert personal.spread == over_seeds(2 * gain.spread.rates)
    silo, spread = personal.worst
    assert silo == worst.silo
    assert spread == over_seeds(2 * worst.difference.spread.rates)


def test_other_silos_are_not_pooled(tmp_path):
    lines = federation_two()
    other = [
        line | ({"experiment": "third"} if "config" in line else {"silo": line["silo"] + 5})
        for line in lines
        if line.get("silo") != -1
    ]
    assert [one.worst for one in all_pooled(tmp_path, lines, other)] == [None]


def test_the_report_prints_them(tmp_path):
    for at, (seeds, name) in enumerate((((0, 1), "first"), ((2, 3), "second"))):
        write(tmp_path / str(at), of_seeds(seeds, name, held_out=1))
    arguments = ["report", str(tmp_path / "0"), str(tmp_path / "1")]
    text = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    seeds = "0, 1, 2, 3 | +50.0 [+17.5, +82.5] t"
    assert f"| a | b | temperature 1 | first, second | {seeds} | – |" in text
    assert "| b | 0, 1 | 8 | 6 | 1 | +62.5 [" in text
    assert "| +50.0 to +75.0 |" in text
    content = json.loads(CliRunner().invoke(app, [*arguments, "--format", "json"]).stdout)
    assert [found["seeds"] for found in content["pooled"]] == [[0, 1, 2, 3]]

"""Pooling the silos' own files, the verdict, and what the report makes of hostile text."""

import io
import json
from dataclasses import asdict

import pytest
import typer
from matplotlib.figure import Figure
from rich.console import Console

from dp.accounting.compose import Epsilon
from lab.demo.choices import Privacy
from lab.demo.command import MARKER, _empty, report
from lab.demo.errors import NotJudgedError
from lab.demo.outcome import Cell, Outcome, await_judged, judged_rows, pooled
from lab.demo.report import load_outcome, print_tables, save_outcome
from lab.demo.scenario import SILOS, DemoSettings
from lab.wilson import wilson
from tests.kit.lab.outcomes import finished_round, outcome_of, row

HOSTILE = "<script>alert('x')</script> & \"quoted\""


def test_rows_pool_by_shard_and_over_all_shards():
    rates = pooled([row(0, 1, 4), row(0, 3, 4), row(1, 2, 8), row(1, 5, 5, temperature=0.0)])
    assert rates[Cell(environment="craft", shard=0, temperature=1.0)] == wilson(4, 8)
    assert rates[Cell(environment="craft", shard=1, temperature=1.0)] == wilson(2, 8)
    assert rates[Cell(environment="craft", shard=-1, temperature=1.0)] == wilson(6, 16)
    assert rates[Cell(environment="craft", shard=-1, temperature=0.0)] == wilson(5, 5)
    assert len(rates) == 5


def test_shards_without_episodes_have_no_rate():
    assert pooled([row(0, 0, 0)]) == {}
    assert pooled([]) == {}


def test_only_the_adapter_that_was_asked_for_is_read(tmp_path):
    path = tmp_path / "evaluation.jsonl"
    lines = [
        row(0, 1, 4, run="a", round=0),
        row(0, 2, 4, run="a", round=8),
        row(0, 3, 4, run="b", round=8),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert judged_rows(path, run_id="a", round_number=8) == [lines[1]]
    assert judged_rows(path, run_id="c", round_number=8) == []


def test_the_verdict_needs_intervals_that_lie_apart():
    assert outcome_of(200, 300, 500).better(1.0)
    assert not outcome_of(200, 480, 500).better(1.0)
    assert not outcome_of(500, 300, 200).better(1.0)
    assert not Outcome().better(1.0)
    # Nothing was judged at this temperature.
    assert not outcome_of(200, 300, 500).better(0.0)


def test_the_headline_pools_over_environments_and_counts_no_episode_twice():
    rows = [row(0, 10, 100), row(1, 30, 100), row(0, 50, 100, environment="maze")]
    outcome = Outcome(rates={"base": pooled(rows)})
    assert outcome.headline(1.0) == {"base": wilson(90, 300)}


def test_what_was_saved_is_read_back(tmp_path):
    outcome = outcome_of(200, 300, 500)
    outcome.replay = {"label": HOSTILE}
    settings = DemoSettings(rounds=5)
    save_outcome(outcome, settings, tmp_path / "outcome.json")
    again, same = load_outcome(tmp_path / "outcome.json")
    assert again == outcome
    assert same == settings


def test_the_tables_show_rates_and_that_masking_protects():
    sink = io.StringIO()
    outcome = outcome_of(208, 416, 624)
    outcome.rates[f"alone {SILOS[0]}"] = outcome.rates["alone"]
    print_tables(outcome, DemoSettings(privacy=Privacy.SILO), Console(file=sink, width=200))
    text = sink.getvalue()
    assert "75.0 % [" in text
    assert SILOS[0] in text
    assert "epsilon spent for each silo = 1.23e+04 of a cap of 1e+09" in text
    assert "masking is what protects" in text
    # Three uploads of 2 KiB.
    assert "releases: 1 in 1 rounds; upload per silo and release: 2 KiB" in text


def test_the_ledgers_of_the_silos_are_shown_and_the_largest_counts():
    sink = io.StringIO()
    outcome = outcome_of(208, 416, 624)
    outcome.epsilon, outcome.epsilon_unit, outcome.epsilon_cap = 7.9, "task", 8.0
    for silo_id, spent in zip(SILOS, (6.1, 6.1, 6.1, 6.7), strict=True):
        row = {"unit": "task", "epsilon_spent": asdict(Epsilon(spent)), "epsilon_cap": 8.0}
        outcome.budgets[silo_id] = [row]
    print_tables(outcome, DemoSettings(), Console(file=sink, width=200))
    text = sink.getvalue()
    assert "mode record_local" in text
    assert "epsilon spent for each task = 6.7 of a cap of 8 at delta = 1e-05" in text
    assert text.count("6.1") == 3
    assert "protected by its own silo" in text


def test_several_releases_of_a_round_count_as_one_round():
    """Bytes go by release, seconds by round."""
    nothing = [{"family": "craft", "success_ratio": "NaN", "standard_error": "NaN"}]
    outcome = outcome_of(208, 416, 624)
    outcome.rounds = [finished_round(), *(finished_round(step=s, success=nothing) for s in (1, 2))]
    sink = io.StringIO()
    settings = DemoSettings(privacy=Privacy.RECORD_DISTRIBUTED)
    print_tables(outcome, settings, Console(file=sink, width=200))
    assert "releases: 3 in 1 rounds; upload per silo and release: 2 KiB" in sink.getvalue()
    assert "seconds per round: training 9.0" in sink.getvalue()


def test_a_control_with_noise_may_only_fail_to_improve():
    assert outcome_of(208, 208, 100).unimproved(1.0)
    assert not outcome_of(208, 208, 100).unmoved(1.0)
    assert not outcome_of(208, 208, 500).unimproved(1.0)


def test_learning_needs_the_base_alone():
    outcome = outcome_of(200, 480, 500)
    assert outcome.learned(1.0)
    assert not outcome.better(1.0)
    assert not outcome_of(200, 480, 210).learned(1.0)
    assert not Outcome().learned(1.0)


def test_a_fall_is_said_in_words():
    outcome = outcome_of(200, 300, 500)
    for who, successes in (("base", 636), ("together", 467)):
        outcome.rates[who] |= pooled([row(0, successes, 832, temperature=0.0)])
    assert outcome.fell(0.0)
    assert not outcome.fell(1.0)
    for judged, shown in ((outcome, True), (outcome_of(200, 300, 500), False)):
        sink = io.StringIO()
        print_tables(judged, DemoSettings(), Console(file=sink, width=400))
        assert ("Greedy, together lies below the base" in sink.getvalue()) is shown


def test_waiting_for_judgements_ends(tmp_path):
    directories = {silo_id: tmp_path / silo_id for silo_id in SILOS[:2]}
    for directory in directories.values():
        directory.mkdir()
        lines = [row(0, 1, 4, run="a", round=number) for number in (0, 3)]
        (directory / "evaluation.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    told = []
    found = await_judged(directories, run_id="a", rounds=(0, 3), timeout_s=5.0, judged=told.append)
    assert told == [0, len(directories)]
    assert {number: len(rows) for number, rows in found.items()} == {0: 2, 3: 2}
    with pytest.raises(NotJudgedError, match="silo-b"):
        await_judged(directories, run_id="b", rounds=(0,), timeout_s=0.0)


def test_the_report_command_needs_a_finished_demo(tmp_path, capsys):
    with pytest.raises(typer.BadParameter, match="does not exist"):
        report(tmp_path)
    save_outcome(outcome_of(200, 300, 500), DemoSettings(), tmp_path / "outcome.json")
    report(tmp_path)
    assert (tmp_path / "report.html").exists()
    assert "together" in capsys.readouterr().out


def test_the_picture_has_a_panel_for_each_temperature_and_names_few_kinds(tmp_path, monkeypatch):
    drawn = []
    save = Figure.savefig

    def noting(figure, *args, **named):
        drawn.append(figure)
        save(figure, *args, **named)

    monkeypatch.setattr(Figure, "savefig", noting)
    rows = [
        row(shard, 10 * who, 100, temperature=temperature, environment="words")
        for who in (1, 2, 3)
        for shard in range(4)
        for temperature in (1.0, 0.0)
    ]
    rates = {
        who: pooled(rows[8 * i : 8 * i + 8]) for i, who in enumerate(("base", "alone", "together"))
    }
    save_outcome(Outcome(rates=rates), DemoSettings(), tmp_path / "outcome.json")
    report(tmp_path, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    figure = drawn[-1]
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "success, temperature 1",
        "success, greedy",
    ]
    for axes in figure.axes:
        assert [tick.get_text() for tick in axes.get_xticklabels()] == [
            "words",
            "words\nfirst\nand plural",
            "words\nsecond\nand past",
            "words\nthird\nand comparative",
            "words\nlast\nand superlative",
        ]
        assert [round(bar.get_height(), 2) for bar in axes.patches] == [0.1] * 5 + [0.2] * 5 + [
            0.3
        ] * 5
        assert len(axes.containers) >= 15


# Emptying the directory --------------------------------------------------------------------------


def test_a_foreign_directory_is_never_emptied(tmp_path):
    foreign = tmp_path / "work"
    foreign.mkdir()
    # A plan file is what every federation's own directory holds.
    for name in ("thesis.tex", "plan.toml"):
        (foreign / name).write_text("years of work")
    with pytest.raises(typer.BadParameter, match="no demo made"):
        _empty(foreign)
    assert sorted(path.name for path in foreign.iterdir()) == ["plan.toml", "thesis.tex"]


def test_a_demos_own_directory_is_emptied_and_marked_again(tmp_path):
    out = tmp_path / "deep" / "demo-out"
    _empty(out)
    (out / "leftover").write_text("x")
    _empty(out)
    assert [path.name for path in out.iterdir()] == [MARKER]
    # An empty directory is nobody's.
    (tmp_path / "empty").mkdir()
    _empty(tmp_path / "empty")
    assert (tmp_path / "empty" / MARKER).exists()

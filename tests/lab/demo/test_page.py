"""The report's page: its verdict, what it draws, hostile text, and how it looks in a browser."""

import itertools
import math
import re

import matplotlib.image
import pytest
from markupsafe import escape

from deploy.browser import Browser, executable
from lab.demo.charts import charts, curves
from lab.demo.choices import Control, Privacy, Scenario
from lab.demo.outcome import Cell, Outcome, pooled
from lab.demo.page import write_html
from lab.demo.scenario import SILOS, DemoSettings
from lab.demo.verdict import Level, level, sentence
from lab.wilson import wilson
from tests.kit.lab.outcomes import finished_round, outcome_of, row

HOSTILE = "<script>alert('x')</script> & \"quoted\""


def page_of(tmp_path, outcome, settings=None):
    path = tmp_path / "report.html"
    write_html(outcome, settings or DemoSettings(), path)
    return path.read_text(encoding="utf-8")


def judged(base, alone, together):
    """Four shards at both temperatures."""
    return {
        who: pooled(
            [
                row(shard, successes, 208, temperature=temperature)
                for shard in range(4)
                for temperature in (1.0, 0.0)
            ]
        )
        for who, successes in (("base", base), ("alone", alone), ("together", together))
    }


def explored(*ratios):
    return [
        finished_round(
            round=number,
            success=[{"family": "craft", "success_ratio": ratio, "standard_error": error}],
        )
        for number, (ratio, error) in enumerate(ratios, 1)
    ]


# The verdict -------------------------------------------------------------------------------------


def test_the_verdict_says_more_only_where_intervals_lie_apart():
    assert sentence(outcome_of(240, 320, 500), 1.0) == (
        "Together solves 60.1 % [57.7, 62.4] of the held-out tasks at temperature 1: "
        "more than the base model, 28.8 % [26.7, 31.1], "
        "and more than a silo alone, 38.5 % [36.2, 40.8]."
    )
    assert "and not told apart from a silo alone" in sentence(outcome_of(240, 480, 500), 1.0)
    fell = sentence(outcome_of(500, 480, 240), 1.0)
    assert "less than the base model" in fell
    assert "less than a silo alone" in fell


def test_nothing_is_compared_with_what_was_not_judged():
    outcome = outcome_of(240, 320, 500)
    del outcome.rates["alone"]
    assert "alone" not in sentence(outcome, 1.0)
    # And nothing was judged greedily.
    assert sentence(outcome, 0.0) == ""
    assert sentence(Outcome(), 1.0) == ""


@pytest.mark.parametrize(
    ("successes", "control", "expected"),
    [
        ((240, 320, 500), Control.NONE, Level.WELL),
        ((240, 240, 250), Control.NONE, Level.WATCH),
        ((500, 320, 240), Control.NONE, Level.ALARM),
        ((240, 240, 240), Control.NO_LEARNING, Level.WELL),
        ((240, 320, 500), Control.NO_LEARNING, Level.ALARM),
    ],
)
def test_how_well_it_went_follows_the_runs_own_question(successes, control, expected):
    settings = DemoSettings(control=control)
    assert level(outcome_of(*successes), settings) is expected
    # A file holds words, not members of an enumeration.
    assert level(outcome_of(*successes), DemoSettings(control=control.value)) is expected


def test_the_page_opens_with_the_verdict_and_both_charts(tmp_path):
    outcome = Outcome(rates=judged(50, 80, 120), run_id="run-1", rounds=[finished_round()])
    text = page_of(tmp_path, outcome).replace("\N{NO-BREAK SPACE}", " ")
    places = [
        text.index(f"<h1>{sentence(outcome, 1.0)}</h1>"),
        text.index(f"<p>{sentence(outcome, 0.0)}</p>"),
        text.index(">Temperature 1</h2>"),
        text.index(">Greedy</h2>"),
        text.index(">Success while exploring</h2>"),
    ]
    assert places == sorted(places)
    assert 'class="banner well"' in text


def test_a_control_says_that_it_is_one(tmp_path):
    text = page_of(tmp_path, outcome_of(240, 240, 240), DemoSettings(control="no-learning"))
    assert "A control run (no-learning): the control gained nothing" in text


# What is drawn -----------------------------------------------------------------------------------


def test_a_chart_for_each_temperature_has_everybody_on_the_same_tasks():
    sampled, greedy = charts(Outcome(rates=judged(52, 104, 156)))
    assert (sampled.title, greedy.title) == ("Temperature 1", "Greedy")
    assert [group.label for group in sampled.groups] == ["all tasks", *(
        f"shard {number}" for number in (1, 2, 3, 4)
    )]  # fmt: skip
    assert [group.episodes for group in sampled.groups] == [832, 208, 208, 208, 208]
    for bar, rate in zip(sampled.groups[0].bars, (0.25, 0.5, 0.75), strict=True):
        assert bar.rate == pytest.approx(1000 * rate)
        assert bar.low < bar.rate < bar.high
        assert bar.percent == f"{100 * rate:.1f} %"


def test_several_environments_are_pooled_first():
    rows = [row(0, 50, 100), row(0, 10, 100, environment="maze")]
    (chart,) = charts(Outcome(rates={"base": pooled(rows)}))
    assert [group.label for group in chart.groups] == ["all environments", "craft", "maze"]
    assert chart.groups[0].bars[0].percent == "30.0 %"


def test_only_whole_rounds_stand_on_the_axis_and_noise_leaves_a_gap():
    outcome = Outcome(rounds=explored((0.25, 0.01), ("NaN", "Infinity"), (0.5, 0.0), (0.75, 0.3)))
    (curve,) = curves(outcome)
    assert curve.labels == ("1", "2", "3", "4")
    # A column for each round: the first at 1/8 of the width, the third at 5/8, joined to nothing.
    assert curve.line == "M125.0 75.0M625.0 50.0"
    assert curve.errors == "M125.0 76.0V74.0"
    assert curve.newest == curve.words[4] == curve.words[2] == "below noise"
    many = curves(Outcome(rounds=explored(*[(0.5, 0.01)] * 25)))[0]
    assert [name for name in many.labels if name] == ["1", "4", "7", "10", "13", "16", "19", "22",
                                                      "25"]  # fmt: skip


def test_steps_of_a_round_are_told_apart(tmp_path):
    nothing = [{"family": "craft", "success_ratio": "NaN", "standard_error": "NaN"}]
    outcome = outcome_of(208, 416, 624)
    outcome.rounds = [finished_round(), *(finished_round(step=s, success=nothing) for s in (1, 2))]
    text = page_of(tmp_path, outcome, DemoSettings(privacy=Privacy.RECORD_DISTRIBUTED))
    assert all(f"<th>{place}</th>" in text for place in ("1", "1, step 2", "1, step 3"))


def test_a_page_without_results_is_still_a_page(tmp_path):
    outcome = outcome_of(1, 2, 3)
    outcome.rounds, outcome.replay, outcome.epsilon = [], None, math.inf
    text = page_of(tmp_path, outcome)
    assert "No held-out task" in text
    assert "= unbounded of a cap" in text
    assert "Nothing was judged." in page_of(tmp_path, Outcome())
    page_of(tmp_path, Outcome(), DemoSettings(control=Control.NO_LEARNING))


def hostile():
    outcome = outcome_of(200, 300, 500)
    outcome.run_id = outcome.exported = outcome.killed = HOSTILE
    for rates in outcome.rates.values():
        cell = Cell(environment=HOSTILE, shard=-1, temperature=1.0)
        rates[cell] = wilson(1, 2)
    outcome.rounds = [
        finished_round(
            outcome=HOSTILE,
            survivors=[HOSTILE],
            adapter_sha256=HOSTILE,
            timings=[{"phase": HOSTILE, "duration_s": 1.0}],
            success=[{"family": HOSTILE, "success_ratio": 0.5, "standard_error": 0.1}],
        )
    ]
    turn = {"observation": HOSTILE, "action": HOSTILE}
    half = {"turns": [turn], "success": True, "final_observation": HOSTILE}
    outcome.replay = {
        "environment": HOSTILE,
        "task_id": 3,
        "label": HOSTILE,
        "instruction": HOSTILE,
        "before": half,
        "after": half,
    }
    return outcome


def test_hostile_text_is_escaped_everywhere_on_the_page(tmp_path):
    text = page_of(tmp_path, hostile())
    assert "<script" not in text
    assert text.count(str(escape(HOSTILE))) >= 15
    # The page loads nothing.
    assert not re.search(r"(src|href)\s*=|url\(|@import", text)


# In a browser ------------------------------------------------------------------------------------


def full():
    outcome = outcome_of(240, 320, 500)
    outcome.rates = judged(50, 80, 120)
    outcome.rates |= {f"alone {silo_id}": outcome.rates["alone"] for silo_id in SILOS}
    outcome.rounds = explored(*[(0.2 + 0.02 * number, 0.02) for number in range(8)])
    turn = {"observation": "nearby: table\n" * 3, "action": "craft stone pickaxe"}
    half = {"turns": [turn] * 2, "success": True, "final_observation": "made"}
    outcome.replay = {
        "environment": "craft",
        "task_id": 3,
        "label": "pickaxe",
        "instruction": "Make what is asked for.",
        "before": half,
        "after": half,
    }
    return outcome


@pytest.mark.skipif(executable() is None, reason="no chromium is installed")
@pytest.mark.parametrize("made", [full, hostile])
def test_it_fits_every_screen_by_day_and_by_night_and_asks_for_nothing(tmp_path, made):
    page_of(tmp_path, made(), DemoSettings(scenario=Scenario.SHARDS))
    address = (tmp_path / "report.html").as_uri()
    with Browser() as chromium:
        for width, dark in itertools.product((1280, 970, 360), (False, True)):
            loaded = chromium.open(address, width=width, dark=dark)
            assert loaded.requests == [address]
            assert loaded.complaints == []
            assert (loaded.wider_by_px, loaded.overflowing) == (0, []), width
            roles = {node["role"] for node in loaded.tree}
            assert {"main", "banner", "contentinfo", "heading", "table", "image"} <= roles
            named = [node for node in loaded.tree if node["role"] in {"table", "image"}]
            assert all(node["name"] for node in named)
            picture = chromium.capture(tmp_path / f"{width}-{'dark' if dark else 'light'}.png")
            brightness = matplotlib.image.imread(picture)[:, :, :3].mean()
            assert (brightness < 0.3) if dark else (brightness > 0.8)

"""Figures survive the store, including what is not a number."""

import json
import math
from dataclasses import fields, replace

import pytest

from chorale.v1.admin_pb2 import RunSummary
from server.cli.program import place_of
from server.cli.watch import Panel
from server.conductor.status import _round_status
from server.figures import HalfSum, HalfVerdict, Phase, RoundFigures
from server.run.aggregation import norm_ratio
from tests.kit.server import world as sw


def test_every_field_survives():
    figures = RoundFigures(
        round=3,
        step=7,
        attempt=2,
        phase=Phase.FINISHED,
        phase_since_unix_s=1.5,
        deadline_unix_s=2.5,
        timings_s={"training": 1.25, "unmask": 0.5},
        cohort=("a", "b", "c"),
        survivors=("a", "c"),
        upload_bytes=123,
        success={"craft": (0.25, 0.01), "maze": (0.5, 0.0)},
        update_norm=1.5,
        update_norm_error=0.5,
        agreement=0.75,
        agreement_error=0.25,
        heterogeneity=0.125,
        heterogeneity_error=0.0625,
        silo_norm_sq=2.25,
        silo_norm_sq_error=0.375,
        vetoes=0.5,
        vetoes_error=0.0625,
        outcome="aggregated",
        adapter_sha256=bytes(range(32)),
        restored_round=2,
        halves=(
            HalfSum(part=0, verdict=HalfVerdict.GROSS, survivors=("a", "b"), suspects=("a",)),
            HalfSum(part=1, verdict=HalfVerdict.LOST, survivors=(), suspects=("c",)),
        ),
    )
    again = RoundFigures.from_json(figures.to_json())
    assert again == figures
    assert type(again.phase) is Phase
    assert type(again.halves[0].verdict) is HalfVerdict
    assert len(fields(RoundFigures)) == 25


def test_figures_of_a_version_without_steps_are_of_step_0():
    content = json.loads(RoundFigures(round=3).to_json())
    del content["step"]
    again = RoundFigures.from_json(json.dumps(content))
    assert (again.round, again.step) == (3, 0)


def test_what_is_below_noise_survives_as_nan():
    figures = RoundFigures(round=1, success={"craft": (math.nan, math.inf)})
    again = RoundFigures.from_json(figures.to_json())
    for name in ("update_norm", "agreement", "heterogeneity"):
        assert math.isnan(getattr(again, name))
    ratio, error = again.success["craft"]
    assert math.isnan(ratio)
    assert error == math.inf
    assert again.to_json() == figures.to_json()


def test_the_status_shows_every_figure_with_its_error():
    names = ("update_norm", "agreement", "heterogeneity", "silo_norm_sq")
    values = {
        **{name: 1.0 + k for k, name in enumerate(names)},
        **{f"{name}_error": 0.125 * (1 + k) for k, name in enumerate(names)},
    }
    shown = _round_status(RoundFigures(round=1, **values))
    for name in names:
        assert getattr(shown, name) == values[name]
        assert getattr(shown, f"{name}_standard_error") == values[f"{name}_error"]


def test_an_unknown_phase_is_refused():
    text = RoundFigures(round=1).to_json().replace('"training"', '"lunch"')
    with pytest.raises(ValueError, match="lunch"):
        RoundFigures.from_json(text)


def test_a_finished_rounds_line_shows_agreement_with_its_error_unless_below_noise():
    figures = RoundFigures(round=1, agreement=0.625, agreement_error=0.125, outcome="aggregated")
    run = RunSummary(round=1, rounds=3, steps=1)
    shown = Panel(live=True)._finished(_round_status(figures), run)
    assert shown.startswith("round 1/3 aggregated")
    assert "agreement 0.62 ± 0.12" in shown
    for changes in ({"agreement": math.nan}, {"outcome": "skipped"}):
        hidden = replace(figures, **changes)
        assert "agreement" not in Panel(live=True)._finished(_round_status(hidden), run)


def test_steps_are_named_where_a_round_has_several_and_nowhere_else():
    stepped = RunSummary(rounds=8, steps=20)
    assert place_of(stepped, 3, 4) == "round 3/8, step 5/20"
    # Before the first record there is no step.
    assert place_of(stepped, 0, 0) == "round 0/8"
    assert place_of(RunSummary(rounds=8, steps=1), 3, 0) == "round 3/8"
    done = _round_status(RoundFigures(round=3, step=4, outcome="skipped"))
    line = Panel(live=True)._finished(done, stepped)
    assert line.startswith("round 3/8, step 5/20 skipped")


STEADY, IN_TURN = sw.parsed(sw.plan_toml()), sw.parsed(sw.plan_toml(method="rolora"))


def closed(*norms, outcome="aggregated"):
    return [
        RoundFigures(round=number, outcome=outcome, update_norm=norm)
        for number, norm in enumerate(norms, start=1)
    ]


def test_a_sums_norm_is_compared_with_the_median_of_those_before_it():
    assert norm_ratio(closed(1.0, 9.0, 2.0, 5.0), STEADY) == 2.5
    # A round without a sum has no norm: the newest sum is the one before it.
    none = closed(math.nan, outcome="quarantined") + closed(math.nan, outcome="skipped")
    assert norm_ratio(closed(1.0, 9.0, 2.0, 5.0) + none, STEADY) == 2.5


@pytest.mark.parametrize(
    "finished",
    [
        pytest.param([], id="nothing yet"),
        pytest.param(closed(1.0, 1.0, 9.0), id="two earlier sums"),
        pytest.param(closed(0.0, 0.0, 0.0, 9.0), id="nobody moved before"),
        pytest.param(closed(*[math.nan] * 4, outcome="skipped"), id="no sum at all"),
    ],
)
def test_without_enough_to_compare_with_there_is_no_ratio(finished):
    assert math.isnan(norm_ratio(finished, STEADY))


def test_a_factor_is_compared_with_itself():
    """Odd rounds train one factor, even ones another of ten times its norm."""
    alternating = closed(1.0, 10.0, 1.0, 10.0, 1.0, 10.0, 1.0, 20.0)
    assert norm_ratio(alternating, IN_TURN) == 2.0
    assert norm_ratio(alternating[:7], IN_TURN) == 1.0
    assert math.isnan(norm_ratio(alternating[:6], IN_TURN))

"""The benchmark of record-level objectives: its arms are plans that may start at epsilon 8."""

import importlib.util

import pytest

from evolution.model.lora import initial_adapter
from federation.adapter.layout import Layout
from federation.forecast.forecast import forecast_plan, shared_dimension
from lab.demo.recipe import EPSILON_CAP
from tests.kit.paths import ROOT


def _load():
    path = ROOT / "benchmarks" / "record_objectives.py"
    spec = importlib.util.spec_from_file_location("record_objectives_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


objectives = _load()


@pytest.mark.parametrize("arm", objectives.ARMS)
def test_every_arm_may_start_with_four_silos_and_stays_within_the_cap(arm):
    plan = objectives.plan_of(objectives.ARMS[arm], seed=101)
    tensors = initial_adapter(objectives.BASE, plan.model.lora_rank, plan.model.lora_alpha, 0)
    dimension = shared_dimension(plan, Layout.from_tensors(tensors))
    found = forecast_plan(plan, silos=objectives.SILOS, colluding=1, dimension=dimension)
    assert found.refusals == ()
    assert found.epsilon_total["task"].epsilon <= EPSILON_CAP


def test_arms_are_judged_on_tasks_that_no_reported_figure_is_about_unless_asked():
    assert not objectives.parsed([]).held_out
    assert objectives.parsed(["--held-out"]).held_out
    with pytest.raises(SystemExit):
        objectives.parsed(["--only", "something"])


def test_a_row_is_the_mean_over_seeds_in_percent():
    row = {
        "arm": "grpo",
        "base": {"1.0": 0.3, "0.0": 0.8},
        "together": {"1.0": 0.5, "0.0": 0.9},
        "noise_multiplier": 1.82,
        "seconds": 100.0,
    }
    other = {**row, "together": {"1.0": 0.7, "0.0": 0.9}}
    text = objectives.table_row([row, other])
    assert text.split()[:4] == ["grpo", "30.0", "(30-30)", "60.0"]
    assert text.split()[-2:] == ["1.82", "100"]

"""The benchmark of privacy modes: its arms are plans that may start, and its table can be read."""

import importlib.util

import pytest

from evolution.model.lora import initial_adapter
from federation.adapter.layout import Layout
from federation.forecast.forecast import forecast_plan, shared_dimension
from federation.plan.read import read_plan
from lab.demo.choices import Privacy
from lab.demo.recipe import EPSILON_CAP
from lab.demo.run import BASE_MODEL
from silo_agent.config import SiloConfig
from tests.kit.paths import ROOT


def _load():
    path = ROOT / "benchmarks" / "privacy_modes.py"
    spec = importlib.util.spec_from_file_location("privacy_modes_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


modes = _load()


def plan_of(privacy, method, *, quick=False, learned="fed-se"):
    recipe = modes.recipe_of(privacy, method, quick=quick, method=learned)
    text = recipe.toml(
        name="x", base="b", base_sha256="ab" * 32, environments=("craft",), seed=0, held_out=16
    )
    return read_plan(text.encode())


@pytest.mark.parametrize("learned", ["fed-se", "grpo"])
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(("privacy", "method"), modes.ARMS)
def test_every_arm_may_start_with_five_silos(privacy, method, quick, learned):
    plan = plan_of(privacy, method, quick=quick, learned=learned)
    assert plan.evolve.method == learned
    tensors = initial_adapter(BASE_MODEL, plan.model.lora_rank, plan.model.lora_alpha, 0)
    dimension = shared_dimension(plan, Layout.from_tensors(tensors))
    found = forecast_plan(plan, silos=len(modes.SILOS), colluding=1, dimension=dimension)
    assert found.refusals == ()
    assert plan.aggregation.method == method
    if privacy is not Privacy.NONE:
        assert found.epsilon_total["task"].epsilon <= EPSILON_CAP


def test_every_arm_explores_as_much():
    plans = [plan_of(privacy, method) for privacy, method in modes.ARMS]
    assert len({(p.rounds.count, p.evolve.episodes_per_round, p.evolve.window) for p in plans}) == 1
    assert len({(p.model.lora_rank, p.model.lora_alpha) for p in plans}) == 1


def test_four_silos_have_a_quarter_of_the_goals_and_the_fifth_has_all(tmp_path):
    shards = []
    for index in range(len(modes.SILOS)):
        directory = tmp_path / str(index)
        directory.mkdir()
        (directory / "silo.toml").write_text(modes.silo_toml(index, 16))
        config = SiloConfig.load(directory)
        assert config.held_out_offset == 16 * index
        shards.append(config.assignments()[0].shard)
    assert [(s.index, s.count) for s in shards[:4]] == [(i, 4) for i in range(4)]
    assert shards[4] is None


def test_arms_are_chosen_by_name():
    assert modes.chosen_arms(None) == list(modes.ARMS)
    assert modes.chosen_arms(["record_local,ffa"]) == [(Privacy.RECORD_LOCAL, "ffa")]
    with pytest.raises(SystemExit, match="choose from"):
        modes.chosen_arms(["silo,ffa"])


def test_a_row_shows_rates_epsilon_and_seconds():
    rate = {"rate": 0.5, "low": 0.46, "high": 0.54, "episodes": 832}
    figures = {
        "success": {"1.0": {"base": rate, "together": rate}, "0.0": {"base": rate}},
        "epsilon": {"task": 6.789},
        "seconds": 101.4,
        "releases": 6,
        "seconds_per_release": 16.9,
    }
    row = modes.table_row("record_distributed,rolora", figures)
    assert row.count("50.0 [46.0, 54.0]") == 3
    assert row.split()[-5:] == ["task", "6.79", "101", "6", "16.9"]
    figures["epsilon"] = {"silo": float("inf")}
    assert "unbounded" in modes.table_row("x", figures)
    figures["epsilon"] = {}
    assert "none claimed" in modes.table_row("x", figures)

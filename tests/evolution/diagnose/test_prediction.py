"""Predictions before training, slacks after it, and a menu whose keys the readers take."""

import copy
import json
import tomllib

import pytest

from evolution.diagnose.patterns import Curve, Judged
from evolution.diagnose.prediction import Signs, predict
from evolution.diagnose.rates import Rate
from evolution.diagnose.remedies import MENU, remedies_for
from evolution.diagnose.slack import burn_in, dominant_slack
from evolution.methods.evolver import EvolverSetup
from evolution.methods.options import RecipeOptions
from federation.plan.recipe import PartsSection, recipe_of
from federation.plan.tables import AggregationSection, EvolveSection, PrivacySection
from lab.experiment.config import load_experiment
from lab.experiment.tables import SettingTable
from silo_agent.config import SiloConfig
from tests.kit.paths import ROOT

E = "environments"


@pytest.mark.parametrize(
    ("signs", "pattern", "trouble"),
    [
        ({"locus": "tasks"}, "A", None),
        ({"t1": True}, "B", None),
        ({"t1": False, "t2": True}, "B", None),
        ({"t1": False, "t2": False, "t3": True, "t_star": 1, "eta_cls": 0.0}, "B", None),
        ({"t1": False, "t2": False, "t3": True, "t_star": 6, "eta_cls": 0.02}, "C", "t_star"),
        ({"t1": False, "t2": False, "t3": False, "fallback": "F1"}, "D", "D"),
        ({"t1": False, "t2": False, "t3": False, "fallback": "F2"}, "C", "eta_cls"),
        ({"t1": False, "t2": False, "overlap": Rate(count=1, total=9)}, "D", "D"),
        ({"t1": False, "t2": False, "overlap": Rate(count=8, total=9)}, "C", "delta_eff"),
    ],
)
def test_the_rules_in_their_order(signs, pattern, trouble):
    found = predict(Signs(**{"locus": E, "horizon": 8, **signs}))
    assert (found.pattern, found.trouble) == (pattern, trouble)


def test_what_was_not_looked_at_is_said():
    assert predict(Signs(locus=E, horizon=8, t1=False)).unknown == ("T2", "T3")
    assert predict(Signs(locus="tasks", horizon=8)).unknown == ()


def curve(rates):
    points = [Judged(round=n, successes=round(100 * r), tasks=100) for n, r in enumerate(rates)]
    return Curve(seed=0, points=tuple(points))


STRAIGHT = {0.0: [0.0, 0.01], 0.5: [0.1, 0.11], 1.0: [0.2, 0.21]}


@pytest.mark.parametrize(
    ("by_dial", "by_horizon", "slack"),
    [
        (STRAIGHT, None, "delta_eff"),
        ({0.0: [0.0], 0.5: [0.2], 1.0: [0.1]}, None, "eta_cls"),
        ({0.0: [0.0, 0.1], 0.5: [0.0, 0.3], 1.0: [0.0, 0.6]}, None, "eta_cls"),
        (STRAIGHT, {4: [0.04], 8: [0.16], 12: [0.36]}, "eta_ker"),
        (STRAIGHT, {4: [0.1], 8: [0.1], 12: [0.1]}, "delta_eff"),
        (None, None, None),
    ],
)
def test_a_slack_by_the_shape_of_its_gaps(by_dial, by_horizon, slack):
    quick = [curve([0.1, 0.5, 0.5, 0.5, 0.5, 0.5])]
    found = dominant_slack(quick, by_dial=by_dial, by_horizon=by_horizon)
    assert found.slack == slack
    if slack is None:
        assert "not known without" in found.why


def test_a_long_burn_in_is_t_star_also_without_a_dial():
    slow = curve([0.1] * 7 + [0.4, 0.5, 0.5, 0.5, 0.5])
    assert burn_in(slow) == pytest.approx(7 / 11)
    assert dominant_slack([slow]).slack == "t_star"
    assert burn_in(curve([0.3] * 8)) is None


def merged(document, fragment):
    found = copy.deepcopy(document)
    for key, value in tomllib.loads(fragment).items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] |= value
        else:
            found[key] = value
    return found


def reads(switch, directory):
    """Read a fragment with the reader of its file; what is wrong is an error."""
    if switch.file == "plan":
        kinds = {"evolve": EvolveSection, "aggregation": AggregationSection}
        kinds["privacy"] = PrivacySection
        plan = tomllib.loads((ROOT / "deploy" / "examples" / "plan-grpo.toml").read_text())
        changed = merged(plan, switch.toml)
        for name in tomllib.loads(switch.toml):
            kinds[name].model_validate_json(json.dumps(changed[name]))
        parts = json.dumps(changed["evolve"].get("parts", {}))
        recipe_of("grpo", PartsSection.model_validate_json(parts), None)
    elif switch.file == "silo.toml":
        (directory / "silo.toml").write_text(switch.toml)
        config = SiloConfig.load(directory)
        RecipeOptions.of(EvolverSetup(options=config.evolve))
    else:
        row = {"name": "row", "method": "fedse", **tomllib.loads(switch.toml)}
        table = SettingTable.model_validate(row)
        head = 'name = "x"\nbase = "base"\nrounds = 1\nseeds = [0]\n[evolve]\nrecipe = "grpo"\n'
        head += 'nominal_tokens = 6\n[variants]\nkind = "field-subset"\n'
        head += '[[silo]]\nname = "s"\nenvironments = ["market"]\ncount = 4\n'
        path = directory / "experiment.toml"
        path.write_text(head + '[[setting]]\nname = "row"\nmethod = "fedse"\n')
        loaded = load_experiment(path).model_copy(update={"setting": (table,)})
        (run,) = loaded.runs(base_dir=directory, base_sha256="0" * 64)
        assert run.method == table.method


@pytest.mark.parametrize(
    "switch",
    [pytest.param(s, id=f"{r.name}-{n}") for r in MENU for n, s in enumerate(r.switches)],
)
def test_every_remedy_is_named_as_it_is_switched_on(switch, tmp_path):
    reads(switch, tmp_path)


def test_every_trouble_has_a_remedy_and_the_order_is_the_menus():
    for trouble in ("t_star", "eta_cls", "eta_ker", "delta_eff", "D"):
        assert remedies_for(trouble)
    assert remedies_for("t_star")[0].name == "descriptor"
    assert {"Ditto", "FedSA", "clusters"} <= {r.name for r in remedies_for("D")}

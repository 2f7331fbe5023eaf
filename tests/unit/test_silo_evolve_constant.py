from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from silo_agent.evolve.evolver import (
    DP_MODES,
    Evaluation,
    Evolver,
    EvolverSetup,
    EvolverSetupError,
    EvolveSettings,
    UnknownEvolverError,
    Work,
)
from silo_agent.evolve.registry import EVOLVERS, make_evolver


def work(adapter, trainable=None) -> Work:
    return Work(
        round=3,
        adapter=adapter,
        adapter_sha256="ab",
        trainable=frozenset(adapter if trainable is None else trainable),
        settings=EvolveSettings(),
        seed=0,
    )


def constant(**options) -> Evolver:
    return make_evolver("constant", EvolverSetup(options=options))


ADAPTER = {
    "b": np.zeros((2, 3), np.float32),
    "a": np.ones((5,), np.float32),
    "c": np.ones((1,), np.float32),
}


def test_pattern_runs_over_the_sorted_names():
    evolution = constant(value=0.25, episodes=8, successes=2).evolve(work(ADAPTER))
    flat = np.concatenate([evolution.delta[name].ravel() for name in ("a", "b", "c")])
    assert flat.tolist() == [0.25 * (1 + j % 8 / 8) for j in range(12)]
    assert evolution.delta["b"].shape == (2, 3)
    assert all(d.dtype == np.float32 for d in evolution.delta.values())
    assert (evolution.episodes, evolution.successes) == ({"constant": 8}, {"constant": 2})


def test_only_trainable_names_are_in_the_delta():
    delta = constant(value=1.0).evolve(work(ADAPTER, ["c", "b"])).delta
    assert set(delta) == {"b", "c"}
    assert delta["c"][0] == 1 + 6 / 8


def test_nan_makes_a_delta_that_is_not_finite():
    delta = constant(value="nan").evolve(work(ADAPTER)).delta
    assert all(np.isnan(d).all() for d in delta.values())


def test_evaluation_reports_the_configured_counts():
    rows = constant(family="maze", episodes=4, successes=1).evaluate(
        Evaluation(round=0, adapter={}, adapter_sha256="", temperatures=(0.0, 1.0))
    )
    assert [(r.environment, r.temperature, r.episodes, r.successes) for r in rows] == [
        ("maze", 0.0, 4, 1),
        ("maze", 1.0, 4, 1),
    ]


def test_counters_survive_a_restart():
    first = constant()
    first.evolve(work(ADAPTER))
    second = constant()
    second.load_state_dict(first.state_dict())
    second.evolve(work(ADAPTER))
    assert second.state_dict() == {"rounds": 2}


@pytest.mark.parametrize(
    "options", [{"valeu": 1.0}, {"value": "high"}, {"episodes": 1, "successes": 2}]
)
def test_wrong_options_are_refused(options):
    with pytest.raises(EvolverSetupError):
        constant(**options)


def test_unknown_methods_are_refused():
    with pytest.raises(UnknownEvolverError, match="constant"):
        make_evolver("grpo", EvolverSetup())


def test_every_registered_method_declares_known_privacy_units():
    from silo_agent.evolve.constant import ConstantEvolver
    from silo_agent.evolve.fed_se import FedSeEvolver

    declared = {kind.name: kind.dp_compat for kind in (ConstantEvolver, FedSeEvolver)}
    assert declared.keys() == EVOLVERS.keys()
    assert all(units and units <= DP_MODES for units in declared.values())


def test_the_constant_evolver_needs_no_torch():
    code = (
        "import sys\n"
        "from silo_agent.evolve.registry import make_evolver\n"
        "from silo_agent.evolve.evolver import EvolverSetup\n"
        "make_evolver('constant', EvolverSetup(options={'value': 1.0}))\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'peft', 'gymnasium')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from dp.config import RECORD_MODES, Mode, PrivacySpec, RecordSpec
from dp.errors import TooManyUnitsError
from evolution.errors import EvolveError, EvolverSetupError, UnknownEvolverError
from evolution.methods.evolver import (
    Evaluation,
    Evolver,
    EvolverSetup,
    EvolveSettings,
    LocalPrivacy,
    StepWork,
    Work,
)
from evolution.methods.registry import make_evolver
from evolution.part import Part
from federation.errors import UnknownPartError
from federation.plan.methods import METHODS, PARTS, MethodCard
from federation.plan.recipe import PartChoice, PartsSection, Recipe, recipe_of

SHARED = PrivacySpec(
    mode=Mode.RECORD_DISTRIBUTED,
    unit="task",
    clip_l2=100.0,
    noise_multiplier=1.0,
    delta=1e-5,
    epsilon_cap=1e6,
    grid=100 << 7,
    metrics_noise_multiplier=1.0,
    record=RecordSpec(sampling_rate=1.0, expected_units=4, steps_per_round=2),
)


CONSTANT = recipe_of("constant", PartsSection())


def work(adapter, trainable=None, privacy=None) -> Work:
    return Work(
        privacy=privacy,
        round=3,
        adapter=adapter,
        adapter_sha256="ab",
        trainable=frozenset(adapter if trainable is None else trainable),
        settings=EvolveSettings(),
        seed=0,
    )


def constant(**options) -> Evolver:
    return make_evolver(EvolverSetup(recipe=CONSTANT, options=options))


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


@pytest.mark.parametrize(
    "options", [{"valeu": 1.0}, {"value": "high"}, {"episodes": 1, "successes": 2}]
)
def test_wrong_options_are_refused(options):
    with pytest.raises(EvolverSetupError):
        constant(**options)


def test_unknown_methods_are_refused():
    with pytest.raises(UnknownPartError, match="constant"):
        recipe_of("none-such", PartsSection())


@pytest.mark.parametrize("code", ["evolution.methods.nowhere:It", "json:It", "builtins:str"])
def test_a_card_whose_code_is_no_method_is_refused(code):
    card = MethodCard(name="other", says="no method", code=code, needs_model=False)
    setup = EvolverSetup(recipe=Recipe(method=card, package="", parts={}))
    with pytest.raises(UnknownEvolverError, match=code):
        make_evolver(setup)


def test_methods_run_in_the_modes_of_their_parts_and_classes_say_what_cards_say():
    assert METHODS.keys() == {
        *("agentevol", "constant", "fed-se", "fedagent", "grpo"),
        *("maxrl", "ppo", "rloo", "self-distil", "spear", "sppo"),
    }
    for name in METHODS:
        # With a head of each silo's own it does not: tests/federation/plan/test_value_head.py.
        shared = PartChoice(name="ppo", value_head="federated") if name == "ppo" else None
        recipe = recipe_of(name, PartsSection(objective=shared))
        refused = {(m, u) for m in Mode for u in ("task", "user") if recipe.refusals(m, u)}
        # Its hints look at other tasks.
        alone = {(m, "task") for m in RECORD_MODES} if name == "self-distil" else set()
        assert refused == alone
    # What the table says without torch is what the classes say.
    for name, card in PARTS.items():
        made = Part.own(name).load()
        assert (made.couples, made.reads, made.needs) == (card.couples, card.reads, card.needs)


def step_work(spec=SHARED):
    return StepWork(
        round=3,
        step=1,
        adapter=ADAPTER,
        adapter_sha256="ab",
        names=("a", "b"),
        trainable=frozenset({"a", "b"}),
        settings=EvolveSettings(),
        seed=0,
        spec=spec,
    )


def test_a_step_sums_the_pattern_once_for_each_sampled_unit():
    out = np.zeros(11, dtype=np.uint32)
    constant(value=0.25, units=3).unit_sum(step_work()).add_to(out)
    steps = SHARED.grid / SHARED.clip_l2
    assert out.tolist() == [3 * 0.25 * (1 + j % 8 / 8) * steps for j in range(11)]
    none = np.zeros(11, dtype=np.uint32)
    constant(value=0.25).unit_sum(step_work()).add_to(none)
    assert not none.any()
    with pytest.raises(TooManyUnitsError):
        constant(value=0.25, units=SHARED.record.max_units + 1).unit_sum(step_work())


def test_a_round_of_shared_steps_has_no_delta_of_its_own():
    evolution = constant(value=0.25, episodes=8, successes=2).evolve(
        work(ADAPTER, privacy=LocalPrivacy(spec=SHARED))
    )
    assert not any(d.any() for d in evolution.delta.values())
    assert evolution.episodes == {"constant": 8}


def test_a_local_training_is_charged_once():
    record = RecordSpec(sampling_rate=1.0, expected_units=4, steps_per_round=2, delta_clip_l2=1.0)
    local = dataclasses.replace(SHARED, mode=Mode.RECORD_LOCAL, record=record)
    charged = []
    privacy = LocalPrivacy(spec=local, reserve=lambda: charged.append(True))
    evolution = constant(value=0.25).evolve(work(ADAPTER, privacy=privacy))
    assert charged == [True]
    assert evolution.delta["a"][0] == 0.25


def test_a_method_without_unit_gradients_says_so():
    class Other(Evolver):
        name = "other"
        evolve = evaluate = close = None

    with pytest.raises(EvolveError, match="per-unit"):
        Other().unit_sum(step_work())


def test_the_constant_evolver_needs_no_torch():
    code = (
        "import sys\n"
        "from evolution.methods.registry import make_evolver\n"
        "from evolution.methods.evolver import EvolverSetup\n"
        "from federation.plan.recipe import PartChoice, PartsSection, recipe_of\n"
        "recipe = recipe_of('constant', PartsSection())\n"
        "make_evolver(EvolverSetup(recipe=recipe, options={'value': 1.0}))\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'peft', 'gymnasium')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

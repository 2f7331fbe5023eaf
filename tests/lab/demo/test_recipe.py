"""The demo's privacy choices: plans that parse, stay within their cap, and can learn at all."""

import dataclasses
import tomllib

import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant

from evolution.model.lora import initial_adapter
from federation.adapter.layout import Layout
from federation.forecast.forecast import forecast_plan, shared_dimension
from federation.plan.charges import epsilon_of_releases, own_unit
from federation.plan.read import read_plan
from lab.demo.choices import Privacy, Scenario
from lab.demo.recipe import EPSILON_CAP, RECIPES, REINFORCEMENT
from lab.demo.run import BASE_MODEL
from lab.demo.scenario import SILOS, DemoSettings, plan_toml, recipes_of
from tests.kit.paths import ROOT

RECORD = (Privacy.RECORD_LOCAL, Privacy.RECORD_DISTRIBUTED)


def plan_of(**choices):
    settings = DemoSettings(**choices)
    return read_plan(plan_toml(settings, base="base", base_sha256="ab" * 32).encode())


def forecast_of(plan):
    tensors = initial_adapter(
        BASE_MODEL, plan.model.lora_rank, plan.model.lora_alpha, 0, plan.model.target
    )
    layout = Layout.from_tensors(tensors)
    return forecast_plan(
        plan, silos=len(SILOS), colluding=1, dimension=shared_dimension(plan, layout)
    )


@pytest.mark.parametrize(
    ("scenario", "privacy"),
    [(scenario, privacy) for scenario in Scenario for privacy in recipes_of(scenario)],
)
def test_every_choice_may_start(scenario, privacy):
    plan = plan_of(scenario=scenario, privacy=privacy)
    assert plan.privacy.mode == privacy.value.replace("-", "_")
    found = forecast_of(plan)
    assert found.refusals == ()
    if privacy is not Privacy.NONE:
        own = own_unit(plan.spec)
        assert found.epsilon_total[own].epsilon <= plan.privacy.epsilon_cap


@pytest.mark.parametrize("privacy", RECORD)
@pytest.mark.parametrize("changes", [{}, {"rounds": 1}, {"rounds": 6}, {"episodes": 40}])
def test_at_record_level_epsilon_is_at_most_eight_whatever_is_asked_for(privacy, changes):
    """Spare attempts included, and the noise is not larger than that takes."""
    found = forecast_of(plan_of(privacy=privacy, **changes))
    assert set(found.epsilon_total) == {"task"}
    assert 0.99 * EPSILON_CAP < found.epsilon_total["task"].epsilon <= EPSILON_CAP


@pytest.mark.parametrize("privacy", RECORD)
def test_a_silo_that_trains_one_round_twice_stays_below_the_cap(privacy):
    """What the demo's killed silo may have to do."""
    plan = plan_of(privacy=privacy)
    assert plan.charged_releases > plan.releases
    assert plan.first_steps > plan.rounds.count


def test_the_noise_at_record_level_does_not_drown_the_direction():
    for privacy in RECORD:
        plan = plan_of(privacy=privacy)
        assert not plan.privacy.accept_low_cosine
        assert forecast_of(plan).predicted_cosine > 0.95


def test_more_rounds_mean_more_noise_and_never_more_epsilon():
    few, many = (plan_of(rounds=rounds).privacy.noise_multiplier for rounds in (2, 8))
    assert many > 1.5 * few


@pytest.mark.parametrize(
    ("relation", "documented"),
    [(NeighboringRelation.REPLACE_SPECIAL, 6.26), (NeighboringRelation.REPLACE_ONE, 14.66)],
)
def test_the_documented_figure_under_each_adjacency(relation, documented):
    """docs/privacy.md: what three releases of the demo are shown as, and what they are exactly."""
    recipe = RECIPES[Privacy.RECORD_LOCAL]
    spec = recipe.spec(recipe.noise_multiplier)
    shown = epsilon_of_releases(spec, releases=3, first_steps=3)["task"]
    assert f"{shown.epsilon:.2f}" == "6.77"
    accountant = PLDAccountant(relation)
    accountant.compose(GaussianDpEvent(spec.noise_multiplier), 3 * spec.record.steps_per_round)
    accountant.compose(GaussianDpEvent(spec.metrics_noise_multiplier), 3)
    assert accountant.get_epsilon(spec.delta) == pytest.approx(documented, abs=0.005)
    said = (ROOT / "docs" / "privacy.md").read_text()
    assert f"{documented:.2f}" in said


def test_a_cap_that_the_figures_alone_pass_is_no_plan():
    recipe = dataclasses.replace(RECIPES[Privacy.RECORD_LOCAL], metrics_noise=0.1)
    assert recipe.noise_multiplier == float("inf")


def test_the_silo_mode_says_what_it_is_worth():
    found = forecast_of(plan_of(privacy=Privacy.SILO))
    assert found.epsilon_total["silo"].epsilon > 1e5


def test_alone_takes_about_as_many_local_steps_as_the_private_mode():
    """A third to all of the tasks have a success, whose shortest is imitated; GRPO takes all."""
    for privacy in RECORD:
        recipe = RECIPES[privacy]
        reinforced = recipe.method == REINFORCEMENT.method
        most = recipe.expected_units * (recipe.tries_per_task if reinforced else 1)
        fewest = most / recipe.window if reinforced else most / 3
        assert recipe.epochs * fewest / recipe.batch_size >= 1
        assert recipe.epochs * most / recipe.batch_size <= 2 * recipe.steps


def test_the_plan_says_in_a_comment_what_is_protected():
    for privacy in Privacy:
        text = plan_toml(DemoSettings(privacy=privacy), base="b", base_sha256="ab" * 32)
        before = text[: text.index("[privacy]")].splitlines()[-1]
        assert before.startswith("# ")
        assert tomllib.loads(text)["name"] == f"demo-shards-{privacy.value}"

"""Every file the demo writes is one that the product reads."""

import itertools
import json
from dataclasses import asdict

import pytest

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.model.identity import base_sha256
from federation.plan.read import read_plan
from lab.demo.choices import Control, Privacy, Scenario
from lab.demo.run import BASE_MODEL
from lab.demo.scenario import SILOS, DemoSettings, plan_toml, recipes_of, silo_toml
from silo_agent.config import SiloConfig
from silo_agent.machine.machine import site_of
from silo_agent.policy.document import Policy
from silo_agent.policy.policy import ACCEPTED, check_plan
from silo_agent.policy.proposal import write_for_plan

BASE_SHA256 = base_sha256(BASE_MODEL)
ALL = list(itertools.product(Scenario, Control))
POLICIES = [
    (scenario, control, privacy) for scenario, control in ALL for privacy in recipes_of(scenario)
]


def plan_of(settings):
    return read_plan(plan_toml(settings, base="base", base_sha256=BASE_SHA256).encode())


def configs_of(settings, directory):
    """Each silo's configuration, read from the file that the demo writes."""
    for index, silo_id in enumerate(SILOS):
        (directory / silo_id).mkdir()
        text = silo_toml(settings, index, base_model=str(BASE_MODEL.absolute()))
        (directory / silo_id / "silo.toml").write_text(text)
    return [SiloConfig.load(directory / silo_id) for silo_id in SILOS]


def rules_of(policy, plan, configs):
    return [check_plan(policy, plan=plan, site=site_of(config)).rule for config in configs]


@pytest.mark.parametrize(("scenario", "control"), ALL)
def test_every_plan_parses_and_says_what_was_asked(scenario, control):
    settings = DemoSettings(
        scenario=scenario,
        control=control,
        privacy=scenario.usual_privacy,
        rounds=5,
        episodes=64,
        seed=3,
    )
    plan = plan_of(settings)
    plan.require_cohort(len(SILOS), 1)
    assert plan.evolve.explore is (control is not Control.NO_EXPLORATION)
    assert plan.evolve.learn is (control is not Control.NO_LEARNING)
    assert plan.evolve.environments == settings.environments
    assert (plan.rounds.count, plan.evolve.episodes_per_round, plan.evolve.seed) == (5, 64, 3)
    # One silo may be killed and the round goes on.
    assert plan.rounds.ready_quorum(plan.secure_aggregation.n_min) == len(SILOS) - 1
    # The first and the last adapter are judged.
    assert plan.evaluate.every_rounds == plan.rounds.count
    assert plan.spec.noise_multiplier > 0


@pytest.mark.parametrize(("scenario", "control", "privacy"), POLICIES)
def test_the_policy_written_for_a_plan_accepts_it(tmp_path, scenario, control, privacy):
    settings = DemoSettings(scenario=scenario, control=control, privacy=privacy)
    plan = plan_of(settings)
    write_for_plan(tmp_path / "policy.toml", plan, accept_no_privacy=privacy is Privacy.NONE)
    policy = Policy.load(tmp_path / "policy.toml")
    assert rules_of(policy, plan, configs_of(settings, tmp_path)) == [ACCEPTED] * len(SILOS)


@pytest.mark.parametrize("privacy", Privacy)
def test_a_plan_that_one_silo_alone_can_serve_is_refused_by_all_others(tmp_path, privacy):
    """Else three silos upload zeros, count towards n_min, and the sum is the fourth one's."""
    settings = DemoSettings(scenario=Scenario.ENVIRONMENTS, privacy=privacy)
    plan = plan_of(settings)
    write_for_plan(tmp_path / "policy.toml", plan, accept_no_privacy=True)
    policy = Policy.load(tmp_path / "policy.toml")
    evolve = plan.evolve.model_copy(update={"environments": ("maze",)})
    gating = plan.model_copy(update={"evolve": evolve})
    none = "environments_served"
    served = [none, ACCEPTED, none, none]
    assert rules_of(policy, gating, configs_of(settings, tmp_path)) == served


@pytest.mark.parametrize("scenario", list(Scenario))
def test_every_silo_file_is_read_and_the_tasks_are_dealt_out(tmp_path, scenario):
    settings = DemoSettings(scenario=scenario, privacy=scenario.usual_privacy)
    configs = configs_of(settings, tmp_path)
    assert {config.base_model for config in configs} == {BASE_MODEL.absolute()}
    assignments = [config.assignments()[0] for config in configs]
    assert [a.environment for a in assignments] == (
        list(settings.environments)
        if scenario is Scenario.ENVIRONMENTS
        else [*settings.environments] * len(SILOS)
    )
    if scenario is not Scenario.ENVIRONMENTS:
        assert [(a.shard.index, a.shard.count) for a in assignments] == [(i, 4) for i in range(4)]
    # Slices of the held-out tasks do not overlap, so they pool into independent tries.
    starts = [config.held_out_offset for config in configs]
    assert starts == [settings.held_out * index for index in range(4)]
    assert len({config.seed for config in configs}) == 4


def test_how_many_are_judged_can_be_said_and_is_kept_with_the_rest():
    few = DemoSettings(held_out=4)
    assert "held_out = 4\n" in plan_toml(few, base="b", base_sha256="ab" * 32)
    assert "held_out_offset = 8\n" in silo_toml(few, 2, base_model="b")
    assert DemoSettings(**asdict(few)) == few
    assert DemoSettings().held_out > DemoSettings(scenario=Scenario.WORDS).held_out > 4


@pytest.mark.parametrize("scenario", list(Scenario))
def test_there_are_enough_held_out_tasks_for_every_slice(scenario):
    settings = DemoSettings(scenario=scenario)
    for name in settings.environments:
        assert len(make(name).task_ids(Split.HELD_OUT)) >= settings.held_out * len(SILOS)


def test_silos_with_a_pretrained_model_train_a_few_tries_at_a_time(tmp_path):
    configs = configs_of(DemoSettings(scenario=Scenario.WORDS, privacy=Privacy.SILO), tmp_path)
    assert all(0 < config.training.micro_batch_tokens < 2048 for config in configs)


def test_the_shipped_base_model_has_the_digest_it_was_built_with():
    digest = base_sha256(BASE_MODEL)
    assert len(bytes.fromhex(digest)) == 32
    assert json.loads((BASE_MODEL / "build.json").read_text())


@pytest.mark.parametrize(
    ("capability", "gpu", "dtype"),
    [("AVX2", False, "float32"), ("AVX512", False, "bfloat16"), ("AVX2", True, "bfloat16")],
)
def test_a_pretrained_base_is_held_in_what_this_machine_is_fast_in(
    monkeypatch, capability, gpu, dtype
):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    for privacy in recipes_of(Scenario.WORDS):
        assert plan_of(DemoSettings(scenario=Scenario.WORDS, privacy=privacy)).model.dtype == dtype
    assert plan_of(DemoSettings(scenario=Scenario.SHARDS)).model.dtype == "float32"

"""What a plan and a silo's configuration make of demonstrations and personal adapters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evolution.errors import EvolverSetupError
from evolution.methods.held_out import judge
from evolution.rollout.hf import HfEngine
from federation.adapter.initial import initial_adapter
from federation.adapter.shapes import PRESETS
from federation.errors import LayoutError
from federation.plan.read import read_plan
from silo_agent.config import SiloConfig
from silo_agent.local_work.plan_terms import (
    evaluation_of,
    evaluations_of,
    evolver_setup,
    shared_layout_of,
)
from tests.kit.silo_agent.policy_samples import PLAN, edited

FEDSA = ('method = "fedavg"', 'method = "fedsa"')


def terms(tmp_path, options="", *changes):
    (tmp_path / "silo.toml").write_text(f'environments = ["craft"]\n[evolve]\n{options}')
    config = SiloConfig.load(tmp_path)
    plan = read_plan(edited(PLAN, *changes).encode())
    setup = evolver_setup(config, plan, state_dir=tmp_path / "run", privacy=None)
    asked = evaluation_of(config, plan, round_number=1, adapter={}, adapter_sha256="x")
    return setup, asked


def test_a_run_begins_with_what_was_imported_for_all_runs(tmp_path):
    setup, _ = terms(tmp_path)
    assert setup.expert_file == tmp_path / "experts.sqlite"


def test_the_target_reaches_the_method_and_refuses_an_adapter_of_other_layers(tmp_path):
    named = ('dtype = "float32"', 'dtype = "float32"\ntarget = ["v_proj"]')
    assert terms(tmp_path)[0].target == "all-linear"
    assert terms(tmp_path, "", named)[0].target == ("v_proj",)
    plan = read_plan(edited(PLAN, named).encode())
    shape = PRESETS["Qwen/Qwen2.5-0.5B"]
    one = initial_adapter(shape, rank=1, seed=0, target=("v_proj",))
    assert shared_layout_of(plan, one, 1).dimension == sum(shape.lora_parameters(1, ("v_proj",)))
    with pytest.raises(LayoutError, match=r"which model.target does not name"):
        shared_layout_of(plan, initial_adapter(shape, rank=1, seed=0), 1)


def test_a_personal_adapter_is_the_silos_choice(tmp_path):
    setup, asked = terms(tmp_path, 'personal = "ditto"')
    assert setup.options == {"personal": "ditto"}
    assert not asked.personal


@pytest.mark.parametrize("options", ["", 'personal = "ditto"', "buffer_capacity = 9"])
def test_under_fedsa_every_silo_keeps_b_and_is_judged_with_it(tmp_path, options):
    setup, asked = terms(tmp_path, options, FEDSA)
    assert setup.options["personal"] == "fedsa"
    assert setup.options.get("buffer_capacity") == (9 if "buffer" in options else None)
    assert asked.personal


@pytest.mark.parametrize("method", ["fedavg", "rolora", "ffa"])
def test_factors_that_a_plan_shares_cannot_be_the_silos_own(tmp_path, method):
    with pytest.raises(EvolverSetupError, match=f"aggregation '{method}' shares them"):
        terms(tmp_path, 'personal = "fedsa"', ('method = "fedavg"', f'method = "{method}"'))


@pytest.mark.parametrize(
    ("options", "round_number", "changes", "personal"),
    [
        ("", 1, (), [False]),
        ('personal = "ditto"', 1, (), [False, True]),
        ('personal = "finetune"', 1, (), [False, True]),
        ('personal = "residual"', 1, (), [False, True]),
        ('personal = "ditto"', 0, (), [False]),
        ('personal = "ditto"', 1, (FEDSA,), [True]),
        ("", 1, (FEDSA,), [True]),
    ],
)
def test_a_personal_adapter_is_judged_beside_the_global_one(
    tmp_path, options, round_number, changes, personal
):
    (tmp_path / "silo.toml").write_text(f'environments = ["craft"]\n[evolve]\n{options}')
    asked = evaluations_of(
        SiloConfig.load(tmp_path),
        read_plan(edited(PLAN, *changes).encode()),
        round_number=round_number,
        adapter={},
        adapter_sha256="x",
    )
    assert [one.personal for one in asked] == personal
    assert all(replace(one, personal=personal[0]) == asked[0] for one in asked)


def test_no_more_episodes_are_judged_at_once_than_the_site_plays(tmp_path, tiny_base):
    _, asked = terms(tmp_path, "[rollout]\nrollout_batch = 5\n")
    engine, batches = HfEngine(tiny_base), []
    generate = engine.generate

    def noted(prompts, sampling):
        batches.append(len(prompts))
        return generate(prompts, sampling)

    engine.generate = noted
    judge(engine, ["craft"], replace(asked, episodes=12, temperatures=(0.0,)))
    assert max(batches) == 5

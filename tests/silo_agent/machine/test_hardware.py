"""Local work fitted to made-up machines: what changes, what never does, and what is said."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from evolution.methods.evolver import EvolverSetup, EvolveSettings, Work
from evolution.rollout.engine import EngineSpec
from evolution.train.trainer import TrainerSpec
from federation.adapter.memory import training_memory
from federation.adapter.shapes import PRESETS
from silo_agent.config import SiloConfig
from silo_agent.local_work.plan_terms import settings_of
from silo_agent.machine.hardware import Fitting, choose, fixed_keys
from silo_agent.machine.machine import Gpu, Machine, look, shape_in
from tests.kit.silo_agent.policy_samples import MODES, make_plan

GIB = 2**30
SEVEN = PRESETS["Qwen/Qwen2.5-7B"]
HALF = PRESETS["Qwen/Qwen2.5-0.5B"]
PLAN = make_plan(
    ('dtype = "float32"', 'dtype = "bfloat16"'),
    ("tries_per_task = 4", "tries_per_task = 4\nmax_sequence_tokens = 4096\nbatch_size = 32"),
)


def machine(gpu_gib=None, memory_gib=64):
    gpus = () if gpu_gib is None else (Gpu(name="G", memory_bytes=int(gpu_gib * GIB)),)
    return Machine(cpus=8, memory_bytes=memory_gib * GIB, gpus=gpus)


def config(training=None, rollout=None, base="base"):
    return SimpleNamespace(
        base_model=base,
        training=training or TrainerSpec(),
        rollout=rollout or EngineSpec(),
        options=lambda _recipe: {},
    )


def fit(where, plan=PLAN, shape=SEVEN, fixed=(), **options):
    return choose(where, plan, config(**options), shape=shape, fixed=frozenset(fixed))


def used(choice, plan=PLAN, shape=SEVEN, engines=1):
    """What the choice takes while it trains, the engine's copy of the base included."""
    batch = plan.evolve.batch_size * plan.evolve.max_sequence_tokens
    return (
        training_memory(
            shape,
            rank=plan.model.lora_rank,
            tokens=choice.trainer.micro_batch_tokens or batch,
            dtype=plan.model.dtype,
            gradient_checkpointing=choice.trainer.gradient_checkpointing,
        ).total_bytes
        + engines * 2 * shape.parameters
    )


def test_where_everything_fits_nothing_changes_and_that_is_said():
    choice = fit(machine(2000))
    assert choice.trainer == TrainerSpec()
    assert choice.settings(settings_of(PLAN)) == settings_of(PLAN)
    assert choice.notes == ("everything fits into G (2000.0 GiB): nothing was changed",)


def test_a_smaller_device_gets_micro_batches_then_checkpointing_then_less_context():
    large, middle, small, least = (fit(machine(size)) for size in (139, 60, 46, 38.5))
    assert large.trainer.micro_batch_tokens >= PLAN.evolve.max_sequence_tokens
    assert not large.trainer.gradient_checkpointing
    assert middle.trainer.gradient_checkpointing
    assert middle.max_sequence_tokens == small.max_sequence_tokens == 4096
    assert middle.trainer.micro_batch_tokens > small.trainer.micro_batch_tokens >= 4096
    assert least.trainer.gradient_checkpointing
    assert 16 <= least.max_sequence_tokens == least.trainer.micro_batch_tokens < 4096
    assert sum("WARNING" in note for note in least.notes) == 1
    assert f"more than {least.max_sequence_tokens} tokens are left out" in least.notes[-1]
    for choice, size in ((large, 139), (middle, 60), (small, 46), (least, 38.5)):
        assert used(choice) <= 0.8 * size * GIB
        # A token more would not have fitted.
        larger = replace(choice.trainer, micro_batch_tokens=choice.trainer.micro_batch_tokens + 1)
        assert used(replace(choice, trainer=larger)) > 0.8 * size * GIB


@pytest.mark.parametrize("size", [38.5, 48, 80, 139, 1000])
def test_what_the_consortium_agreed_on_is_never_touched(size):
    plans = settings_of(PLAN)
    fitted = fit(machine(size)).settings(plans)
    free = {"rollout_batch", "max_sequence_tokens"}
    for name in EvolveSettings.__dataclass_fields__:
        if name not in free:
            assert getattr(fitted, name) == getattr(plans, name), name
    assert fitted.max_sequence_tokens <= plans.max_sequence_tokens


def test_what_the_operator_set_is_kept():
    spec = TrainerSpec(micro_batch_tokens=8192, gradient_checkpointing=False)
    both = fit(machine(48), training=spec, fixed=("micro_batch_tokens", "gradient_checkpointing"))
    assert both.trainer == spec
    assert any("may not fit" in note for note in both.notes)
    whole = fit(machine(48), fixed=("micro_batch_tokens",))
    assert whole.trainer.micro_batch_tokens == 0
    assert whole.trainer.gradient_checkpointing
    plain = fit(machine(60), fixed=("gradient_checkpointing",))
    assert not plain.trainer.gradient_checkpointing
    assert plain.max_sequence_tokens < fit(machine(60)).max_sequence_tokens


def test_a_base_that_cannot_be_held_makes_the_plan_unfit_before_anything_is_trained():
    choice = fit(machine(24))
    assert choice.unfit == choice.notes[0]
    assert "needs at least" in choice.unfit
    assert "G (24.0 GiB) is all there is" in choice.unfit
    assert fit(machine(24, memory_gib=64), training=TrainerSpec(device="cpu")).unfit == ""


def test_a_model_server_leaves_the_device_to_training():
    served = fit(
        machine(24),
        rollout=EngineSpec(
            kind="openai", url="http://127.0.0.1:1", model="m", max_in_flight=256, rollout_batch=2
        ),
    )
    assert not served.unfit
    assert served.rollout_batch == 256


def test_fewer_episodes_are_played_at_once_where_their_caches_do_not_fit():
    roomy, tight = fit(machine(80)), fit(machine(39.5))
    assert roomy.rollout_batch == EvolveSettings().rollout_batch
    assert 1 <= tight.rollout_batch < roomy.rollout_batch
    assert any("episodes are played at once" in note for note in tight.notes)
    many, few = (fit(machine(80), rollout=EngineSpec(rollout_batch=one)) for one in (4000, 3))
    assert roomy.rollout_batch < many.rollout_batch < 4000
    assert any("instead of 4000 episodes are played at once" in note for note in many.notes)
    assert few.rollout_batch == 3
    workers = fit(machine(80), rollout=EngineSpec(workers=3))
    assert workers.rollout_batch < roomy.rollout_batch


def test_without_a_gpu_the_memory_of_the_machine_counts():
    assert fit(machine(memory_gib=2000)).trainer == TrainerSpec()
    on_cpu = fit(machine(memory_gib=48))
    assert on_cpu.trainer.micro_batch_tokens
    assert any("the CPU's memory" in note for note in on_cpu.notes)
    assert fit(machine(48)).trainer == on_cpu.trainer


@pytest.mark.parametrize("mode", ["record_local", "record_distributed"])
def test_gradients_of_single_units_are_left_alone(mode):
    plan = make_plan(
        *MODES[mode], ('dtype = "float32"', 'dtype = "float32"'), ('base = "small"', 'base = "x"')
    )
    choice = fit(machine(8), plan=plan, shape=HALF)
    assert choice.trainer == TrainerSpec()
    assert choice.max_sequence_tokens == plan.evolve.max_sequence_tokens
    assert any("single units" in note and "fixed" in note for note in choice.notes)


def test_a_model_of_unknown_shape_and_a_silo_without_one_are_left_alone():
    unknown = fit(machine(1), shape=None)
    assert (unknown.trainer, unknown.unfit) == (TrainerSpec(), "")
    assert "not known" in unknown.notes[0]
    assert fit(machine(1), base=None).notes == ()


def test_a_shape_is_read_from_the_models_own_configuration(tmp_path):
    said = {
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
        "vocab_size": 151936, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert shape_in(tmp_path, "whatever") == HALF
    for damage in (
        {"model_type": "mamba"},
        {"hidden_size": "896"},
        {"hidden_size": -1},
        {"num_attention_heads": 0},
        {"vocab_size": 2**60},
        {"quantization_config": {"bits": 4}},
    ):
        (tmp_path / "config.json").write_text(json.dumps({**said, **damage}))
        assert shape_in(tmp_path, "whatever") is None
        assert shape_in(tmp_path, "Qwen/Qwen2.5-7B-Instruct") == SEVEN
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert shape_in(tmp_path, "whatever") is None
    assert shape_in(None, "whatever") is None


def test_what_the_file_and_the_environment_set_is_fixed(tmp_path, monkeypatch):
    path = tmp_path / "silo.toml"
    path.write_text("environments = []\n")
    assert fixed_keys(SiloConfig.load(tmp_path)) == frozenset()
    # The default, written down, is a decision as well.
    path.write_text("environments = []\n[training]\ngradient_checkpointing = false\n")
    assert fixed_keys(SiloConfig.load(tmp_path)) == {"gradient_checkpointing"}
    monkeypatch.setenv("CHORALE_SILO_TRAINING", '{"micro_batch_tokens": 0}')
    assert "micro_batch_tokens" in fixed_keys(SiloConfig.load(tmp_path))


def test_a_target_of_few_layers_takes_less_and_one_of_none_is_unfit():
    plans = {
        names: make_plan(('dtype = "float32"', f'dtype = "float32"\ntarget = {names}'))
        for names in ('"all-linear"', '["v_proj"]', '["w_proj"]')
    }
    # In float32 a layer that carries an adapter is held twice where episodes are played.
    every, one, none = plans.values()
    tight = machine(memory_gib=6)
    assert "6.0 GiB" in fit(tight, every, HALF).unfit
    assert fit(tight, one, HALF).unfit == ""
    refused = fit(machine(2000), none, HALF)
    assert "names 'w_proj'" in refused.unfit


def test_a_silo_without_a_model_looks_at_no_gpu(tmp_path, monkeypatch):
    (tmp_path / "silo.toml").write_text("environments = []\n")
    monkeypatch.setattr("silo_agent.machine.machine._gpus", lambda: pytest.fail("it looked"))
    found = look(SiloConfig.load(tmp_path))
    assert found.gpus == ()
    assert found.cpus >= 1
    assert found.memory_bytes > 2**28
    assert "no GPU" in found.line


def test_the_choice_is_made_once_and_reaches_set_up_and_work(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(
        "silo_agent.machine.hardware.look", lambda _: looked.append(1) or machine(38.5)
    )
    monkeypatch.setattr("silo_agent.machine.hardware.shape_in", lambda *_: SEVEN)
    monkeypatch.setattr("silo_agent.machine.hardware.fixed_keys", lambda _: frozenset())
    fitting = Fitting(config())
    setup = fitting.setup(PLAN, EvolverSetup(rank=8, alpha=3.0))
    assert setup.trainer.gradient_checkpointing
    assert (setup.rank, setup.alpha) == (8, 3.0)
    work = Work(
        round=1, adapter={}, adapter_sha256="", trainable=frozenset(),
        settings=settings_of(PLAN), seed=0,
    )  # fmt: skip
    fitted = fitting.work(PLAN, work)
    assert fitted.settings.max_sequence_tokens == fitting.choice(PLAN).max_sequence_tokens < 4096
    assert looked == [1]

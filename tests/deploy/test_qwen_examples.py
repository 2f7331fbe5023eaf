"""The configurations for Qwen2.5-7B and Qwen2.5-1.5B: parsed, and fitting their plans."""

import pytest

from federation.adapter.memory import rollout_memory, training_memory
from federation.adapter.shapes import shape_of
from federation.forecast.forecast import forecast_plan, shared_dimension
from federation.plan.read import read_plan
from silo_agent.config import SiloConfig
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
EXAMPLE = EXAMPLES / "qwen2.5-7b"
PLAN = read_plan((EXAMPLE / "plan.toml").read_bytes())
GRPO_EXAMPLE = EXAMPLES / "qwen2.5-1.5b-grpo"
GRPO = read_plan((GRPO_EXAMPLE / "plan.toml").read_bytes())
CARD_BYTES = 80 * 10**9
FULL = 0.8


@pytest.mark.parametrize("plan", [PLAN, GRPO], ids=lambda plan: plan.name)
def test_the_plan_can_start_with_ten_silos(plan):
    shape = shape_of(plan.model.base)
    dimension = shared_dimension(plan, shape.lora_layout(plan.model.lora_rank))
    factors = shape.lora_parameters(plan.model.lora_rank)
    assert dimension == (factors[1] if plan is PLAN else sum(factors))
    shown = forecast_plan(plan, silos=10, colluding=2, dimension=dimension)
    assert shown.refusals == ()


def loaded(tmp_path, path):
    text = path.read_text()
    (tmp_path / "base").mkdir()
    changed = text.replace('"/srv/chorale/base"', '"base"', 1)
    assert changed != text
    (tmp_path / "silo.toml").write_text(changed)
    return text, SiloConfig.load(tmp_path)


def trained_bytes(plan, training):
    return training_memory(
        shape_of(plan.model.base),
        rank=plan.model.lora_rank,
        tokens=training.micro_batch_tokens,
        dtype=plan.model.dtype,
        gradient_checkpointing=training.gradient_checkpointing,
        processes=training.processes,
        sharding=training.sharding,
    ).total_bytes


def played_bytes(plan, rollout):
    return rollout_memory(
        shape_of(plan.model.base),
        conversations=rollout.max_in_flight,
        tokens=plan.evolve.max_sequence_tokens,
        dtype=plan.model.dtype,
        paged=True,
    ).total_bytes


def test_a_silo_of_four_gpus_plays_on_two_and_trains_on_two(tmp_path):
    text, config = loaded(tmp_path, GRPO_EXAMPLE / "silo-4gpu.toml")
    rollout, training = config.rollout, config.training
    assert len(rollout.urls) == training.processes == 2
    assert set(config.families()) <= set(GRPO.evolve.environments)
    (market,) = config.environments
    assert market.variant.descriptor
    assert training.micro_batch_tokens >= GRPO.evolve.max_sequence_tokens
    assert trained_bytes(GRPO, training) <= FULL * CARD_BYTES
    assert "--gpu-memory-utilization 0.9" in text
    assert played_bytes(GRPO, rollout) <= 0.9 * CARD_BYTES


@pytest.mark.parametrize(("gpus", "training_gpus"), [(1, 1), (8, 4)])
def test_a_silo_reads_it_and_its_work_fits(tmp_path, gpus, training_gpus):
    text, config = loaded(tmp_path, EXAMPLE / f"silo-{gpus}gpu.toml")
    rollout, training = config.rollout, config.training
    assert (rollout.kind, rollout.model) == ("openai", "base")
    assert rollout.url.startswith("http://127.0.0.1:")
    assert (training.device, training.processes) == ("cuda", training_gpus)
    assert training.micro_batch_tokens >= PLAN.evolve.max_sequence_tokens
    assert set(config.families()) <= set(PLAN.evolve.environments)
    used = trained_bytes(PLAN, training)
    server = 0.0
    if gpus == 1:
        # The server shares the card and has what its command line in the file reserves.
        assert "--gpu-memory-utilization 0.5" in text
        server = 0.5 * CARD_BYTES
        assert played_bytes(PLAN, rollout) <= server
    assert used + server <= FULL * CARD_BYTES

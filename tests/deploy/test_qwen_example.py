"""The configuration of Qwen2.5-7B for one and for eight GPUs: parsed, and fitting its plan."""

import pytest

from federation.adapter.memory import rollout_memory, training_memory
from federation.adapter.shapes import shape_of
from federation.forecast.forecast import forecast_plan, shared_dimension
from federation.plan.read import read_plan
from silo_agent.config import SiloConfig
from tests.kit.paths import ROOT

EXAMPLE = ROOT / "deploy" / "examples" / "qwen2.5-7b"
PLAN = read_plan((EXAMPLE / "plan.toml").read_bytes())
CARD_BYTES = 80 * 10**9
FULL = 0.8


def test_the_plan_can_start_with_ten_silos():
    shape = shape_of(PLAN.model.base)
    dimension = shared_dimension(PLAN, shape.lora_layout(PLAN.model.lora_rank))
    assert dimension == shape.lora_parameters(8)[1]
    shown = forecast_plan(PLAN, silos=10, colluding=2, dimension=dimension)
    assert shown.refusals == ()


@pytest.mark.parametrize(("gpus", "training_gpus"), [(1, 1), (8, 4)])
def test_a_silo_reads_it_and_its_work_fits(tmp_path, gpus, training_gpus):
    text = (EXAMPLE / f"silo-{gpus}gpu.toml").read_text()
    (tmp_path / "base").mkdir()
    changed = text.replace('"/srv/chorale/base"', '"base"', 1)
    assert changed != text
    (tmp_path / "silo.toml").write_text(changed)
    config = SiloConfig.load(tmp_path)
    rollout, training = config.rollout, config.training
    assert (rollout.kind, rollout.model) == ("openai", "base")
    assert rollout.url.startswith("http://127.0.0.1:")
    assert (training.device, training.processes) == ("cuda", training_gpus)
    assert training.micro_batch_tokens >= PLAN.evolve.max_sequence_tokens
    assert set(config.families()) <= set(PLAN.evolve.environments)
    shape = shape_of(PLAN.model.base)
    used = training_memory(
        shape,
        rank=PLAN.model.lora_rank,
        tokens=training.micro_batch_tokens,
        dtype=PLAN.model.dtype,
        gradient_checkpointing=training.gradient_checkpointing,
        processes=training.processes,
        sharding=training.sharding,
    ).total_bytes
    server = 0.0
    if gpus == 1:
        # The server shares the card and has what its command line in the file reserves.
        assert "--gpu-memory-utilization 0.5" in text
        server = 0.5 * CARD_BYTES
        played = rollout_memory(
            shape,
            conversations=rollout.max_in_flight,
            tokens=PLAN.evolve.max_sequence_tokens,
            dtype=PLAN.model.dtype,
            paged=True,
        )
        assert played.total_bytes <= server
    assert used + server <= FULL * CARD_BYTES

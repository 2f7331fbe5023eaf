"""An adapter that was trained on the real model, as a user gets it: exported by the command.

The trainer of a silo imitates right answers to tasks of `words`, a coordinator takes the result as
the adapter that a run starts from, and `chorale adapter export` writes the directory that is given
to peft and to vLLM.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.model.causal_lm import load_tokenizer
from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.rollout.conversation import ChatFormat
from evolution.train.rows import Row
from evolution.train.sft import SftTrainer
from evolution.train.trainer import SftSettings, TrainerSpec
from federation.adapter.encoding import encode_adapter
from tests.kit.processes import constant_federation as cf

RANK, ALPHA = 8, 16.0
TRAINED_ON = 48
"""Tasks; those after them are free for comparing."""
PLAN = SftSettings(epochs=1, batch_size=8, learning_rate=1e-3, grad_clip_l2=1.0, seed=1)


def tuning_tasks(start: int, count: int) -> list[int]:
    """Tasks of `words` that are for tuning: never those that anybody is judged on."""
    environment = make("words")
    ids = environment.task_ids(Split.PRETRAIN)[start : start + count]
    environment.close()
    return list(ids)


def questions(chat: ChatFormat, ids: list[int]) -> list[list[int]]:
    """Token ids up to the agent's first word, as an episode begins."""
    environment = make("words")
    found = []
    for task_id in ids:
        first, _ = environment.reset(task_id)
        found.append(chat.opening(environment.instruction, first, environment.examples))
    environment.close()
    return found


def trained(base: Path) -> dict[str, np.ndarray]:
    """Six steps of imitation in float32."""
    chat = ChatFormat.from_tokenizer(load_tokenizer(base))
    environment, rng = make("words"), np.random.default_rng(0)
    rows = []
    for task_id in tuning_tasks(0, TRAINED_ON):
        first, _ = environment.reset(task_id)
        episode = chat.render(
            environment.instruction,
            [first],
            [environment.expert_action(rng)],
            examples=environment.examples,
        )
        ids = np.array(episode.token_ids, dtype=np.int64)
        rows.append(
            Row(
                token_ids=ids,
                mask=np.array(episode.agent_mask, dtype=np.bool_),
                weights=np.ones(ids.shape, np.float32),
                logprobs=np.zeros(ids.shape, np.float32),
                name=str(task_id),
            )
        )
    environment.close()
    start = initial_adapter(base, RANK, ALPHA, 0)
    trainer = SftTrainer(
        base,
        rank=RANK,
        alpha=ALPHA,
        dtype="float32",
        # Less memory than a batch at once: a server and three models come after this.
        spec=TrainerSpec(device="cpu", micro_batch_tokens=400),
    )
    trainer.reset(start)
    report = trainer.train(rows, Part.own("nll"), PLAN, trainable=frozenset(start))
    assert report.optimiser_steps == TRAINED_ON // PLAN.batch_size
    return trainer.adapter()


def exported(base: Path, tensors: dict[str, np.ndarray], directory: Path) -> Path:
    """What `chorale adapter export` writes of a run that starts from these tensors."""
    plan = (
        cf.plan_toml()
        .replace('base = "none"', f'base = "{base}"')
        .replace(cf.NO_MODEL, base_sha256(base))
        .replace(f"lora_rank = {cf.RANK}", f"lora_rank = {RANK}\nlora_alpha = {ALPHA}")
    )
    with cf.federation(directory / "federation") as loopback:
        plan_file, adapter_file = cf.write_run(loopback, plan)
        adapter_file.write_bytes(encode_adapter(tensors))
        run_id = loopback.start_run(plan_file, adapter_file, token="run")
        out = directory / "adapter"
        loopback.chorale(
            "adapter", "export", run_id, "--round", "0", "--out", str(out),
            "--data", str(loopback.data_dir),
        )  # fmt: skip
    return out

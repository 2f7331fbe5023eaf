"""The doctor's steps about the machine: GPU, memory against the model, disk, and a dry round.

A dry round is a round of local work that nobody hears of: the model, the environments and the
trainer, once. Its invariants:

1. Nothing is asked of the coordinator, charged to the ledger, or written to the silo's buffer or
   state: the method works in a directory of its own, which is deleted, without the silo's
   demonstrations and without privacy, because nothing leaves.
2. It trains on whatever was played, solved or not: a dry round proves that training works, and says
   nothing about what is learned.
3. What is reported are durations and sizes, never what was played.

Covered: no GPU, a model that does not fit by ``federation/adapter/memory.py``, a disk that is full
or read-only, the methods of the registry. Not covered: other users of the same GPU later on; the
plan's sizes: a few episodes fit where a round of hundreds may not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from evolution.errors import EvolverSetupError
from evolution.methods.evolver import EvolverSetup, EvolveSettings, Work
from evolution.methods.registry import make_evolver
from federation.adapter.encoding import encode_adapter
from federation.adapter.memory import DTYPE_BYTES, rollout_memory, training_memory
from federation.adapter.shapes import MAX_CONFIG_BYTES, ModelShape, shape_from_config
from federation.errors import ModelShapeError
from federation.plan.recipe import FED_SE, PartChoice, PartsSection, Recipe, recipe_of
from ops.doctor.checkup import Verdict, failed, ok, warning
from ops.files import prove_writable
from silo_agent.config import SiloConfig

__all__ = ["DryRound", "dry_round", "judge_disk", "judge_gpu", "judge_memory"]

LEAST_FREE_BYTES: Final = 256 << 20
ENOUGH_FREE_BYTES: Final = 2 << 30
_RANK: Final = 8
_TOKENS: Final = 1024
_CONVERSATIONS: Final = 16
_ROOM: Final = 0.8
"""The share of the memory that an estimate may take: the framework needs the rest."""
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_ALPHA: Final = 16.0
_EPISODES: Final = 4
_SYNTHETIC: Final = (4, 32)
"""Rank and width of the one pair of factors of a silo without a base model."""


def judge_gpu(config: SiloConfig) -> Verdict:
    """Whether torch is here, and a GPU."""
    if importlib.util.find_spec("torch") is None:
        if config.base_model is None:
            return ok("torch is not installed, and without a base model not needed")
        return failed("torch is not installed", "pip install 'chorale[silo]'")
    import torch

    from evolution.model.speed import fast_in_16_bits

    if not torch.cuda.is_available():
        if config.base_model is None:
            return ok("no GPU, and without a base model none is needed")
        text = f"torch {torch.__version__} sees no GPU: this silo works on the CPU"
        hint = "nvidia-smi must show one; a CPU build of torch sees none"
        if not fast_in_16_bits():
            text += ", which is several times slower in bfloat16 than in float32"
            hint += '. On this CPU ask for plans with [model] dtype = "float32"'
        return warning(text, hint)
    names = ", ".join(
        f"{torch.cuda.get_device_name(index)} "
        f"{torch.cuda.get_device_properties(index).total_memory // _GIB} GiB"
        for index in range(torch.cuda.device_count())
    )
    return ok(f"torch {torch.__version__}: {names}")


def judge_memory(config: SiloConfig) -> Verdict:
    """The model's estimated memory against what the GPU, or this machine, has free."""
    if config.base_model is None:
        return ok("no base model, nothing to hold")
    try:
        shape, dtype = _shape_and_dtype(config.base_model)
    except (OSError, ModelShapeError) as error:
        return warning(
            f"not estimated: {error}",
            "chorale-silo doctor --dry-round tries it",
        )
    trainer = config.training
    training = training_memory(
        shape,
        rank=_RANK,
        tokens=trainer.micro_batch_tokens or 8 * _TOKENS,
        dtype=dtype,
        gradient_checkpointing=trainer.gradient_checkpointing,
        processes=trainer.processes,
        sharding=trainer.sharding,
    ).total_bytes
    playing = 0
    if config.rollout.kind == "hf":
        playing = rollout_memory(
            shape,
            conversations=min(_CONVERSATIONS, config.rollout.rollout_batch),
            tokens=_TOKENS,
            dtype=dtype,
        ).total_bytes
    needed, (place, free) = training + playing, _free_memory()
    text = (
        f"about {needed / _GIB:.1f} GiB ({training / _GIB:.1f} to train, {playing / _GIB:.1f} to "
        f"play, {dtype}), {free / _GIB:.1f} GiB free on {place}"
    )
    if needed > free:
        return failed(
            text,
            "[training] micro_batch_tokens = 1024 and gradient_checkpointing = true of silo.toml, "
            "or more memory",
        )
    if needed > _ROOM * free:
        return warning(text, "[training] gradient_checkpointing = true leaves more room")
    return ok(text)


def judge_disk(config: SiloConfig) -> Verdict:
    """Free space for buffer, adapters and spools, and a file that can really be written."""
    place = config.data_dir
    try:
        prove_writable(place)
    except OSError as error:
        return failed(
            f"{place} takes no file: {error.strerror}", "free space there, or remount it rw"
        )
    free = shutil.disk_usage(place).free
    if free < LEAST_FREE_BYTES:
        return failed(
            f"{free // _MIB} MiB free in {place}; at least {LEAST_FREE_BYTES // _MIB} are needed",
            "free space there",
        )
    if free < ENOUGH_FREE_BYTES:
        return warning(f"{free // _MIB} MiB free in {place}", "free space before a long run")
    return ok(f"{free // _MIB} MiB free in {place}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRound:
    """What was tried."""

    method: str
    """Of the registry."""
    dimension: int
    """Entries of the adapter."""
    episodes: int
    """Finished."""
    duration_s: float
    """Of everything, loading the model included."""


def dry_round(config: SiloConfig) -> DryRound:
    """Play a few episodes and train one step on them.

    Raises:
        EvolverSetupError: The method cannot run with this configuration, or learned nothing.
    """
    parts = PartsSection(credit=PartChoice(name="all-tries"))
    recipe = (
        recipe_of("constant", PartsSection())
        if config.base_model is None
        else recipe_of(FED_SE, parts)
    )
    options = {
        name: value
        for name, value in config.options(recipe).items()
        if not name.startswith("personal") and name != "gate"
    }
    started_s = time.monotonic()
    adapter = _initial(config)
    with tempfile.TemporaryDirectory(prefix="chorale-dry-round-") as directory:
        evolver = make_evolver(
            EvolverSetup(
                assignments=config.assignments(),
                base_dir=config.base_model,
                state_dir=Path(directory),
                expert_file=None,
                rank=_RANK,
                alpha=_ALPHA,
                threads=config.threads,
                catalogue=config.catalogue(),
                engine=config.rollout,
                trainer=config.training,
                privacy=None,
                recipe=recipe,
                options=options,
            )
        )
        try:
            evolution = evolver.evolve(
                Work(
                    round=0,
                    adapter=adapter,
                    adapter_sha256=hashlib.sha256(encode_adapter(adapter)).hexdigest(),
                    trainable=frozenset(adapter),
                    settings=EvolveSettings(
                        episodes=_EPISODES * max(1, len(config.environments)),
                        tries_per_task=2,
                        epochs=1,
                        batch_size=2,
                    ),
                    seed=config.seed,
                )
            )
        finally:
            evolver.close()
    _require_learned(recipe, evolution.delta, sum(evolution.episodes.values()))
    return DryRound(
        method=recipe.method.name,
        dimension=sum(tensor.size for tensor in adapter.values()),
        episodes=sum(evolution.episodes.values()),
        duration_s=time.monotonic() - started_s,
    )


def _shape_and_dtype(base_dir: Path) -> tuple[ModelShape, str]:
    """The shape and dtype that a base model's ``config.json`` states."""
    with (base_dir / "config.json").open("rb") as file:
        content = file.read(MAX_CONFIG_BYTES + 1)
    shape = shape_from_config(content)
    said = json.loads(content)
    dtype = str(said.get("dtype") or said.get("torch_dtype") or "")
    return shape, dtype if dtype in DTYPE_BYTES else "float32"


def _free_memory() -> tuple[str, int]:
    """Where the model would be held, and how much is free there."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return "the GPU", int(torch.cuda.mem_get_info()[0])
    meminfo = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    return "this machine", int(meminfo["MemAvailable"].split()[0]) * 1024


def _initial(config: SiloConfig) -> dict[str, np.ndarray]:
    if config.base_model is not None:
        from evolution.model.lora import initial_adapter

        return initial_adapter(config.base_model, _RANK, _ALPHA, seed=0)
    rank, width = _SYNTHETIC
    prefix = "base_model.model.layers.0.proj"
    return {
        f"{prefix}.lora_A.weight": np.ones((rank, width), np.float32),
        f"{prefix}.lora_B.weight": np.zeros((width, rank), np.float32),
    }


def _require_learned(recipe: Recipe, delta: Mapping[str, np.ndarray], episodes: int) -> None:
    if not all(np.isfinite(tensor).all() for tensor in delta.values()):
        raise EvolverSetupError("the trained adapter is not finite")
    if not recipe.parts:
        return
    if episodes == 0:
        raise EvolverSetupError("no episode was finished: the environments dropped all of them")
    if not any(tensor.any() for tensor in delta.values()):
        raise EvolverSetupError("training changed nothing")

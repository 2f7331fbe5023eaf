"""The doctor's steps about the machine: GPU, memory against the model, disk.

Covered: no GPU, a model that does not fit by ``federation/adapter/memory.py``, a disk that is full
or read-only. Not covered: other users of the same GPU later on.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Final

from federation.adapter.memory import DTYPE_BYTES, rollout_memory, training_memory
from federation.adapter.shapes import MAX_CONFIG_BYTES, ModelShape, shape_from_config
from federation.errors import ModelShapeError
from ops.doctor.checkup import Verdict, failed, ok, warning
from ops.files import prove_writable
from silo_agent.config import SiloConfig

__all__ = ["judge_disk", "judge_gpu", "judge_memory"]

LEAST_FREE_BYTES: Final = 256 << 20
ENOUGH_FREE_BYTES: Final = 2 << 30
_RANK: Final = 8
_TOKENS: Final = 1024
_CONVERSATIONS: Final = 16
_ROOM: Final = 0.8
"""The share of the memory that an estimate may take: the framework needs the rest."""
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


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

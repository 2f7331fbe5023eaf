"""A plan's base model: its shape and digest, its first adapter, what it takes of a GPU.

Covered: a ``config.json`` that is named, the one in the plan's own base directory, the published
models of ``federation.adapter.shapes``. Not covered: loading weights; they are only hashed. What a
silo has: `[rollout]` and `[training]` of its ``silo.toml`` say how it fits the work to it.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ops.cli.envelope import CommandError, Exit, Format, show_result

if TYPE_CHECKING:
    from federation.adapter.memory import Rollout, Training
    from federation.adapter.shapes import ModelShape
    from federation.plan.plan import Plan

__all__ = ["base_digest", "base_shape", "describe_memory", "first_adapter", "memory_figures"]

_CONFIG_FILE: Final = "config.json"
_CONVERSATIONS: Final = 64
"""Those of ``[rollout] max_in_flight`` if a silo says nothing."""
_MANY: Final = 8
_GIB: Final = 1 << 30
_FEW: Final = 1_000_000
"""Numbers of an adapter that are not told in millions."""


def base_shape(base: str, base_config: Path | None) -> tuple[ModelShape, str] | None:
    """The shape of a plan's base model, and where it is known from; None if it is not.

    ``base`` is what the plan calls it. ``base_config`` is a ``config.json`` or the directory that
    holds it, and goes before that.

    Raises:
        ModelShapeError: The file does not say a shape that is known here.
        OSError: It cannot be read.
    """
    from federation.adapter.shapes import MAX_CONFIG_BYTES, shape_from_config, shape_of

    path = _place(base, base_config)
    if path is not None:
        file = path / _CONFIG_FILE if path.is_dir() else path
        with file.open("rb") as opened:
            return shape_from_config(opened.read(MAX_CONFIG_BYTES + 1)), str(file)
    known = shape_of(base)
    return None if known is None else (known, f"the published shape of {base}")


def base_digest(base: str, base_config: Path | None) -> tuple[str, Path] | None:
    """The digest of the base model's files, and their directory; None if they are not here.

    A ``config.json`` alone has a shape and no digest.
    """
    from federation.adapter.identity import base_sha256
    from federation.errors import BaseFilesError

    path = _place(base, base_config)
    if path is None:
        return None
    directory = path if path.is_dir() else path.parent
    try:
        return base_sha256(directory), directory
    except BaseFilesError:
        return None


def _place(base: str, base_config: Path | None) -> Path | None:
    """Where the base model, or its ``config.json``, lies; None if that is not known here."""
    if base_config is None and _is_directory(base):
        return Path(base)
    return base_config


def _is_directory(base: str) -> bool:
    """Whether a plan's base is a directory here; it may be a model's name, or too long for one."""
    try:
        return Path(base).is_dir()
    except (OSError, ValueError):
        return False


def first_adapter(plan: Plan, base_config: Path | None) -> tuple[bytes, str]:
    """The adapter that a run starts from when none is given, and where its shape is known from.

    Raises:
        CommandError: The base model's shape is not known.
        FederationError: There is no such adapter.
    """
    from federation.adapter.encoding import encode_adapter
    from federation.adapter.initial import initial_adapter

    found = base_shape(plan.model.base, base_config)
    if found is None:
        raise CommandError(
            f"no initial adapter: the plan's base {plan.model.base!r} is no directory here, and "
            "its shape is not known",
            code="adapter_needed",
            exit_code=Exit.ARGUMENTS,
            next_step=(
                "give --base-config FILE_OR_DIR with the model's config.json, or --adapter FILE "
                "from chorale-lab adapter init BASE_DIR --out FILE"
            ),
        )
    shape, source = found
    made = initial_adapter(
        shape,
        rank=plan.model.lora_rank,
        seed=plan.evolve.seed,
        target=plan.model.target,
        value_head=plan.recipe.shares_value_head,
    )
    return encode_adapter(made), source


def memory_figures(plan: Plan, shape: ModelShape | None) -> dict[str, Any] | None:
    """What training and rollouts take, for the envelope; None if the base model is not known."""
    if shape is None:
        return None
    from federation.adapter.memory import DTYPE_BYTES

    A, B = shape.lora_parameters(plan.model.lora_rank, plan.model.target)
    training, rollout = _estimates(plan, shape)
    return {
        "base": plan.model.base,
        "parameters": shape.parameters,
        "lora_a_parameters": A,
        "lora_b_parameters": B,
        "kv_bytes_per_token": DTYPE_BYTES[plan.model.dtype] * shape.kv_elements_per_token,
        "training": [{**asdict(row), "total_bytes": row.total_bytes} for row in training],
        "rollout": {**asdict(rollout), "total_bytes": rollout.total_bytes},
    }


def describe_memory(output: Format, plan: Plan, shape: ModelShape | None) -> None:
    """Say to people what :func:`memory_figures` tells programs."""
    if shape is None:
        show_result(
            output,
            f"memory of a GPU: not estimated, the shape of {plan.model.base!r} is not known here",
        )
        return
    A, B = shape.lora_parameters(plan.model.lora_rank, plan.model.target)
    training, rollout = _estimates(plan, shape)
    show_result(
        output,
        f"{plan.model.base}: {shape.parameters / 1e9:.2f} billion parameters; adapter at "
        f"r = {plan.model.lora_rank}{_on(plan)}: {_numbers(A, B)}, "
        f"{_mib(A + B):.1f} MiB in float32 (B alone {_mib(B):.1f})",
    )
    show_result(
        output,
        f"memory of a GPU, estimated, in GiB, {training[0].tokens} tokens in a forward pass; leave "
        "a fifth free for the framework:",
    )
    for row in training:
        show_result(
            output,
            f"  training, {_gpus(row)}, gradient checkpointing "
            f"{'on ' if row.gradient_checkpointing else 'off'}: {_gib(row.total_bytes)} = "
            f"{_gib(row.weights_bytes)} weights + {_gib(row.adapter_bytes)} adapter + "
            f"{_gib(row.activations_bytes)} activations + {_gib(row.logits_bytes)} logits",
        )
    show_result(
        output,
        f"  rollouts: {_gib(rollout.total_bytes)} = {_gib(rollout.weights_bytes)} weights + "
        f"{_gib(rollout.cache_bytes)} for {rollout.conversations} conversations of "
        f"{rollout.tokens} tokens",
    )


def _estimates(plan: Plan, shape: ModelShape) -> tuple[list[Training], Rollout]:
    from federation.adapter.memory import rollout_memory, training_memory

    tokens, dtype = plan.evolve.max_sequence_tokens, plan.model.dtype
    training = [
        training_memory(
            shape,
            rank=plan.model.lora_rank,
            target=plan.model.target,
            tokens=tokens,
            dtype=dtype,
            gradient_checkpointing=checkpointing,
            processes=processes,
            sharding="ddp" if processes == 1 else "fsdp",
        )
        for processes, checkpointing in ((1, False), (1, True), (_MANY, True))
    ]
    rollout = rollout_memory(
        shape, target=plan.model.target, conversations=_CONVERSATIONS, tokens=tokens, dtype=dtype
    )
    return training, rollout


def _gpus(row: Training) -> str:
    return "one GPU" if row.processes == 1 else f"each of {row.processes} GPUs with {row.sharding}"


def _on(plan: Plan) -> str:
    from federation.adapter.target import ALL_LINEAR

    target = plan.model.target
    return "" if target == ALL_LINEAR else f" on {', '.join(target)}"


def _numbers(A: int, B: int) -> str:
    if A + B < _FEW:
        return f"A {A:,}, B {B:,} numbers"
    return f"A {A / 1e6:.2f}, B {B / 1e6:.2f} million"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f}"


def _mib(parameters: int) -> float:
    return 4 * parameters / (1 << 20)

"""The base model's shape for a plan, and the first adapter that follows from it.

Covered: a ``config.json`` that is named, the one in the plan's own base directory, the published
models of ``federation.adapter.shapes``. Not covered: reading weights; nothing here does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ops.cli.envelope import CommandError, Exit

if TYPE_CHECKING:
    from federation.adapter.shapes import ModelShape
    from federation.plan.plan import Plan

__all__ = ["base_shape", "first_adapter"]

CONFIG_FILE = "config.json"


def base_shape(plan: Plan, base_config: Path | None) -> tuple[ModelShape, str] | None:
    """The shape of a plan's base model, and where it is known from; None if it is not.

    Args:
        plan: Names its base.
        base_config: A ``config.json`` or the directory that holds it; goes before the plan.

    Raises:
        ModelShapeError: The file does not say a shape that is known here.
        OSError: It cannot be read.
    """
    from federation.adapter.shapes import MAX_CONFIG_BYTES, shape_from_config, shape_of

    path = base_config
    if path is None and _is_directory(plan.model.base):
        path = Path(plan.model.base)
    if path is not None:
        file = path / CONFIG_FILE if path.is_dir() else path
        with file.open("rb") as opened:
            return shape_from_config(opened.read(MAX_CONFIG_BYTES + 1)), str(file)
    known = shape_of(plan.model.base)
    return None if known is None else (known, f"the published shape of {plan.model.base}")


def _is_directory(base: str) -> bool:
    """Whether a plan's base is a directory here; it may be a model's name, or too long for one."""
    try:
        return Path(base).is_dir()
    except (OSError, ValueError):
        return False


def first_adapter(plan: Plan, base_config: Path | None) -> tuple[bytes, str]:
    """The adapter that a run starts from when none is given, and where its shape is known from.

    Args:
        plan: Decides rank and seed.
        base_config: As for :func:`base_shape`.

    Raises:
        CommandError: The base model's shape is not known.
        FederationError: There is no such adapter.
    """
    from federation.adapter.encoding import encode_adapter
    from federation.adapter.initial import initial_adapter

    found = base_shape(plan, base_config)
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
    made = initial_adapter(shape, rank=plan.model.lora_rank, seed=plan.evolve.seed)
    return encode_adapter(made), source

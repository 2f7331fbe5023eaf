"""Writing an adapter as an ordinary peft directory. No torch, so the coordinator can export too.

Files: ``adapter_model.safetensors`` (float32 factors under peft's names, sorted),
``adapter_config.json`` (what ``peft.PeftModel.from_pretrained`` reads), ``provenance.json`` (where
the adapter comes from, for audits) and, given a card, ``README.md``. Equal arguments give equal
bytes. Each file appears complete or not at all.

``vllm serve --enable-lora`` reads the same directory: of the configuration it needs ``r``,
``lora_alpha`` (which it declares an integer, so a whole α is written as one), ``target_modules``,
``bias`` "none" and ``modules_to_save`` null (vLLM, ``vllm/lora/peft_helper.py``), and r must not
exceed its ``--max-lora-rank``.

``target_modules`` are the names of a plan's target as it lists them, else the last components of
the adapted layers' names.

A value head that a critic learned changes nothing that the adapter says, and peft knows no such
tensor: it stands beside them in ``value_head.safetensors``, from which a further training could go
on.

Covered: LoRA with one rank and one α, on all linear layers but the head or on those that a target
names. Not covered: per-layer ranks, saved embeddings.

Errors::

    ExportError   the tensors are not a complete LoRA adapter of that rank, or the directory holds
                  what no export wrote
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from federation.adapter.target import ALL_LINEAR, Target, require_named
from federation.adapter.value_head import head_of, without_head
from federation.errors import LayoutError

__all__ = ["ExportError", "require_export_directory", "write_peft_adapter"]

_PREFIX = "base_model.model."
_PROVENANCE = "provenance.json"
_VALUE_HEAD = "value_head.safetensors"
_MAX_PROVENANCE_BYTES = 1 << 20
_A, _B = ".lora_A.weight", ".lora_B.weight"


class ExportError(ValueError):
    """The tensors are not a complete LoRA adapter of that rank, or the directory is in use."""


def require_export_directory(out_dir: Path) -> None:
    """Refuse a directory in which an export could replace somebody else's files.

    Raises:
        ExportError: It is neither new, nor empty, nor written by an export before.
    """
    if not out_dir.exists() or not any(out_dir.iterdir()):
        return
    try:
        with (out_dir / _PROVENANCE).open("rb") as file:
            said = json.loads(file.read(_MAX_PROVENANCE_BYTES))
    except (OSError, ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or "adapter_sha256" not in said:
        raise ExportError(f"{out_dir} is not empty, and not from an export: nothing was written")


def write_peft_adapter(
    tensors: Mapping[str, np.ndarray],
    out_dir: str | Path,
    *,
    base: str,
    rank: int,
    alpha: float,
    target: Target = ALL_LINEAR,
    provenance: Mapping[str, str],
    card: str | None = None,
) -> Path:
    """Write an adapter directory, created if absent, with all factors by peft state-dict key.

    A value head among them goes into a file of its own.

    ``base`` is what the adapter sits on: a directory or a model id. ``target`` is what the adapter
    was made for: whoever loads it puts factors on just those layers. ``card`` is as
    `federation.adapter.card` makes it; None writes none.

    Raises:
        ExportError: A name is not a LoRA factor's, a factor lacks its partner, a shape does not
            fit the rank, a layer is not of the target, or an entry is not finite.
    """
    head, tensors = head_of(tensors), without_head(tensors)
    modules = _modules(tensors, rank)
    names = {module.rpartition(".")[2] for module in modules}
    if target != ALL_LINEAR:
        try:
            require_named(modules, target)
        except LayoutError as error:
            raise ExportError(str(error)) from error
        names = set(target)
    config: dict[str, Any] = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted(names),
        "task_type": "CAUSAL_LM",
    }
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "adapter_model.safetensors", _saved(tensors))
    if head:
        _write(out / _VALUE_HEAD, _saved(head))
    else:
        # An earlier export's would be another adapter's.
        (out / _VALUE_HEAD).unlink(missing_ok=True)
    _write(out / "adapter_config.json", _json(config))
    _write(out / _PROVENANCE, _json(dict(provenance)))
    if card is not None:
        _write(out / "README.md", card.encode())
    return out


def _modules(tensors: Mapping[str, np.ndarray], rank: int) -> set[str]:
    if not tensors:
        raise ExportError("there are no tensors to export")
    modules: set[str] = set()
    for name, tensor in tensors.items():
        for suffix, partner, rank_axis in ((_A, _B, 0), (_B, _A, 1)):
            if name.startswith(_PREFIX) and name.endswith(suffix):
                module = name[len(_PREFIX) : -len(suffix)]
                if f"{_PREFIX}{module}{partner}" not in tensors:
                    raise ExportError(f"{name} has no partner")
                if tensor.ndim != 2 or tensor.shape[rank_axis] != rank:
                    raise ExportError(f"{name}: shape {tensor.shape} does not have rank {rank}")
                modules.add(module)
                break
        else:
            raise ExportError(f"{name!r} does not name a LoRA factor")
        if not np.isfinite(tensor).all():
            raise ExportError(f"{name} has entries that are not finite")
    return modules


def _saved(tensors: Mapping[str, np.ndarray]) -> bytes:
    arrays = {
        name: np.ascontiguousarray(tensors[name], dtype=np.float32) for name in sorted(tensors)
    }
    return save(arrays, metadata={"format": "pt"})


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)

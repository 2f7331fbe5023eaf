"""An adapter merged into its base: W' = W + (α/r)·B·A (LoRA, arXiv 2106.09685, §4.1).

The result is an ordinary Hugging Face directory that needs no peft. Invariants:

1. The sum is computed in float32 and rounded once to the dtype that W has; what rounding lost is
   counted.
2. Weights are read and written shard by shard: memory is the largest shard, its adapted weights
   in float32, and the adapter. Tensors keep their names, shards their files.
3. Every module of the adapter is found in the base with fitting shapes, or nothing is written.
4. The directory appears complete or not at all; one that is not empty is refused.

Beside the weights go the files of the base that are not weights (configuration, tokenizer, chat
template), and the adapter's model card and provenance, with a note of the merge.

Covered: dense linear layers in safetensors of float32, bfloat16 or float16; the directory that
`chorale adapter export` writes, or a bare file of factors with α given. Not covered: quantised
bases, fused projections, embeddings.

Errors::

    MergeError   what was given cannot be merged; the message says why
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["Adapter", "MergeError", "Merged", "merge", "read_adapter_at"]

_MAX_ADAPTER_BYTES: Final = 1 << 31
_MAX_CONFIG_BYTES: Final = 1 << 20
_MAX_ALPHA: Final = 1e6
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_WEIGHTS: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".gguf"})
_CARD, _PROVENANCE = "README.md", "provenance.json"


class MergeError(Exception):
    """What was given cannot be merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A LoRA adapter in memory."""

    factors: Mapping[str, tuple[np.ndarray, np.ndarray]]
    """(A of r x in, B of out x r), float32, by the module's name in the base."""
    scale: float
    """α/r."""
    sha256: str
    """Of the file of factors."""
    beside: Mapping[str, bytes]
    """The model card and the provenance, where there are any."""


def read_adapter_at(path: Path, *, alpha: float | None = None) -> Adapter:
    """Read an exported directory, or a safetensors file of factors.

    The directory holds `adapter_model.safetensors` and `adapter_config.json`. α is needed for a
    file, and refused where a directory says otherwise.

    Raises:
        MergeError: It is not a complete LoRA adapter.
    """
    directory = path if path.is_dir() else None
    file = path / "adapter_model.safetensors" if directory else path
    content = _read(file, _MAX_ADAPTER_BYTES)
    factors = _factors(content)
    rank = next(iter(factors.values()))[0].shape[0]
    if any(a.shape[0] != rank or b.shape[1] != rank for a, b in factors.values()):
        raise MergeError("the adapter's layers do not have one common rank")
    if directory is not None:
        stated = _config(directory / "adapter_config.json", rank)
        if alpha is not None and alpha != stated:
            raise MergeError(f"the adapter's configuration says α = {stated:g}, not {alpha:g}")
        alpha = stated
    if alpha is None:
        raise MergeError(f"{path} does not say its α: give it")
    if not 0 < alpha <= _MAX_ALPHA:
        raise MergeError(f"α is {alpha:g}, not above 0 and at most {_MAX_ALPHA:g}")
    beside = {}
    for name in (_CARD, _PROVENANCE):
        if directory is not None and (directory / name).is_file():
            beside[name] = _read(directory / name, _MAX_CONFIG_BYTES)
    return Adapter(
        factors=factors,
        scale=alpha / rank,
        sha256=hashlib.sha256(content).hexdigest(),
        beside=beside,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """What a merge came to.

    Weights of 16 bits lie on a coarse grid, and a change below half a step of it vanishes: of a
    small adapter most does.
    """

    directory: Path
    """The model."""
    moved: float
    """The share of the adapted weights that are not the base's any more, of those to be changed."""
    error: float
    """‖what was added − (α/r)·B·A‖ / ‖(α/r)·B·A‖ over all layers; 0 where nothing was to be."""


@dataclass(kw_only=True, slots=True)
class _Lost:
    """Sums over the layers."""

    asked: int = 0
    moved: int = 0
    error_sq: float = 0.0
    change_sq: float = 0.0

    def count(self, weight: torch.Tensor, merged: torch.Tensor, change: torch.Tensor) -> None:
        added = merged.float() - weight.float()
        self.asked += int((change != 0).sum())
        self.moved += int((added != 0).sum())
        self.error_sq += float((added - change).double().square().sum())
        self.change_sq += float(change.double().square().sum())


def merge(adapter: Adapter, base: Path, out: Path) -> Merged:
    """Write the merged model into a directory that is absent or empty.

    Raises:
        MergeError: The adapter does not belong to this base, or the directory is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MergeError(f"{out} is not an empty directory")
    shards = _shards(base)
    _require_fit(adapter, base, shards)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as partial:
        whole = Path(partial) / "model"
        whole.mkdir()
        lost = _Lost()
        for shard in sorted(shards):
            _merge_shard(adapter, base / shard, whole / shard, lost)
        _copy_the_rest(base, whole)
        _write_beside(adapter, whole)
        if out.exists():
            out.rmdir()
        whole.rename(out)
    return Merged(
        directory=out,
        moved=lost.moved / lost.asked if lost.asked else 1.0,
        error=(lost.error_sq / lost.change_sq) ** 0.5 if lost.change_sq else 0.0,
    )


def _merge_shard(adapter: Adapter, source: Path, target: Path, lost: _Lost) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(source, framework="pt") as file:
        names = sorted(file.keys())
        tensors = {name: file.get_tensor(name) for name in names}
        metadata = file.metadata() or {"format": "pt"}
    for name in names:
        pair = adapter.factors.get(name.removesuffix(".weight"))
        if pair is not None:
            tensors[name] = _merged(tensors[name], *pair, adapter.scale, lost)
    save_file(tensors, target, metadata=metadata)


def _merged(
    weight: torch.Tensor, A: np.ndarray, B: np.ndarray, scale: float, lost: _Lost
) -> torch.Tensor:
    import torch

    # The factors are read-only views of the file's bytes, hence the copies.
    change = (torch.tensor(B) @ torch.tensor(A)).mul_(scale)
    merged = (change + weight.to(torch.float32)).to(weight.dtype)
    lost.count(weight, merged, change)
    return merged


def _shards(base: Path) -> dict[str, set[str]]:
    """The names of tensors, by file."""
    from safetensors import SafetensorError, safe_open

    index = base / _INDEX
    if index.is_file():
        table = _json(index).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(f, str) for f in table.values()):
            raise MergeError(f"{index} has no weight_map")
        files = sorted(set(table.values()))
    else:
        files = [_SINGLE]
    shards: dict[str, set[str]] = {}
    for file in files:
        if Path(file).name != file or not (base / file).is_file():
            raise MergeError(f"{base} has no weights {file!r}")
        try:
            with safe_open(base / file, framework="pt") as opened:
                shards[file] = set(opened.keys())
        except (SafetensorError, OSError) as error:
            raise MergeError(f"{base / file} is not safetensors: {error}") from error
    return shards


def _require_fit(adapter: Adapter, base: Path, shards: Mapping[str, set[str]]) -> None:
    from safetensors import safe_open

    if not (base / "config.json").is_file():
        raise MergeError(f"{base} has no config.json")
    left = set(adapter.factors)
    for shard, names in shards.items():
        with safe_open(base / shard, framework="pt") as file:
            for module in sorted(left):
                name = f"{module}.weight"
                if name not in names:
                    continue
                part = file.get_slice(name)
                A, B = adapter.factors[module]
                if list(part.get_shape()) != [B.shape[0], A.shape[1]]:
                    raise MergeError(
                        f"{name} is {part.get_shape()}, the adapter's is {[B.shape[0], A.shape[1]]}"
                    )
                if part.get_dtype() not in {"F32", "BF16", "F16"}:
                    raise MergeError(f"{name} is {part.get_dtype()}, which cannot be merged into")
                left.discard(module)
    if left:
        raise MergeError(f"{base} has no {min(left)}.weight, nor {len(left) - 1} others")


def _copy_the_rest(base: Path, out: Path) -> None:
    for path in sorted(base.iterdir()):
        ours = path.name in {_CARD, _PROVENANCE, "build.json"} or path.name.startswith(".")
        if path.is_file() and path.suffix not in _WEIGHTS and not ours:
            shutil.copyfile(path, out / path.name)


def _write_beside(adapter: Adapter, out: Path) -> None:
    for name, content in adapter.beside.items():
        if name == _CARD:
            text = content.decode("utf-8", errors="replace")
            text = text.replace("library_name: peft\n", "library_name: transformers\n", 1)
            text = text.replace(
                "base_model_relation: adapter\n", "base_model_relation: finetune\n", 1
            )
            text += (
                "\n## Merged\n\nThis directory is the whole model: the adapter whose file has the "
                f"SHA-256 `{adapter.sha256}`, merged into the base with scale {adapter.scale:g}. "
                "It loads without peft.\n"
            )
            (out / name).write_text(text, encoding="utf-8")
        else:
            (out / name).write_bytes(content)


def _factors(content: bytes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    from evolution.errors import AdapterMismatchError
    from evolution.model.lora import split_name
    from federation.adapter.encoding import decode_adapter
    from federation.adapter.value_head import without_head
    from federation.errors import AdapterError

    try:
        tensors = decode_adapter(content, max_bytes=_MAX_ADAPTER_BYTES)
        halves: dict[str, dict[str, np.ndarray]] = {}
        # A value head says nothing of a token, so there is nothing of it to merge.
        for name, tensor in without_head(tensors).items():
            module, factor = split_name(name)
            halves.setdefault(module, {})[factor] = tensor
    except (AdapterError, AdapterMismatchError) as error:
        raise MergeError(f"not an adapter: {error}") from error
    for module, pair in halves.items():
        if pair.keys() != {"A", "B"} or pair["A"].ndim != 2 or pair["B"].ndim != 2:
            raise MergeError(f"{module} does not have the two matrices A and B")
    return {module: (pair["A"], pair["B"]) for module, pair in halves.items()}


def _config(path: Path, rank: int) -> float:
    """α, from a configuration that says nothing that is not merged."""
    config = _json(path)
    if config.get("peft_type") != "LORA" or config.get("r") != rank:
        raise MergeError(f"{path} does not describe a LoRA adapter of rank {rank}")
    for key in ("use_dora", "use_rslora", "fan_in_fan_out", "modules_to_save", "rank_pattern",
                "alpha_pattern"):  # fmt: skip
        if config.get(key):
            raise MergeError(f"{path} sets {key}, which is not merged")
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha <= _MAX_ALPHA:
        raise MergeError(f"{path} has no lora_alpha")
    return float(alpha)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(path, _MAX_CONFIG_BYTES * 16))
    except (ValueError, RecursionError) as error:
        raise MergeError(f"{path} is not JSON") from error
    if not isinstance(content, dict):
        raise MergeError(f"{path} is not a JSON object")
    return content


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise MergeError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > max_bytes:
        raise MergeError(f"{path} is larger than {max_bytes} bytes")
    return content

"""A pretrained model as a clean Hugging Face directory, the same bytes on every machine.

A plan names the digest of its base, so sites that import one file have to come to one directory.
What loaders leave there and models do not need is therefore not written: where the files lay, how
they were quantised, which version read them. A GGUF file is dequantised; what its quantisation
lost stays lost, so a base from one is not the original checkpoint.

Invariants:

1. The same source, dtype and versions of transformers, tokenizers and gguf give the same bytes.
2. No code of the source is run, and nothing is fetched.
3. ``build.json`` says where the weights are from and under which licence; it is no part of the
   base's identity.
4. The directory is complete or absent: it is written beside its place and moved there.

Covered: causal language models that transformers loads from GGUF or from safetensors. Not covered:
pickled weights and remote code, which are refused; whether a licence permits what you do.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from evolution.errors import BaseModelError, ChatTemplateError
from evolution.model.identity import base_sha256
from evolution.rollout.conversation import ChatFormat

__all__ = ["Imported", "import_gguf", "import_hf"]

_OF_THE_READER = (
    "_name_or_path",
    "_model_name_or_path",
    "quantization_config",
    "transformers_version",
)
"""Keys of a configuration that say how it was read."""
_OF_THE_TOKENIZER = (
    "auto_map",
    "gguf_file",
    "is_local",
    "local_files_only",
    "name_or_path",
    "tokenizer_file",
)
_VERSIONS = ("torch", "transformers", "tokenizers", "gguf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What ``build.json`` says of an imported model."""

    source: str
    """Name of the file or directory, without its place."""
    source_sha256: str
    """Of the GGUF file, or the identity of the directory."""
    provenance: str
    """One line: what it is, and who made it."""
    licence: str
    """As the source says it, or as it was given; empty where nobody said."""
    dtype: str
    """Of the weights."""
    parameters: int
    """Tied ones counted once."""
    context_tokens: int
    """Longest sequence that the model was made for."""
    base_sha256: str
    """What a plan calls the base by."""
    versions: dict[str, str]
    """Of what read it."""


def import_gguf(
    file: Path,
    out: Path,
    *,
    dtype: str = "bfloat16",
    provenance: str = "",
    licence: str = "",
) -> Imported:
    """Write the model of a GGUF file, dequantised, to a directory that is not there yet.

    Provenance and licence are the file's own words where none are given.

    Raises:
        BaseModelError: The file cannot be read, is of no causal language model or has no chat
            template; the package ``gguf`` is missing; the directory is there.
    """
    _require_new(out)
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise BaseModelError(
            "reading GGUF files needs the package gguf: pip install 'chorale[lab]'"
        ) from error
    try:
        with file.open("rb") as content:
            if content.read(4) != b"GGUF":
                raise BaseModelError(f"{file} is no GGUF file")
            content.seek(0)
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        says = {
            name: str(field.contents())
            for name in ("name", "organization", "license")
            if (field := GGUFReader(file).get_field(f"general.{name}")) is not None
        }
        # What is quantised is computed with in float32, and rounded once, when it is written.
        model, tokenizer = _read(file.parent, dtype="float32", gguf_file=file.name)
    except (OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
        raise BaseModelError(f"{file} cannot be read as a GGUF model: {error}") from error
    known = [says[name] for name in ("name", "organization") if name in says]
    return _write(
        model,
        tokenizer,
        out,
        dtype=dtype,
        source=file.name,
        source_sha256=digest,
        provenance=provenance or ", ".join(known),
        licence=licence or says.get("license", ""),
    )


def import_hf(
    directory: Path,
    out: Path,
    *,
    dtype: str = "auto",
    provenance: str = "",
    licence: str = "",
) -> Imported:
    """Write a clean copy of a Hugging Face directory to one that is not there yet.

    ``auto`` keeps the dtype of the weights.

    Raises:
        BaseModelError: The directory cannot be read, holds pickled weights, or has no chat
            template; the other one is there.
    """
    _require_new(out)
    source_sha256 = base_sha256(directory)
    try:
        model, tokenizer = _read(directory, dtype=dtype)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise BaseModelError(f"{directory} cannot be read as a model: {error}") from error
    return _write(
        model,
        tokenizer,
        out,
        dtype=str(model.dtype).removeprefix("torch."),
        source=directory.resolve().name,
        source_sha256=source_sha256,
        provenance=provenance,
        licence=licence,
    )


def _require_new(out: Path) -> None:
    if out.exists():
        raise BaseModelError(f"{out} is there already: name another directory, or remove it")


def _read(directory: Path, *, dtype: str, **where: str) -> tuple[Any, Any]:
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, **where)
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=dtype if dtype == "auto" else getattr(torch, dtype),
        local_files_only=True,
        use_safetensors=True,
        **where,
    )
    return model, tokenizer


def _write(
    model: Any,
    tokenizer: Any,
    out: Path,
    *,
    dtype: str,
    source: str,
    source_sha256: str,
    provenance: str,
    licence: str,
) -> Imported:
    try:
        ChatFormat.from_tokenizer(tokenizer)
    except ChatTemplateError as error:
        raise BaseModelError(f"{source}: {error}, so no agent can speak with it") from error
    context_tokens = int(model.config.max_position_embeddings)
    weights = _weights(model, dtype)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        save_file(weights, beside / "model.safetensors", metadata={"format": "pt"})
        config = model.config.to_diff_dict() | {
            "architectures": [type(model).__name__],
            "dtype": dtype,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        _write_json(beside / "config.json", _without(config, _OF_THE_READER))
        _write_tokenizer(tokenizer, beside, context_tokens)
        made = Imported(
            source=source,
            source_sha256=source_sha256,
            provenance=" ".join(provenance.split()),
            licence=" ".join(licence.split()),
            dtype=dtype,
            parameters=sum(tensor.numel() for tensor in weights.values()),
            context_tokens=context_tokens,
            base_sha256=base_sha256(beside),
            versions=_versions(),
        )
        _write_json(beside / "build.json", asdict(made))
        for path in beside.iterdir():
            path.chmod(0o644)
        beside.chmod(0o755)
        beside.rename(out)
    except BaseException:  # whatever it was, half a model is left nowhere
        shutil.rmtree(beside)
        raise
    return made


def _weights(model: Any, dtype: str) -> dict[str, torch.Tensor]:
    """Each tensor once: what is tied has one name."""
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    kept = model.state_dict()
    if model.config.tie_word_embeddings:
        kept = {name: tensor for name, tensor in kept.items() if name not in tied}
    return {name: kept[name].to(getattr(torch, dtype)).contiguous() for name in sorted(kept)}


def _write_tokenizer(tokenizer: Any, directory: Path, context_tokens: int) -> None:
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    # A converter that knows no limit writes 1e30.
    config["model_max_length"] = min(
        int(config.get("model_max_length", 0)) or context_tokens, context_tokens
    )
    _write_json(path, _without(config, _OF_THE_TOKENIZER))


def _without(values: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in keys}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found

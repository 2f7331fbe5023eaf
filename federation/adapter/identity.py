"""The identity of a base model: one SHA-256 over its files.

A federation only makes sense if everyone adapts the same base, so a plan names the digest and every
silo recomputes it from its own copy before it takes part. Definition::

    base_sha256 = SHA-256( "chorale/base-model/v1" 0x00 ‖ entry(f₁) ‖ … )
    entry(f)    = len(name) as u32 little-endian ‖ name in UTF-8 ‖ SHA-256(content of f)

over the identifying files directly in the directory, in ascending order of their names as bytes:
weights (``*.safetensors``), and every ``*.json``, ``*.jinja``, ``*.txt``, ``*.model`` file except
``build.json``, which describes how the weights were made and may differ between equal models.

Covered: tampering with weights, configuration, tokenizer or chat template; links to files, as in a
download cache. Not covered: pickled weights, which are refused.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from federation.errors import BaseFilesError

__all__ = ["base_sha256"]

_SUFFIXES = frozenset({".safetensors", ".json", ".jinja", ".txt", ".model"})
_PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})
_IGNORED = frozenset({"build.json"})


def base_sha256(directory: str | Path) -> str:
    """Digest of a Hugging Face model directory, as the module defines it, in hexadecimal.

    Raises:
        BaseFilesError: It holds no safetensors weights or no ``config.json``, holds pickled
            weights, or cannot be read.
    """
    try:
        files = sorted(
            (path for path in Path(directory).iterdir() if path.is_file()),
            key=lambda path: path.name.encode(),
        )
        pickles = [path.name for path in files if path.suffix in _PICKLES]
        if pickles:
            raise BaseFilesError(f"{directory} holds pickled weights: {', '.join(pickles)}")
        files = [path for path in files if path.suffix in _SUFFIXES and path.name not in _IGNORED]
        if not any(path.suffix == ".safetensors" for path in files):
            raise BaseFilesError(f"{directory} holds no safetensors weights")
        if not any(path.name == "config.json" for path in files):
            raise BaseFilesError(f"{directory} holds no config.json")
        digest = hashlib.sha256(b"chorale/base-model/v1\0")
        for path in files:
            name = path.name.encode()
            with path.open("rb") as content:
                content_sha256 = hashlib.file_digest(content, "sha256").digest()
            digest.update(len(name).to_bytes(4, "little") + name + content_sha256)
    except OSError as error:
        raise BaseFilesError(f"cannot read the base model in {directory}: {error}") from error
    return digest.hexdigest()

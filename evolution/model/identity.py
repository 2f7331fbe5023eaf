"""The identity of a silo's base model, as every party computes it. No torch.

Covered: the digest of ``federation.adapter.identity``, with the agent's own error.
"""

from __future__ import annotations

from pathlib import Path

from evolution.errors import BaseModelError
from federation.adapter.identity import base_sha256 as digest_of
from federation.errors import BaseFilesError

__all__ = ["base_sha256"]


def base_sha256(directory: str | Path) -> str:
    """Digest of a Hugging Face model directory, in hexadecimal.

    Raises:
        BaseModelError: It is no base model that is accepted, or cannot be read.
    """
    try:
        return digest_of(directory)
    except BaseFilesError as error:
        raise BaseModelError(str(error)) from error

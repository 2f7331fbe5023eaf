"""Loading a base model and its tokenizer for play and for training.

Covered: any Hugging Face causal LM directory with safetensors weights. Remote code is never run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

__all__ = ["load_base", "load_tokenizer"]


def load_base(base_dir: str | Path, *, dtype: str = "float32") -> Any:
    """Load a base model, frozen and in evaluation mode.

    It is a Hugging Face model directory, or an id that is already in the local cache; ``dtype`` is
    the name of a torch floating-point type.
    """
    disable_progress_bar()  # a daemon's log is no place for one
    model = AutoModelForCausalLM.from_pretrained(
        base_dir,
        dtype=getattr(torch, dtype),
        attn_implementation="sdpa",
        use_safetensors=True,
        local_files_only=True,
    )
    model.requires_grad_(requires_grad=False)
    return model.eval()


def load_tokenizer(base_dir: str | Path) -> Any:
    """Load a base model's tokenizer, from a directory or by an id as ``load_base`` takes it."""
    return AutoTokenizer.from_pretrained(base_dir, local_files_only=True)

"""The shape of the small base model: Qwen3, small enough to learn on one CPU core.

Hidden 128, 3 layers, 4 heads with 2 key-value heads, MLP 256, tied embeddings: about 0.46 M
parameters. The initial standard deviation is larger than usual for large models, because at this
width the usual one makes attention start out nearly flat.

Covered: making the model. Not covered: training it (``build.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

__all__ = ["INITIAL_STD", "build_model"]

INITIAL_STD = 0.08


def build_model(tokenizer: Any, *, seed: int) -> Any:
    """Make the untrained model, a Hugging Face causal language model in float32.

    The tokenizer decides the vocabulary and the special tokens, the seed the weights.
    """
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=INITIAL_STD,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model

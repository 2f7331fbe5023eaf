"""A randomly initialised Qwen3 with a word-level tokenizer, built in milliseconds for tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from evolution.envs.catalogue import make

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + ' <|end|> ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)
SPECIALS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|unk|>"]


def build(directory: Path, *, seed: int = 0) -> Path:
    craft = make("craft")
    words = SPECIALS + sorted(craft.vocabulary)
    vocabulary = {word: index for index, word in enumerate(words)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        unk_token="<|unk|>",
        additional_special_tokens=SPECIALS[2:5],
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=vocabulary["<|end|>"],
        pad_token_id=vocabulary["<|pad|>"],
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def writable_copy(base: Path, directory: Path) -> Path:
    """The shared model is read-only: who changes one changes a copy."""
    shutil.copytree(base, directory, copy_function=shutil.copyfile)
    directory.chmod(0o755)
    return directory

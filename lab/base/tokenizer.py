"""The word-level tokenizer of the small base model.

The environments that Chorale brings along speak a closed vocabulary, so one word is one token and
nothing has to be learned from a corpus. Invariants:

1. The token ids follow from the environments' vocabularies alone, in sorted order.
2. Every word an environment can say, or understands, is a token of its own.
3. The chat layout uses one token per role and one for the end of a turn, and the directory loads
   through ``AutoTokenizer`` with its chat template.

Covered: the built-in environments. Not covered: free text; unknown words become one unknown token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from evolution.envs import make
from lab.base.data import SKILL

__all__ = ["END", "PAD", "UNKNOWN", "build_tokenizer", "environment_words"]

PAD, UNKNOWN, END = "<|pad|>", "<|unk|>", "<|end|>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_SPECIALS = (PAD, UNKNOWN, END, *_ROLES)
_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|{{ message['role'] }}|> {{ message['content'] | trim }} <|end|> "
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|> {% endif -%}"
)


def environment_words(names: Iterable[str] = tuple(SKILL)) -> frozenset[str]:
    """All words of some environments: the union of their vocabularies and instructions."""
    found: set[str] = set()
    for name in names:
        environment = make(name)
        found |= environment.vocabulary | set(environment.instruction.split())
        environment.close()
    return frozenset(found)


def build_tokenizer(words: Iterable[str]) -> Any:
    """A Hugging Face tokenizer with a chat template, and every one of these words as a token."""
    ordered = [*_SPECIALS, *sorted(set(words))]
    inner = Tokenizer(
        WordLevel({word: index for index, word in enumerate(ordered)}, unk_token=UNKNOWN)
    )
    inner.pre_tokenizer = WhitespaceSplit()
    inner.add_special_tokens([AddedToken(text, normalized=False) for text in _SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=list(_ROLES),
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )

"""Reading what a model server answers: everything in it is checked before it is believed.

Invariants:

1. A ``Generation`` that leaves this module could have come from the engine in this process: as many
   log-probabilities as tokens, all finite; tokens of the vocabulary; an end token last or not at
   all; cut off at exactly the asked length or not at all.
2. The server echoes the prompt it worked on, and it is the one that was asked for: a server that
   truncates or re-tokenises is found out.

Covered: ``/v1/models`` and ``/v1/completions`` of vLLM 0.32. Not covered: whether the numbers are
the model's, which the tests against a real server establish (``tests/foreign/vllm``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from evolution.errors import EngineReplyError
from evolution.rollout.engine import Generation

__all__ = ["ServedModel", "generation_of", "likeliest_logprob_of", "models_of"]

_MAX_MODELS = 4_096
_MAX_TEXT = 4_096
_ROUNDING = 1e-3
"""A log-probability may exceed 0 by so much, because the server rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """One model or adapter that a server has."""

    name: str
    """How requests name it."""
    root: str
    """The path it was loaded from."""
    max_tokens: int | None
    """Most tokens of a conversation; None for an adapter."""


def models_of(content: bytes) -> list[ServedModel]:
    """The answer of ``/v1/models``.

    Raises:
        EngineReplyError: It is something else.
    """
    cards = _field(_json(content), "data", list)
    if len(cards) > _MAX_MODELS:
        raise EngineReplyError(f"the server lists {len(cards)} models")
    return [_model(card) for card in cards]


def generation_of(
    content: bytes,
    *,
    prompt: Sequence[int],
    max_new_tokens: int,
    vocabulary: int,
    end_ids: Collection[int],
) -> Generation:
    """The answer of ``/v1/completions`` to one prompt, of at most ``max_new_tokens``.

    ``vocabulary`` is the number of token ids; ``end_ids`` end an answer.

    Raises:
        EngineReplyError: It cannot be what was asked for.
    """
    choices = _field(_json(content), "choices", list)
    if len(choices) != 1:
        raise EngineReplyError(f"one answer was asked for, {len(choices)} came")
    choice = choices[0]
    echoed = _field(choice, "prompt_token_ids", list)
    if echoed != list(prompt) or any(type(token) is not int for token in echoed):
        raise EngineReplyError("the server answered another prompt than the one it was asked")
    tokens = _field(choice, "token_ids", list)
    values = _field(_field(choice, "logprobs", dict), "token_logprobs", list)
    if not 0 < len(tokens) <= max_new_tokens or len(values) != len(tokens):
        raise EngineReplyError(
            f"{len(tokens)} tokens and {len(values)} log-probabilities came for at most "
            f"{max_new_tokens}"
        )
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise EngineReplyError("a token is not one of the vocabulary")
    ended = tokens[-1] in end_ids
    if any(token in end_ids for token in tokens[:-1]):
        raise EngineReplyError("the answer goes on after its end token")
    if not ended and len(tokens) != max_new_tokens:
        raise EngineReplyError("the answer stops without an end token")
    return Generation(token_ids=tuple(tokens), logprobs=tuple(map(_logprob, values)), ended=ended)


def likeliest_logprob_of(content: bytes) -> float:
    """The log-probability of the likeliest token, in an answer of one token with alternatives.

    Raises:
        EngineReplyError: It is no such answer.
    """
    choices = _field(_json(content), "choices", list)
    if len(choices) != 1:
        raise EngineReplyError(f"one answer was asked for, {len(choices)} came")
    shown = _field(_field(choices[0], "logprobs", dict), "top_logprobs", list)
    if len(shown) != 1 or not isinstance(shown[0], dict) or not shown[0]:
        raise EngineReplyError("one token with its alternatives was asked for")
    return max(map(_logprob, shown[0].values()))


def _model(card: object) -> ServedModel:
    root = card.get("root") if isinstance(card, dict) else None
    length = card.get("max_model_len") if isinstance(card, dict) else None
    if length is not None and (type(length) is not int or length < 1):
        raise EngineReplyError("a model's length is not a positive integer")
    if root is not None and not isinstance(root, str):
        raise EngineReplyError("a model's root is not text")
    name = _field(card, "id", str)
    return ServedModel(name=name[:_MAX_TEXT], root=(root or "")[:_MAX_TEXT], max_tokens=length)


def _logprob(value: object) -> float:
    if type(value) not in {int, float}:
        raise EngineReplyError("a log-probability is not a number")
    try:
        number = float(value)  # type: ignore[arg-type]  # an int or a float, as was just checked
    except OverflowError as error:
        raise EngineReplyError("a log-probability is out of range") from error
    if not math.isfinite(number) or number > _ROUNDING:
        raise EngineReplyError("a log-probability is not finite or above zero")
    return min(number, 0.0)


def _field(value: object, key: str, kind: type) -> Any:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise EngineReplyError(f"the answer has no {key!r} of the right type")
    return found


def _json(content: bytes) -> Any:
    try:
        return json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise EngineReplyError("the answer is not JSON") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

"""Reading what a foreign environment answers: everything in it is hostile.

Invariants:

1. What leaves this module is text of at most ``MAX_OBSERVATION_CHARS`` characters that UTF-8 can
   hold, a finite reward, or a bool; anything else is a ``ForeignReplyError``.
2. A longer observation is cut; a longer *message* was refused before (``max_message_bytes``).

Covered: types, sizes, numbers. Not covered: chat markers, which depend on the tokenizer and which
``evolution/rollout/conversation.py`` removes from every observation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np

from evolution.envs.outcome import reward_of as checked_reward
from evolution.errors import ForeignReplyError, OutcomeError

__all__ = [
    "MAX_OBSERVATION_CHARS",
    "bool_of",
    "field_of",
    "json_of",
    "reward_of",
    "text_of",
    "visible_text",
]

MAX_OBSERVATION_CHARS = 4_000
_MAX_ITEMS = 256


def json_of(message: str | bytes) -> Any:
    """The JSON value of a message of bounded size.

    Raises:
        ForeignReplyError: It is not JSON, or holds NaN or an infinity.
    """
    try:
        return json.loads(message, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ForeignReplyError("the answer is not JSON") from error


def field_of(value: object, key: str) -> Any:
    """One field of an object.

    Raises:
        ForeignReplyError: It is not an object, or does not have the field.
    """
    if not isinstance(value, dict) or key not in value:
        raise ForeignReplyError(f"the answer has no {key!r}")
    return value[key]


def text_of(value: object) -> str:
    """A text, bounded and encodable.

    Raises:
        ForeignReplyError: It is no text.
    """
    if not isinstance(value, str):
        raise ForeignReplyError("an observation is not text")
    # Lone surrogates, which JSON can carry, would break the tokenizer and the store.
    return value[:MAX_OBSERVATION_CHARS].encode("utf-8", "replace").decode("utf-8")


def visible_text(observation: object, fields: Sequence[str]) -> str:
    """What the agent sees of an observation.

    The bare value, or with several fields one line ``field: value`` each; no fields stand for the
    observation itself.

    Raises:
        ForeignReplyError: A field is missing or is neither text nor number nor a short list.
    """
    if not fields:
        return text_of(_plain(observation))
    if len(fields) == 1:
        return text_of(_plain(field_of(observation, fields[0])))
    lines = [f"{name}: {text_of(_plain(field_of(observation, name)))}" for name in fields]
    return text_of("\n".join(lines))


def reward_of(value: object) -> float:
    """A finite reward.

    Raises:
        ForeignReplyError: It is no number, not finite, or absurdly large.
    """
    try:
        return checked_reward(value)
    except OutcomeError as error:
        raise ForeignReplyError(str(error)) from error


def bool_of(value: object, what: str) -> bool:
    """A bool, of Python or of numpy.

    Raises:
        ForeignReplyError: It is anything else.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ForeignReplyError(f"{what} is not a bool")


def _plain(value: object) -> str:
    if isinstance(value, list | tuple) and len(value) <= _MAX_ITEMS:
        return ", ".join(map(_scalar, value))
    return _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Real):
        number = reward_of(value)
        return str(int(number)) if isinstance(value, Integral) else f"{number:.6g}"
    raise ForeignReplyError("an observation is neither text nor number nor a short list of them")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

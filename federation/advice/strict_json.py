"""JSON that a model or an endpoint wrote: one value within bounds, or a named fault.

Ordered checks: size; UTF-8; nesting, counted before anything is parsed; JSON in its one form. A key
that stands twice is refused, as two readers could take either, and so is what JSON has no word for
(NaN, infinity) and a number that is too large to be one.

Covered: bytes of any kind, in time linear in their size. Not covered: which keys and types a value
should have; whoever asked for it looks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

__all__ = ["JsonFault", "JsonFaultError", "canonical_json", "read_json"]

_BRACKETS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
"""Strings as a whole, so that a bracket inside one does not count, and brackets. A string that does
not end takes all that is left: no position is looked at twice."""


class JsonFault(StrEnum):
    """What is wrong."""

    TOO_LONG = "is too long"
    NOT_UTF8 = "is not UTF-8"
    TOO_DEEP = "is nested too deeply"
    KEY_TWICE = "has a key twice"
    NO_NUMBER = "has NaN, infinity or a number too large"
    NOT_JSON = "is not JSON"


class JsonFaultError(ValueError):
    """The content is not one JSON value within bounds.

    Attributes:
        fault: What is wrong; never a word of the content.
    """

    def __init__(self, fault: JsonFault) -> None:
        self.fault = fault
        super().__init__(fault.value)


def read_json(content: bytes, *, max_bytes: int, max_depth: int) -> Any:
    """The value.

    Raises:
        JsonFaultError: It is not one, or is out of bounds.
    """
    if len(content) > max_bytes:
        raise JsonFaultError(JsonFault.TOO_LONG)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise JsonFaultError(JsonFault.NOT_UTF8) from None
    _require_shallow(text, max_depth)
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite
        )
    except JsonFaultError:
        raise
    except (ValueError, RecursionError):
        # ValueError is also what an integer of too many digits is.
        raise JsonFaultError(JsonFault.NOT_JSON) from None


def canonical_json(value: Any, *, sort_keys: bool = True) -> bytes:
    """A value of ours in its one form: keys sorted or in the order they have, no blanks, ASCII."""
    return json.dumps(
        value, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def _require_shallow(text: str, max_depth: int) -> None:
    depth = 0
    for match in _BRACKETS.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth += 1
            if depth > max_depth:
                raise JsonFaultError(JsonFault.TOO_DEEP)
        elif mark in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise JsonFaultError(JsonFault.KEY_TWICE)
    return made


def _no_number(_word: str) -> float:
    raise JsonFaultError(JsonFault.NO_NUMBER)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise JsonFaultError(JsonFault.NO_NUMBER)
    return value

"""A field's value as a log may hold it: of its declared form, bounded, one printable line.

Invariants:

1. What comes out is a string, a whole number, a truth value, or a short list or mapping of strings;
   what does not have the form is refused, never converted.
2. A string is bounded, and has no character that a terminal would act on.
3. Bytes have no form.

Covered: every ``Kind`` of ``ops/logs/events.py``. Not covered: whether a name is public; the
call has to know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from federation.text import printable
from ops.logs.errors import told
from ops.logs.events import Kind

__all__ = ["Unfit", "shown"]

MAX_NAME_CHARS: Final = 200
MAX_TEXT_CHARS: Final = 400
MAX_ITEMS: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9._:/@+<> -]*")
_DIGEST: Final = re.compile(r"[0-9a-f]{8,64}")
_MOST: Final = 2**63


class Unfit(Exception):  # noqa: N818  # a verdict, not a failure
    """The value does not have the form; it holds nothing of the value."""


def shown(kind: Kind | None, value: Any) -> Any:
    """Bring a value into a line, in the form that its field has.

    The form is None where the line may not have the field.

    Raises:
        Unfit: It is of another form.
    """
    if kind is None:
        raise Unfit
    return _FORMS[kind](value)


def _name(value: Any) -> str:
    if isinstance(value, str) and len(value) <= MAX_NAME_CHARS and _NAME.fullmatch(value):
        return str(value)
    raise Unfit


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit
    if not math.isfinite(value) or abs(value) >= _MOST:
        raise Unfit
    return round(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit
    return value


def _digest(value: Any) -> str:
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value
    raise Unfit


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit
    return printable(value, max_chars=MAX_TEXT_CHARS)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or len(value) > MAX_ITEMS:
        raise Unfit
    return [_text(item) for item in value]


def _pairs(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise Unfit
    # Two hundred silos may be named at once; more than fit are left out.
    first = list(value.items())[:MAX_ITEMS]
    return {_name(key): _name(item) for key, item in first}


def _cause(value: Any) -> str:
    if not isinstance(value, BaseException):
        raise Unfit
    return told(value)


_FORMS: Final = {
    Kind.NAME: _name,
    Kind.NUMBER: _number,
    Kind.FLAG: _flag,
    Kind.DIGEST: _digest,
    Kind.TEXT: _text,
    Kind.TEXTS: _texts,
    Kind.PAIRS: _pairs,
    Kind.CAUSE: _cause,
}

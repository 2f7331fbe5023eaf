"""TOML that somebody else wrote, read within bounds that are checked before it is parsed.

``tomllib`` takes time with the square of a dotted key's length, and what it returns nests as deep
as the document says: 2,400 bytes of ``a.a.a…=1`` are more than Python can recurse into, and 64 KB
of it take half a minute. So one pass over the text, whose time is linear, comes first.

Ordered checks: bytes; UTF-8; parts of a key, nesting of arrays and inline tables, and how many
keys, tables and arrays there are; then TOML itself; then that its integers have 64 bits.

Why the pass sees what ``tomllib`` sees: both read from the front, and agree on where strings and
comments begin and end up to the first place where the document is no TOML. There ``tomllib``
stops.

Covered: plans, policies, both daemons' configurations, experiments. Not covered: what the values
may be, which is for whoever asked.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from federation.errors import TomlError

__all__ = ["MAX_TOML_BYTES", "parse_toml", "tuples_of"]

MAX_TOML_BYTES: Final = 256 * 1024
"""A configuration that names hundreds of environments or plans is a tenth of it."""
MAX_KEY_PARTS: Final = 8
"""Ours have three at most, in a header (``[foreign."openenv:calendar".headers]``)."""
MAX_NESTING: Final = 8
"""Ours nest two deep: an array of inline tables."""
MAX_ENTRIES: Final = 4096
"""Keys, tables and arrays; ours have fewer than two hundred."""

_TOKEN: Final = re.compile(
    r'''
      """ (?: \\. | (?!""") [^\\] )*+ "{0,5}    # its end may follow two quotes of its text
    | \'{3} (?: (?!\'{3}) . )*+ \'{0,5}
    | " (?: \\. | [^"\\\n] )*+ "?
    | ' [^'\n]*+ '?
    | \# [^\n]*+
    | [][{}.,=\n]
    ''',
    re.VERBOSE | re.DOTALL,
)


def parse_toml(content: bytes, *, max_bytes: int = MAX_TOML_BYTES) -> dict[str, Any]:
    """Read a document of at most so many bytes.

    Raises:
        TomlError: It is too long, too deep, too full, or no TOML.
    """
    if len(content) > max_bytes:
        raise TomlError(f"the document has {len(content)} bytes: keep it within {max_bytes}")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TomlError(f"the document is not UTF-8 at byte {error.start}") from error
    _require_bounded(text)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlError(f"the document is not TOML: {error}") from error
    except ValueError as error:
        # Integers of thousands of digits.
        raise TomlError(f"the document holds a value that cannot be read: {error}") from error
    _require_integers(document)
    return document


def tuples_of(value: object) -> object:
    """Arrays as tuples, so that a strict and frozen model can hold what was read."""
    if isinstance(value, Mapping):
        return {key: tuples_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(tuples_of(item) for item in value)
    return value


def _require_integers(value: object) -> None:
    """TOML's have 64 bits. Longer ones, in hexadecimal say, Python reads and cannot print."""
    if isinstance(value, Mapping):
        for item in value.values():
            _require_integers(item)
    elif isinstance(value, list):
        for item in value:
            _require_integers(item)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TomlError("the document has an integer of more than 64 bits")


def _require_bounded(text: str) -> None:
    """Refuse what a key or a bracket too many makes slow or deep; in one pass."""
    nesting = entries = 0
    key_parts = 1
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "[" | "{":
                nesting, entries, key_parts = nesting + 1, entries + 1, 1
            case "]" | "}":
                nesting -= 1
            case ".":
                key_parts += 1
            case "=":
                entries, key_parts = entries + 1, 1
            case "," | "\n":
                key_parts = 1
        if key_parts > MAX_KEY_PARTS:
            raise _too_much(text, token, f"a key of more than {MAX_KEY_PARTS} parts")
        if nesting > MAX_NESTING:
            raise _too_much(text, token, f"more than {MAX_NESTING} brackets in one another")
        if entries > MAX_ENTRIES:
            raise _too_much(text, token, f"more than {MAX_ENTRIES} keys, tables and arrays")


def _too_much(text: str, token: re.Match[str], what: str) -> TomlError:
    line = text.count("\n", 0, token.start()) + 1
    return TomlError(f"the document has {what} at line {line}: no document of ours needs that")

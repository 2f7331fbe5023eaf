"""The entries of a large JSON file, one after another.

WebShop's product file is one array of a million objects and some five gigabytes. Reading it whole
to use the first thousand would need more memory than most silos have, so the outermost array or
object is read by hand and each entry by the standard library.

Invariants:

1. Of the file there is never more in memory than one entry of at most ``MAX_ENTRY_CHARACTERS`` and
   what was read with it.
2. An entry is an object or an array; NaN, infinities, other bytes than UTF-8, and nesting that
   Python cannot follow are errors, as is anything that is not JSON.
3. What follows the last entry that is asked for is not looked at.

Covered: one array of entries, one object of entries. Not covered: one entry a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

from evolution.errors import ProductFileError

__all__ = ["MAX_ENTRY_CHARACTERS", "array_entries", "object_entries"]

MAX_ENTRY_CHARACTERS: Final = 1 << 20
_CHUNK: Final = 1 << 16
_BLANK: Final = " \t\r\n"


def array_entries(path: Path) -> Iterator[Any]:
    """The entries of a file that is one array.

    Raises:
        ProductFileError: It cannot be read, or is none.
    """
    for _, value in _entries(path, "[]"):
        yield value


def object_entries(path: Path) -> Iterator[tuple[str, Any]]:
    """The keys and entries of a file that is one object.

    Raises:
        ProductFileError: It cannot be read, or is none.
    """
    yield from _entries(path, "{}")


def _entries(path: Path, brackets: str) -> Iterator[tuple[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from _Reader(path, file).entries(brackets)
    except OSError as error:
        raise ProductFileError(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ProductFileError(path, "is not UTF-8") from error


class _Reader:
    """What was read and not used yet."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path = path
        self._file = file
        self._text = ""
        self._ended = False
        self._number = 0
        self._decoder = json.JSONDecoder(parse_constant=self._constant)

    def entries(self, brackets: str) -> Iterator[tuple[str, Any]]:
        opening, closing = brackets[0], brackets[1]
        self._take(opening)
        if self._next() == closing:
            return
        while True:
            key = self._key() if opening == "{" else ""
            yield key, self._value()
            self._number += 1
            if self._next() == closing:
                return
            self._take(",")

    def _key(self) -> str:
        if self._next() != '"':
            self._refuse('expected a key in "quotes"')
        key = self._decode()
        self._take(":")
        return str(key)

    def _value(self) -> Any:
        if self._next() not in "[{":
            self._refuse("expected an object or an array")
        return self._decode()

    def _decode(self) -> Any:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text)
            except json.JSONDecodeError as error:
                # It may only be that the rest has not been read yet.
                if self._ended or not self._more():
                    self._refuse(f"is not JSON: {error.msg}")
            except RecursionError:
                self._refuse("is nested too deeply")
            else:
                self._text = self._text[end:]
                return value

    def _next(self) -> str:
        """The next character that is no blank, which stays; empty at the end of the file."""
        self._text = self._text.lstrip(_BLANK)
        while not self._text and self._more():
            self._text = self._text.lstrip(_BLANK)
        return self._text[:1]

    def _take(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            self._refuse(f"expected {wanted!r}, found {found or 'the end of the file'!r}")
        self._text = self._text[1:]

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        if len(self._text) > MAX_ENTRY_CHARACTERS:
            self._refuse(f"is longer than {MAX_ENTRY_CHARACTERS} characters")
        read = self._file.read(_CHUNK)
        self._ended = not read
        self._text += read
        return bool(read)

    def _constant(self, name: str) -> NoReturn:
        self._refuse(f"holds {name}, which is no JSON")

    def _refuse(self, what: str) -> NoReturn:
        raise ProductFileError(self._path, what, entry=str(self._number))

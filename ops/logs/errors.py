"""What a log may hold of an error: our own words, or only which error it was and where.

The text of an exception that a library or a plug-in raised may quote what it was working on: a line
of a prompt, a key that did not parse, a row of a statement. So it is never logged. The words of our
own errors are written for operators; each package's ``errors`` module says what they may name.

Invariants:

1. An error is ours if its type is of our packages and code of ours raised it. Of any other, only
   the type is told, and for an error number of the operating system what that number means.
2. Where an error of ours quotes one that is not, in its causes or context, the quotation is taken
   out of its text.
3. A type of ours whose text carries somebody else's words has a ``log_text`` that stands for it.
4. A traceback names module, line and function of each frame; it has no source line, no variable and
   no note. Its length is bounded.

Covered: causes, contexts, groups, cycles. Not covered: a text of ours that is given private data,
which a review must find.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import Final

from federation.text import printable

__all__ = ["is_ours", "told", "traceback_of"]

OURS: Final = frozenset(
    {
        "chorale",
        "secagg",
        "dp",
        "federation",
        "ops",
        "evolution",
        "server",
        "silo_agent",
        "lab",
        "__main__",
    }
)
MAX_TEXT_CHARS: Final = 600
MAX_FRAMES: Final = 40
MAX_ERRORS: Final = 8


def told(error: BaseException) -> str:
    """Say what a log may hold of an error, in one line of at most 600 printable characters.

    Its text if it is ours; its type otherwise.
    """
    if not is_ours(error):
        return _type_of(error)
    text = getattr(error, "log_text", None)
    if not isinstance(text, str):
        text = _without_quotations(error)
    return printable(text or type(error).__name__, max_chars=MAX_TEXT_CHARS)


def traceback_of(error: BaseException) -> str:
    """Say where an error came from, in several lines.

    The frames and then the error, for it and for what led to it.
    """
    parts: list[str] = []
    for number, one in enumerate(islice(_chain(error), MAX_ERRORS)):
        if number:
            parts.append("which came of, or after:")
        parts.append("Traceback (most recent call last):")
        parts += _frames(one.__traceback__)
        text = told(one)
        name = type(one).__name__
        parts.append(printable(name if text.startswith(name) else f"{name}: {text}"))
    return "\n".join(parts)


def is_ours(error: BaseException) -> bool:
    """Whether its words are ours: its type is of our packages, and code of ours raised it."""
    if not _of_ours(type(error).__module__):
        return False
    last = None
    for last, _ in traceback.walk_tb(error.__traceback__):  # noqa: B007  # the last one is wanted
        pass
    return last is None or _of_ours(str(last.f_globals.get("__name__", "")))


def _of_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


def _type_of(error: BaseException) -> str:
    name = printable(type(error).__name__, max_chars=100)
    number = error.errno if isinstance(error, OSError) else None
    # Libraries' own kinds of OSError number their errors otherwise.
    known = type(error).__module__ == "builtins" and isinstance(number, int) and number > 0
    return f"{name}: {os.strerror(number)}" if known and number is not None else name


def _without_quotations(error: BaseException) -> str:
    text = _words(str, error)
    for other in _chain(error):
        if not is_ours(other):
            for quotation in sorted({_words(str, other), _words(repr, other)}, key=len)[::-1]:
                if quotation:
                    text = text.replace(quotation, _type_of(other))
    return text


def _words(say: Callable[[object], str], error: BaseException) -> str:
    try:
        return say(error)
    except Exception:  # noqa: BLE001  # foreign code; a line about an error must not raise another
        return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, then its causes, its context and a group's members, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]


def _frames(trace: TracebackType | None) -> list[str]:
    frames = [
        f"  {frame.f_globals.get('__name__', '?')}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(trace)
    ]
    half = MAX_FRAMES // 2
    if len(frames) > MAX_FRAMES:
        frames = [*frames[:half], f"  {len(frames) - MAX_FRAMES} more frames", *frames[-half:]]
    return [f"  {printable(frame.strip(), max_chars=200)}" for frame in frames]

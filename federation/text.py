"""Text from a file or from the network, shown to people: it is read, and does nothing else.

On a terminal a line feed would forge lines, an escape sequence would move the cursor, hide text or
fill the clipboard, and a change of direction would let a line read as another one. In Markdown a
mark would format, and a bracket would be HTML.

Covered: whatever ``str.isprintable`` rejects (controls, formats, surrogates, separators but the
blank); Markdown's running text and table cells, on GitHub and on the Hugging Face Hub, which also
read HTML; a reader of stdout or stderr that leaves before everything is written. Not covered:
letters of two alphabets that look alike; Markdown's code blocks and links.
"""

from __future__ import annotations

import os
from typing import IO, Final

__all__ = ["escaped", "print_lines", "printable", "write"]

_READER_LEFT: Final = 141
"""What a shell shows for a program that SIGPIPE ended."""
_ENTITIES: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
_MARKS: Final = frozenset("\\`*_[]()#|!~$")


def printable(text: str, *, max_chars: int | None = None) -> str:
    """The text in one line, with a blank for each character that is not printed.

    What is longer than ``max_chars`` ends with an ellipsis and is then as long as that.
    """
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if max_chars is None or len(plain) <= max_chars else plain[: max_chars - 1] + "…"


def escaped(text: str) -> str:
    """The text of :func:`printable`, as Markdown shows it literally."""
    text = printable(text)
    for mark, shown in _ENTITIES:
        text = text.replace(mark, shown)
    return "".join(f"\\{mark}" if mark in _MARKS else mark for mark in text)


def print_lines(stream: IO[str], *lines: str) -> None:
    """Print lines to this process's stdout or stderr, each as :func:`printable` has it.

    Raises:
        SystemExit: As for :func:`write`.
    """
    write(stream, "".join(printable(line) + "\n" for line in lines))


def write(stream: IO[str], text: str) -> None:
    """Write text as it is to this process's stdout or stderr.

    At once, so that both keep their order in one pipe.

    Raises:
        SystemExit: Whoever read it has left, as `head` does when it has seen enough.
    """
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # What is still buffered goes nowhere; it would be tried again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(_READER_LEFT) from None

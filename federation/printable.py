"""Text from a file or from the network, as a terminal may show it: one line that it only prints.

A line feed would forge lines, an escape sequence would move the cursor, hide text or fill the
clipboard, and a change of direction would let a line read as another one.

Covered: whatever ``str.isprintable`` rejects: controls, formats, surrogates, separators but the
blank; a reader of stdout or stderr that leaves before everything is written. Not covered: letters
of two alphabets that look alike.
"""

from __future__ import annotations

import os
from typing import Final, TextIO

__all__ = ["print_lines", "printable", "write"]

_READER_LEFT: Final = 141
"""What a shell shows for a program that SIGPIPE ended."""


def printable(text: str, *, max_chars: int | None = None) -> str:
    """The text in one line, with a blank for each character that is not printed.

    Args:
        text: Anything.
        max_chars: How long the result may be; what is longer ends with an ellipsis.
    """
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if max_chars is None or len(plain) <= max_chars else plain[: max_chars - 1] + "…"


def print_lines(stream: TextIO, *lines: str) -> None:
    """Print lines, each as :func:`printable` has it.

    Args:
        stream: As for :func:`write`.
        lines: Anything.

    Raises:
        SystemExit: As for :func:`write`.
    """
    write(stream, "".join(printable(line) + "\n" for line in lines))


def write(stream: TextIO, text: str) -> None:
    """Write to this process's stdout or stderr at once, so that both keep their order in one pipe.

    Args:
        stream: One of the two.
        text: Written as it is.

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

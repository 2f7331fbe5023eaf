"""Text from a file or from the network, as a terminal may show it: one line that it only prints.

A line feed would forge lines, an escape sequence would move the cursor, hide text or fill the
clipboard, and a change of direction would let a line read as another one.

Covered: whatever ``str.isprintable`` rejects: controls, formats, surrogates, separators but the
blank. Not covered: letters of two alphabets that look alike.
"""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, *, max_chars: int | None = None) -> str:
    """The text in one line, with a blank for each character that is not printed.

    Args:
        text: Anything.
        max_chars: How long the result may be; what is longer ends with an ellipsis.
    """
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if max_chars is None or len(plain) <= max_chars else plain[: max_chars - 1] + "…"

"""Text from elsewhere, shown literally in Markdown.

Covered: running text and table cells, on GitHub and on the Hugging Face Hub, which also read HTML.
Not covered: code blocks and links.
"""

from __future__ import annotations

from typing import Final

__all__ = ["escaped"]

_ENTITIES: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
_MARKS: Final = frozenset("\\`*_[]()#|!~$")


def escaped(text: str) -> str:
    """The text as Markdown shows it literally, on one line; unprintable characters become spaces.

    Args:
        text: Anything.
    """
    text = "".join(mark if mark.isprintable() else " " for mark in text)
    for mark, shown in _ENTITIES:
        text = text.replace(mark, shown)
    return "".join(f"\\{mark}" if mark in _MARKS else mark for mark in text)

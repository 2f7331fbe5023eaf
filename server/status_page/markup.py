"""HTML that cannot be forged: elements are made here, and every text in them is escaped.

Invariants:

1. A ``str`` is text, whoever wrote it, and is escaped; only :class:`Html` is markup. Outside this
   module it is made of literals and of numbers alone (``curve.py``).
2. Text is one line of printable characters: no control, no change of direction, no surrogate, so
   that a name can neither break out of its place nor reorder what stands beside it.
3. Names of elements and attributes are literals of the code.

Covered: text, attribute values, SVG. Not covered: URLs that a text would make; links are made of
quoted paths of this page alone.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from federation.printable import printable
from server.status_page import words

__all__ = [
    "RUNS",
    "Child",
    "Html",
    "brief",
    "coordinate",
    "element",
    "joined",
    "lasting",
    "moment",
    "path_of",
]

RUNS: Final = "/runs/"
"""Below it each run has a page of its own."""
_VOID: Final = frozenset({"meta", "link", "br"})
MAX_TEXT_CHARS: Final = 2000
MAX_NAME_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class Html:
    """Finished markup."""

    text: str


Child = Html | str | None
"""What an element may hold: markup, text, or nothing."""
Value = Html | str | float | None
"""What an attribute may be; None leaves it out, :class:`Html` is not escaped again."""


def element(name: str, *children: Child, **attributes: Value) -> Html:
    """Make an element.

    Args:
        name: Its name.
        *children: What it holds.
        **attributes: Its attributes; ``class_`` is ``class``, ``aria_label`` is ``aria-label``.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_quoted(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(children).text}</{name}>")


def joined(children: Iterable[Child]) -> Html:
    """Put markup and text one after the other.

    Args:
        children: The parts.
    """
    parts = (
        child.text if isinstance(child, Html) else _escaped(child)
        for child in children
        if child is not None
    )
    return Html("".join(parts))


def brief(text: str, *, max_chars: int = MAX_NAME_CHARS) -> str:
    """Cut a text that somebody else made to a length that a layout bears.

    Args:
        text: The text.
        max_chars: Its greatest length.
    """
    return printable(text, max_chars=max_chars)


def moment(unix_s: float, now_unix_s: float, *, absolute: bool = True) -> Html:
    """A moment, relative and in UTC.

    Args:
        unix_s: The moment; 0 for never.
        now_unix_s: Now.
        absolute: Whether the time in UTC is spelled out beside the age; it is in the title always.
    """
    age = words.ago(unix_s, now_unix_s)
    if unix_s <= 0:
        return element("span", age, class_="soft")
    exact = words.clock(unix_s, now_unix_s)
    return element(
        "time",
        element("span", age),
        " " if absolute else None,
        element("span", exact, class_="exact") if absolute else None,
        datetime=words.stamp(unix_s),
        title=words.stamp(unix_s),
    )


def lasting(unix_s: float, now_unix_s: float) -> Html:
    """How long something has lasted, and since when.

    Args:
        unix_s: When it began.
        now_unix_s: Now.
    """
    return element(
        "time",
        element("span", f"for {words.span(now_unix_s - unix_s)}"),
        " ",
        element("span", f"since {words.clock(unix_s, now_unix_s)}", class_="exact"),
        datetime=words.stamp(unix_s),
    )


def path_of(run_id: str) -> str:
    """Where the page of one run is.

    Args:
        run_id: The run.
    """
    return f"{RUNS}{quote(run_id, safe='')}"


def coordinate(value: float) -> str:
    """A number of a drawing, no longer than the eye can tell.

    Args:
        value: In units of the drawing.
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _quoted(value: Html | str | float) -> str:
    if isinstance(value, Html):
        return value.text
    return _escaped(value) if isinstance(value, str) else coordinate(value)


def _escaped(text: str) -> str:
    plain = text.isprintable() and len(text) <= MAX_TEXT_CHARS
    return html.escape(text if plain else printable(text, max_chars=MAX_TEXT_CHARS), quote=True)

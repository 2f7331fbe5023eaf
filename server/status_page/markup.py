"""HTML that cannot be forged: elements are made here, and every text in them is escaped.

Invariants:

1. A ``str`` is text, whoever wrote it, and is escaped; only :class:`Html` is markup. Outside this
   module it is made of literals and of numbers alone (``curve.py``).
2. Text is one line of printable characters: no control, no change of direction, no surrogate, so
   that a name can neither break out of its place nor reorder what stands beside it.
3. Names of elements and attributes are literals of the code.
4. Every table has a caption and headers for rows and columns; the roles are spelled out, because a
   table that is laid out in another way loses them in some browsers.

Covered: text, attribute values, SVG, tables. Not covered: URLs that a text would make; links are
made of quoted paths of this page alone.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from federation.text import printable
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
    "table",
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
    """Make an element; of its attributes ``class_`` is ``class``, ``aria_label`` ``aria-label``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_quoted(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(children).text}</{name}>")


def joined(children: Iterable[Child]) -> Html:
    """Put markup and text one after the other."""
    parts = (
        child.text if isinstance(child, Html) else _escaped(child)
        for child in children
        if child is not None
    )
    return Html("".join(parts))


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Child]], *, class_: str
) -> Html:
    """A table that stays one on a phone: there each row becomes a small block with its labels.

    The caption is for who does not see it, the first cell of a row is its header, and ``class_`` is
    the layout (``style.py``).
    """
    titles = (element("th", head, scope="col", role="columnheader") for head in heads)
    return element(
        "table",
        element("caption", caption, class_="hidden"),
        element("thead", element("tr", *titles, role="row"), role="rowgroup"),
        element("tbody", *(_row(heads, cells) for cells in rows), role="rowgroup"),
        class_=class_,
        role="table",
    )


def brief(text: str, *, max_chars: int = MAX_NAME_CHARS) -> str:
    """Cut a text that somebody else made to a length that a layout bears."""
    return printable(text, max_chars=max_chars)


def moment(unix_s: float, now_unix_s: float, *, absolute: bool = True) -> Html:
    """A moment, 0 for never: its age, and unless ``absolute`` is false its time in UTC.

    That time is in the title always.
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
    """How long something that began then has lasted, and since when."""
    return element(
        "time",
        element("span", f"for {words.span(now_unix_s - unix_s)}"),
        " ",
        element("span", f"since {words.clock(unix_s, now_unix_s)}", class_="exact"),
        datetime=words.stamp(unix_s),
    )


def path_of(run_id: str) -> str:
    """Where the page of one run is."""
    return f"{RUNS}{quote(run_id, safe='')}"


def coordinate(value: float) -> str:
    """A number in units of a drawing, no longer than the eye can tell."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _row(heads: Sequence[str], cells: Sequence[Child]) -> Html:
    first, *rest = cells
    return element(
        "tr",
        element("th", first, scope="row", role="rowheader"),
        *(
            element("td", cell, role="cell", data_label=head)
            for head, cell in zip(heads[1:], rest, strict=True)
        ),
        role="row",
    )


def _quoted(value: Html | str | float) -> str:
    if isinstance(value, Html):
        return value.text
    return _escaped(value) if isinstance(value, str) else coordinate(value)


def _escaped(text: str) -> str:
    plain = text.isprintable() and len(text) <= MAX_TEXT_CHARS
    return html.escape(text if plain else printable(text, max_chars=MAX_TEXT_CHARS), quote=True)

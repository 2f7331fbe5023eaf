"""A table that stays one on a phone: there each row becomes a small block with its labels.

Invariants: every table has a caption and headers for rows and columns; the roles are spelled out,
because a table that is laid out in another way loses them in some browsers.

Covered: any number of columns. Not covered: what is in the cells.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.status_page.markup import Child, Html, element

__all__ = ["table"]


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[Child]], *, class_: str
) -> Html:
    """Make a table.

    Args:
        caption: What it is, for who does not see it.
        heads: Of the columns.
        rows: The cells of each row; the first is its header.
        class_: Its layout (``style.py``).
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

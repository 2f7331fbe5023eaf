"""Draws a dashboard's reading as one picture, panel by panel where Grafana would put them.

Invariants: every panel of the reading is on the picture; an empty one says so in words, a failed
one says in red what Prometheus answered.

Covered: the five kinds of panels of ``panel.py``. Not covered: Grafana's own look.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from deploy.grafana.errors import PanelError
from deploy.grafana.reading import DashboardReading, PanelReading
from deploy.grafana.sheet.card import GREY, INK, Card, colour_of
from deploy.grafana.sheet.time_axis import draw_lines, draw_timeline
from deploy.grafana.sheet.values import draw_bars, draw_stat, draw_table

__all__ = ["draw"]

_DPI: Final = 100
_COLUMN_PX: Final = 76
_UNIT_PX: Final = 36
_ROW_UNITS: Final = 1
_MARGIN_PX: Final = 16
_HEAD_PX: Final = 74
_GAP_PX: Final = 4
_PAD_PX: Final = 10
_TITLE_PX: Final = 26


def draw(reading: DashboardReading, out: Path) -> None:
    """Write what was read as one PNG picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    lowest = max(y + height for _, y, _, height in (one.place for one in reading.panels))
    width = 24 * _COLUMN_PX + 2 * _MARGIN_PX
    height = _HEAD_PX + lowest * _UNIT_PX + _MARGIN_PX
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="#f3f4f6")
    # The canvas measures text, so it has to be there before anything is drawn.
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    page = Card(figure=figure, left=0, top=0, width=width, height=height)
    _head(page, reading)
    for top, title in reading.rows:
        middle = _HEAD_PX + (top + _ROW_UNITS / 2) * _UNIT_PX
        page.text(_MARGIN_PX + 4, middle, title, size=16, bold=True)
    for one in reading.panels:
        _panel(page, one, reading)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=_DPI)


def _head(page: Card, reading: DashboardReading) -> None:
    window = reading.window
    failed = len(reading.failed)
    empty = sum(one.empty for one in reading.panels)
    begin, end = (
        datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
        for at in (window.start_unix_s, window.end_unix_s)
    )
    chosen = ", ".join(f"{name} {value}" for name, value in reading.variables.items())
    page.text(_MARGIN_PX + 4, 24, reading.title, size=22, bold=True)
    said = (
        f"{begin} to {end} UTC{f'; {chosen}' if chosen else ''}; a point each {window.step_s:g} s; "
        f"(+n): in this range; vertical lines: {_marks(reading)}"
    )
    page.text(_MARGIN_PX + 4, 52, said, size=12, colour=GREY, room=page.width - 2 * _MARGIN_PX)
    count = f"{len(reading.panels)} panels: {empty} without data, {failed} failed"
    page.text(
        page.width - _MARGIN_PX - 4, 24, count, size=14, bold=True, align="right",
        colour=colour_of("red") if failed else INK,
    )  # fmt: skip


def _marks(reading: DashboardReading) -> str:
    words = dict.fromkeys(f"{text} ({colour})" for _, text, colour in reading.marks)
    return ", ".join(words) if words else "none"


def _panel(page: Card, one: PanelReading, reading: DashboardReading) -> None:
    x, y, columns, units = one.place
    card = page.inside(
        _MARGIN_PX + x * _COLUMN_PX + _GAP_PX,
        _HEAD_PX + y * _UNIT_PX + _GAP_PX,
        columns * _COLUMN_PX - 2 * _GAP_PX,
        units * _UNIT_PX - 2 * _GAP_PX,
    )
    edge = colour_of("red") if one.error else "#d5d9df"
    card.box(0, 0, card.width, card.height, face="white", edge=edge, line=2 if one.error else 0.8)
    card.text(_PAD_PX, 15, one.title, size=12.5, bold=True, room=card.width - 2 * _PAD_PX)
    body = card.inside(
        _PAD_PX, _TITLE_PX, card.width - 2 * _PAD_PX, card.height - _TITLE_PX - _PAD_PX
    )
    if one.error:
        body.paragraph(0, 14, one.error, room=body.width, size=12, colour=colour_of("red"))
    elif one.empty:
        quiet = one.panel["fieldConfig"]["defaults"].get("noValue", "")
        said = f"no data ({quiet})" if quiet else "no data"
        middle = (body.width / 2, body.height / 2 - 8)
        body.text(*middle, said, size=13, colour=GREY, align="center", room=body.width)
    else:
        _body(body, one, reading)


def _body(body: Card, one: PanelReading, reading: DashboardReading) -> None:
    kinds: dict[str, Any] = {
        "timeseries": lambda: draw_lines(body, one, reading),
        "state-timeline": lambda: draw_timeline(body, one, reading),
        "stat": lambda: draw_stat(body, one),
        "bargauge": lambda: draw_bars(body, one),
        "table": lambda: draw_table(body, one),
    }
    if one.panel["type"] not in kinds:
        raise PanelError(f"the contact sheet cannot draw a {one.panel['type']}")
    kinds[one.panel["type"]]()

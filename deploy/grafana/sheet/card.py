"""One panel's place on the picture, measured in pixels.

Invariants: text is measured before it is drawn, and cut with an ellipsis where it does not fit, so
that nothing is drawn over anything else.

Covered: text, boxes, axes. Not covered: what a panel draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

__all__ = ["GREY", "INK", "Card", "colour_of"]

INK: Final = "#1f2328"
GREY: Final = "#6a737d"
_COLOURS: Final = {
    "green": "#2f8f46",
    "orange": "#d97706",
    "red": "#c4262e",
    "blue": "#2f6fc1",
    "purple": "#7d4cc2",
    "transparent": "none",
}
_POINTS_PER_PIXEL: Final = 0.72
"""At 100 dots an inch."""


def colour_of(name: str) -> str:
    """What matplotlib draws for one of Grafana's names."""
    return _COLOURS.get(name, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A rectangle on the picture; x to the right and y down, from its upper left corner."""

    figure: Any
    left: float
    top: float
    width: float
    height: float

    def inside(self, left: float, top: float, width: float, height: float) -> Card:
        """A part of it."""
        return Card(
            figure=self.figure,
            left=self.left + left,
            top=self.top + top,
            width=width,
            height=height,
        )

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Axes in a part of it."""
        total_x, total_y = self._total()
        return self.figure.add_axes(
            (
                (self.left + left) / total_x,
                1 - (self.top + top + height) / total_y,
                width / total_x,
                height / total_y,
            )
        )

    def box(
        self,
        left: float,
        top: float,
        width: float,
        height: float,
        *,
        face: str,
        edge: str = "none",
        line: float = 0.0,
    ) -> None:
        """A filled rectangle."""
        from matplotlib.patches import Rectangle

        total_x, total_y = self._total()
        self.figure.add_artist(
            Rectangle(
                ((self.left + left) / total_x, 1 - (self.top + top + height) / total_y),
                width / total_x,
                height / total_y,
                facecolor=face,
                edgecolor=edge,
                linewidth=line,
                transform=self.figure.transFigure,
                zorder=-1,  # Below axes.
            )
        )

    def text(
        self,
        left: float,
        top: float,
        text: str,
        *,
        size: float = 11,
        colour: str = INK,
        bold: bool = False,
        align: str = "left",
        room: float | None = None,
    ) -> float:
        """A line of text with its middle at ``top``; returns how many pixels it takes.

        It is drawn literally, and begins at ``left``, or ends or has its middle there, as ``align``
        (``left``, ``right`` or ``center``) says. The size is in pixels; after ``room`` pixels it is
        cut.
        """
        cut = text if room is None else self.cut(text, room, size=size, bold=bold)
        total_x, total_y = self._total()
        self.figure.text(
            (self.left + left) / total_x,
            1 - (self.top + top) / total_y,
            cut,
            fontsize=size * _POINTS_PER_PIXEL,
            fontweight="bold" if bold else "normal",
            color=colour,
            ha=align,
            va="center_baseline",
            parse_math=False,
        )
        return self.measure(cut, size=size, bold=bold)

    def measure(self, text: str, *, size: float = 11, bold: bool = False) -> float:
        """Pixels that a line of text takes."""
        from matplotlib.font_manager import FontProperties

        font = FontProperties(size=size * _POINTS_PER_PIXEL, weight="bold" if bold else "normal")
        renderer = self.figure.canvas.get_renderer()
        width, _, _ = renderer.get_text_width_height_descent(text or " ", font, False)
        return float(width)

    def cut(self, text: str, room: float, *, size: float = 11, bold: bool = False) -> str:
        """As much of a text as fits, with an ellipsis where some does not."""
        if self.measure(text, size=size, bold=bold) <= room:
            return text
        kept = text
        while kept and self.measure(f"{kept}…", size=size, bold=bold) > room:
            kept = kept[:-1]
        return f"{kept.rstrip()}…"

    def paragraph(self, left: float, top: float, text: str, *, room: float, **style: Any) -> None:
        """Text over several lines, within ``room`` pixels each and the card's height."""
        size = style.get("size", 11)
        line = ""
        for word in [*text.split(), ""]:
            longer = f"{line} {word}".strip()
            if word and self.measure(longer, size=size) <= room:
                line = longer
                continue
            if line:
                last = bool(word) and top + 2.6 * size > self.height
                self.text(left, top, f"{line} …" if last else line, room=room, **style)
                if last:
                    return
                top += 1.4 * size
            line = word

    def _total(self) -> tuple[float, float]:
        width, height = self.figure.get_size_inches() * self.figure.dpi
        return float(width), float(height)

"""What the demo shows while it runs: how far it is, what of it is left, what every round came to.

A line for everything that happened, which stays. Beside it, for each part of the demo, how much of
it is done, for how long it has been at work and how long the rest may take: on a terminal in one
line that is drawn again and again, elsewhere in a line every ``EVERY_S``.

What is shown of a run comes from ``chorale run watch``, so it is what an admin sees: figures of
sums, never of one silo. Nor are a silo's figures shown when it works alone or judges: only that it
has done so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from dp.noise.figures import mean_success, readable_ratio, success_words
from lab.demo.outcome import explored
from lab.demo.stretch import Stretch
from ops.cli.bars import bars

__all__ = ["EVERY_S", "Progress"]

EVERY_S: Final = 15.0
LOG_WIDTH: Final = 160
"""Columns of a line where there is no terminal to fit into."""
_NAMED: Final = 2
"""So many silos that are waited for are named."""
_METER: Final = 16
"""Columns of the bar on a terminal."""


class Progress:
    """Prints to stderr; stdout stays free for results."""

    def __init__(self, console: Console | None = None, *, every_s: float = EVERY_S) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        if not self.console.is_terminal:
            self.console = Console(stderr=True, highlight=False, width=LOG_WIDTH)
        self.parts = 0
        """How many stretches there will be; they are counted if it is known."""
        self._part = 0
        self._every_s = every_s
        self._curve: list[float] = []
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/dim]  {text}")

    @contextmanager
    def stretch(
        self, title: str, *, steps: int = 1, called: str = "", guess_s: float | None = None
    ) -> Iterator[Stretch]:
        """Show one part of the demo until it is left; whoever does it tells its steps."""
        self._part += 1
        if self.parts:
            title = f"{self._part}/{self.parts} {title}"
        part = Stretch(title=title, steps=steps, called=called, guess_s=guess_s)
        with self._drawn(part) if self.console.is_terminal else self._told(part):
            yield part

    @contextmanager
    def _drawn(self, part: Stretch) -> Iterator[None]:
        with Live(
            get_renderable=lambda: _line(part),
            console=self.console,
            refresh_per_second=4,
            transient=True,
        ):
            yield

    @contextmanager
    def _told(self, part: Stretch) -> Iterator[None]:
        over = threading.Event()

        def tell() -> None:
            while not over.wait(self._every_s):
                self.say(escape(str(part)))

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()

    def status(self, status: dict[str, Any], part: Stretch) -> None:
        """Show one status of the run, and how far it is."""
        run, current = status["run"], status.get("current") or {}
        for done in status.get("finished", ()):
            self._round(done, run)
            steps = int(run.get("steps", 1))
            part.reach((done["round"] - 1) * steps + done.get("step", 0) + 1)
        place = _place(current.get("round", run["round"]), current.get("step", 0), run)
        waiting = [item["silo_id"] for item in current.get("waiting_for", ())]
        part.doing = " ".join(f"{place} {current.get('phase', '')}".split())
        if waiting:
            named = " and ".join(waiting) if len(waiting) <= _NAMED else f"{len(waiting)} silos"
            part.doing += f", waiting for {named}"

    def _round(self, done: dict[str, Any], run: dict[str, Any]) -> None:
        # Only a round's first release carries figures.
        summed = done["outcome"] == "aggregated" and not done.get("step", 0)
        success = explored(done)
        if summed:
            self._curve.append(readable_ratio(mean_success(success)))
        duration = sum(item["duration_s"] for item in done.get("timings", ()))
        lost = sorted(set(done.get("cohort", ())) - set(done.get("survivors", ())))
        text = (
            f"{_place(done['round'], done.get('step', 0), run)}  {done['outcome']:<10}  "
            f"{len(done.get('survivors', ()))} silos in the sum  {duration:5.1f} s"
        )
        if summed:
            text += f"  success while exploring {success_words(success)}  {bars(self._curve)}"
        if lost:
            text += f"  [yellow]lost on the way: {', '.join(lost)}[/yellow]"
        self.say(text)


def _line(part: Stretch) -> Text:
    """A part in one line, however narrow the terminal."""
    full = round(_METER * part.share)
    line = Text("━" * full, style="green", no_wrap=True, overflow="ellipsis")
    line.append("━" * (_METER - full), style="bright_black")
    line.append(f"  {part}", style="default")
    return line


def _place(number: int, step: int, run: Mapping[str, Any]) -> str:
    """Round, and the step where a round has several; steps count from 1 for people."""
    steps = int(run.get("steps", 1))
    named = f" step {step + 1}/{steps}" if steps > 1 and number else ""
    return f"round {number:>2}/{run['rounds']}{named}"

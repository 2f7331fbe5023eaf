"""What the demo shows while it runs: phase, who is waited for, deadline, success curve.

A live panel on a terminal, one line per event elsewhere. Everything shown comes from
``chorale run watch``, so it is what an admin sees: figures of sums, never of one silo.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from dp.noise.figures import mean_success, readable_ratio, success_words
from lab.demo.outcome import explored
from ops.cli.bars import bars

__all__ = ["Progress"]

LOG_WIDTH = 160
"""Columns of a line where there is no terminal to fit into."""


class Progress:
    """Prints to stderr; stdout stays free for results."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        if not self.console.is_terminal:
            self.console = Console(stderr=True, highlight=False, width=LOG_WIDTH)
        self._live: Live | None = None
        self._curve: list[float] = []
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        """Open the live panel where there is a terminal."""
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the live panel."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/dim]  {text}")

    def status(self, status: dict[str, Any]) -> None:
        """Show one status of the run."""
        run, current = status["run"], status.get("current") or {}
        for done in status.get("finished", ()):
            self._round(done, run)
        phase = current.get("phase", "")
        place = _place(current.get("round", run["round"]), current.get("step", 0), run)
        waiting = ", ".join(item["silo_id"] for item in current.get("waiting_for", ()))
        line = f"{place}  {phase}"
        if waiting:
            line += f"  waiting for {waiting}"
        if self._live is not None:
            left = max(0, int(current.get("deadline_unix_s", 0)) - int(time.time()))
            body = Text(f"{line}  ({left} s left)\nsuccess while exploring  ")
            body.append(bars(self._curve), style="green")
            self._live.update(Panel(body, title=run["run_id"], expand=False))

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


def _place(number: int, step: int, run: Mapping[str, Any]) -> str:
    """Round, and the step where a round has several; steps count from 1 for people."""
    steps = int(run.get("steps", 1))
    named = f" step {step + 1}/{steps}" if steps > 1 and number else ""
    return f"round {number:>2}/{run['rounds']}{named}"

"""Following a run: a stream that outlives a coordinator's restart, and what people see of it.

Covered: a lost or restarted coordinator for ``PATIENCE_S``, finished rounds told once. Not covered:
anything of a single silo beyond whether it answers.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chorale.v1 import admin_pb2
from server.cli.client import connect

__all__ = ["Panel", "follow", "place_of"]

PATIENCE_S: Final = 120.0
PAUSE_S: Final = 1.0
_BARS: Final = "▁▂▃▄▅▆▇█"


def follow(data_dir: Path, run_id: str) -> Iterator[admin_pb2.WatchRunResponse]:
    """Yield a run's statuses to its end.

    Args:
        data_dir: The coordinator's data directory.
        run_id: The run.

    Yields:
        Statuses; each finished step of a round is in one of them only.

    Raises:
        grpc.RpcError: The coordinator refused, or stayed away for ``PATIENCE_S``.
    """
    told: set[tuple[int, int]] = set()
    heard = time.monotonic()
    request = admin_pb2.WatchRunRequest(run_id=run_id)
    while True:
        try:
            with connect(data_dir) as stub:
                for status in stub.WatchRun(request):
                    heard = time.monotonic()
                    fresh = [
                        done for done in status.finished if (done.round, done.step) not in told
                    ]
                    told.update((done.round, done.step) for done in fresh)
                    del status.finished[:]
                    status.finished.extend(fresh)
                    yield status
                return
        except grpc.RpcError as error:
            away = time.monotonic() - heard
            if error.code() is not grpc.StatusCode.UNAVAILABLE or away > PATIENCE_S:
                raise
        time.sleep(PAUSE_S)


def place_of(run: admin_pb2.RunSummary, round_number: int, step: int) -> str:
    """Where a run is; steps are named where a round has several, and count from 1 for people.

    Args:
        run: Says how many there are.
        round_number: The round.
        step: Its step, from 0.
    """
    named = f", step {step + 1}/{run.steps}" if run.steps > 1 and round_number else ""
    return f"round {round_number}/{run.rounds}{named}"


class Panel:
    """What stderr shows: a live view on a terminal, a line a finished step elsewhere."""

    def __init__(self, *, live: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._lines = live
        self._live: Live | None = (
            Live(console=self._console, refresh_per_second=4)
            if live and sys.stderr.isatty()
            else None
        )
        self._curve: list[float] = []

    def __enter__(self) -> Self:
        """Open the view."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the view; its last state stays on screen."""
        if self._live is not None:
            self._live.stop()

    def show(self, status: admin_pb2.WatchRunResponse) -> None:
        """Show a status.

        Args:
            status: From :func:`follow`.
        """
        for done in status.finished:
            known = [family.success_ratio for family in done.success]
            ratios = [ratio for ratio in known if ratio == ratio]  # noqa: PLR0124 - NaN differs from itself
            if ratios:
                self._curve.append(sum(ratios) / len(ratios))
            if self._lines:
                self._console.print(self._finished(done, status.run))
        if self._live is not None:
            self._live.update(self._view(status))

    def _finished(self, done: admin_pb2.RoundStatus, run: admin_pb2.RunSummary) -> str:
        duration_s = sum(timing.duration_s for timing in done.timings)
        lost = sorted(set(done.cohort) - set(done.survivors))
        curve = f"  success {self._curve[-1]:.1%} {_bars(self._curve)}" if self._curve else ""
        return (
            f"{place_of(run, done.round, done.step)} {done.outcome}: "
            f"{len(done.survivors)} silos in the sum, {duration_s:.1f} s, "
            f"{done.upload_bytes:,} bytes{curve}{_agreement(done)}"
            + (f", lost {', '.join(lost)}" if lost else "")
        )

    def _view(self, status: admin_pb2.WatchRunResponse) -> Group:
        run, current, now = status.run, status.current, time.time()
        head = Text(
            f"{run.run_id}  {run.state}  {place_of(run, run.round, run.step)}", style="bold"
        )
        parts: list[Text | Table] = [head]
        if status.HasField("current"):
            parts.append(
                Text(
                    f"{place_of(run, current.round, current.step)}"
                    f" attempt {current.attempt}: {current.phase}"
                    f" for {_span(now - current.phase_since_unix_s)}"
                    f", deadline in {_span(current.deadline_unix_s - now)}"
                )
            )
            if current.waiting_for:
                table = Table("waiting for", "since", "last heard of", box=None)
                for silo in current.waiting_for:
                    last = silo.last_byte_unix_s
                    table.add_row(
                        silo.silo_id,
                        _span(now - silo.since_unix_s),
                        f"{_span(now - last)} ago" if last else "not since the start",
                    )
                parts.append(table)
        parts.append(
            Text(
                f"{status.epsilon_unit}-level ε {status.epsilon_spent:.4g} "
                f"of {status.epsilon_cap:.4g} at δ = {status.delta:g}"
            )
        )
        if self._curve:
            parts.append(Text(f"success {_bars(self._curve)} {self._curve[-1]:.1%}"))
        return Group(*parts)


def _agreement(done: admin_pb2.RoundStatus) -> str:
    """κ with its standard error; nothing for a round without a sum, or below its noise."""
    if done.outcome != "aggregated" or math.isnan(done.agreement):
        return ""
    return f"  agreement {done.agreement:.2f} ± {done.agreement_standard_error:.2f}"


def _bars(values: list[float]) -> str:
    return "".join(_BARS[min(7, max(0, int(value * 8)))] for value in values)


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"

"""Following a run: a stream that outlives a coordinator's restart, and what people see of it.

Covered: a coordinator that is lost or restarts, for ``PATIENCE_S`` since it was last heard of, and
not where it never was; finished rounds told once. Not covered:
anything of a single silo beyond whether it answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
from rich.console import Console
from rich.live import Live

from chorale.v1 import admin_pb2
from server.cli.client import connect
from server.cli.run_view import bars, place_of, view

__all__ = ["Panel", "follow", "place_of"]

PATIENCE_S: Final = 120.0
PAUSE_S: Final = 1.0


def follow(
    data_dir: Path, run_id: str, *, waiting: Callable[[float], None] = lambda _until: None
) -> Iterator[admin_pb2.WatchRunResponse]:
    """Yield a run's statuses to its end.

    Args:
        data_dir: The coordinator's data directory.
        run_id: The run.
        waiting: Told once, when a coordinator that had answered is away, until when it is waited
            for, Unix seconds.

    Yields:
        Statuses; each finished step of a round is in one of them only.

    Raises:
        grpc.RpcError: The coordinator refused, never answered, or stayed away for ``PATIENCE_S``.
    """
    told: set[tuple[int, int]] = set()
    heard, away = None, False
    request = admin_pb2.WatchRunRequest(run_id=run_id)
    while True:
        try:
            with connect(data_dir) as stub:
                for status in stub.WatchRun(request):
                    heard, away = time.monotonic(), False
                    fresh = [
                        done for done in status.finished if (done.round, done.step) not in told
                    ]
                    told.update((done.round, done.step) for done in fresh)
                    del status.finished[:]
                    status.finished.extend(fresh)
                    yield status
                return
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or heard is None:
                raise
            left_s = heard + PATIENCE_S - time.monotonic()
            if left_s < 0:
                raise
            if not away:
                waiting(time.time() + left_s)
            away = True
        time.sleep(PAUSE_S)


class Panel:
    """What stderr shows: a live view on a terminal, elsewhere a line for each change."""

    def __init__(self, *, live: bool, console: Console | None = None) -> None:
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._lines = live
        self._live: Live | None = (
            Live(console=self._console, refresh_per_second=4)
            if live and self._console.is_terminal
            else None
        )
        self._curve: list[float] = []
        self._curves: dict[str, list[float]] = {}
        self._standing = ""

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
            self._take(done)
            if self._lines:
                self._print(self._finished(done, status.run))
        if self._live is not None:
            self._live.update(view(status, self._curves, time.time()))
        elif self._lines:
            self._tell_standing(status)

    def wait(self, until_unix_s: float) -> None:
        """Say that the coordinator is away, and until when it is waited for.

        Args:
            until_unix_s: From :func:`follow`.
        """
        until = time.strftime("%H:%M:%S", time.localtime(until_unix_s))
        self._print(f"the coordinator does not answer; waiting for it until {until}")

    def _take(self, done: admin_pb2.RoundStatus) -> None:
        known = {
            family.family: family.success_ratio
            for family in done.success
            if not math.isnan(family.success_ratio)
        }
        for family, ratio in known.items():
            self._curves.setdefault(family, []).append(ratio)
        if known:
            self._curve.append(sum(known.values()) / len(known))

    def _tell_standing(self, status: admin_pb2.WatchRunResponse) -> None:
        """Say once what a run waits for that does not move."""
        run = status.run
        stalled = status.current.stalled_since_unix_s
        waiting = ", ".join(silo.silo_id for silo in status.current.waiting_for)
        back = f"{status.rollback_to_round}" if status.HasField("rollback_to_round") else ""
        standing = f"{run.state}:{run.behind}:{waiting if stalled else ''}:{back}"
        if standing == self._standing:
            return
        first, self._standing = not self._standing, standing
        if run.state in {"queued", "paused", "pausing"} or stalled or back or not first:
            text = f"{run.run_id} {run.state}"
            text += f" behind {run.behind}" if run.behind else ""
            text += f", stalled: waiting for {waiting}" if stalled else ""
            text += f", to go back to the adapter of round {back}" if back else ""
            self._print(text)

    def _print(self, line: str) -> None:
        """One line, whatever the width, and nothing in it is markup."""
        self._console.print(line, soft_wrap=True, markup=False)

    def _finished(self, done: admin_pb2.RoundStatus, run: admin_pb2.RunSummary) -> str:
        if done.HasField("restored_round"):
            return (
                f"{place_of(run, done.round, done.step)} {done.outcome}: back to the adapter of "
                f"round {done.restored_round}; nothing was summed, nothing charged"
            )
        duration_s = sum(timing.duration_s for timing in done.timings)
        lost = sorted(set(done.cohort) - set(done.survivors))
        curve = f"  success {self._curve[-1]:.1%} {bars(self._curve)}" if self._curve else ""
        return (
            f"{place_of(run, done.round, done.step)} {done.outcome}: "
            f"{len(done.survivors)} silos in the sum, {duration_s:.1f} s, "
            f"{done.upload_bytes:,} bytes{curve}{_agreement(done)}"
            + (f", lost {', '.join(lost)}" if lost else "")
        )


def _agreement(done: admin_pb2.RoundStatus) -> str:
    """κ with its standard error; nothing for a round without a sum, or below its noise."""
    if done.outcome != "aggregated" or math.isnan(done.agreement):
        return ""
    return f"  agreement {done.agreement:.2f} ± {done.agreement_standard_error:.2f}"

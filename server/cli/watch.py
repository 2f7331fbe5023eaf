"""Following a run: a stream that outlives a coordinator's restart, and what people see of it.

Invariants:

1. A figure of a sum is told with its standard error, or as below noise or not reported
   (``dp.noise.figures``); a round without a sum has none, not that of the round before.
2. Whatever the state, a view answers what is waited for, since when and until when. What has no end
   says so.
3. A collapse is found by the coordinator's rule (``server/run/collapse.py``) from the rounds that
   were told, and said with what to do, where something can still be done.

Covered: a coordinator that is lost or restarts, for ``PATIENCE_S`` since it was last heard of, and
not where it never was; finished rounds told once; every state of a run, several environments, runs
with and without a budget. Not covered: anything of a single silo beyond whether it answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from chorale.v1 import admin_pb2
from dp.config import ADJACENCY
from dp.noise.estimate import Estimate
from dp.noise.figures import (
    mean_success,
    ratio_below_noise,
    readable_ratio,
    success_words,
)
from federation.text import print_lines, printable
from ops.cli.bars import bars
from server.cli.client import CALL_TIMEOUT_S, connect, plain
from server.cli.program import NOT_POST_QUANTUM, place_of
from server.figures import RoundFigures
from server.run.collapse import Collapse, collapse
from server.states import OVER, RunState, SiloState

__all__ = ["Panel", "follow", "sitting_out", "span", "status_json", "view"]

PATIENCE_S: Final = 120.0
PAUSE_S: Final = 1.0
_METER: Final = 12
_NARROW: Final = 80
"""Columns that a terminal is taken to have at least: a curve leaves room for its figure."""
_LEAST_CURVE: Final = 10
_FIGURE: Final = 22
_LEAST_NAME: Final = 24
_WIDE: Final = 10_000
"""Columns where nothing is to be folded: for a file or another program."""


def follow(
    data_dir: Path, run_id: str, *, waiting: Callable[[float], None] = lambda _until: None
) -> Iterator[admin_pb2.WatchRunResponse]:
    """Yield a run's statuses to its end; each finished step of a round is in one of them only.

    ``waiting`` is told once, when a coordinator that had answered is away, until when it is waited
    for, Unix seconds.

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


def sitting_out(data_dir: Path) -> tuple[str, ...]:
    """Ask who sits out of the run that is driven; a status has no place for it.

    Raises:
        grpc.RpcError: The coordinator refused or is away.
    """
    with connect(data_dir) as stub:
        silos = stub.ListSilos(admin_pb2.ListSilosRequest(), timeout=CALL_TIMEOUT_S).silos
    return tuple(silo.silo_id for silo in silos if silo.state == SiloState.SITTING_OUT)


class Panel:
    """What stderr shows: a live view on a terminal, elsewhere a line for each change.

    How a run ended is a result, so :meth:`end` returns it.
    """

    def __init__(self, *, live: bool, console: Console | None = None) -> None:
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._lines = live
        self._live: Live | None = (
            Live(console=self._console, refresh_per_second=4)
            if live and self._console.is_terminal
            else None
        )
        self._means: list[Estimate] = []
        self._curves: dict[str, list[Estimate]] = {}
        self._told: list[RoundFigures] = []
        self._collapse: Collapse | None = None
        self._standing = ""
        self._last: admin_pb2.WatchRunResponse | None = None

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
        """Close the view; it stays on screen only where no end follows."""
        if self._live is not None:
            self._live.transient = kind is None
            self._live.stop()

    def show(self, status: admin_pb2.WatchRunResponse, out: Sequence[str] = ()) -> None:
        """Show a status from :func:`follow`, beside ``out`` from :func:`sitting_out`."""
        self._last = status
        for done in status.finished:
            self._take(done)
            if self._lines:
                self._print(self._finished(done, status.run))
        fresh = self._judge() if status.finished else False
        alarm = _alarm(self._collapse, status.run)
        if self._live is not None:
            self._live.update(view(status, self._shown(), time.time(), out, alarm))
        elif self._lines:
            if fresh and alarm:
                self._print(alarm)
            self._tell_standing(status, out)

    def end(self, width: int | None = None) -> list[str]:
        """What is known at last, line by line; nothing where nothing was shown.

        Lines are whole, for a file or another program, unless a terminal of so many columns shows
        them.
        """
        if self._last is None:
            return []
        alarm = _alarm(self._collapse, self._last.run)
        return _view_lines(self._last, self._shown(), time.time(), width or _WIDE, alarm)

    @property
    def collapse(self) -> dict[str, Any] | None:
        """The collapse that was found, with what stands in the live view, as JSON's types."""
        found = self._collapse
        if found is None:
            return None
        return {
            "round": found.round,
            "success": found.success._asdict(),
            "best_round": found.best_round,
            "best": found.best._asdict(),
            "back_to_round": found.good_round - 1,
        }

    def _shown(self) -> dict[str, list[Estimate]]:
        """Success by family; where no sum tells one, that it is not reported."""
        return self._curves or ({"": self._means} if self._means else {})

    def wait(self, until_unix_s: float) -> None:
        """Say that the coordinator is away, and until when it is waited for."""
        until = time.strftime("%H:%M:%S", time.localtime(until_unix_s))
        self._print(f"the coordinator does not answer; waiting for it until {until}")

    def _judge(self) -> bool:
        """Look whether the agent has collapsed by now, and tell whether that is news."""
        before, self._collapse = self._collapse, collapse(self._told)
        return before is None and self._collapse is not None

    def _take(self, done: admin_pb2.RoundStatus) -> None:
        success = _success(done)
        self._told.append(
            RoundFigures(
                round=done.round,
                step=done.step,
                outcome=done.outcome,
                success={one: (each.mean, each.standard_error) for one, each in success.items()},
                restored_round=done.restored_round if done.HasField("restored_round") else None,
            )
        )
        if not _has_success(done):
            return
        for family, ratio in success.items():
            self._curves.setdefault(family, []).append(ratio)
        self._means.append(mean_success(success))

    def _tell_standing(self, status: admin_pb2.WatchRunResponse, out: Sequence[str]) -> None:
        """Say once what a run waits for that does not move."""
        run = status.run
        stalled = status.current.stalled_since_unix_s
        waiting = ", ".join(silo.silo_id for silo in status.current.waiting_for)
        back = f"{status.rollback_to_round}" if status.HasField("rollback_to_round") else ""
        without = ", ".join(out)
        standing = f"{run.state}:{run.behind}:{waiting if stalled else ''}:{back}:{without}"
        if standing == self._standing:
            return
        first, self._standing = not self._standing, standing
        if run.state in {"queued", "paused", "pausing"} or stalled or back or out or not first:
            text = f"{run.run_id} {run.state}"
            text += f" behind {run.behind}" if run.behind else ""
            text += f", stalled: waiting for {waiting}" if stalled else ""
            text += f", to go back to the adapter of round {back}" if back else ""
            text += f": {printable(status.error)}" if run.state == "paused" and status.error else ""
            text += f", sitting out: {without}" if out else ""
            self._print(text)

    def _print(self, line: str) -> None:
        """One line, folded between words on a terminal alone; nothing in it is markup."""
        if self._console.is_terminal:
            self._console.print(line, markup=False)
        else:
            print_lines(self._console.file, line)

    def _finished(self, done: admin_pb2.RoundStatus, run: admin_pb2.RunSummary) -> str:
        if done.HasField("restored_round"):
            return (
                f"{place_of(run, done.round, done.step)} {done.outcome}: back to the adapter of "
                f"round {done.restored_round}; nothing was summed, nothing charged"
            )
        if done.outcome == "bisected":
            gross = [f"half {half.part + 1}" for half in done.halves if half.verdict == "gross"]
            return (
                f"{place_of(run, done.round, done.step)} bisected, nothing applied: "
                f"{' and '.join(gross) or 'no half'} gross; chorale run show {run.run_id}"
            )
        duration_s = sum(timing.duration_s for timing in done.timings)
        lost = sorted(set(done.cohort) - set(done.survivors))
        curve = ""
        if _has_success(done):
            drawn = bars([readable_ratio(mean) for mean in self._means])
            curve = f"  success {success_words(_success(done))} {drawn}"
        return (
            f"{place_of(run, done.round, done.step)} {done.outcome}: "
            f"{len(done.survivors)} silos in the sum, {duration_s:.1f} s, "
            f"{done.upload_bytes:,} bytes{curve}{_agreement(done)}{_vetoes(done)}"
            + (f", asked {', '.join(done.chosen)}" if done.chosen else "")
            + (f", lost {', '.join(lost)}" if lost else "")
        )


def span(seconds: float) -> str:
    """A duration for people; nothing is negative."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def view(
    status: admin_pb2.WatchRunResponse,
    curves: Mapping[str, Sequence[Estimate]],
    now_unix_s: float,
    out: Sequence[str] = (),
    alarm: str = "",
) -> Group:
    """The live view: the newest status, success ratios by environment, and who sits out of the run.

    The curves have their oldest figure first; ``alarm`` is what stands out of them.
    """
    run = status.run
    parts: list[Text | Table] = [
        Text(f"{run.run_id}  {run.state}  {place_of(run, run.round, run.step)}", style="bold")
    ]
    parts += [Text(line) for line in _standing(status, now_unix_s)]
    if status.HasField("current") and run.state in {"running", "pausing"}:
        parts += _current(run, status.current, now_unix_s)
        if out:
            parts.append(Text(f"sitting out after drop-outs: {', '.join(out)}", style="yellow"))
    if alarm:
        parts.append(Text(alarm, style="yellow"))
    parts.append(Text(_budget(status)))
    width = max((len(name) for name in curves), default=0)
    newest = max(_LEAST_CURVE, _NARROW - len("success  ") - width - _FIGURE)
    parts += [
        Text(
            f"success {name:<{width}} "
            f"{bars([readable_ratio(ratio) for ratio in curve], newest=newest)} "
            f"{success_words({name: curve[-1]})}"
        )
        for name, curve in sorted(curves.items())
        if curve
    ]
    return Group(*parts)


def _view_lines(
    status: admin_pb2.WatchRunResponse,
    curves: Mapping[str, Sequence[Estimate]],
    now_unix_s: float,
    width: int,
    alarm: str,
) -> list[str]:
    """The live view as lines of at most ``width`` columns, without colours."""
    shown = StringIO()
    drawn = view(status, curves, now_unix_s, alarm=alarm)
    Console(file=shown, width=width, color_system=None).print(drawn)
    return [line.rstrip() for line in shown.getvalue().splitlines()]


def _alarm(found: Collapse | None, run: admin_pb2.RunSummary) -> str:
    """What an admin is told of a collapse, with what can still be done."""
    if found is None:
        return ""
    if run.state in OVER:
        return found.words
    return found.advice(run.run_id, rests=run.state == RunState.PAUSED)


def _standing(status: admin_pb2.WatchRunResponse, now_unix_s: float) -> list[str]:
    """What a run waits for that is not in a round."""
    run = status.run
    known = f" for {span(now_unix_s - run.state_since_unix_s)}" if run.state_since_unix_s else ""
    lines = [NOT_POST_QUANTUM] if run.suite == 1 else []
    if run.state == "queued":
        what = f"behind {run.behind}" if run.behind else "as the next one"
        lines.append(f"waiting {what}{known}, without a deadline: it begins by itself")
    elif run.state == "paused":
        lines.append(
            f"waiting for an admin{known}, without a deadline: chorale run resume {run.run_id}"
        )
    elif run.state == "pausing":
        lines.append("pausing: the sum that silos have agreed on is finished first")
    if status.HasField("rollback_to_round"):
        lines.append(
            f"to go back to the adapter of round {status.rollback_to_round} before the next round"
        )
    if status.kept_out:
        lines.append(
            f"without noise a cohort only shrinks: {', '.join(status.kept_out)} take no part in it "
            "any more"
        )
    if status.error:
        lines.append(f"reason: {printable(status.error)}")
    return lines


def _current(
    run: admin_pb2.RunSummary, current: admin_pb2.RoundStatus, now_unix_s: float
) -> list[Text | Table]:
    left_s = current.deadline_unix_s - now_unix_s
    until = f"deadline in {span(left_s)}" if left_s >= 0 else f"deadline passed {span(-left_s)} ago"
    parts: list[Text | Table] = [
        Text(
            f"{place_of(run, current.round, current.step)} attempt {current.attempt}: "
            f"{current.phase} for {span(now_unix_s - current.phase_since_unix_s)}, {until}"
        )
    ]
    if current.stalled_since_unix_s:
        parts.append(
            Text(
                f"stalled for {span(now_unix_s - current.stalled_since_unix_s)}: too few silos are "
                "ready; the task goes out again at each deadline",
                style="yellow",
            )
        )
    if current.chosen:
        asked = ", ".join(current.chosen)
        parts.append(Text(f"this round asks {asked}: {printable(current.chosen_why)}"))
    if not current.waiting_for:
        parts.append(Text("waiting for no silo: the coordinator is at work"))
        return parts
    # Who it is must be readable in full, however narrow the terminal.
    longest = max(len(silo.silo_id) for silo in current.waiting_for)
    who = Column("waiting for", overflow="fold", min_width=min(longest, _LEAST_NAME))
    table = Table(who, "since", "until", "last byte", box=None)
    for silo in current.waiting_for:
        last = silo.last_byte_unix_s
        table.add_row(
            silo.silo_id,
            f"{span(now_unix_s - silo.since_unix_s)} ago",
            until.removeprefix("deadline "),
            f"{span(now_unix_s - last)} ago" if last else "never",
        )
    parts.append(table)
    return parts


def _budget(status: admin_pb2.WatchRunResponse) -> str:
    spent, cap = status.epsilon_spent, status.epsilon_cap
    unit = f"{status.epsilon_unit}-level " if status.epsilon_unit else ""
    text = f"{unit}ε {spent:.4g} of {cap:.4g} at δ = {status.delta:g} ({ADJACENCY})"
    if not (math.isfinite(spent) and math.isfinite(cap)) or cap <= 0:
        return text
    filled = min(_METER, max(0, math.ceil(_METER * spent / cap)))
    return f"{text}  {'█' * filled}{'░' * (_METER - filled)} {spent / cap:.0%}"


def status_json(status: admin_pb2.WatchRunResponse) -> dict[str, Any]:
    """A status as JSON's types: each figure as it was summed, its error, whether noise hides it."""
    content = plain(status)
    shown = list(zip(status.finished, content["finished"], strict=True))
    if status.HasField("current"):
        shown.append((status.current, content["current"]))
    for message, fields in shown:
        for family, told in zip(message.success, fields["success"], strict=True):
            ratio = Estimate(family.success_ratio, family.standard_error)
            told["below_noise"] = ratio_below_noise(ratio)
        kappa = Estimate(message.agreement, message.agreement_standard_error)
        fields["agreement_below_noise"] = ratio_below_noise(kappa)
        for name in ("heterogeneity", "silo_norm_sq"):
            error = getattr(message, f"{name}_standard_error")
            hidden = math.isnan(getattr(message, name)) and not math.isnan(error)
            fields[f"{name}_below_noise"] = hidden
        vetoes = Estimate(message.vetoes, message.vetoes_standard_error)
        told = not math.isnan(vetoes.standard_error)
        fields["vetoes_below_noise"] = told and math.isnan(vetoes.reportable)
    return content


def _has_success(done: admin_pb2.RoundStatus) -> bool:
    """Whether a step's sum may tell success: a round's first one does, unless none is reported."""
    return done.outcome == "aggregated" and not done.step


def _success(done: admin_pb2.RoundStatus) -> dict[str, Estimate]:
    return {
        family.family: Estimate(family.success_ratio, family.standard_error)
        for family in done.success
    }


def _vetoes(done: admin_pb2.RoundStatus) -> str:
    """The share of silos that veto; nothing where noise hides it or nobody was asked."""
    vetoes = Estimate(done.vetoes, done.vetoes_standard_error)
    value = vetoes.reportable
    if done.outcome != "aggregated" or math.isnan(value) or value <= 0.0:
        return ""
    return f"  vetoes {min(value, 1.0):.0%} ± {vetoes.standard_error:.0%}"


def _agreement(done: admin_pb2.RoundStatus) -> str:
    """κ with its standard error; nothing where there is none to show, for success says why."""
    kappa = Estimate(done.agreement, done.agreement_standard_error)
    value = readable_ratio(kappa)
    if done.outcome != "aggregated" or math.isnan(value):
        return ""
    return f"  agreement {value:.2f} ± {kappa.standard_error:.2f}"

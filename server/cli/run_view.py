"""What people see of a run's status: lines that say who or what is waited for, and figures.

Invariant: whatever the state, a view answers what is waited for, since when and until when. What
has no end says so.

Covered: every state of a run, several environments, runs with and without a budget. Not covered:
where it is shown (``server/cli/watch.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Final

from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text

from chorale.v1 import admin_pb2
from dp.noise.metrics_block import Estimate
from federation.noisy_figures import readable_ratio, success_words
from federation.printable import printable

__all__ = ["bars", "place_of", "span", "view", "view_lines"]

_BARS: Final = "▁▂▃▄▅▆▇█"
_GAP: Final = "·"
_METER: Final = 24
_LEAST_NAME: Final = 24
_NEWEST: Final = 60
"""Of a long curve the newest values are shown."""
_WIDE: Final = 10_000
"""Columns where nothing is to be folded."""


def place_of(run: admin_pb2.RunSummary, round_number: int, step: int) -> str:
    """Where a run is; steps are named where a round has several, and count from 1 for people.

    Args:
        run: Says how many there are.
        round_number: The round.
        step: Its step, from 0.
    """
    named = f", step {step + 1}/{run.steps}" if run.steps > 1 and round_number else ""
    return f"round {round_number}/{run.rounds}{named}"


def bars(values: Sequence[float]) -> str:
    """A curve of ratios in one line.

    Args:
        values: From 0 to 1; NaN, where there is no figure to show, is a gap.
    """
    return "".join(
        _GAP if math.isnan(value) else _BARS[min(7, max(0, int(value * 8)))]
        for value in values[-_NEWEST:]
    )


def span(seconds: float) -> str:
    """A duration for people; nothing is negative.

    Args:
        seconds: How long.
    """
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
) -> Group:
    """The live view.

    Args:
        status: The newest.
        curves: Success ratios by environment, oldest first.
        now_unix_s: The time.
        out: Silos that sit out of the run.
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
    parts.append(Text(_budget(status)))
    width = max((len(name) for name in curves), default=0)
    parts += [
        Text(
            f"success {name:<{width}} {bars([readable_ratio(ratio) for ratio in curve])} "
            f"{success_words({name: curve[-1]})}"
        )
        for name, curve in sorted(curves.items())
        if curve
    ]
    return Group(*parts)


def view_lines(
    status: admin_pb2.WatchRunResponse, curves: Mapping[str, Sequence[Estimate]], now_unix_s: float
) -> list[str]:
    """The same for a file or another program: whole lines without colours.

    Args:
        status: As for :func:`view`.
        curves: As for :func:`view`.
        now_unix_s: As for :func:`view`.
    """
    shown = StringIO()
    Console(file=shown, width=_WIDE, color_system=None).print(view(status, curves, now_unix_s))
    return [line.rstrip() for line in shown.getvalue().splitlines()]


def _standing(status: admin_pb2.WatchRunResponse, now_unix_s: float) -> list[str]:
    """What a run waits for that is not in a round."""
    run = status.run
    known = f" for {span(now_unix_s - run.state_since_unix_s)}" if run.state_since_unix_s else ""
    lines = []
    if run.state == "queued":
        what = f"behind {run.behind}" if run.behind else "as the next one"
        lines = [f"waiting {what}{known}, without a deadline: it begins by itself"]
    elif run.state == "paused":
        lines = [
            f"waiting for an admin{known}, without a deadline: chorale run resume {run.run_id}"
        ]
    elif run.state == "pausing":
        lines = ["pausing: the sum that silos have agreed on is finished first"]
    if status.HasField("rollback_to_round"):
        lines.append(
            f"to go back to the adapter of round {status.rollback_to_round} before the next round"
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
    text = (
        f"{status.epsilon_unit}-level ε {spent:.4g} of {cap:.4g} at δ = {status.delta:g}"
        if status.epsilon_unit
        else f"ε {spent:.4g} of {cap:.4g} at δ = {status.delta:g}"
    )
    if not (math.isfinite(spent) and math.isfinite(cap)) or cap <= 0:
        return text
    filled = min(_METER, max(0, math.ceil(_METER * spent / cap)))
    return f"{text}  {'█' * filled}{'░' * (_METER - filled)} {spent / cap:.0%}"

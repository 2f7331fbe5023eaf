"""Rounds: phases over time, who is waited for, and how long things take.

Covered: phases, rounds and runs of one coordinator. Not covered: what a phase does (protocol.md).
"""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboard import Row
from deploy.grafana.panel import (
    FULL_WIDTH,
    Kind,
    Mapped,
    Override,
    Panel,
    Query,
)
from deploy.grafana.phase_durations import phase_durations
from deploy.grafana.presets import COORDINATOR, DASHED, counter
from server.figures import Phase
from server.store.runs import ACTIVE

__all__ = ["driven", "rounds_row"]

_OF: Final = COORDINATOR.of


def driven() -> str:
    """PromQL: how many runs are under way. A phase means something only while one is."""
    states = "|".join(sorted(ACTIVE))
    return f"sum({_OF('chorale_runs', _matcher('state', '=~', states))})"


def rounds_row() -> Row:
    """The row."""
    panels = (_phases(), _waiting(), _left(), _closed(), _runs(), *_durations())
    return Row(title="Rounds", panels=panels)


def _marked(text: str, colour: str) -> tuple[Mapped, ...]:
    return (
        Mapped(low=0, high=0.5, text="no", colour="transparent"),
        Mapped(low=0.5, high=1, text=text, colour=colour),
    )


def _matcher(label: str, operator: str, value: str) -> str:
    return f'{label}{operator}"{value}"'


def _phases() -> Panel:
    return Panel(
        kind=Kind.TIMELINE,
        title="Phases",
        shows=(
            "The phase of the round over time, in the protocol's order from top to bottom, while a "
            "run is under way. Phases shorter than the scrape interval may not show."
        ),
        remedy=(
            "A phase that lasts waits for a silo; the next panel names it. `training` closes when "
            "nobody is waited for any more, or at its deadline with a quorum; every other phase at "
            "its deadline at the latest."
        ),
        queries=tuple(
            Query(
                expr=f"max({_OF('chorale_round_phase', _matcher('phase', '=', phase))})"
                f" * on () ({driven()} > bool 0)",
                legend=phase,
            )
            for phase in Phase
        ),
        unit="none",
        mappings=_marked("now", "blue"),
        thresholds=((None, "transparent"), (0.5, "blue")),
        width=FULL_WIDTH,
        height=8,
        runbooks=("ChoraleRoundStalled",),
    )


def _waiting() -> Panel:
    return Panel(
        kind=Kind.TIMELINE,
        title="Who is waited for",
        shows="Marked while the phase under way waits for that silo.",
        remedy=(
            "One silo alone and for long: was it heard of (row Silos)? Its operator runs "
            "`chorale-silo status` and `chorale-silo doctor`. `chorale run watch RUN` says since "
            "when and until when it is waited for."
        ),
        queries=(Query(expr=f"max by (silo) ({_OF('chorale_round_waiting')})", legend="{{silo}}"),),
        unit="none",
        mappings=_marked("waited for", "orange"),
        thresholds=((None, "transparent"), (0.5, "orange")),
        quiet="no silo in a roster",
        width=FULL_WIDTH,
        height=7,
        runbooks=("ChoraleRoundStalled", "ChoraleSiloSilent"),
    )


def _left() -> Panel:
    started = _OF("chorale_round_phase_started_timestamp_seconds")
    deadline = _OF("chorale_round_deadline_timestamp_seconds")
    return Panel(
        kind=Kind.LINES,
        title="Time in the phase, and left",
        shows="How long the phase under way has lasted, and how long until it closes.",
        remedy=(
            "Nothing left and still the same phase: the coordinator does not get on. Its log says "
            "why; `storage_failed` is disk or database, `round_stalled` a training without quorum."
        ),
        queries=(
            Query(expr=f"max(timestamp({started}) - ({started} > 0))", legend="in this phase"),
            Query(
                expr=f"max(({deadline} > 0) - timestamp({deadline}))", legend="until its deadline"
            ),
        ),
        unit="s",
        overrides=(Override(name="until its deadline", properties=DASHED),),
        quiet="no run under way",
        runbooks=("ChoraleRoundStalled",),
    )


def _closed() -> Panel:
    return counter(
        title="Rounds closed",
        shows="Rounds since the coordinator started, by how they ended.",
        remedy=(
            "`skipped`: the adapter is unchanged, and `chorale audit tail` has the reason. "
            "`rollback`: an admin went back to an earlier round."
        ),
        queries=(
            Query(expr=f"sum by (outcome) ({_OF('chorale_rounds_total')})", legend="{{outcome}}"),
        ),
        runbooks=("ChoraleRoundStalled",),
    )


def _runs() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Runs by state",
        shows="How many runs are where. At most one is `running` or `pausing`.",
        remedy=(
            "`failed`: `chorale run watch RUN` says why. `paused`: `chorale run resume RUN`. "
            "`queued` runs wait for the one before them."
        ),
        runbooks=("ChoraleRunFailed",),
        queries=(Query(expr=f"max by (state) ({_OF('chorale_runs')})", legend="{{state}}"),),
        unit="none",
        decimals=0,
        minimum=0,
        steps=True,
    )


def _durations() -> tuple[Panel, Panel]:
    return phase_durations(
        COORDINATOR,
        "chorale_round_phase_duration_seconds",
        done="closed",
        remedy=(
            "`training` is the silos' local work, `masked_input` their upload. A phase that comes "
            "near its deadline loses silos: raise the deadline in the plan, or find the slow site."
        ),
        price_of="plan, model or network",
    )

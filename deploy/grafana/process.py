"""The row about a daemon's process and its machine, the same for both daemons.

Covered: memory, processor, open files, free disk, log, age and versions. Not covered: the machine's
other processes.
"""

from __future__ import annotations

from deploy.grafana.dashboard import Row
from deploy.grafana.panel import Kind, Panel, Query
from deploy.grafana.presets import Scope

__all__ = ["process_row"]


def process_row(scope: Scope, *, build: str, free: str, lost: str, disk_alert: str) -> Row:
    """The row of a daemon's process.

    ``build`` is the metric that carries its version, ``free`` that of the free bytes where its data
    are, with ``disk_alert`` about them, and ``lost`` that of the lines its log could not be given.
    """
    return Row(
        title="Process and machine",
        panels=(
            _memory(scope),
            _processor(scope),
            _files(scope),
            _disk(scope, free, disk_alert),
            _log(scope, lost, disk_alert),
            _age(scope),
            _versions(scope, build),
        ),
    )


def _memory(scope: Scope) -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Memory",
        shows="Resident memory of the daemon.",
        remedy="Growth over days is a leak: restart between rounds, and report it.",
        queries=(
            Query(expr=f"max({scope.scraped('process_resident_memory_bytes')})", legend="resident"),
        ),
        unit="bytes",
        minimum=0,
        height=7,
    )


def _processor(scope: Scope) -> Panel:
    spent = scope.scraped("process_cpu_seconds_total")
    return Panel(
        kind=Kind.LINES,
        title="Processor",
        shows="Processor time per second: 100 % is one core.",
        remedy=(
            "Busy between rounds is not normal: look at the rate of calls, and at what is refused."
        ),
        queries=(Query(expr=f"sum(rate({spent}[$__rate_interval]))", legend="in use"),),
        unit="percentunit",
        decimals=1,
        minimum=0,
        height=7,
    )


def _files(scope: Scope) -> Panel:
    opened, limit = scope.scraped("process_open_fds"), scope.scraped("process_max_fds")
    return Panel(
        kind=Kind.LINES,
        title="Open files of those allowed",
        shows="Connections count, too.",
        remedy="Near 100 % calls fail: raise `LimitNOFILE`, and find out who opens so many.",
        queries=(Query(expr=f"max({opened} / {limit})", legend="open"),),
        unit="percentunit",
        decimals=1,
        minimum=0,
        thresholds=((None, "green"), (0.8, "red")),
        height=7,
    )


def _disk(scope: Scope, free: str, alert: str) -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Free disk where the data are",
        shows="Bytes free for the data directory.",
        remedy=(
            "Make room before it is full: a daemon that cannot write stops where it is, and goes "
            "on when it can."
        ),
        queries=(Query(expr=f"min({scope.of(free)})", legend="free"),),
        unit="bytes",
        minimum=0,
        thresholds=((None, "red"), (2**30, "orange"), (5 * 2**30, "green")),
        height=7,
        width=8,
        runbooks=(alert,),
    )


def _log(scope: Scope, lost: str, alert: str) -> Panel:
    return Panel(
        kind=Kind.STAT,
        title="Log lines lost",
        shows="Lines that could not be written since the start.",
        remedy="Make room where stderr goes, or restart what reads it; the daemon goes on.",
        queries=(Query(expr=f"sum({scope.of(lost)})", legend="lost"),),
        unit="none",
        decimals=0,
        thresholds=((None, "green"), (1, "red")),
        width=4,
        height=7,
        runbooks=(alert,),
    )


def _age(scope: Scope) -> Panel:
    started = scope.scraped("process_start_time_seconds")
    return Panel(
        kind=Kind.STAT,
        title="Running since",
        shows="How long the process has run.",
        remedy="Minutes, and nobody restarted it: it crashes. The log before the start says why.",
        queries=(Query(expr=f"time() - max({started})", legend="running"),),
        unit="s",
        thresholds=((None, "orange"), (600, "green")),
        width=4,
        height=7,
    )


def _versions(scope: Scope, build: str) -> Panel:
    return Panel(
        kind=Kind.STAT,
        title="Versions",
        shows="Of Chorale, and of the Python that runs it.",
        remedy=(
            "Two of Chorale at once: an upgrade is under way, or half of it failed. The "
            "coordinator is upgraded first, then the silos."
        ),
        queries=(
            Query(expr=f"max by (version) ({scope.of(build)})", legend="Chorale {{version}}"),
            Query(
                expr=f"max by (version) ({scope.scraped('python_info')})",
                legend="Python {{version}}",
            ),
        ),
        unit="none",
        text="name",
        height=7,
    )

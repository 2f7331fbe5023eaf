"""The coordinator's own health: its audit log, the calls it answers, its process.

Covered: integrity, RPCs, process. Not covered: the machine beyond the process and its disk.
"""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboard import Row
from deploy.grafana.panel import Kind, Legend, Panel, Query
from deploy.grafana.presets import COORDINATOR, counter, in_range
from deploy.grafana.process import process_row

__all__ = ["host_rows"]

_OF: Final = COORDINATOR.of
_ANSWERED: Final = 'grpc_method!~"Poll|WatchRun"'
"""Calls that are answered at once; the others wait for something to tell."""


def host_rows() -> tuple[Row, ...]:
    """The rows."""
    return (
        Row(title="Integrity", panels=(_audit(), _integrity(), _faults())),
        Row(title="Calls", panels=(_rate(), _errors(), _refused(), _latency(), _slowest())),
        process_row(
            COORDINATOR,
            build="chorale_build_info",
            free="chorale_data_free_bytes",
            lost="chorale_log_write_failures_total",
            disk_alert="ChoraleDiskFilling",
        ),
    )


def _audit() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Audit log: newest record",
        shows="Every change and every step of a round adds records, so it only grows.",
        remedy=(
            "A fall is a restored backup or a cut log: `chorale audit verify --heads HEADS` with "
            "the heads that a silo kept."
        ),
        queries=(Query(expr=f"max({_OF('chorale_audit_head_index')})", legend="record"),),
        unit="none",
        decimals=0,
        steps=True,
        height=6,
        runbooks=("ChoraleAuditChainBroken", "ChoraleAuditHeadConflict"),
    )


def _integrity() -> Panel:
    return Panel(
        kind=Kind.STAT,
        title="Broken promises since the start",
        shows=(
            "Failed checks of the audit chain, audit heads of silos that went back or forked, and "
            "silos left out because their privacy ledger had gone back."
        ),
        remedy=(
            "None of these happens by itself: a backup was put back, a disk is damaged, or "
            "somebody changed a file. Keep the evidence and open the runbook."
        ),
        queries=(
            Query(expr=f"sum({_OF('chorale_audit_verify_failures_total')})", legend="audit chain"),
            Query(expr=f"sum({_OF('chorale_audit_head_conflicts_total')})", legend="audit heads"),
            Query(expr=f"sum({_OF('chorale_ledger_rollbacks_total')})", legend="ledgers"),
        ),
        unit="none",
        decimals=0,
        thresholds=((None, "green"), (1, "red")),
        text="value_and_name",
        height=6,
        runbooks=("ChoraleAuditChainBroken", "ChoraleAuditHeadConflict", "ChoraleLedgerRolledBack"),
    )


def _faults() -> Panel:
    return counter(
        title="Writes that failed",
        shows=(
            "Times that a run waited because disk or database failed, and that driving runs failed "
            "by a defect; both try again by themselves."
        ),
        remedy=(
            "Make room, or bring the database back; the run stays where it is until then. A "
            "defect: report `driver_failed` of the log."
        ),
        queries=(
            Query(expr=f"sum({_OF('chorale_storage_faults_total')})", legend="storage"),
            Query(expr=f"sum({_OF('chorale_driver_failures_total')})", legend="defect"),
        ),
        height=6,
        runbooks=("ChoraleStorageFailing", "ChoraleDiskFilling"),
    )


def _rate() -> Panel:
    handled = _OF("grpc_server_handled_total")
    return Panel(
        kind=Kind.LINES,
        title="Calls by method",
        shows="Finished calls per second. `Poll` is a silo asking for something to do.",
        remedy=(
            "No `Poll`: no silo reaches the coordinator. Far more calls than silos explain: "
            "somebody else calls; look at refused calls."
        ),
        queries=(
            Query(
                expr=f"sum by (grpc_method) (rate({handled}[$__rate_interval])) > 0",
                legend="{{grpc_method}}",
            ),
        ),
        unit="reqps",
        minimum=0,
        legend=Legend.BESIDE,
        quiet="no calls",
        width=12,
    )


def _errors() -> Panel:
    handled = _OF("grpc_server_handled_total", 'grpc_code!="OK"')
    return Panel(
        kind=Kind.LINES,
        title="Calls that failed, by code",
        shows="Finished calls per second that were not `OK`.",
        remedy=(
            "`INTERNAL` is a defect: its traceback is in the log. `UNAVAILABLE`: disk or database. "
            "`UNAUTHENTICATED`, `PERMISSION_DENIED`: see refused calls."
        ),
        queries=(
            Query(
                expr=f"sum by (grpc_code) (rate({handled}[$__rate_interval])) > 0",
                legend="{{grpc_code}}",
            ),
        ),
        unit="reqps",
        minimum=0,
        quiet="no call failed",
        width=6,
        runbooks=("ChoraleCoordinatorErrors",),
    )


def _refused() -> Panel:
    return in_range(
        selector=_OF("chorale_rejected_messages_total"),
        by="reason",
        title="Refused calls in this range",
        shows="By reason, as the caller and the log were told.",
        remedy=(
            "`certificate_*`, `silo_*`: certificates and standing. `wrong_round`: late "
            "silos, harmless now and then. `malformed_message`, `foreign_message`, "
            "`access_denied`: find out who calls."
        ),
        quiet="nothing was refused",
        width=6,
        runbooks=("ChoraleCoordinatorErrors",),
    )


def _quantile(share: float, by: str, window: str) -> str:
    buckets = _OF("grpc_server_handling_seconds_bucket", _ANSWERED)
    return f"histogram_quantile({share:g}, sum by ({by}) (rate({buckets}[{window}])))"


def _latency() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Time to answer",
        shows="Half, nine in ten and 99 in 100 calls were answered faster. Long polls left out.",
        remedy=(
            "All three up: disk or database is slow, or the processor busy (below). Only the "
            "highest: large uploads."
        ),
        queries=tuple(
            Query(expr=_quantile(share, "le", "$__rate_interval"), legend=f"{share:.0%}")
            for share in (0.5, 0.9, 0.99)
        ),
        unit="s",
        minimum=0,
        quiet="no calls",
        width=12,
    )


def _slowest() -> Panel:
    slow = _quantile(0.99, "le, grpc_method", "$__range")
    return Panel(
        kind=Kind.BARS,
        title="Slowest methods in this range",
        shows="The time that 99 in 100 calls of a method stayed below. Long polls left out.",
        remedy="`UploadMaskedInput` is bandwidth. Anything else above a second is worth a look.",
        queries=(Query(expr=f"sort_desc(topk(8, {slow} >= 0))", legend="{{grpc_method}}"),),
        unit="s",
        minimum=0,
        thresholds=((None, "green"), (1, "orange")),
        quiet="no calls",
        width=12,
    )

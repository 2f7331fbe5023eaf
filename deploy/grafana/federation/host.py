"""Behind the first screen: silos as the coordinator sees them, and its own health.

Covered: rows Silos and Coordinator. Not covered: anything that a silo learns; the machine beyond
the process and its disk.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.grafana.panel import CALM, DAYS, FULL_WIDTH, Query, bars, colour, figures, lines
from deploy.grafana.scope import COORDINATOR
from server.context import SILENT_AFTER_S
from server.members.silence import SILENT_S

__all__ = ["coordinator_row", "silos_row"]

_OF: Final = COORDINATOR.of
_ANSWERED: Final = 'grpc_method!~"Poll|WatchRun"'
"""Calls that are answered at once; the others wait for something to tell."""


def silos_row() -> tuple[Panel, ...]:
    """Who called, who is where, and what happened to them."""
    return _called(), _states(), _certificates(), _events()


def coordinator_row() -> tuple[Panel, ...]:
    """Calls, times, faults and the process."""
    return _calls(), _times(), _faults(), _space(), _load(), _ages()


def _called() -> Panel:
    seen = _OF("chorale_silo_last_seen_timestamp_seconds")
    return bars(
        title="Time since a silo called",
        shows=f"A silo not heard of for {SILENT_AFTER_S:g} seconds is not waited for.",
        remedy=(
            "The silo's operator looks at the daemon; `chorale-silo doctor` tells network, "
            "certificate and clock apart. Started again, it takes part from the next round task."
        ),
        queries=(Query(expr=f"sort_desc(time() - max by (silo) ({seen} > 0))", legend="{{silo}}"),),
        unit="s",
        decimals=0,
        maximum=SILENT_S,
        steps=((None, CALM), (SILENT_AFTER_S, "orange"), (SILENT_S, "red")),
        quiet="no silo has called",
        runbooks=("ChoraleSiloSilent",),
    )


def _states() -> Panel:
    return lines(
        title="Silos by state",
        shows=(
            "Where silos are on their way into rounds, how many are out, and how many approvals a "
            "proposed roster still needs."
        ),
        remedy=(
            "`enrolled` ones wait for a roster: `chorale roster propose`. `sitting_out` ones were "
            "lost again and again and wait some rounds, `suspended` ones are refused, both until "
            "`chorale silo reinstate SILO` at the latest; `revoked` ones for good."
        ),
        queries=(
            Query(expr=f"max by (state) ({_OF('chorale_silos')})", legend="{{state}}"),
            Query(
                expr=f"max({_OF('chorale_roster_approvals_waiting')})",
                legend="approvals of a roster waited for",
            ),
        ),
        decimals=0,
        minimum=0,
        runbooks=("ChoraleNoSpareSilo",),
    )


def _certificates() -> Panel:
    def left(metric: str, by: str = "") -> str:
        ends = f"min by ({by}) ({_OF(metric)} > 0)" if by else f"min({_OF(metric)} > 0)"
        return f"sort(({ends} - time()) / 86400)"

    return bars(
        title="Certificates: days left",
        shows="A silo renews 30 days at half-life, the server 397; the CA is rotated by hand.",
        remedy=(
            "The silo's log says why it was not renewed; after the end it joins again with a new "
            "invite. Server: the coordinator's log. CA: `chorale ca rotate --overlap 30d`, while "
            "silos are there to learn of it."
        ),
        queries=(
            Query(
                expr=left("chorale_certificate_expiry_timestamp_seconds", "silo"),
                legend="{{silo}}",
            ),
            Query(
                expr=left("chorale_server_certificate_expiry_timestamp_seconds"), legend="server"
            ),
            Query(expr=left("chorale_ca_certificate_expiry_timestamp_seconds"), legend="CA"),
        ),
        unit=DAYS,
        decimals=0,
        maximum=60,
        steps=((None, "red"), (7, "orange"), (14, CALM)),
        quiet="no silo has joined",
        runbooks=("ChoraleCertificateExpiring",),
    )


def _events() -> Panel:
    counted = COORDINATOR.counted
    return bars(
        title="What happened to silos in this range",
        shows=(
            "Attempts that waited for a silo in vain, requests to join by outcome, certificates "
            "renewed, silos left out because their privacy ledger had gone back."
        ),
        remedy=(
            "Waited for in vain: each cost everybody the deadline of a phase; `chorale audit tail` "
            "names it. `invite_unknown` again and again: somebody guesses, or dials the wrong "
            "coordinator."
        ),
        queries=(
            counted("chorale_silo_dropouts_total", "silo", "waited for in vain"),
            counted("chorale_enrolments_total", "outcome", "asked to join"),
            counted("chorale_certificate_renewals_total", "", "certificate renewed"),
            counted("chorale_ledger_rollbacks_total", "", "ledger gone back"),
        ),
        decimals=0,
        quiet="nothing happened",
        width=FULL_WIDTH,
        runbooks=("ChoraleSiloDroppingOut", "ChoraleLedgerRolledBack"),
    )


def _calls() -> Panel:
    counted = COORDINATOR.counted
    return bars(
        title="Calls refused and failed, in this range",
        shows=(
            "Refused calls by reason, calls that did not end as `OK` by code, connections that "
            "never made a call."
        ),
        remedy=(
            "`certificate_*`, `silo_*`: certificates and standing. `wrong_round`: late silos, "
            "harmless now and then. `malformed_message`, `foreign_message`, `access_denied`: find "
            "out who calls. `INTERNAL` is a defect: its traceback is in the log."
        ),
        queries=(
            counted("chorale_rejected_messages_total", "reason", "refused"),
            counted("grpc_server_handled_total", "grpc_code", "failed", 'grpc_code!="OK"'),
            counted("chorale_tls_handshake_failures_total", "", "connection without a call"),
        ),
        decimals=0,
        quiet="nothing was refused",
        width=12,
        height=9,
        runbooks=("ChoraleCoordinatorErrors",),
    )


def _times() -> Panel:
    def high(metric: str, *matchers: str) -> str:
        buckets = _OF(f"{metric}_bucket", *matchers)
        return f"histogram_quantile(0.9, sum by (le) (rate({buckets}[$__rate_interval]))) >= 0"

    return lines(
        title="Time to answer, and what it waits for",
        shows=(
            "Nine in ten were faster: calls (long polls left out), transactions, the wait for the "
            "writers' lock, and what is due in the event loop."
        ),
        remedy=(
            "Lock or writes: somebody holds the database. The loop: the processor is busy, or the "
            "machine swaps. Calls alone: large uploads."
        ),
        queries=(
            Query(expr=high("grpc_server_handling_seconds", _ANSWERED), legend="call"),
            Query(expr=high("chorale_store_seconds", 'kind="read"'), legend="read"),
            Query(expr=high("chorale_store_seconds", 'kind="write"'), legend="write"),
            Query(expr=high("chorale_store_lock_wait_seconds"), legend="lock"),
            Query(expr=high("chorale_event_loop_lag_seconds"), legend="event loop"),
        ),
        unit="s",
        logarithmic=True,
        quiet="no calls",
        width=12,
        height=9,
        runbooks=("ChoraleEventLoopSlow", "ChoraleStorageFailing"),
    )


def _faults() -> Panel:
    return figures(
        title="Faults since the start",
        shows=(
            "Failed checks of the audit chain, audit heads that went back or forked, failed "
            "writes, defects while driving runs, lost log lines; and the newest audit record."
        ),
        remedy=(
            "Chain and heads do not break by themselves: a backup was put back, a disk is damaged, "
            "or somebody changed a file. Keep the evidence: `chorale audit verify --heads HEADS`. "
            "Writes: make room, or bring the database back."
        ),
        queries=(
            Query(expr=f"sum({_OF('chorale_audit_verify_failures_total')})", legend="audit chain"),
            Query(expr=f"sum({_OF('chorale_audit_head_conflicts_total')})", legend="audit heads"),
            Query(expr=f"sum({_OF('chorale_storage_faults_total')})", legend="writes"),
            Query(expr=f"sum({_OF('chorale_driver_failures_total')})", legend="defects"),
            Query(expr=f"sum({_OF('chorale_log_write_failures_total')})", legend="log lines lost"),
            Query(expr=f"max({_OF('chorale_audit_head_index')})", legend="newest audit record"),
        ),
        decimals=0,
        steps=((None, CALM), (1, "red")),
        overrides={"newest audit record": colour(CALM)},
        width=12,
        runbooks=(
            "ChoraleAuditChainBroken",
            "ChoraleAuditHeadConflict",
            "ChoraleStorageFailing",
            "ChoraleCoordinatorErrors",
        ),
    )


def _space() -> Panel:
    free, resident = (
        _OF("chorale_data_free_bytes"),
        COORDINATOR.scraped("process_resident_memory_bytes"),
    )
    return lines(
        title="Free disk and memory",
        shows="Bytes free for the data directory, and the daemon's resident memory.",
        remedy=(
            "Make room before the disk is full: the round waits until it is written. Memory that "
            "grows over days is a leak: restart, and report it."
        ),
        queries=(
            Query(expr=f"min({free})", legend="free disk"),
            Query(expr=f"max({resident})", legend="memory"),
        ),
        unit="bytes",
        logarithmic=True,
        width=6,
        runbooks=("ChoraleDiskFilling",),
    )


def _load() -> Panel:
    spent = COORDINATOR.scraped("process_cpu_seconds_total")
    opened, limit = COORDINATOR.scraped("process_open_fds"), COORDINATOR.scraped("process_max_fds")
    return lines(
        title="Processor and open files",
        shows="Processor time per second, 100 % is one core; open files of those allowed.",
        remedy=(
            "Busy between rounds is not normal: look at what is refused. Files near 100 %: raise "
            "`LimitNOFILE`, and find out who opens so many."
        ),
        queries=(
            Query(expr=f"sum(rate({spent}[$__rate_interval]))", legend="processor"),
            Query(expr=f"max({opened} / {limit})", legend="open files"),
        ),
        unit="percentunit",
        decimals=1,
        minimum=0,
        width=6,
    )


def _ages() -> Panel:
    started = f"(time() - max({COORDINATOR.scraped('process_start_time_seconds')}))"
    backup = _OF("chorale_backup_last_success_timestamp_seconds")
    return figures(
        title="Versions, running for, newest backup",
        shows="How long the process has run, with what, and how old the newest backup is.",
        remedy=(
            "Minutes, and nobody restarted it: it crashes; the log before the start says why. No "
            "backup: `chorale backup --out FILE`, and a timer for it."
        ),
        queries=(
            Query(
                expr=f"max by (version) ({_OF('chorale_build_info')}) * on () group_left ()"
                f" {started}",
                legend="Chorale {{version}}",
            ),
            Query(
                expr=f"max by (version) ({COORDINATOR.scraped('python_info')})"
                f" * on () group_left () {started}",
                legend="Python {{version}}",
            ),
            Query(expr=f"time() - max({backup} > 0)", legend="newest backup"),
        ),
        unit="s",
        width=FULL_WIDTH,
        height=5,
        runbooks=("ChoraleBackupOld",),
    )

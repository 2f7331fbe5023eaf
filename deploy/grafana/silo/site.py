"""A silo's budget, its standing with the coordinator, its faults and its machine.

Covered: ledger, certificate, contact, checks, errors, audit log, GPUs, process. Not covered: GPUs
that only a vLLM server uses, which the exporter of their maker shows.
"""

from __future__ import annotations

from typing import Any, Final

from deploy.grafana.dashboard import Row
from deploy.grafana.panel import Kind, Override, Panel, Query
from deploy.grafana.presets import DASHED, DAYS, ENDLESS, SILO, counter, in_range
from deploy.grafana.process import process_row
from dp.accounting.charge import UNIT_KINDS

__all__ = ["budget_row", "integrity_row", "machine_row", "network_row"]

_OF: Final = SILO.of


def budget_row() -> Row:
    """What privacy costs so far."""
    return Row(title="Privacy budget", panels=(_epsilon(), _share(), _exceptions()))


def network_row() -> Row:
    """How the silo stands with the coordinator."""
    panels = (_contact(), _certificate(), _renewals())
    return Row(title="Coordinator and certificate", panels=panels)


def integrity_row() -> Row:
    """What went wrong."""
    return Row(
        title="Faults and integrity",
        panels=(_checks(), _errors(), _audit(), _integrity()),
    )


def machine_row() -> tuple[Row, ...]:
    """GPUs, process and disk."""
    process = process_row(
        SILO,
        build="chorale_silo_build_info",
        free="chorale_silo_data_free_bytes",
        lost="chorale_silo_log_write_failures_total",
        disk_alert="ChoraleSiloDiskFilling",
    )
    return (Row(title="GPU", panels=(_gpu(),)), process)


def _fixed(colour: str) -> dict[str, Any]:
    return {"color": {"mode": "fixed", "fixedColor": colour}}


def _epsilon() -> Panel:
    cap = _OF("chorale_silo_dp_epsilon_cap")
    return Panel(
        kind=Kind.LINES,
        title="ε by unit: spent and cap",
        shows=(
            "ε (zero-out adjacency) in this silo's ledger for each unit, and what its own policy "
            "allows. It does not speak of the releases in the panel below."
        ),
        remedy=(
            "The ledger binds: at the cap this silo refuses, whatever the plan says. "
            "`chorale-silo budget` shows what is reserved besides."
        ),
        queries=(
            Query(expr=_OF("chorale_silo_dp_epsilon_spent"), legend="{{unit}}: spent"),
            Query(expr=f"{cap} > 0", legend="{{unit}}: cap"),
        ),
        unit="none",
        decimals=2,
        minimum=0,
        steps=True,
        overrides=tuple(
            Override(name=f"{unit}: {what}", properties=_fixed(colour) | style)
            for unit, colour in zip(UNIT_KINDS, ("purple", "blue", "green"), strict=True)
            for what, style in (("spent", {}), ("cap", DASHED))
        ),
        width=16,
        runbooks=("ChoraleSiloEpsilonOver80Percent",),
    )


def _share() -> Panel:
    spent, cap = _OF("chorale_silo_dp_epsilon_spent"), _OF("chorale_silo_dp_epsilon_cap")
    return Panel(
        kind=Kind.BARS,
        title="ε spent of the cap",
        shows="By protected unit; a unit without a cap is not shown.",
        remedy="At 100 % nothing more is released for that unit until the policy allows more.",
        queries=(Query(expr=f"{spent} / ({cap} > 0)", legend="{{unit}}"),),
        unit="percentunit",
        decimals=0,
        minimum=0,
        maximum=1,
        thresholds=((None, "green"), (0.8, "orange"), (1, "red")),
        mappings=ENDLESS,
        quiet="no cap known",
        runbooks=("ChoraleSiloEpsilonOver80Percent",),
    )


def _exceptions() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Releases that ε does not speak of",
        shows=(
            "By unit, releases that were protected for a smaller unit only; and releases in mode "
            "none, which stand beside every unit's ε. They never go away."
        ),
        remedy=(
            "Read each ε together with its line here. Noise after mode `none` is refused unless "
            "`after_none` in `policy.toml` allows it."
        ),
        queries=(
            Query(
                expr=f"{_OF('chorale_silo_dp_partial_releases')} > 0",
                legend="{{unit}}: protected for a smaller unit only",
            ),
            Query(expr=f"{_OF('chorale_silo_dp_unprotected_releases')} > 0", legend="mode none"),
        ),
        unit="none",
        decimals=0,
        minimum=0,
        steps=True,
        quiet="none",
        width=24,
        height=5,
        runbooks=("ChoraleSiloEpsilonOver80Percent",),
    )


def _contact() -> Panel:
    contact = _OF("chorale_silo_coordinator_contact_timestamp_seconds")
    return Panel(
        kind=Kind.LINES,
        title="Time since the coordinator answered",
        shows="The silo asks all the time, so this stays within seconds.",
        remedy=(
            "A slope is an outage: network, coordinator, or certificate. `chorale-silo doctor` "
            "names the step that fails. Gaps in all panels: this daemon was down itself."
        ),
        queries=(Query(expr=f"timestamp({contact}) - ({contact} > 0)", legend="ago"),),
        unit="s",
        minimum=0,
        quiet="it never answered",
        runbooks=("ChoraleSiloCoordinatorUnreachable", "ChoraleSiloRefused"),
    )


def _certificate() -> Panel:
    expiry = _OF("chorale_silo_certificate_expiry_timestamp_seconds")
    return Panel(
        kind=Kind.LINES,
        title="Certificate: days left",
        shows="Falls from 30 to 15 days, and jumps up when the daemon renews it.",
        remedy="Below 14 days the renewals fail: see their outcomes, and the log.",
        queries=(Query(expr=f"(({expiry} > 0) - time()) / 86400", legend="left"),),
        unit=DAYS,
        decimals=1,
        minimum=0,
        thresholds=((None, "red"), (7, "orange"), (14, "green")),
        runbooks=("ChoraleSiloCertificateExpiring",),
    )


def _renewals() -> Panel:
    return counter(
        title="Renewals of the certificate",
        shows="Tries to renew since the daemon started, by outcome.",
        remedy=(
            "`failed` again and again: the log has the coordinator's reason. A silo that is no "
            "longer in the roster is not renewed."
        ),
        queries=(Query(expr=_OF("chorale_silo_certificate_renewals_total"), legend="{{outcome}}"),),
        runbooks=("ChoraleSiloCertificateRenewalFailing",),
    )


def _checks() -> Panel:
    return in_range(
        selector=_OF("chorale_silo_failed_checks_total"),
        by="check",
        title="Failed checks in this range",
        shows="Checks of the protocol that failed here: what the coordinator sent did not hold.",
        remedy=(
            "One line after somebody restarted is harmless. The same check at several sites is "
            "not: compare `instruction_failed` in the logs, and ask the admin."
        ),
        quiet="no check failed",
        runbooks=("ChoraleSiloChecksFailing",),
    )


def _errors() -> Panel:
    return in_range(
        selector=_OF("chorale_silo_errors_total"),
        by="kind",
        title="Errors in this range, by kind",
        shows="Errors that the daemon survived. `local_work` is training that failed.",
        remedy=(
            "The log has the reason. `TransportError` now and then is a network; `local_work` each "
            "round means that this silo contributes zeros."
        ),
        quiet="no error",
        runbooks=("ChoraleSiloErrors",),
    )


def _audit() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Audit log: newest record",
        shows="What this site did, as a chain; it only grows.",
        remedy="A fall is a restored copy or a cut log: `chorale-silo audit verify`.",
        queries=(Query(expr=_OF("chorale_silo_audit_head_index"), legend="record"),),
        unit="none",
        decimals=0,
        steps=True,
        width=4,
        runbooks=("ChoraleSiloAuditChainBroken",),
    )


def _integrity() -> Panel:
    return Panel(
        kind=Kind.STAT,
        title="Broken promises",
        shows="Failed checks of this site's audit chain, and heads that went back or forked.",
        remedy=(
            "Neither happens by itself. Heads: compare with what the coordinator's admin has, "
            "`chorale-silo audit heads --out HEADS`."
        ),
        queries=(
            Query(expr=_OF("chorale_silo_audit_verify_failures_total"), legend="audit chain"),
            Query(expr=_OF("chorale_silo_audit_head_conflicts_total"), legend="audit heads"),
        ),
        unit="none",
        decimals=0,
        thresholds=((None, "green"), (1, "red")),
        text="value_and_name",
        width=4,
        runbooks=("ChoraleSiloAuditChainBroken", "ChoraleSiloAuditHeadConflict"),
    )


def _gpu() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="GPU memory",
        shows="Memory in use on each GPU of this daemon, by anyone, and what the GPU has.",
        remedy=(
            "In use near the whole: the next longer sequence fails. Lower `batch_size` or "
            "`max_sequence_tokens`, turn on gradient checkpointing, or free the GPU of others."
        ),
        queries=(
            Query(expr=_OF("chorale_silo_gpu_memory_used_bytes"), legend="GPU {{device}}: used"),
            Query(expr=_OF("chorale_silo_gpu_memory_total_bytes"), legend="GPU {{device}}: all"),
        ),
        unit="bytes",
        minimum=0,
        quiet="no GPU in use by this daemon",
        width=24,
        height=7,
    )

"""Silos as the coordinator sees them: heard of, certified, on their way in or out.

Covered: what is public about a silo. Not covered: anything that a silo learns.
"""

from __future__ import annotations

from typing import Final

from deploy.grafana.dashboard import Row
from deploy.grafana.panel import Kind, Panel, Query
from deploy.grafana.presets import COORDINATOR, DAYS, counter, in_range
from server.context import SILENT_AFTER_S
from server.members.presence import SILENT_S

__all__ = ["silos_row"]

_OF: Final = COORDINATOR.of


def silos_row() -> Row:
    """The row."""
    panels = (
        _last_seen(),
        _states(),
        _silo_certificates(),
        _own_certificates(),
        _renewals(),
        _enrolments(),
        _lost(),
    )
    return Row(title="Silos", panels=panels)


def _last_seen() -> Panel:
    seen = _OF("chorale_silo_last_seen_timestamp_seconds")
    return Panel(
        kind=Kind.BARS,
        title="Time since a silo called",
        shows=f"A silo not heard of for {SILENT_AFTER_S:g} seconds is not waited for.",
        remedy=(
            "The silo's operator looks at the daemon; `chorale-silo doctor` tells network, "
            "certificate and clock apart. Started again, it takes part from the next round task."
        ),
        queries=(Query(expr=f"sort_desc(time() - max by (silo) ({seen} > 0))", legend="{{silo}}"),),
        unit="s",
        decimals=0,
        minimum=0,
        maximum=SILENT_S,
        thresholds=((None, "green"), (SILENT_AFTER_S, "orange"), (SILENT_S, "red")),
        quiet="no silo has called",
        runbooks=("ChoraleSiloSilent",),
    )


def _states() -> Panel:
    return Panel(
        kind=Kind.LINES,
        title="Silos by state",
        shows="Where silos are on their way into rounds, and how many are out.",
        remedy=(
            "`enrolled` ones wait for a roster: `chorale roster propose`. `sitting_out` ones were "
            "lost again and again and wait some rounds, `suspended` ones are refused, both until "
            "`chorale silo reinstate SILO` at the latest; `revoked` ones for good."
        ),
        queries=(Query(expr=f"max by (state) ({_OF('chorale_silos')})", legend="{{state}}"),),
        unit="none",
        decimals=0,
        minimum=0,
        steps=True,
        runbooks=("ChoraleSecAggBelowThreshold",),
    )


def _days_left(expiry: str) -> str:
    return f"({expiry} - time()) / 86400"


def _silo_certificates() -> Panel:
    ends = _OF("chorale_certificate_expiry_timestamp_seconds")
    return Panel(
        kind=Kind.BARS,
        title="Silos' certificates: days left",
        shows="A silo renews its 30 days at half-life. Below 14 days its renewals fail.",
        remedy=(
            "The silo's log says why it was not renewed, refused calls below why it was turned "
            "away. After the end it joins again with a new invite; key and roster stay."
        ),
        queries=(
            Query(expr=f"sort({_days_left(f'max by (silo) ({ends} > 0)')})", legend="{{silo}}"),
        ),
        unit=DAYS,
        decimals=1,
        minimum=0,
        maximum=30,
        thresholds=((None, "red"), (7, "orange"), (14, "green")),
        quiet="no silo has joined",
        runbooks=("ChoraleCertificateExpiring",),
    )


def _own_certificates() -> Panel:
    server = _OF("chorale_server_certificate_expiry_timestamp_seconds")
    ca = _OF("chorale_ca_certificate_expiry_timestamp_seconds")
    return Panel(
        kind=Kind.STAT,
        title="Coordinator's certificates: days left",
        shows="Of the server's certificate, renewed at half-life, and of the issuing CA's.",
        remedy=(
            "Server: the coordinator's log says why it was not renewed. CA: "
            "`chorale ca rotate --overlap 30d`, while silos are there to learn of it."
        ),
        queries=(
            Query(expr=_days_left(f"min({server} > 0)"), legend="server"),
            Query(expr=_days_left(f"min({ca} > 0)"), legend="CA"),
        ),
        unit=DAYS,
        decimals=0,
        thresholds=((None, "red"), (30, "orange"), (60, "green")),
        text="value_and_name",
        width=6,
        height=6,
        runbooks=("ChoraleCertificateExpiring",),
    )


def _renewals() -> Panel:
    renewed = _OF("chorale_certificate_renewals_total")
    return counter(
        title="Certificates renewed",
        shows="Renewals of silos' certificates since the coordinator started.",
        remedy="None for 15 days while silos are there: look at refused calls.",
        queries=(Query(expr=f"sum({renewed})", legend="renewed"),),
        width=6,
        height=6,
        runbooks=("ChoraleCertificateExpiring",),
    )


def _enrolments() -> Panel:
    return in_range(
        selector=_OF("chorale_enrolments_total"),
        by="outcome",
        title="Requests to join, in this range",
        shows="Requests at the joining port, by outcome.",
        remedy=(
            "`invite_unknown` again and again: somebody guesses, or dials the wrong coordinator. "
            "`invite_spent`: an invite was used twice; ask the silo whether it did that."
        ),
        quiet="nobody asked to join",
        width=6,
        height=6,
    )


def _lost() -> Panel:
    return in_range(
        selector=_OF("chorale_silo_dropouts_total"),
        by="silo",
        title="Attempts that waited for a silo in vain",
        shows="In this range. Each cost everybody the deadline of a phase.",
        remedy=(
            "`chorale audit tail` names the phase: the same one each time is a silo too slow for "
            "its deadline, or one that stalls. Its operator looks at its log."
        ),
        quiet="no silo was lost",
        width=6,
        height=6,
        runbooks=("ChoraleSiloDroppingOut",),
    )

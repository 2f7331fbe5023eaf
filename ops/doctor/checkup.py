"""What a doctor looks at, one step after the other, and what it says about each.

Invariants:

1. Every step ends with exactly one finding: ``ok``, ``warning``, ``failed``, or ``skipped`` because
   a step that it needs did not end well. Nothing is examined on ground that is known to be broken.
2. A step that goes wrong in a way nobody foresaw is a failed step, and never the end of the others.
3. What failed says how it is mended.

Covered: order, dependencies, texts of bounded length, the exit code; the verdict about a
certificate's dates, which both sides need. Not covered: what else is looked at
(``server/site/doctor/doctor.py``, ``silo_agent/doctor/doctor.py``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from cryptography import x509

from federation.text import printable

__all__ = [
    "Check",
    "Checkup",
    "Finding",
    "Outcome",
    "Verdict",
    "examine",
    "failed",
    "judge_validity",
    "ok",
    "warning",
]

MAX_TEXT_CHARS: Final = 1000


class Outcome(StrEnum):
    """How a step ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one look found."""

    outcome: Outcome
    """``SKIPPED`` is not for a look to say."""
    found: str
    """In one line."""
    fix: str = ""
    """A command or a sentence; empty where nothing is to be done."""
    stops: bool = False
    """Whether a warning keeps the steps that need this one from being examined."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One step."""

    name: str
    """In snake case: people read it with blanks, scripts as it is."""
    look: Callable[[], Verdict]
    """Examines; whatever it raises is a failed step."""
    needs: tuple[str, ...] = ()
    """Steps before it without which it means nothing."""
    connects: bool = False
    """Whether its failure is one of connection or authentication."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """How one step ended."""

    name: str
    outcome: Outcome
    found: str
    fix: str
    connects: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """For people."""
        text = f"{self.outcome.value:<8} {self.name.replace('_', ' '):<20} {self.found}"
        return (text, f"{'':<9}{'':<20} fix: {self.fix}") if self.fix else (text,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkup:
    """Every step."""

    findings: tuple[Finding, ...]

    def count(self, outcome: Outcome) -> int:
        """How many steps ended so."""
        return sum(finding.outcome is outcome for finding in self.findings)

    @property
    def first_failed(self) -> Finding | None:
        """The failure to begin with: those after it may be its consequence."""
        return next((f for f in self.findings if f.outcome is Outcome.FAILED), None)

    @property
    def only_connection(self) -> bool:
        """Whether something failed, and everything that did is connection or authentication."""
        lost = [f.connects for f in self.findings if f.outcome is Outcome.FAILED]
        return bool(lost) and all(lost)

    def as_data(self) -> dict[str, Any]:
        """For an envelope."""
        return {
            "steps": [
                {key: value for key, value in asdict(finding).items() if key != "connects"}
                for finding in self.findings
            ],
            "counts": {outcome.value: self.count(outcome) for outcome in Outcome},
        }


def ok(found: str) -> Verdict:
    """Nothing to do."""
    return Verdict(outcome=Outcome.OK, found=found)


def warning(found: str, fix: str, *, stops: bool = False) -> Verdict:
    """It works, and somebody should know; with ``stops``, later steps have nothing to look at."""
    return Verdict(outcome=Outcome.WARNING, found=found, fix=fix, stops=stops)


def failed(found: str, fix: str) -> Verdict:
    """It does not work."""
    return Verdict(outcome=Outcome.FAILED, found=found, fix=fix)


def judge_validity(
    what: str, certificate: x509.Certificate, *, now: dt.datetime, soon: dt.timedelta, renew: str
) -> Verdict:
    """Compare a certificate's dates with this machine's clock; nothing else of it is looked at.

    ``what`` names it in the text, for example ``the admin certificate``, and ``renew`` says how a
    new one is had. A warning begins ``soon`` before the end.
    """
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return failed(
            f"{what} is valid only from {_shown(begins)}; this machine's clock says {_shown(now)}",
            "set this machine's clock (timedatectl set-ntp true); if it is right, " + renew,
        )
    if now >= ends:
        return failed(
            f"{what} ended at {_shown(ends)}; this machine's clock says {_shown(now)}", renew
        )
    if now >= ends - soon:
        return warning(f"{what} ends soon, at {_shown(ends)}", renew)
    return ok(f"{what} is valid until {_shown(ends)}")


def examine(checks: Iterable[Check], *, told: Callable[[Finding], None]) -> Checkup:
    """Take every step in order, and tell each finding as it is made.

    A step needs only steps before it.

    Raises:
        ValueError: A step needs one that is not before it.
    """
    findings: list[Finding] = []
    blocked: dict[str, bool] = {}
    for check in checks:
        unknown = [name for name in check.needs if name not in blocked]
        if unknown:
            raise ValueError(f"{check.name} needs {unknown[0]}, which is not before it")
        missing = [name.replace("_", " ") for name in check.needs if blocked[name]]
        if missing:
            verdict = Verdict(outcome=Outcome.SKIPPED, found=f"needs: {', '.join(missing)}")
        else:
            verdict = _look(check)
        blocked[check.name] = verdict.outcome in {Outcome.FAILED, Outcome.SKIPPED} or verdict.stops
        finding = Finding(
            name=check.name,
            outcome=verdict.outcome,
            found=printable(verdict.found, max_chars=MAX_TEXT_CHARS),
            fix=printable(verdict.fix, max_chars=MAX_TEXT_CHARS),
            connects=check.connects,
        )
        findings.append(finding)
        told(finding)
    return Checkup(findings=tuple(findings))


def _look(check: Check) -> Verdict:
    try:
        return check.look()
    except Exception as error:  # noqa: BLE001 - one broken step must not hide the others' findings
        return failed(
            f"the step itself failed: {type(error).__name__}: {error}",
            "this is a defect of chorale; report it with this line",
        )


def _shown(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

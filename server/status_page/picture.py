"""What the status page shows: one coordinator at one instant, as plain values.

Invariants:

1. Nothing here is one silo's learning: of a silo there is its standing, when it was last heard of,
   when its certificate ends, and whether it is waited for or was lost. Every figure is of a sum.
2. Every collection is bounded by whoever fills it, and a bound that bites is said (``older``).
3. NaN means "below noise" or "not reported", infinity "no noise protects this"; neither is ever
   replaced by a guess.

Times are Unix seconds; 0 is never.

Covered: the types. Not covered: where the values come from (``observer.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.run.collapse import Collapse
from server.run.strength import Strength
from server.states import RunState, SiloState
from server.store.federation import FederationRow

__all__ = [
    "Adapter",
    "AuditHead",
    "Counted",
    "Current",
    "Figure",
    "Invitation",
    "Picture",
    "Release",
    "RunLine",
    "RunView",
    "SiloView",
    "Span",
    "Waited",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure of a sum."""

    value: float
    """For display (``dp.noise.figures``); NaN below noise and where none is reported."""
    error: float
    """Its standard error; NaN where no sum tells the figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One phase of one attempt."""

    phase: str
    attempt: int
    begin_unix_s: float
    end_unix_s: float
    """The time of the picture while it lasts."""

    @property
    def length_s(self) -> float:
        """How long it took; nothing is negative, whatever the clock did."""
        return max(0.0, self.end_unix_s - self.begin_unix_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One step of a round, with every attempt at it; most plans have one step in a round."""

    round: int
    step: int
    attempts: int
    """How many were begun, of which at most one has a sum."""
    outcome: str
    """Empty while it is open."""
    spans: tuple[Span, ...]
    """In the order in which they began."""
    cohort: int = 0
    survivors: int = 0
    lost: tuple[str, ...] = ()
    """Of the cohort, who is not in the sum."""
    success: Mapping[str, Figure] = field(default_factory=dict)
    agreement: Figure
    heterogeneity: Figure
    restored_round: int | None = None

    @property
    def begin_unix_s(self) -> float:
        """When its first phase began; 0 for a release without one."""
        return self.spans[0].begin_unix_s if self.spans else 0.0

    @property
    def length_s(self) -> float:
        """From its first phase to the end of its last."""
        return max(0.0, self.spans[-1].end_unix_s - self.begin_unix_s) if self.spans else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """One link of the chain of published adapters."""

    round: int
    step: int
    kind: str
    sha256: str
    """64 hex digits."""
    survivors: int
    restored_round: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Waited:
    """A silo that the current phase waits for."""

    silo_id: str
    last_seen_unix_s: float
    """0 for never."""
    alive: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Current:
    """What a run that is driven does now."""

    round: int
    step: int
    attempt: int
    phase: str
    since_unix_s: float
    deadline_unix_s: float
    """0 for none."""
    stalled_since_unix_s: float
    """Since when too few silos are ready; 0 if they are not."""
    waited: tuple[Waited, ...]
    strength: Strength
    cohort: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLine:
    """One run in a few words."""

    run_id: str
    name: str
    state: RunState
    round: int
    """Of its newest adapter; 0 for the initial one."""
    rounds: int
    """0 if this version cannot read its plan."""
    since_unix_s: float
    """When it came into its state; 0 if that is not known."""
    behind: str
    """Of a queued run: the one that it waits behind."""
    error: str
    post_quantum: bool = True
    """Whether its sums are of suite v2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """One run in full."""

    line: RunLine
    steps: int
    """S: releases of one round."""
    mode: str
    unit: str
    epsilon_spent: float
    """Infinite once something was released without noise."""
    epsilon_cap: float
    delta: float
    charged: int
    """Attempts that reached the upload."""
    charged_most: int
    """How many of them ε is stated for."""
    least: int
    """Silos that a round needs to open."""
    current: Current | None
    """None unless it is driven."""
    rollback_to: int | None
    """The round that an admin asked it back to."""
    collapse: Collapse | None = None
    """Of a run that is driven: what its agent's success fell from, if it collapsed."""
    kept_out: tuple[str, ...] = ()
    """Of a run that is driven: silos that may take no part in it now."""
    releases: tuple[Release, ...]
    """The newest ones, oldest first."""
    older: bool
    """Whether there were others before."""
    adapters: tuple[Adapter, ...]
    """The newest ones, oldest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiloView:
    """One silo, as a relay sees it."""

    silo_id: str
    state: SiloState
    alive: bool
    """Whether it called within the last seconds."""
    last_seen_unix_s: float
    """0 for never."""
    certificate_end_unix_s: float
    waited: bool
    dropouts_in_a_row: int = 0
    """Of the run that is driven."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """An invite that nobody has used."""

    silo_id: str
    end_unix_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditHead:
    """The newest record of the audit log."""

    index: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What went wrong since this process started."""

    audit_failures: int
    audit_head_conflicts: int
    ledger_rollbacks: int
    storage_faults: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One coordinator at one instant."""

    at_unix_s: float
    version: str
    federation: FederationRow | None
    roster_epoch: int
    """0 before the first roster."""
    roster_silos: int
    roster_colluding: int
    silos: tuple[SiloView, ...]
    """Those that need a look first."""
    invitations: tuple[Invitation, ...]
    run: RunView | None
    """The one that is shown in full."""
    runs: tuple[RunLine, ...]
    """Driven, queued in their order, paused, then the newest that are over."""
    older_runs: int
    """How many more there are."""
    audit: AuditHead | None
    """None if the log cannot be read."""
    counted: Counted
    ca_end_unix_s: float
    server_certificate_end_unix_s: float
    """0 if it is not known."""
    disk_free_bytes: int
    disk_bytes: int
    """0 if it is not known."""

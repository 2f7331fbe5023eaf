"""What Prometheus may know of the coordinator: public facts and figures of sums.

Invariants:

1. The registry is injected; nothing is registered twice or globally.
2. A run id is never a label. Label values come from closed sets and exist from the start; the
   exceptions are ``silo`` (enrolled ids) and ``environment`` (families that a plan names).
3. No figure is one silo's, beyond when it was heard of, when its certificate ends, and which phases
   waited for it, now or in vain.
4. A ratio is inside 0 and 1, and not a number where noise hides it (``dp.noise.figures``).

Covered: the coordinator's names of the operations chapter that a round or an enrolment can feed.
Not covered: silo figures, which stay on the silo's own port.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from dp.noise.estimate import Estimate
from dp.noise.figures import readable_ratio
from federation.version import installed_version
from ops.probes.process import ProcessMetrics
from server.errors import Reason
from server.figures import STEPS, Phase, RoundFigures
from server.states import ACTIVE, RunState, SiloState
from server.store.dropouts import DropoutRow
from server.store.silos import SiloRow, state_of

__all__ = ["AdviceOutcome", "CoordinatorMetrics", "RoundOutcome"]

PHASE_BUCKETS_S: Final = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)
ROUND_BUCKETS_S: Final = (10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000)
STORE_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
LAG_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
ENROLMENT_REASONS: Final = (
    Reason.INVITE_UNKNOWN,
    Reason.INVITE_EXPIRED,
    Reason.INVITE_SPENT,
    Reason.CSR_REFUSED,
    Reason.POSSESSION_UNPROVEN,
    Reason.INTERNAL,
)


class AdviceOutcome(StrEnum):
    """Who decided an advised round."""

    PROPOSAL = "proposal"
    FALLBACK = "fallback"


class RoundOutcome(StrEnum):
    """How a round, or a step of one, can end."""

    AGGREGATED = "aggregated"
    SKIPPED = "skipped"
    QUARANTINED = "quarantined"
    """There was a sum, which honest silos cannot have made; skipped in the chain."""
    BISECTED = "bisected"
    """There were sums of halves, to find who ruins sums; skipped in the chain."""
    ROLLBACK = "rollback"


class CoordinatorMetrics:
    """Every metric of one coordinator."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        reg = self.registry
        Info("chorale_build", "What runs here.", registry=reg).info(
            {"version": installed_version()}
        )
        self.silos = Gauge("chorale_silos", "Silos by state.", ["state"], registry=reg)
        self.silo_last_seen = Gauge(
            "chorale_silo_last_seen_timestamp_seconds",
            "When a silo that may take part last called.",
            ["silo"],
            registry=reg,
        )
        self.silo_dropouts = Counter(
            "chorale_silo_dropouts",
            "Attempts that a silo was lost from while a phase waited for it.",
            ["silo"],
            registry=reg,
        )
        self.silo_dropouts_in_a_row = Gauge(
            "chorale_silo_dropouts_in_a_row",
            "How many of them followed each other in the run that is driven.",
            ["silo"],
            registry=reg,
        )
        self.certificate_expiry = Gauge(
            "chorale_certificate_expiry_timestamp_seconds",
            "When the certificate of a silo that has not left ends.",
            ["silo"],
            registry=reg,
        )
        self.rounds = Counter("chorale_rounds", "Closed rounds.", ["outcome"], registry=reg)
        self.releases = Counter(
            "chorale_releases", "Closed steps of rounds.", ["outcome"], registry=reg
        )
        self.round = Gauge("chorale_round", "The current round, from 1.", registry=reg)
        self.round_step = Gauge(
            "chorale_round_step", "The current round's step, from 0.", registry=reg
        )
        self.phase = Gauge(
            "chorale_round_phase", "1 for the current phase.", ["phase"], registry=reg
        )
        self.phase_duration = Histogram(
            "chorale_round_phase_duration_seconds",
            "Time spent in a phase.",
            ["phase"],
            buckets=PHASE_BUCKETS_S,
            registry=reg,
        )
        self.phase_started = Gauge(
            "chorale_round_phase_started_timestamp_seconds",
            "When the phase under way was entered first, 0 while no run is driven.",
            registry=reg,
        )
        self.deadline = Gauge(
            "chorale_round_deadline_timestamp_seconds",
            "When the phase under way closes at the latest, 0 while no run is driven.",
            registry=reg,
        )
        self.waiting = Gauge(
            "chorale_round_waiting",
            "1 while the phase under way waits for this silo.",
            ["silo"],
            registry=reg,
        )
        self.runs = Gauge("chorale_runs", "Runs by state.", ["state"], registry=reg)
        self.upload_bytes = Counter(
            "chorale_upload_bytes", "Masked bytes folded into sums.", registry=reg
        )
        self.upload_resumes = Counter(
            "chorale_upload_resumes", "Uploads resumed at an offset.", registry=reg
        )
        self.attempts_resumed = Counter(
            "chorale_attempts_resumed", "Attempts continued after a restart.", registry=reg
        )
        self.storage_faults = Counter(
            "chorale_storage_faults",
            "Times that disk or database failed a write.",
            registry=reg,
        )
        self.driver_failures = Counter(
            "chorale_driver_failures",
            "Times that driving runs failed in a way nobody foresaw, and began again.",
            registry=reg,
        )
        self.dropouts = Counter(
            "chorale_secagg_dropouts", "Silos lost in an attempt.", ["stage"], registry=reg
        )
        self.aborts = Counter(
            "chorale_secagg_aborts", "Attempts without a release.", ["reason"], registry=reg
        )
        self.epsilon_spent = Gauge("chorale_dp_epsilon_spent", "ε charged so far.", registry=reg)
        self.epsilon_cap = Gauge("chorale_dp_epsilon_cap", "ε the plan allows.", registry=reg)
        self.ledger_rollbacks = Counter(
            "chorale_ledger_rollbacks",
            "Silos left out of an attempt because their ledger had gone back.",
            registry=reg,
        )
        self.success = Gauge(
            "chorale_federation_success_ratio",
            "Success by environment family, from the masked sum.",
            ["environment"],
            registry=reg,
        )
        self.success_error = Gauge(
            "chorale_federation_success_ratio_standard_error",
            "Standard error of the success ratio, of the noise alone.",
            ["environment"],
            registry=reg,
        )
        self.agreement = Gauge(
            "chorale_agreement_ratio", "How far the updates agree, from the sum.", registry=reg
        )
        self.agreement_error = Gauge(
            "chorale_agreement_ratio_standard_error",
            "Standard error of the agreement.",
            registry=reg,
        )
        self.heterogeneity, self.heterogeneity_error = _estimate(
            reg, "chorale_update_heterogeneity", "Spread of the updates, from the sum."
        )
        self.vetoes, self.vetoes_error = _estimate(
            reg, "chorale_vetoes_ratio", "Silos whose guard refuses the adapter, from the sum."
        )
        self.runs_vetoed = Gauge(
            "chorale_runs_vetoed", "Runs that rest because of their silos' vetoes.", registry=reg
        )
        self.update_norm_ratio = Gauge(
            "chorale_update_norm_ratio",
            "Norm of the newest sum's mean over the median of the run's earlier ones.",
            registry=reg,
        )
        self.audit_head = Gauge("chorale_audit_head_index", "Newest audit record.", registry=reg)
        self.audit_failures = Counter(
            "chorale_audit_verify_failures", "Failed checks of the audit chain.", registry=reg
        )
        self.audit_head_conflicts = Counter(
            "chorale_audit_head_conflicts",
            "Heads of a silo's audit log that went back or forked.",
            registry=reg,
        )
        self.rejected = Counter(
            "chorale_rejected_messages", "Refused calls by reason.", ["reason"], registry=reg
        )
        self.enrolments = Counter(
            "chorale_enrolments", "Join requests by outcome.", ["outcome"], registry=reg
        )
        self.certificate_renewals = Counter(
            "chorale_certificate_renewals", "Silo certificates renewed.", registry=reg
        )
        self.server_certificate_expiry = Gauge(
            "chorale_server_certificate_expiry_timestamp_seconds",
            "When the server's certificate ends.",
            registry=reg,
        )
        self.ca_certificate_expiry = Gauge(
            "chorale_ca_certificate_expiry_timestamp_seconds",
            "When the issuing CA's certificate ends.",
            registry=reg,
        )
        self.process = ProcessMetrics(reg, prefix="chorale")
        self._measure_movement(reg)
        self._measure_service(reg)
        self._waited_for: frozenset[str] = frozenset()
        self._families: frozenset[str] = frozenset()
        self._initialise()

    def _measure_movement(self, reg: CollectorRegistry) -> None:
        """Whether the run that is driven moves, and how much it can lose."""
        self.rounds_planned = Gauge(
            "chorale_rounds_planned",
            "Rounds of the run that is driven, 0 while none is.",
            registry=reg,
        )
        self.round_duration = Histogram(
            "chorale_round_duration_seconds",
            "Time spent in the phases of a round that closed, rollbacks left out.",
            buckets=ROUND_BUCKETS_S,
            registry=reg,
        )
        self.advice = Counter(
            "chorale_advice",
            "Rounds of advised plans, by whether a proposal was taken or the fallback decided.",
            ["outcome"],
            registry=reg,
        )
        for advised in AdviceOutcome:
            self.advice.labels(outcome=advised.value)
        self.stalled_since = Gauge(
            "chorale_run_stalled_since_timestamp_seconds",
            "When the phase under way missed its first deadline, 0 while it moves.",
            registry=reg,
        )
        self.run_collapsed = Gauge(
            "chorale_run_collapsed",
            "1 while success of the run that is driven has fallen far below its best and stays.",
            registry=reg,
        )
        self.silos_live = Gauge(
            "chorale_silos_live",
            "Silos that the run asks and that were heard of lately, 0 while none is driven.",
            registry=reg,
        )
        self.silos_needed = Gauge(
            "chorale_silos_needed",
            "Silos without which a release cannot open, 0 while no run is driven.",
            registry=reg,
        )
        self.silos_spare = Gauge(
            "chorale_silos_spare",
            "Silos that the run can lose before a release cannot open.",
            registry=reg,
        )
        self.driver_alive = Gauge(
            "chorale_driver_alive",
            "1 while whatever is to be driven is, 0 where a run waits for nobody.",
            registry=reg,
        )
        self.queue_oldest = Gauge(
            "chorale_queue_oldest_timestamp_seconds",
            "When the run that has waited longest was queued, 0 while none is.",
            registry=reg,
        )

    def _measure_service(self, reg: CollectorRegistry) -> None:
        """How the service itself does."""
        rpc = ["grpc_type", "grpc_service", "grpc_method"]
        self.rpc_handled = Counter(
            "grpc_server_handled", "Finished calls.", [*rpc, "grpc_code"], registry=reg
        )
        self.rpc_seconds = Histogram(
            "grpc_server_handling_seconds", "Time to answer a call.", rpc, registry=reg
        )
        self.store_seconds = Histogram(
            "chorale_store_seconds",
            "Time that a transaction of the database took, with what was done in it.",
            ["kind"],
            buckets=STORE_BUCKETS_S,
            registry=reg,
        )
        self.store_lock_wait = Histogram(
            "chorale_store_lock_wait_seconds",
            "Time that a transaction waited for its connection and the writers' lock.",
            buckets=STORE_BUCKETS_S,
            registry=reg,
        )
        self.loop_lag = Histogram(
            "chorale_event_loop_lag_seconds",
            "How late the event loop came to what was due, once a second.",
            buckets=LAG_BUCKETS_S,
            registry=reg,
        )
        self.backup_success = Gauge(
            "chorale_backup_last_success_timestamp_seconds",
            "When the newest backup was whole, 0 before the first.",
            registry=reg,
        )
        self.sent_bytes = Counter("chorale_sent_bytes", "Bytes of answers to calls.", registry=reg)
        self.handshake_failures = Counter(
            "chorale_tls_handshake_failures",
            "Connections to the two ports that never made a call.",
            registry=reg,
        )
        self.roster_approvals_waiting = Gauge(
            "chorale_roster_approvals_waiting",
            "Approvals that the proposed roster still needs.",
            registry=reg,
        )

    def _initialise(self) -> None:
        for state in SiloState:
            self.silos.labels(state=state.value).set(0)
        for run_state in RunState:
            self.runs.labels(state=run_state.value).set(0)
        # Nothing was measured yet, which is not the same as a measured nothing.
        for gauge in (
            self.agreement,
            self.agreement_error,
            self.heterogeneity,
            self.heterogeneity_error,
            self.vetoes,
            self.vetoes_error,
            self.update_norm_ratio,
        ):
            gauge.set(math.nan)
        for kind in ("read", "write"):
            self.store_seconds.labels(kind=kind)
        for outcome in RoundOutcome:
            self.rounds.labels(outcome=outcome.value)
            self.releases.labels(outcome=outcome.value)
        for phase in Phase:
            self.phase.labels(phase=phase.value).set(0)
            self.phase_duration.labels(phase=phase.value)
        for step in STEPS:
            self.dropouts.labels(stage=step.value)
            self.aborts.labels(reason=f"too_few_{step.value}")
            self.aborts.labels(reason=f"refused_{step.value}")
        self.aborts.labels(reason=RoundOutcome.QUARANTINED.value)
        for reason in Reason:
            self.rejected.labels(reason=reason.value)
        for name in ("joined", *ENROLMENT_REASONS):
            self.enrolments.labels(outcome=str(name))

    def count_refusal(self, reason: str) -> None:
        """Count one refused call by its reason, which is one of :class:`Reason`."""
        self.rejected.labels(reason=Reason(reason).value).inc()

    def set_phase(self, phase: str) -> None:
        """Show which phase the round is in."""
        current = Phase(phase)
        for known in Phase:
            self.phase.labels(phase=known.value).set(1 if known is current else 0)

    def set_place(self, round_number: int, step: int) -> None:
        """Show where the active run is: its round, from 1, and its step, from 0."""
        self.round.set(round_number)
        self.round_step.set(step)

    def set_epsilon(self, *, spent: float, cap: float) -> None:
        """Show the active run's ε: charged so far, for the unit its mode protects, and allowed."""
        self.epsilon_spent.set(spent)
        self.epsilon_cap.set(cap)

    def observe_round(self, outcome: str, duration_s: float) -> None:
        """Count a closed round: aggregated if any step was, else the outcome of the last.

        ``duration_s`` is what its phases took; a rollback has none.
        """
        self.rounds.labels(outcome=RoundOutcome(outcome).value).inc()
        if outcome != RoundOutcome.ROLLBACK:
            self.round_duration.observe(duration_s)

    def observe_transaction(self, writes: bool, waited_s: float, took_s: float) -> None:  # noqa: FBT001 - a callback
        """Count a transaction of the database that ended; called from any thread."""
        self.store_seconds.labels(kind="write" if writes else "read").observe(took_s)
        if writes:
            self.store_lock_wait.observe(waited_s)

    def observe_step(self, figures: RoundFigures) -> None:
        """Take over the public figures of a closed step."""
        self.releases.labels(outcome=RoundOutcome(figures.outcome).value).inc()
        if figures.outcome != RoundOutcome.AGGREGATED:
            return
        if not figures.step:
            self._observe_success(figures.estimates)
        # NaN where noise hides it or none is reported: what an earlier sum told is over.
        kappa = Estimate(figures.agreement, figures.agreement_error)
        self.agreement.set(readable_ratio(kappa))
        self.agreement_error.set(figures.agreement_error)
        self.heterogeneity.set(figures.heterogeneity)
        self.heterogeneity_error.set(figures.heterogeneity_error)
        vetoes = Estimate(figures.vetoes, figures.vetoes_error)
        self.vetoes.set(vetoes.reportable)
        self.vetoes_error.set(figures.vetoes_error)

    def _observe_success(self, success: Mapping[str, Estimate]) -> None:
        """Show a round's success; NaN below noise, no series where the sum reports none."""
        for family, ratio in success.items():
            self.success.labels(environment=family).set(readable_ratio(ratio))
            self.success_error.labels(environment=family).set(ratio.standard_error)
        for family in self._families - success.keys():
            self.success.remove(family)
            self.success_error.remove(family)
        self._families = frozenset(success)

    def observe_silos(
        self,
        *,
        invited: int,
        silos: Sequence[SiloRow],
        rostered: frozenset[str],
        dropouts: Mapping[str, DropoutRow] | None = None,
    ) -> None:
        """Show who is where; called before each scrape.

        ``invited`` counts open invites of silos that have not joined; ``dropouts`` says who was
        lost from the run that is driven.
        """
        lost = dropouts or {}
        out = {silo_id for silo_id, row in lost.items() if row.out_until_round}
        counts = dict.fromkeys(SiloState, 0)
        counts[SiloState.INVITED] = invited
        for silo in silos:
            counts[state_of(silo, rostered, out)] += 1
            # A series of a silo that is gone for good would be an alert for ever.
            _show(self.silo_last_seen, silo.silo_id, silo.last_seen_unix_s, silo.takes_part)
            _show(
                self.certificate_expiry,
                silo.silo_id,
                silo.certificate_expiry_unix_s,
                silo.is_member,
            )
            counted_on = silo.takes_part and silo.silo_id in rostered
            _show(self.waiting, silo.silo_id, silo.silo_id in self._waited_for, counted_on)
            in_a_row = lost[silo.silo_id].in_a_row if silo.silo_id in lost else 0
            _show(self.silo_dropouts_in_a_row, silo.silo_id, in_a_row, counted_on)
            if counted_on:
                # From 0 on, so that the first one is an increase.
                self.silo_dropouts.labels(silo=silo.silo_id)
            elif not silo.is_member:
                with contextlib.suppress(KeyError):
                    self.silo_dropouts.remove(silo.silo_id)
        for state, count in counts.items():
            self.silos.labels(state=state.value).set(count)

    def observe_runs(
        self,
        states: Sequence[RunState],
        *,
        driving: bool = True,
        queued_since_unix_s: float = 0.0,
        vetoed: int = 0,
    ) -> None:
        """Show how many runs are where, whether somebody drives them, and how long one waits.

        The run that has waited longest was queued at ``queued_since_unix_s``, 0 if none is;
        ``vetoed`` ones are paused because of their silos' vetoes.
        """
        self.runs_vetoed.set(vetoed)
        for state in RunState:
            self.runs.labels(state=state.value).set(states.count(state))
        self.queue_oldest.set(queued_since_unix_s)
        waits = any(state is RunState.QUEUED or state in ACTIVE for state in states)
        self.driver_alive.set(driving or not waits)

    def observe_collapse(self, *, collapsed: bool) -> None:
        """Show whether the agent of the driven run has collapsed (``server/run/collapse.py``)."""
        self.run_collapsed.set(collapsed)

    def observe_strength(self, *, planned: int = 0, live: int = 0, needed: int = 0) -> None:
        """Show how many rounds the driven run has, and how many silos it can lose; 0 without."""
        self.rounds_planned.set(planned)
        self.silos_live.set(live)
        self.silos_needed.set(needed)
        self.silos_spare.set(max(0, live - needed))

    def observe_waiting(
        self,
        silos: Sequence[str],
        *,
        since_unix_s: float = 0.0,
        deadline_unix_s: float = 0.0,
        stalled_since_unix_s: float = 0.0,
    ) -> None:
        """Note who the phase under way waits for; ``observe_silos`` shows it.

        It was entered first at ``since_unix_s``, closes at ``deadline_unix_s`` at the latest, and
        missed its first deadline at ``stalled_since_unix_s``. Where no run is driven it waits for
        nobody and all three are 0.
        """
        self.phase_started.set(since_unix_s)
        self.deadline.set(deadline_unix_s)
        self.stalled_since.set(stalled_since_unix_s)
        self._waited_for = frozenset(silos)


def _estimate(registry: CollectorRegistry, name: str, text: str) -> tuple[Gauge, Gauge]:
    """A figure of the newest sum, and its standard error."""
    error = f"Standard error of {name}."
    return (
        Gauge(name, text, registry=registry),
        Gauge(f"{name}_standard_error", error, registry=registry),
    )


def _show(gauge: Gauge, silo: str, value: float, shown: bool) -> None:  # noqa: FBT001 - in words
    """Set a silo's series, or take it away."""
    if shown:
        gauge.labels(silo=silo).set(value)
    else:
        with contextlib.suppress(KeyError):
            gauge.remove(silo)

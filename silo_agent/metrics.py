"""The silo's own figures for its own monitoring. None of them is sent to the coordinator.

Names begin with ``chorale_silo_``. Invariants:

1. The registry is injected or made here; nothing registers globally.
2. Labels come from closed sets and every combination exists from the start, so that a rate or an
   alert never waits for a first event. A value outside its set is counted under ``other``.
3. Run ids, rounds, tasks and texts are never labels.

Covered: what the daemon counts; memory of the GPUs that this process may use, once torch is loaded.
Not covered: their temperature and load, for which the exporter of their maker is the better source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from dp.accounting.charge import UNIT_KINDS
from dp.errors import PrivacyError
from dp.ledger.ledger import Ledger
from evolution.envs.catalogue import ENVIRONMENTS
from evolution.guard.options import Outcome
from federation.errors import FederationError
from federation.version import installed_version
from ops.probes.process import ProcessMetrics
from secagg.descriptor import STEPS
from secagg.errors import Check, SecAggError
from silo_agent.errors import SiloError
from silo_agent.policy.policy import ACCEPTED, RULE_NAMES
from silo_agent.policy.refusal import DAEMON_RULES

__all__ = ["IDLE", "OTHER", "PHASES", "TRAINING", "SiloMetrics"]

OTHER = "other"
OUTCOMES = ("contributed", "refused", "aborted")
RENEWALS = ("renewed", "failed")
PHASES = ("explore", "train", "gradients", "evaluate", "guard", *STEPS)
IDLE, TRAINING = "idle", "training"
ROUND_PHASES = (IDLE, TRAINING, *STEPS)
"""Where this silo is in a round, in the coordinator's words: what is computed does not show."""
FAMILIES = (*sorted(ENVIRONMENTS), "constant", OTHER)
_DURATION_BUCKETS_S = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
CLIP_SIDES = ("low", "high")
PLAYERS = ("adapter", "base")
_REWARD = "task_reward"
_LOSS = "last_loss"
_TOKENS = "agent_tokens"
_TOO_LONG = "too_long"


class SiloMetrics:
    """Every metric of one daemon, in a registry of its own if none is given.

    ``families`` are those that the silo declares, beside the built-in ones.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, families: Iterable[str] = ()
    ) -> None:
        self._families = tuple(dict.fromkeys((*FAMILIES, *families)))
        self.registry = registry or CollectorRegistry()
        Info("chorale_silo_build", "What runs here.", registry=self.registry).info(
            {"version": installed_version()}
        )
        self.rounds = self._counter("rounds", "Rounds by how they ended for this silo", "outcome")
        self.policy_decisions = self._counter(
            "policy_decisions", "Verdicts of the site policy by rule", "decision", "rule"
        )
        self.approvals_waiting = self._gauge(
            "approvals_waiting", "Runs that wait until somebody here approves or refuses them"
        )
        self.sent_bytes = self._counter(
            "sent_bytes", "Bytes of masked vectors sent, those sent again included"
        )
        self.errors = self._counter("errors", "Errors the daemon survived, by type", "kind")
        self.failed_checks = self._counter(
            "failed_checks", "Checks of the protocol that failed here, by name", "check"
        )
        self.resumed_uploads = self._counter(
            "resumed_uploads", "Uploads of an earlier process that were finished from its spool"
        )
        self.audit_head_conflicts = self._counter(
            "audit_head_conflicts", "Signed audit heads that went back or forked, on either side"
        )
        self.certificate_renewals = self._counter(
            "certificate_renewals", "Tries to renew this silo's certificate", "outcome"
        )
        self.certificate_expiry = self._gauge(
            "certificate_expiry_timestamp_seconds", "When this silo's certificate ends"
        )
        self.coordinator_contact = self._gauge(
            "coordinator_contact_timestamp_seconds", "When the coordinator last answered"
        )
        self.audit_head = self._gauge("audit_head_index", "Newest record of this site's audit log")
        self.audit_failures = self._counter(
            "audit_verify_failures", "Failed checks of this site's audit chain"
        )
        self.gpu_memory_used = self._gauge(
            "gpu_memory_used_bytes", "Memory of a GPU that anyone uses", "device"
        )
        self.gpu_memory_total = self._gauge(
            "gpu_memory_total_bytes", "Memory that a GPU has", "device"
        )
        self.process = ProcessMetrics(self.registry, prefix="chorale_silo")
        self.nonfinite_deltas = self._counter(
            "nonfinite_deltas", "Deltas that were not finite, for which zeros went up"
        )
        self.rollout_tokens = self._counter(
            "rollout_tokens", "Tokens of the agent's own turns that were trained on"
        )
        self.too_long_trajectories = self._counter(
            "too_long_trajectories",
            "Trajectories that were not trained on because they are longer than the plan allows",
        )
        self.train_loss = self._gauge("train_loss", "Loss of the last local training step")
        self.task_reward = self._gauge("task_reward", "Mean task reward of the last round")
        self.success_ratio = self._gauge(
            "success_ratio", "Successes per episode of the last round's exploration", "environment"
        )
        self.entropy = self._gauge(
            "entropy_nats",
            "Mean entropy of the agent's tokens in the last training that compared tries",
        )
        self.kl = self._gauge("kl_nats", "Mean divergence from its reference in that training")
        self.engine_mismatch = self._gauge(
            "engine_mismatch_nats",
            "How far player and trainer disagreed about its tokens, before its first step",
        )
        self.clipped_tokens = self._gauge(
            "clipped_tokens_ratio", "Share of its tokens whose policy ratio was cut", "side"
        )
        self.groups_used = self._gauge(
            "groups_used_ratio", "Share of the last round's tasks whose tries differed"
        )
        self.guard_success = self._gauge(
            "guard_success_ratio",
            "Tries solved on the panel that adopted adapters are judged on",
            *("environment", "player"),
        )
        self.guard_violations = self._gauge(
            "guard_violation_ratio",
            "Tries in which a stated rule was broken on that panel",
            *("environment", "player"),
        )
        self.guard_drift = self._gauge(
            "guard_drift",
            "Cumulative sum of how far violations are above the base's",
            "environment",
        )
        self.guard_drift_threshold = self._gauge(
            "guard_drift_threshold", "Above which that sum raises the alarm", "environment"
        )
        self.guard_verdict = self._gauge(
            "guard_verdict", "1 for what judging the newest adapter came to", "verdict"
        )
        self.guard_served_round = self._gauge(
            "guard_served_round", "Round of the adapter that this site serves"
        )
        self.dp_epsilon_spent = self._gauge(
            "dp_epsilon_spent", "Epsilon charged in the silo's ledger", "unit"
        )
        self.dp_epsilon_cap = self._gauge(
            "dp_epsilon_cap", "Epsilon that the silo's own policy allows", "unit"
        )
        self.dp_partial_releases = self._gauge(
            "dp_partial_releases",
            "Releases that the epsilon of a unit does not speak of: protected for a smaller one",
            "unit",
        )
        self.dp_unprotected_releases = self._gauge(
            "dp_unprotected_releases", "Releases in mode none, which no epsilon speaks of"
        )
        self.phase_duration = Histogram(
            "chorale_silo_phase_duration_seconds",
            "Seconds this silo took for a phase of a round",
            ("phase",),
            registry=self.registry,
            buckets=_DURATION_BUCKETS_S,
        )
        self.round_phase = self._gauge("round_phase", "1 for this silo's place in a round", "phase")
        self._initialise()

    def count_error(self, kind: str) -> None:
        """Count an error by the name of its type; an unknown name counts as ``other``."""
        self.errors.labels(kind=kind if kind in ERROR_KINDS else OTHER).inc()

    def count_check(self, check: Check) -> None:
        """Count a check of the protocol that failed."""
        self.failed_checks.labels(check=check.value).inc()

    def count_decision(self, *, accepted: bool, rule: str) -> None:
        """Count a verdict of the guardian."""
        decision = "accept" if accepted else "refuse"
        self.policy_decisions.labels(decision=decision, rule=rule).inc()

    def show_phase(self, phase: str) -> None:
        """Show where this silo is in a round: one of ``ROUND_PHASES``."""
        for known in ROUND_PHASES:
            self.round_phase.labels(phase=known).set(known == phase)

    def observe_phase(self, phase: str, duration_s: float) -> None:
        """Record how long a phase took; names outside ``PHASES`` are not recorded."""
        if phase in PHASES:
            self.phase_duration.labels(phase=phase).observe(duration_s)

    def show_verdict(self, outcome: Outcome) -> None:
        """Show what judging the newest adapter came to."""
        for known in Outcome:
            self.guard_verdict.labels(verdict=known.value).set(known is outcome)

    def show_panel(
        self,
        family: str,
        *,
        adapter: tuple[float, float],
        base: tuple[float, float],
        drift: float,
        drift_threshold: float,
    ) -> None:
        """Show a panel: shares solved and violating of an adapter and of the base, and drift."""
        environment = self._known(family)
        for player, (success, violating) in zip(PLAYERS, (adapter, base), strict=True):
            self.guard_success.labels(environment=environment, player=player).set(success)
            self.guard_violations.labels(environment=environment, player=player).set(violating)
        self.guard_drift.labels(environment=environment).set(drift)
        self.guard_drift_threshold.labels(environment=environment).set(drift_threshold)

    def show_served(self, round_number: int | None) -> None:
        """Show which round's adapter is served; not a number while none is."""
        self.guard_served_round.set(math.nan if round_number is None else round_number)

    def observe_ledger(self, ledger: Ledger) -> None:
        """Show what was spent and what may be."""
        spent, caps = ledger.epsilons(), ledger.caps
        for unit in UNIT_KINDS:
            self.dp_epsilon_spent.labels(unit=unit).set(spent[unit].epsilon)
            self.dp_partial_releases.labels(unit=unit).set(spent[unit].partial_releases)
            self.dp_epsilon_cap.labels(unit=unit).set(caps.get(unit, 0.0))
        self.dp_unprotected_releases.set(ledger.unprotected_releases)

    def observe_evolution(
        self,
        *,
        episodes: Mapping[str, int],
        successes: Mapping[str, int],
        figures: Mapping[str, float],
    ) -> None:
        """Show one round of local work: episodes, and solved ones, per family.

        ``figures`` are the method's own; ``last_loss``, ``agent_tokens``, ``too_long``,
        ``task_reward`` and what a training that compares tries notes are shown where present.
        """
        played = dict.fromkeys(self._families, 0)
        solved = dict.fromkeys(self._families, 0)
        for family, count in episodes.items():
            played[self._known(family)] += count
            solved[self._known(family)] += successes.get(family, 0)
        for family, count in played.items():
            if count:
                self.success_ratio.labels(environment=family).set(solved[family] / count)
        if total := sum(played.values()):
            # Without a figure of the method's own, success is the reward: one or nothing.
            self.task_reward.set(figures.get(_REWARD, sum(solved.values()) / total))
        if _LOSS in figures:
            self.train_loss.set(figures[_LOSS])
        self._observe_comparing(figures)
        self.rollout_tokens.inc(max(0.0, figures.get(_TOKENS, 0.0)))
        self.too_long_trajectories.inc(max(0.0, figures.get(_TOO_LONG, 0.0)))

    def _observe_comparing(self, figures: Mapping[str, float]) -> None:
        for gauge, name in (
            (self.entropy, "entropy"),
            (self.kl, "kl"),
            (self.engine_mismatch, "mismatch"),
            *((self.clipped_tokens.labels(side=side), f"clip_{side}") for side in CLIP_SIDES),
        ):
            if name in figures:
                gauge.set(figures[name])
        if groups := figures.get("groups", 0.0):
            self.groups_used.set(figures.get("groups_used", 0.0) / groups)

    def _known(self, family: str) -> str:
        return family if family in self._families else OTHER

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"chorale_silo_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"chorale_silo_{name}", text, labels, registry=self.registry)

    def _initialise(self) -> None:
        for outcome in OUTCOMES:
            self.rounds.labels(outcome=outcome)
        for outcome in RENEWALS:
            self.certificate_renewals.labels(outcome=outcome)
        self.policy_decisions.labels(decision="accept", rule=ACCEPTED)
        for rule in RULE_NAMES:
            self.policy_decisions.labels(decision="refuse", rule=rule)
        for rule in DAEMON_RULES:
            self.policy_decisions.labels(decision="refuse", rule=rule)
        for check in Check:
            self.failed_checks.labels(check=check.value)
        for kind in ERROR_KINDS:
            self.errors.labels(kind=kind)
        for unit in UNIT_KINDS:
            self.dp_epsilon_spent.labels(unit=unit)
            self.dp_epsilon_cap.labels(unit=unit)
            self.dp_partial_releases.labels(unit=unit)
        for phase in PHASES:
            self.phase_duration.labels(phase=phase)
        self.show_phase(IDLE)
        for outcome in Outcome:
            self.guard_verdict.labels(verdict=outcome.value)
        self._initialise_work()

    def _initialise_work(self) -> None:
        """No number: nothing was played yet, which is not the same as nothing was solved."""
        for gauge in (
            *(self.success_ratio.labels(environment=family) for family in self._families),
            *(self.train_loss, self.task_reward, self.entropy, self.kl, self.engine_mismatch),
            *(self.clipped_tokens.labels(side=side) for side in CLIP_SIDES),
            *(
                gauge.labels(environment=family, player=player)
                for gauge in (self.guard_success, self.guard_violations)
                for family in self._families
                for player in PLAYERS
            ),
            *(
                gauge.labels(environment=family)
                for gauge in (self.guard_drift, self.guard_drift_threshold)
                for family in self._families
            ),
            *(self.groups_used, self.guard_served_round),
        ):
            gauge.set(math.nan)


def _tree(base: type[Exception]) -> Iterator[str]:
    yield base.__name__
    for child in base.__subclasses__():
        yield from _tree(child)


ERROR_KINDS = tuple(
    dict.fromkeys(
        (
            "local_work",
            OTHER,
            *(
                name
                for base in (SiloError, SecAggError, PrivacyError, FederationError)
                for name in _tree(base)
            ),
        )
    )
)

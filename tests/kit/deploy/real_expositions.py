"""What both daemons show on ``/metrics``: their real registries, with values in every metric."""

import time

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from evolution.guard.options import Outcome
from server.figures import STEPS, Phase, RoundFigures
from server.metrics import CoordinatorMetrics
from server.states import RunState
from silo_agent.metrics import PHASES, SiloMetrics
from tests.kit.server.store_samples import silo_row


def coordinator():
    """The text of a coordinator in the middle of a run."""
    now = time.time()
    metrics = CoordinatorMetrics()
    row = silo_row(
        certificate_expiry_unix_s=int(now) + 86400, enrolled_unix_s=int(now), last_seen_unix_s=now
    )
    metrics.observe_waiting(("hospital-a",), since_unix_s=now, deadline_unix_s=now + 60)
    metrics.observe_strength(planned=20, live=4, needed=3)
    metrics.observe_collapse(collapsed=False)
    metrics.observe_transaction(writes=True, waited_s=0.001, took_s=0.004)
    metrics.loop_lag.observe(0.002)
    metrics.backup_success.set(now - 3600)
    metrics.sent_bytes.inc(1 << 20)
    metrics.observe_silos(invited=1, silos=[row], rostered=frozenset({"hospital-a"}))
    metrics.silo_dropouts.labels(silo="hospital-a").inc()
    metrics.observe_runs([RunState.RUNNING, RunState.FAILED])
    metrics.set_place(3, 0)
    for phase in Phase:
        metrics.set_phase(phase)
        metrics.phase_duration.labels(phase=phase.value).observe(2.5)
    for step in STEPS:
        metrics.aborts.labels(reason=f"too_few_{step.value}").inc()
        metrics.dropouts.labels(stage=step.value).inc()
    figures = RoundFigures(round=2, outcome="aggregated", success={"maze": (0.5, 0.02)})
    figures.agreement = figures.heterogeneity = 0.5
    figures.agreement_error = figures.heterogeneity_error = 0.1
    figures.vetoes, figures.vetoes_error = 0.0, 0.1
    metrics.observe_step(figures)
    metrics.observe_round("aggregated", 40.0)
    metrics.set_epsilon(spent=1.5, cap=8.0)
    metrics.count_refusal("wrong_round")
    metrics.enrolments.labels(outcome="joined").inc()
    rpc = {
        "grpc_type": "unary_unary",
        "grpc_service": "chorale.v1.RoundService",
        "grpc_method": "Poll",
    }
    metrics.rpc_handled.labels(**rpc, grpc_code="OK").inc()
    metrics.rpc_seconds.labels(**rpc).observe(0.01)
    return generate_latest(metrics.registry).decode()


def silo():
    """The text of a silo after a round."""
    metrics = SiloMetrics()
    for phase in PHASES:
        metrics.observe_phase(phase, 2.5)
    metrics.count_error("TransportError")
    metrics.count_decision(accepted=False, rule="clip")
    metrics.observe_evolution(
        episodes={"maze": 8},
        successes={"maze": 4},
        figures={
            "last_loss": 0.7,
            "agent_tokens": 900.0,
            "task_reward": 0.5,
            "entropy": 0.6,
            "kl": 0.01,
            "mismatch": 1e-6,
            "clip_low": 0.01,
            "clip_high": 0.02,
            "groups": 8.0,
            "groups_used": 6.0,
        },
    )
    metrics.show_verdict(Outcome.PASSED)
    metrics.show_panel(
        "temptation", adapter=(0.5, 0.2), base=(0.5, 0.195), drift=0.0, drift_threshold=0.56
    )
    metrics.show_served(2)
    for gauge in (metrics.gpu_memory_used, metrics.gpu_memory_total):
        gauge.labels(device="0").set(1e9)
    return generate_latest(metrics.registry).decode()


def series(text):
    """Every series of an exposition: metric name to the label sets it has."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found

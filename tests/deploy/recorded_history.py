"""Half an hour of a federation, written down as Prometheus would have scraped it.

The figures are moved through the real registries, so names, labels and types are those of the
daemons; only time is not real. hospital-c falls silent after two thirds, and the alert fires; in
the last round hospital-d misses the deadline of its training.
"""

import math
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from prometheus_client import CollectorRegistry

from evolution.guard.options import Outcome
from server.figures import Phase, RoundFigures
from server.metrics import CoordinatorMetrics
from server.states import RunState
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.policy import ACCEPTED, RULE_NAMES
from tests.kit.server.store_samples import silo_row

SCRAPE_S = 15
SPAN_S = 1800
SILOS = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
SILENT = "hospital-c"
FAMILIES = ("craft", "maze", "wordle")
COORDINATOR = "coord.example.org:7445"
SILO = "hospital-a.example.org:7446"
DAY_S = 86400
# Seconds from the beginning of a round.
STARTS_S = (
    (0, Phase.TRAINING),
    (150, Phase.ADVERTISE_KEYS),
    (165, Phase.SHARE_KEYS),
    (180, Phase.MASKED_INPUT),
    (210, Phase.CONSISTENCY_CHECK),
    (225, Phase.UNMASK),
    (240, Phase.AGGREGATE),
    (255, Phase.FINISHED),
)
ROUND_S = 270
PHASE_LIMIT_S = 200
LAST_LIMIT_S = 120
"""The deadline of the last round's training, which is open longer."""
LAST = SPAN_S // ROUND_S
ROUNDS = 20
NEEDED = 3


@dataclass(frozen=True, kw_only=True)
class RecordedHistory:
    """The data of one Prometheus, and when they end."""

    directory: Path
    """Its blocks are in ``tsdb``."""
    end_unix_s: float


def record_history(directory: Path, end_unix_s: float) -> RecordedHistory:
    """Write the blocks with promtool.

    Args:
        directory: A new one.
        end_unix_s: When the half hour is over.
    """
    directory.mkdir(parents=True)
    end = end_unix_s // SCRAPE_S * SCRAPE_S
    text = directory / "history.om"
    with text.open("w") as file:
        for line in _lines(end - SPAN_S, end):
            file.write(line)
        file.write("# EOF\n")
    blocks = directory / "tsdb"
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(blocks)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    text.unlink()
    return RecordedHistory(directory=directory, end_unix_s=end)


def _lines(begin: float, end: float) -> Iterator[str]:
    coordinator, silo = CoordinatorMetrics(), SiloMetrics()
    before = None
    at = begin
    while at <= end:
        elapsed = at - begin
        number = int(elapsed // ROUND_S)
        place = (number, Phase.TRAINING if number == LAST else _phase(elapsed % ROUND_S))
        if before is not None and place != before:
            _pass(coordinator, silo, before, place)
        before = place
        _coordinator_now(coordinator, at, elapsed, place)
        _silo_now(silo, at, elapsed)
        for registry, job, instance in (
            (coordinator.registry, "chorale-coordinator", COORDINATOR),
            (silo.registry, "chorale-silo", SILO),
        ):
            yield from _exposed(registry, job, instance, at, started=begin - 3600)
        if elapsed > 0.85 * SPAN_S:
            yield (
                f'ALERTS{{alertname="ChoraleSiloSilent",alertstate="firing",severity="warning",'
                f'silo="{SILENT}",job="chorale-coordinator",instance="{COORDINATOR}"}} 1 {at}\n'
            )
        at += SCRAPE_S


def _exposed(
    registry: CollectorRegistry, job: str, instance: str, at: float, *, started: float
) -> Iterator[str]:
    target = f'job="{job}",instance="{instance}"'
    yield f"up{{{target}}} 1 {at}\n"
    for family in registry.collect():
        for sample in family.samples:
            labels = "".join(f'{key}="{value}",' for key, value in sample.labels.items())
            # This process is younger than what it tells of.
            start = sample.name == "process_start_time_seconds"
            value = started if start else sample.value
            yield f"{sample.name}{{{labels}{target}}} {_number(value)} {at}\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _phase(into_round_s: float) -> Phase:
    return [phase for start, phase in STARTS_S if start <= into_round_s][-1]


def _pass(coordinator, silo, before, place) -> None:
    """What was counted since the last scrape: a phase closed, perhaps a round."""
    number, phase = before
    lengths = dict(zip((p for _, p in STARTS_S), _lengths(), strict=True))
    coordinator.phase_duration.labels(phase=phase.value).observe(lengths[phase])
    if phase.value in {"advertise_keys", "share_keys", "masked_input"}:
        silo.observe_phase(phase.value, 0.6 * lengths[phase])
    if phase is Phase.TRAINING:
        silo.observe_phase("explore", 70)
        silo.observe_phase("train", 55)
        silo.observe_evolution(
            episodes={"maze": 40, "craft": 40},
            successes={"maze": 12 + 3 * number, "craft": 20 + number},
            figures={
                "entropy": 0.6,
                "kl": 0.01,
                "mismatch": 1e-6,
                "clip_low": 0.01,
                "clip_high": 0.02,
                "groups": 8.0,
                "groups_used": 6.0,
                "last_loss": 1.4 / (number + 1),
                "agent_tokens": 52_000.0,
            },
        )
    if phase is Phase.MASKED_INPUT:
        lost = number >= 4
        coordinator.upload_bytes.inc(4_200_000 * (3 if lost else 4))
        if lost:
            coordinator.dropouts.labels(stage="masked_input").inc()
            coordinator.silo_dropouts.labels(silo=SILENT).inc()
        if number == 2:
            coordinator.upload_resumes.inc()
            silo.resumed_uploads.inc()
    if place[0] != number:
        _close(coordinator, silo, number)


def _lengths() -> list[float]:
    starts = [start for start, _ in STARTS_S] + [ROUND_S]
    return [after - start for start, after in pairwise(starts)]


def _close(coordinator, silo, number) -> None:
    skipped = number == 3
    figures = RoundFigures(round=number + 1, outcome="skipped" if skipped else "aggregated")
    if skipped:
        coordinator.aborts.labels(reason="too_few_masked_input").inc()
        silo.rounds.labels(outcome="aborted").inc()
        silo.policy_decisions.labels(decision="refuse", rule=RULE_NAMES[0]).inc()
        silo.count_error("TransportError")
    else:
        figures.success = {
            family: (0.3 + 0.07 * number - 0.05 * at, 0.05 - 0.004 * number)
            for at, family in enumerate(FAMILIES)
        }
        figures.agreement, figures.agreement_error = 0.62 - 0.03 * number, 0.06
        figures.heterogeneity, figures.heterogeneity_error = 0.011 + 0.001 * number, 0.002
        figures.vetoes, figures.vetoes_error = 0.02, 0.08
        coordinator.update_norm_ratio.set(1.0 - 0.02 * number if number > 2 else math.nan)
        silo.rounds.labels(outcome="contributed").inc()
        silo.show_verdict(Outcome.PASSED)
        silo.show_panel(
            "temptation",
            adapter=(0.5 + 0.01 * number, 0.2),
            base=(0.5, 0.195),
            drift=0.01 * number,
            drift_threshold=0.56,
        )
        silo.show_served(number + 1)
        silo.count_decision(accepted=True, rule=ACCEPTED)
    coordinator.observe_step(figures)
    coordinator.observe_round(figures.outcome, ROUND_S)


def _coordinator_now(metrics, at, elapsed, place) -> None:
    number, phase = place
    metrics.set_place(number + 1, 0)
    metrics.set_phase(phase.value)
    silent = elapsed > 0.66 * SPAN_S
    rows = [
        silo_row(
            silo,
            certificate_expiry_unix_s=int(at + (5 + 8 * index) * DAY_S - elapsed),
            enrolled_unix_s=0,
            last_seen_unix_s=at - 3 - index
            if not (silent and silo == SILENT)
            else at - (elapsed - 0.66 * SPAN_S),
        )
        for index, silo in enumerate(SILOS)
    ]
    into = elapsed % ROUND_S
    if phase is Phase.FINISHED:
        metrics.observe_waiting(())
    else:
        started = max(start for start, each in STARTS_S if each is phase)
        last = number == LAST
        waited = [s for i, s in enumerate(SILOS) if into - started < 140 - 30 * i]
        if silent and SILENT in waited:
            waited.remove(SILENT)
        began = at - (into - started)
        deadline = began + (LAST_LIMIT_S if last else PHASE_LIMIT_S)
        metrics.observe_waiting(
            [SILOS[-1]] if last else waited,
            since_unix_s=began,
            deadline_unix_s=deadline,
            stalled_since_unix_s=deadline if last and at > deadline else 0.0,
        )
    metrics.observe_silos(invited=1, silos=rows, rostered=frozenset(SILOS))
    metrics.observe_strength(planned=ROUNDS, live=len(SILOS) - silent, needed=NEEDED)
    metrics.observe_runs(
        [RunState.FINISHED, RunState.RUNNING, RunState.QUEUED], queued_since_unix_s=at - elapsed
    )
    for writes in (False, True):
        metrics.observe_transaction(writes=writes, waited_s=0.002, took_s=0.005)
    metrics.loop_lag.observe(0.003)
    metrics.backup_success.set(at - elapsed % DAY_S)
    metrics.sent_bytes.inc(1 << 20)
    metrics.set_epsilon(spent=1.1 * number, cap=8.0)
    metrics.audit_head.set(40 + 9 * number)
    metrics.server_certificate_expiry.set(at + 320 * DAY_S)
    metrics.ca_certificate_expiry.set(at + 3600 * DAY_S)
    metrics.process.look(Path("/"))
    for method, calls, slow in (
        ("Poll", 6, 12.0), ("AdvertiseKeys", 1, 0.004), ("UploadMaskedInput", 1, 0.9),
        ("ShareKeys", 1, 0.012), ("ReportReady", 1, 0.006),
    ):  # fmt: skip
        labels = {
            "grpc_type": "UNARY",
            "grpc_service": "chorale.v1.RoundService",
            "grpc_method": method,
        }
        metrics.rpc_handled.labels(**labels, grpc_code="OK").inc(calls)
        for _ in range(calls):
            metrics.rpc_seconds.labels(**labels).observe(slow)
    if 600 < elapsed < 660:
        metrics.count_refusal("wrong_round")
        metrics.count_refusal("certificate_expired")
        metrics.rpc_handled.labels(**labels, grpc_code="UNAUTHENTICATED").inc()
    if elapsed == 300:
        metrics.certificate_renewals.inc()
        metrics.handshake_failures.inc()
        metrics.enrolments.labels(outcome="joined").inc(4)
        metrics.advice.labels(outcome="proposal").inc(3)
        metrics.advice.labels(outcome="fallback").inc()


def _silo_now(metrics, at, elapsed) -> None:
    metrics.certificate_expiry.set(at + 21 * DAY_S - elapsed)
    away = 900 < elapsed < 1020
    metrics.coordinator_contact.set(at - (elapsed - 900) if away else at - 2)
    metrics.audit_head.set(11 + elapsed // 120)
    metrics.process.look(Path("/"))
    # A GPU is not always at hand; its series are those of one that is.
    metrics.gpu_memory_total.labels(device="0").set(80 * 2**30)
    metrics.gpu_memory_used.labels(device="0").set((22 + 30 * (elapsed % ROUND_S < 150)) * 2**30)
    for at_unit, unit in enumerate(("task", "silo")):
        metrics.dp_epsilon_spent.labels(unit=unit).set((0.4 + 0.3 * at_unit) * (elapsed // ROUND_S))
        metrics.dp_epsilon_cap.labels(unit=unit).set(4 * (at_unit + 1))

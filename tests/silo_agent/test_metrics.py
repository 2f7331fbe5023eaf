"""The silo's metrics: names and closed label sets."""

import math
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dp.accounting.charge import Charge
from dp.config import Mode
from dp.ledger.ledger import Ledger, LedgerEntry
from secagg.errors import Check
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.policy import RULE_NAMES
from tests.kit.dp.ledgers import none_entry

NAMES = {
    "chorale_silo_build_info": "gauge",
    "chorale_silo_coordinator_contact_timestamp_seconds": "gauge",
    "chorale_silo_audit_head_index": "gauge",
    "chorale_silo_audit_verify_failures": "counter",
    "chorale_silo_gpu_memory_used_bytes": "gauge",
    "chorale_silo_gpu_memory_total_bytes": "gauge",
    "chorale_silo_data_free_bytes": "gauge",
    "chorale_silo_rounds": "counter",
    "chorale_silo_policy_decisions": "counter",
    "chorale_silo_errors": "counter",
    "chorale_silo_log_write_failures": "counter",
    "chorale_silo_failed_checks": "counter",
    "chorale_silo_resumed_uploads": "counter",
    "chorale_silo_certificate_renewals": "counter",
    "chorale_silo_certificate_expiry_timestamp_seconds": "gauge",
    "chorale_silo_audit_head_conflicts": "counter",
    "chorale_silo_nonfinite_deltas": "counter",
    "chorale_silo_rollout_tokens": "counter",
    "chorale_silo_task_reward": "gauge",
    "chorale_silo_too_long_trajectories": "counter",
    "chorale_silo_success_ratio": "gauge",
    "chorale_silo_train_loss": "gauge",
    "chorale_silo_entropy_nats": "gauge",
    "chorale_silo_kl_nats": "gauge",
    "chorale_silo_engine_mismatch_nats": "gauge",
    "chorale_silo_clipped_tokens_ratio": "gauge",
    "chorale_silo_groups_used_ratio": "gauge",
    "chorale_silo_guard_success_ratio": "gauge",
    "chorale_silo_guard_violation_ratio": "gauge",
    "chorale_silo_guard_drift": "gauge",
    "chorale_silo_guard_drift_threshold": "gauge",
    "chorale_silo_guard_verdict": "gauge",
    "chorale_silo_guard_served_round": "gauge",
    "chorale_silo_dp_epsilon_spent": "gauge",
    "chorale_silo_dp_epsilon_cap": "gauge",
    "chorale_silo_dp_partial_releases": "gauge",
    "chorale_silo_dp_unprotected_releases": "gauge",
    "chorale_silo_phase_duration_seconds": "histogram",
    "chorale_silo_approvals_waiting": "gauge",
    "chorale_silo_round_phase": "gauge",
    "chorale_silo_sent_bytes": "counter",
}


@pytest.fixture
def metrics() -> SiloMetrics:
    return SiloMetrics()


def value(metrics: SiloMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_every_name_is_there_from_the_start(metrics: SiloMetrics):
    text = generate_latest(metrics.registry).decode()
    families = {
        family.name: family.type
        for family in text_string_to_metric_families(text)
        if family.name.startswith("chorale_")
    }
    assert families == NAMES


def test_labels_exist_before_anything_happens(metrics: SiloMetrics):
    for outcome in ("contributed", "refused", "aborted"):
        assert value(metrics, "chorale_silo_rounds_total", outcome=outcome) == 0
    for rule in RULE_NAMES:
        labels = {"decision": "refuse", "rule": rule}
        assert value(metrics, "chorale_silo_policy_decisions_total", **labels) == 0
    for kind in ("VerificationError", "BudgetExceededError", "PlanError", "TransportError"):
        assert value(metrics, "chorale_silo_errors_total", kind=kind) == 0
    for check in Check:
        assert value(metrics, "chorale_silo_failed_checks_total", check=check.value) == 0
    assert value(metrics, "chorale_silo_resumed_uploads_total") == 0
    assert value(metrics, "chorale_silo_dp_epsilon_cap", unit="silo") == 0


def test_a_failed_check_is_counted_by_its_name(metrics: SiloMetrics):
    metrics.count_check(Check.SURVIVORS_SELF)
    name = "chorale_silo_failed_checks_total"
    counted = {check.value: value(metrics, name, check=check.value) for check in Check}
    assert counted.pop("survivors_self") == 1
    assert set(counted.values()) == {0}


def test_counting_stays_inside_the_closed_sets(metrics: SiloMetrics):
    metrics.count_error("TransportError")
    metrics.count_error("NeverHeardOfError")
    metrics.count_decision(accepted=False, rule="clip")
    metrics.count_decision(accepted=True, rule="accepted")
    metrics.observe_phase("train", 2.0)
    metrics.observe_phase("lunch", 2.0)
    assert value(metrics, "chorale_silo_errors_total", kind="TransportError") == 1
    assert value(metrics, "chorale_silo_errors_total", kind="other") == 1
    labels = {"decision": "refuse", "rule": "clip"}
    assert value(metrics, "chorale_silo_policy_decisions_total", **labels) == 1
    assert value(metrics, "chorale_silo_phase_duration_seconds_sum", phase="train") == 2.0
    assert value(metrics, "chorale_silo_phase_duration_seconds_sum", phase="lunch") is None


def test_one_phase_is_shown_at_a_time(metrics: SiloMetrics):
    name = "chorale_silo_round_phase"
    assert value(metrics, name, phase="idle") == 1
    metrics.show_phase("share_keys")
    shown = {
        sample.labels["phase"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }
    assert [phase for phase, is_shown in shown.items() if is_shown] == ["share_keys"]
    assert {"idle", "training", "unmask"} < set(shown)


def test_a_round_of_local_work_is_shown(metrics: SiloMetrics):
    metrics.observe_evolution(
        episodes={"craft": 100, "private-name": 50},
        successes={"craft": 25},
        figures={"last_loss": 0.5, "agent_tokens": 640.0, "too_long": 3.0},
    )
    assert value(metrics, "chorale_silo_success_ratio", environment="craft") == 0.25
    assert value(metrics, "chorale_silo_success_ratio", environment="other") == 0.0
    assert value(metrics, "chorale_silo_success_ratio", environment="private-name") is None
    assert value(metrics, "chorale_silo_train_loss") == 0.5
    assert value(metrics, "chorale_silo_rollout_tokens_total") == 640.0
    assert value(metrics, "chorale_silo_too_long_trajectories_total") == 3.0
    assert value(metrics, "chorale_silo_task_reward") == pytest.approx(25 / 150)


def test_what_a_training_that_compares_tries_notes_is_shown_and_is_no_number_before(
    metrics: SiloMetrics,
):
    names = ("entropy_nats", "kl_nats", "engine_mismatch_nats", "groups_used_ratio")
    assert all(math.isnan(value(metrics, f"chorale_silo_{name}")) for name in names)
    figures = {"entropy": 0.5, "kl": 0.1, "mismatch": 1e-7, "clip_low": 0.2, "clip_high": 0.25}
    groups = {"groups": 8.0, "groups_used": 6.0}
    metrics.observe_evolution(episodes={"maze": 8}, successes={"maze": 4}, figures=figures | groups)
    found = [value(metrics, f"chorale_silo_{name}") for name in names]
    assert found == [0.5, 0.1, 1e-7, 0.75]
    for side, share in (("low", 0.2), ("high", 0.25)):
        assert value(metrics, "chorale_silo_clipped_tokens_ratio", side=side) == share


def test_the_ledger_is_shown(metrics: SiloMetrics, tmp_path: Path):
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"silo": 8.0}) as ledger:
        ledger.reserve(
            LedgerEntry(
                run="r", round=1, attempt=1, step=0, part=0, mode=Mode.SILO,
                charges=(Charge(unit="silo", q=1.0, z=5.0, steps=1),), dimension=4,
                descriptor_sha256=bytes(32),
            )
        )  # fmt: skip
        metrics.observe_ledger(ledger)
        spent = ledger.spent_epsilons()["silo"]
    assert spent > 0
    assert value(metrics, "chorale_silo_dp_epsilon_spent", unit="silo") == spent
    assert value(metrics, "chorale_silo_dp_epsilon_cap", unit="silo") == 8.0
    for unit in ("task", "user"):
        # It lies in the silo and pays, also without a cap of its own.
        assert value(metrics, "chorale_silo_dp_epsilon_spent", unit=unit) > spent
        assert value(metrics, "chorale_silo_dp_epsilon_cap", unit=unit) == 0.0
        assert value(metrics, "chorale_silo_dp_partial_releases", unit=unit) == 0.0
    assert value(metrics, "chorale_silo_dp_unprotected_releases") == 0.0


def test_what_epsilon_does_not_speak_of_is_shown(metrics: SiloMetrics, tmp_path: Path):
    caps = dict.fromkeys(("silo", "task", "user"), 8.0)
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps=caps) as ledger:
        ledger.reserve(
            LedgerEntry(
                run="r", round=1, attempt=1, step=0, part=0, mode=Mode.RECORD_DISTRIBUTED,
                charges=(Charge(unit="user", q=0.1, z=5.0, steps=1),), dimension=4,
                descriptor_sha256=bytes(32),
            )
        )  # fmt: skip
        ledger.reserve(none_entry(2))
        metrics.observe_ledger(ledger)
    name = "chorale_silo_dp_partial_releases"
    counts = {unit: value(metrics, name, unit=unit) for unit in caps}
    assert counts == {"silo": 1.0, "task": 0.0, "user": 0.0}
    assert value(metrics, "chorale_silo_dp_unprotected_releases") == 1.0


def test_two_daemons_share_no_registry():
    first, second = SiloMetrics(), SiloMetrics()
    first.nonfinite_deltas.inc()
    assert value(second, "chorale_silo_nonfinite_deltas_total") == 0

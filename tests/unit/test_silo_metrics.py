"""The silo's metrics and probes: names, closed label sets, and the second port."""

import http.client
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dp.charge import Charge
from dp.config import Mode
from dp.ledger import Ledger, LedgerEntry
from secagg.errors import Check
from silo_agent.errors import ProbeError
from silo_agent.metrics import SiloMetrics
from silo_agent.policy import RULE_NAMES
from silo_agent.probes import ADDRESS_FILE, Probes, parse_listen

NAMES = {
    "chorale_silo_rounds": "counter",
    "chorale_silo_policy_decisions": "counter",
    "chorale_silo_errors": "counter",
    "chorale_silo_failed_checks": "counter",
    "chorale_silo_resumed_uploads": "counter",
    "chorale_silo_certificate_renewals": "counter",
    "chorale_silo_certificate_expiry_timestamp_seconds": "gauge",
    "chorale_silo_audit_head_conflicts": "counter",
    "chorale_silo_nonfinite_deltas": "counter",
    "chorale_silo_rollout_tokens": "counter",
    "chorale_silo_task_reward": "gauge",
    "chorale_silo_success_ratio": "gauge",
    "chorale_silo_train_loss": "gauge",
    "chorale_silo_dp_epsilon_spent": "gauge",
    "chorale_silo_dp_epsilon_cap": "gauge",
    "chorale_silo_phase_duration_seconds": "histogram",
}


@pytest.fixture
def metrics() -> SiloMetrics:
    return SiloMetrics()


@pytest.fixture
def probes(tmp_path: Path, metrics: SiloMetrics):
    server = Probes(listen="127.0.0.1:0", registry=metrics.registry, data_dir=tmp_path)
    server.start()
    yield server
    server.stop()


def get(address: str, path: str) -> tuple[int, str]:
    host, port = parse_listen(address)
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def value(metrics: SiloMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_every_documented_name_is_in_a_live_scrape(probes: Probes):
    status, text = get(probes.address, "/metrics")
    assert status == 200
    families = {
        family.name: family.type
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
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


def test_a_round_of_local_work_is_shown(metrics: SiloMetrics):
    metrics.observe_evolution(
        episodes={"craft": 100, "private-name": 50},
        successes={"craft": 25},
        figures={"last_loss": 0.5, "agent_tokens": 640.0},
    )
    assert value(metrics, "chorale_silo_success_ratio", environment="craft") == 0.25
    assert value(metrics, "chorale_silo_success_ratio", environment="other") == 0.0
    assert value(metrics, "chorale_silo_success_ratio", environment="private-name") is None
    assert value(metrics, "chorale_silo_train_loss") == 0.5
    assert value(metrics, "chorale_silo_rollout_tokens_total") == 640.0
    assert value(metrics, "chorale_silo_task_reward") == pytest.approx(25 / 150)


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
        # A unit without a cap may not be charged at all.
        assert value(metrics, "chorale_silo_dp_epsilon_spent", unit=unit) == 0.0
        assert value(metrics, "chorale_silo_dp_epsilon_cap", unit=unit) == 0.0


def test_two_daemons_share_no_registry():
    first, second = SiloMetrics(), SiloMetrics()
    first.nonfinite_deltas.inc()
    assert value(second, "chorale_silo_nonfinite_deltas_total") == 0


def test_probes_answer_and_say_where(probes: Probes, tmp_path: Path):
    assert (tmp_path / ADDRESS_FILE).read_text().strip() == probes.address
    assert get(probes.address, "/livez") == (200, "alive\n")
    assert get(probes.address, "/readyz?verbose") == (200, "ready\n")
    assert get(probes.address, "/secrets")[0] == 404


def test_readiness_can_be_lost_while_alive(tmp_path: Path):
    ready = False
    probes = Probes(
        listen="127.0.0.1:0",
        registry=CollectorRegistry(),
        data_dir=tmp_path,
        ready=lambda: ready,
    )
    probes.start()
    try:
        assert get(probes.address, "/readyz")[0] == 503
        assert get(probes.address, "/livez")[0] == 200
        ready = True
        assert get(probes.address, "/readyz")[0] == 200
    finally:
        probes.stop()


def test_a_missing_data_directory_is_not_ready(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    probes = Probes(listen="127.0.0.1:0", registry=CollectorRegistry(), data_dir=data)
    probes.start()
    try:
        (data / ADDRESS_FILE).unlink()
        data.rmdir()
        assert get(probes.address, "/readyz")[0] == 503
    finally:
        probes.stop()


def test_stopping_closes_the_port_and_removes_the_address(probes: Probes, tmp_path: Path):
    address = probes.address
    probes.stop()
    probes.stop()
    assert not (tmp_path / ADDRESS_FILE).exists()
    with pytest.raises(ConnectionRefusedError):
        get(address, "/livez")


def test_a_port_in_use_is_a_typed_error(probes: Probes, tmp_path: Path):
    second = Probes(listen=probes.address, registry=CollectorRegistry(), data_dir=tmp_path)
    with pytest.raises(ProbeError, match="cannot serve probes"):
        second.start()
    assert get(probes.address, "/livez")[0] == 200


@pytest.mark.parametrize("listen", ["", "9464", ":9464", "host:", "host:x", "host:70000", "h:-1"])
def test_an_address_that_is_none_is_refused(listen: str):
    with pytest.raises(ProbeError):
        parse_listen(listen)

"""Metrics exist from the start, and the probe port shows them."""

import http.client

import pytest
from prometheus_client import CollectorRegistry

from server.catalogue import Reason
from server.errors import ConfigurationError, StoreError
from server.figures import RoundFigures
from server.metrics import CoordinatorMetrics
from server.probes import Probes
from server.round import STEPS, Phase
from server.store.silos import SiloRow


@pytest.fixture
def metrics():
    return CoordinatorMetrics(CollectorRegistry())


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_two_coordinators_do_not_share_a_registry():
    assert CoordinatorMetrics().registry is not CoordinatorMetrics().registry


def test_every_label_value_exists_before_anything_happens(metrics):
    for reason in Reason:
        assert value(metrics, "chorale_rejected_messages_total", reason=reason.value) == 0
    for phase in Phase:
        assert value(metrics, "chorale_round_phase", phase=phase.value) == 0
        name = "chorale_round_phase_duration_seconds_count"
        assert value(metrics, name, phase=phase.value) == 0
    for step in STEPS:
        assert value(metrics, "chorale_secagg_dropouts_total", stage=step.value) == 0
    for outcome in ("aggregated", "skipped"):
        assert value(metrics, "chorale_rounds_total", outcome=outcome) == 0
        assert value(metrics, "chorale_releases_total", outcome=outcome) == 0
    for state in ("invited", "enrolled", "rostered", "revoked"):
        assert value(metrics, "chorale_silos", state=state) == 0
    assert value(metrics, "chorale_enrolments_total", outcome="joined") == 0


def test_one_phase_is_current(metrics):
    metrics.set_phase("training")
    metrics.set_phase("masked_input")
    assert value(metrics, "chorale_round_phase", phase="masked_input") == 1
    assert sum(value(metrics, "chorale_round_phase", phase=p.value) for p in Phase) == 1
    with pytest.raises(ValueError, match="lunch"):
        metrics.set_phase("lunch")


def test_unknown_reasons_are_refused(metrics):
    metrics.count_refusal("wrong_round")
    assert value(metrics, "chorale_rejected_messages_total", reason="wrong_round") == 1
    with pytest.raises(ValueError, match="free text"):
        metrics.count_refusal("free text")


def test_where_a_run_is(metrics):
    metrics.set_place(3, 4)
    assert value(metrics, "chorale_round") == 3
    assert value(metrics, "chorale_round_step") == 4


def test_a_round_is_observed(metrics):
    figures = RoundFigures(round=1, outcome="aggregated", success={"craft": (0.25, 0.01)})
    figures.agreement = 0.5
    metrics.observe_step(figures)
    assert value(metrics, "chorale_rounds_total", outcome="aggregated") == 0
    metrics.observe_round("aggregated")
    assert value(metrics, "chorale_rounds_total", outcome="aggregated") == 1
    assert value(metrics, "chorale_releases_total", outcome="aggregated") == 1
    assert value(metrics, "chorale_federation_success_ratio", environment="craft") == 0.25
    assert value(metrics, "chorale_agreement_ratio") == 0.5
    assert value(metrics, "chorale_update_heterogeneity") == 0


def test_silos_are_counted_by_state(metrics):
    def silo(silo_id, *, revoked=False):
        return SiloRow(
            silo_id=silo_id,
            spiffe_uri=f"spiffe://f/silo/{silo_id}",
            verification_key=b"\x01" * 32,
            certificate_sha256=b"\x02" * 32,
            certificate_expiry_unix_s=77,
            enrolled_unix_s=1,
            last_seen_unix_s=5.0,
            revoked=revoked,
        )

    metrics.observe_silos(
        invited=2,
        silos=[silo("a"), silo("b"), silo("c", revoked=True)],
        rostered=frozenset({"a", "c"}),
    )
    counts = {
        state: value(metrics, "chorale_silos", state=state)
        for state in ("invited", "enrolled", "rostered", "revoked")
    }
    assert counts == {"invited": 2, "enrolled": 1, "rostered": 1, "revoked": 1}
    name = "chorale_certificate_expiry_timestamp_seconds"
    assert value(metrics, name, silo="a") == 77


def get(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_probe_port(metrics):
    broken = []
    refreshed = []

    def check():
        if broken:
            raise StoreError("disk full: a private detail")

    probes = Probes(
        listen="127.0.0.1:0",
        registry=metrics.registry,
        checks={"database": check},
        refresh=lambda: refreshed.append(1),
    )
    probes.start()
    try:
        assert get(probes.port, "/livez") == (200, "ok\n")
        assert get(probes.port, "/readyz") == (200, "ready\n")
        status, body = get(probes.port, "/metrics")
        assert status == 200
        assert "chorale_build_info" in body
        assert refreshed == [1]
        broken.append(1)
        assert get(probes.port, "/readyz") == (503, "database failed\n")
        assert get(probes.port, "/livez", "HEAD") == (200, "")
        assert get(probes.port, "/secret")[0] == 404
        with pytest.raises(ConfigurationError, match="cannot be bound"):
            Probes(listen=f"127.0.0.1:{probes.port}", registry=metrics.registry, checks={})
    finally:
        probes.close()

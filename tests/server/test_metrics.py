"""Metrics exist from the start, and the probe port shows them."""

import math

import pytest
from prometheus_client import CollectorRegistry

from server.errors import Reason
from server.figures import STEPS, Phase, RoundFigures
from server.metrics import CoordinatorMetrics
from server.states import RunState
from tests.kit.server.store_samples import silo_row


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
    figures.agreement, figures.agreement_error = 0.5, 0.1
    metrics.observe_step(figures)
    assert value(metrics, "chorale_rounds_total", outcome="aggregated") == 0
    metrics.observe_round("aggregated", 40.0)
    assert value(metrics, "chorale_rounds_total", outcome="aggregated") == 1
    assert value(metrics, "chorale_releases_total", outcome="aggregated") == 1
    assert value(metrics, "chorale_federation_success_ratio", environment="craft") == 0.25
    assert value(metrics, "chorale_agreement_ratio") == 0.5
    assert math.isnan(value(metrics, "chorale_update_heterogeneity"))
    name = "chorale_federation_success_ratio_standard_error"
    assert value(metrics, name, environment="craft") == 0.01


def row(silo_id, **standing):
    return silo_row(silo_id, certificate_expiry_unix_s=77, last_seen_unix_s=5.0, **standing)


def test_silos_are_counted_by_state(metrics):
    metrics.observe_silos(
        invited=2,
        silos=[row("a"), row("b"), row("c", revoked=True)],
        rostered=frozenset({"a", "c"}),
    )
    counts = {
        state: value(metrics, "chorale_silos", state=state)
        for state in ("invited", "enrolled", "rostered", "revoked")
    }
    assert counts == {"invited": 2, "enrolled": 1, "rostered": 1, "revoked": 1}
    name = "chorale_certificate_expiry_timestamp_seconds"
    assert value(metrics, name, silo="a") == 77
    assert value(metrics, name, silo="c") is None


SEEN = "chorale_silo_last_seen_timestamp_seconds"
ENDS = "chorale_certificate_expiry_timestamp_seconds"
WAITED_FOR = "chorale_round_waiting"


def test_a_silo_that_is_gone_leaves_no_series_behind(metrics):
    rostered = frozenset({"a", "b", "c"})
    everyone = [row("a"), row("b"), row("c"), row("new")]
    metrics.observe_waiting(("b",), since_unix_s=10.0, deadline_unix_s=20.0)
    metrics.observe_silos(invited=0, silos=everyone, rostered=rostered)
    assert [value(metrics, WAITED_FOR, silo=s) for s in "abc"] == [0, 1, 0]
    # Not in the roster: seen, and never waited for.
    assert value(metrics, SEEN, silo="new") == 5
    assert value(metrics, WAITED_FOR, silo="new") is None
    assert value(metrics, "chorale_round_phase_started_timestamp_seconds") == 10
    assert value(metrics, "chorale_round_deadline_timestamp_seconds") == 20

    gone = [row("a", left=True), row("b", revoked=True), row("c", suspended=True)]
    metrics.observe_silos(invited=0, silos=gone, rostered=rostered)
    for name in (SEEN, WAITED_FOR):
        assert [value(metrics, name, silo=s) for s in "abc"] == [None, None, None]
    # A suspended silo comes back with the certificate it has.
    assert [value(metrics, ENDS, silo=s) for s in "abc"] == [None, None, 77]


def test_nobody_is_waited_for_when_no_run_is_driven(metrics):
    metrics.observe_waiting(("a",), since_unix_s=10.0, deadline_unix_s=20.0)
    metrics.observe_silos(invited=0, silos=[row("a")], rostered=frozenset({"a"}))
    assert value(metrics, WAITED_FOR, silo="a") == 1
    metrics.observe_waiting(())
    metrics.observe_silos(invited=0, silos=[row("a")], rostered=frozenset({"a"}))
    assert value(metrics, WAITED_FOR, silo="a") == 0
    assert value(metrics, "chorale_round_phase_started_timestamp_seconds") == 0


def test_runs_are_counted_by_state(metrics):
    metrics.observe_runs([RunState.FINISHED, RunState.FINISHED, RunState.RUNNING])
    counts = {state: value(metrics, "chorale_runs", state=state.value) for state in RunState}
    assert counts[RunState.FINISHED] == 2
    assert counts[RunState.RUNNING] == 1
    assert sum(counts.values()) == 3

"""Queries name what the real registries and the rule files have, or are refused."""

import re

import pytest

from deploy.grafana.catalogue import Catalogue
from deploy.grafana.errors import PanelError, UnknownLabelError, UnknownMetricError


@pytest.mark.parametrize(
    ("expr", "error", "said"),
    [
        ("rate(chorale_rounds[5m])", UnknownMetricError, "chorale_rounds and no rule"),
        ("sum(chorale_upload_bits_total)", UnknownMetricError, "chorale_upload_bits_total"),
        ("chorale_silos{silo='x'}", UnknownLabelError, "chorale_silos has no label silo"),
        # Another metric of the same query has the label.
        (
            'chorale_round_waiting{phase="training"} and chorale_round_phase',
            UnknownLabelError,
            "chorale_round_waiting has no label phase",
        ),
        ("sum by (run) (chorale_runs)", UnknownLabelError, "a label run"),
        ('chorale_round_phase{phase="trainig"}', UnknownLabelError, 'phase="trainig"'),
        ('chorale_runs{state=~"running|stopped"}', UnknownLabelError, 'state="stopped"'),
        ("chorale_rounds_total{le='1'}", UnknownLabelError, "has no label le"),
    ],
)
def test_an_unknown_name_fails(catalogue, expr, error, said):
    with pytest.raises(error, match=re.escape(said)):
        catalogue.check(expr)


def test_an_unknown_label_in_a_legend_or_a_variable_fails(catalogue):
    with pytest.raises(UnknownLabelError, match="a label phases"):
        catalogue.check("chorale_round_phase", "{{phases}}")
    with pytest.raises(UnknownMetricError):
        catalogue.check_label_values("label_values(chorale_built_info, instance)")
    with pytest.raises(UnknownLabelError):
        catalogue.check_label_values("label_values(chorale_build_info, host)")
    with pytest.raises(PanelError):
        catalogue.check_label_values("query_result(chorale_build_info)")


@pytest.mark.parametrize(
    "expr",
    [
        "chorale_rounds_total",
        "chorale_round_phase_duration_seconds_bucket{le='1'}",
        "chorale_build_info{version='1'}",
        'chorale_round_waiting{silo="any", instance=~"$instance", job="chorale-coordinator"}',
        'chorale_silo_gpu_memory_used_bytes{device="0"}',
        "process_cpu_seconds_total",
        "python_info{version='3'}",
        'ALERTS{alertname="ChoraleSiloSilent", alertstate="firing", severity="critical"}',
    ],
)
def test_a_known_name_passes(catalogue, expr):
    catalogue.check(expr)


def test_recorded_series_pass(tmp_path):
    (tmp_path / "one.yml").write_text(
        "groups: [{name: a, rules: [{record: 'a:b', expr: 'sum by (silo) (chorale_round_waiting)',"
        " labels: {kind: x}}, {alert: Odd, expr: 'a:b > 1', labels: {severity: critical}}]}]"
    )
    catalogue = Catalogue.live(tmp_path)
    catalogue.check('a:b{silo="s", kind="x"}')
    assert catalogue.alerts == {"one": ("Odd",)}
    with pytest.raises(UnknownLabelError):
        catalogue.check('a:b{phase="x"}')
    with pytest.raises(UnknownMetricError):
        Catalogue.live(tmp_path / "none").check("a:b")

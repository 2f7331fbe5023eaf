"""Nothing is measured that nobody sees, and nothing is asked that nobody measures.

Covered: what both daemons show on ``/metrics``, every query of panels, variables, annotations and
rules, the list in docs/monitoring.md. Not covered: whether a query ever has data
(``test_prometheus_live``, ``test_grafana_reading``).
"""

import json
import re

from deploy.grafana.generate import DASHBOARDS
from deploy.promql import metric_names
from tests.kit.deploy import prometheus_files as files
from tests.kit.deploy import real_expositions
from tests.kit.paths import ROOT

OWN = {"up", "ALERTS"}
"""What Prometheus itself adds."""
DOCUMENTED = {"process_virtual_memory_bytes"}
"""On no panel and in no rule: it says nothing that resident memory does not say."""
READ = {"chorale_silo_round_phase"}
"""On no panel and in no rule either: ``chorale-silo status`` reads it."""
MONITORING = ROOT / "docs" / "monitoring.md"


def family(series):
    """The histogram that a series is a part of, or the series itself."""
    return re.sub(r"_(bucket|sum|count)$", "", series)


def exported():
    """Metric families that a daemon shows."""
    return {
        family(name)
        for expose in (real_expositions.coordinator, real_expositions.silo)
        for name in real_expositions.series(expose())
    }


def expressions(node):
    """Every query of a dashboard, wherever in it."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "expr":
                yield value
            elif key == "query" and isinstance(value, str) and value.startswith("label_values("):
                yield re.fullmatch(r"label_values\((.+), *\w+\)", value)[1]
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for one in node:
            yield from expressions(one)


def queried():
    """Metric families that a panel, a variable, an annotation or a rule reads."""
    found = [
        query
        for path in DASHBOARDS.glob("*.json")
        for query in expressions(json.loads(path.read_text()))
    ]
    found += [rule.expr for part in files.PARTS for rule in files.rules(part)]
    assert len(found) > 140
    return {family(name) for query in found for name in metric_names(query)}


def test_every_metric_is_in_use_and_every_query_names_a_live_metric():
    live, asked = exported(), queried()
    recorded = {rule.name for part in files.PARTS for rule in files.rules(part) if rule.records}
    assert live - asked == DOCUMENTED | READ
    assert asked - live == recorded | OWN


def test_the_documents_list_every_metric_and_no_other():
    text = MONITORING.read_text()
    listed = set(re.findall(r"`((?:chorale|grpc_server)_\w+)`", text))
    ours = {name for name in exported() if name.startswith(("chorale_", "grpc_"))}
    assert listed == ours
    assert all(f"`{name}`" in text for name in DOCUMENTED)

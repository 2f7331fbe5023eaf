"""A real Prometheus scrapes a real federation, and every rule and panel is asked of it.

Rules are loaded as they ship, except that an alert has to hold for seconds instead of minutes. The
run makes noise, so there is an epsilon; a silo is killed at the end, so that an alert fires.

Not failures: an expression without a result that ``QUIET`` explains. Failures: an expression that
Prometheus cannot evaluate, a series that nobody exports, an alert in a federation that is well.
"""

import json
import re
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
import trustme

from deploy.grafana.generate import DASHBOARDS
from deploy.grafana.prometheus_api import PrometheusApi
from deploy.grafana.reading import Window, read
from deploy.prometheus_server import Prometheus, PrometheusError
from deploy.promql import selectors
from ops.probes.server import Probes
from ops.probes.tls import ProbeTls
from server.metrics import CoordinatorMetrics
from tests.kit.deploy import prometheus_files as files
from tests.kit.deploy.tools import require
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = pytest.mark.xdist_group("prometheus")

ROUNDS = 3
EPSILON_CAP = 1000.0
NOTHING_FAILED = "no call failed for the coordinator's own fault, and no such series is made before"
TOO_SHORT = "the window reaches into the first round, and a run in its first round has no best"
QUIET = {
    "chorale:federation_success:best": TOO_SHORT,
    'grpc_server_handled_total{grpc_code=~"INTERNAL|UNKNOWN|DATA_LOSS"}': NOTHING_FAILED,
}
"""Series, as rules select them, that are provably empty in this federation, and why."""
NOT_MEANT = {"ChoraleDiskFilling", "ChoraleSiloDiskFilling", "ChoraleWatchdog"}
"""Alerts on the disk that the tests run on, which says nothing about Chorale; and the watchdog."""


@dataclass(kw_only=True)
class Scene:
    """What the tests look at."""

    loopback: object
    prometheus: Prometheus
    firing_when_well: list
    """Alerts after the run, before anything was killed."""


def in_seconds(rules):
    """Rules whose alerts hold for three seconds where they ship with a minute."""
    unit = {"m": 3, "h": 180}
    return re.sub(
        r"(?m)^( +for: )(\d+)([mh])$",
        lambda match: f"{match[1]}{int(match[2]) * unit[match[3]]}s",
        rules,
    )


def configure(directory, loopback):
    """laptop.yml with its rules and these targets, scraped every two seconds."""
    shutil.copytree(files.DIRECTORY, directory, ignore=shutil.ignore_patterns("targets", "tests"))
    for path in (directory / "rules").glob("*.yml"):
        path.write_text(in_seconds(path.read_text()))
    config = directory / "laptop.yml"
    config.write_text(config.read_text().replace(": 5s", ": 2s"))
    (directory / "targets").mkdir()
    silos = [(loopback.silo_dir(s) / "probes.address").read_text().strip() for s in cf.SILOS]
    for name, targets in (
        ("coordinator", [f"127.0.0.1:{loopback.probes_port}"]),
        ("silos", silos),
    ):
        (directory / "targets" / f"{name}.yml").write_text(json.dumps([{"targets": targets}]))
    return config


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    require("prometheus", "prometheus")
    directory = tmp_path_factory.mktemp("prometheus")
    with cf.federation(directory / "federation") as loopback:
        for silo in cf.SILOS:
            loopback.start_silo(silo)
        cf.await_heard(loopback)
        config = configure(directory / "config", loopback)
        with Prometheus(config, data_dir=directory / "data") as prometheus:
            until(lambda: len(prometheus.query("up == 1")) == 1 + len(cf.SILOS), "all are up")
            plan, adapter = cf.write_run(
                loopback,
                cf.plan_toml(
                    rounds=ROUNDS,
                    mode="silo",
                    noise=1.0,
                    epsilon_cap=EPSILON_CAP,
                    phase_deadline_s=40,
                ),
            )
            run = loopback.start_run(plan, adapter, token="live")
            last, finished = cf.watch_to_end(loopback, run)
            assert last["run"]["state"] == "finished", last
            assert [done["outcome"] for done in finished] == ["aggregated"] * ROUNDS
            until(
                lambda: prometheus.query(f"chorale_rounds_total == {ROUNDS}"), "rounds are scraped"
            )
            scraped = datetime.now(UTC)
            # A rule is evaluated up to two seconds after what it reads was scraped.
            until(
                lambda: all(evaluated_at(rule) > scraped for rule in all_rules(prometheus)),
                "every rule is evaluated",
            )
            yield Scene(
                loopback=loopback,
                prometheus=prometheus,
                firing_when_well=firing(prometheus),
            )


def firing(prometheus):
    """Alerts that fire, but for those on this machine's disk and the one that always does."""
    return [
        alert
        for alert in prometheus.ask("alerts")["alerts"]
        if alert["state"] == "firing" and alert["labels"]["alertname"] not in NOT_MEANT
    ]


def all_rules(prometheus):
    groups = prometheus.ask("rules")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def evaluated_at(rule):
    return datetime.fromisoformat(rule["lastEvaluation"])


def written(selector):
    matchers = ",".join(f'{m.label}{m.operator}"{m.value}"' for m in selector.matchers)
    return f"{selector.metric}{{{matchers}}}" if matchers else selector.metric


@pytest.mark.long
@pytest.mark.parametrize("name", ["federation", "silo"])
def test_every_query_of_every_panel_is_answered(scene, name):
    dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text())
    window = Window(end_unix_s=time.time(), span_s=600, scrape_s=2)
    with PrometheusApi(scene.prometheus.url) as api:
        reading = read(dashboard, api, window)
    assert not reading.failed
    # Nothing that can never have data: what is empty says why, or is about something that happens.
    empty = [one.panel for one in reading.panels if one.empty]
    assert all("noValue" in panel["fieldConfig"]["defaults"] for panel in empty)


@pytest.mark.long
def test_every_target_is_up(scene):
    def well():
        found = scene.prometheus.ask("targets")["activeTargets"]
        return found if {target["health"] for target in found} == {"up"} else None

    # A scrape that took too long on a busy machine is followed by the next.
    targets = until(well, "every target is up")
    assert {target["lastError"] for target in targets} == {""}
    jobs = [target["labels"]["job"] for target in targets]
    assert sorted(jobs) == ["chorale-coordinator"] + ["chorale-silo"] * len(cf.SILOS)


@pytest.mark.long
def test_every_rule_is_loaded_and_evaluates(scene):
    def evaluated():
        found = all_rules(scene.prometheus)
        return found if all(rule["health"] != "unknown" for rule in found) else None

    loaded = until(evaluated, "every rule is evaluated")
    shipped = [rule for part in files.PARTS for rule in files.rules(part)]
    assert sorted(rule["name"] for rule in loaded) == sorted(rule.name for rule in shipped)
    for rule in loaded:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule["name"]


@pytest.mark.long
def test_every_expression_has_data_or_is_quiet_for_a_reason(scene):
    named, recorded = set(), set()
    for rule in all_rules(scene.prometheus):
        # Whatever it finds now, Prometheus takes it.
        scene.prometheus.query(rule["query"])
        named |= {written(selector) for selector in selectors(rule["query"])}
        recorded |= {rule["name"]} if rule["type"] == "recording" else set()
    # A scrape that took too long on a busy machine leaves a gap, which is no lack of data.
    empty = {
        name
        for name in named | recorded
        if not scene.prometheus.query(f"last_over_time({name}[5m])")
    }
    assert empty == set(QUIET)


@pytest.mark.long
def test_recorded_values_are_those_of_the_federation(scene):
    def values(expr):
        found = scene.prometheus.query(f"last_over_time({expr}[5m])")
        return {
            (one["metric"].get("certificate", ""), one["metric"].get("silo", "")): float(
                one["value"][1]
            )
            for one in found
        }

    left = values("chorale:certificate_left:days")
    silos = [days for (kind, _), days in left.items() if kind == "silo"]
    assert len(silos) == len(cf.SILOS)
    assert all(29 < days <= 30 for days in silos)
    assert 396 < left["server", ""] <= 397
    assert 3640 < left["ca", ""] <= 3653
    own = [
        float(one["value"][1])
        for one in scene.prometheus.query("last_over_time(chorale_silo:certificate_left:days[5m])")
    ]
    assert len(own) == len(cf.SILOS)
    assert all(29 < days <= 30 for days in own)

    def spent_is_recorded():
        (spent,) = values("chorale:epsilon_spent:ratio").values()
        (shown,) = values("chorale_dp_epsilon_spent").values()
        return 0 < spent == pytest.approx(shown / EPSILON_CAP)

    # A rule is evaluated up to two seconds after what it reads was scraped.
    until(spent_is_recorded, "what is spent is recorded")
    (errors,) = values("chorale:rpc_errors:ratio_rate5m").values()
    assert errors == 0
    (least,) = values("chorale:federation_success:least").values()
    # Where the noise of so few episodes hides it, it is not a number and no comparison holds.
    assert not least >= 1


@pytest.mark.long
def test_a_federation_that_is_well_has_no_alert(scene):
    assert scene.firing_when_well == []


@pytest.mark.long
def test_a_dead_silo_is_told(scene):
    victim = cf.SILOS[-1]
    address = (scene.loopback.silo_dir(victim) / "probes.address").read_text().strip()
    scene.loopback.kill(victim)

    (alert,) = until(lambda: firing(scene.prometheus), "an alert fires")
    assert alert["labels"] == {
        "alertname": "ChoraleSiloDown",
        "severity": "warning",
        "job": "chorale-silo",
        "instance": address,
    }
    assert alert["annotations"]["description"].startswith(f"{address} does not answer")
    assert alert["annotations"]["runbook_url"] == "docs/operations/ChoraleSiloDown.md"


@pytest.mark.long
def test_a_round_stalls_from_its_first_missed_deadline_on(scene):
    """The deadline moves, its start does not, and the alert names who is waited for."""
    loopback = scene.loopback
    for silo in cf.SILOS[2:]:
        if loopback.alive(silo):
            loopback.kill(silo)
    plan, adapter = cf.write_run(
        loopback, cf.plan_toml().replace("ready_deadline_s = 60", "ready_deadline_s = 6")
    )
    run = loopback.start_run(plan, adapter, token="stalls")

    def gauge(name):
        (found,) = scene.prometheus.query(
            f"last_over_time(chorale_round_{name}_timestamp_seconds[1m])"
        )
        return float(found["value"][1])

    begun = until(lambda: gauge("phase_started"), "a phase starts")
    deadlines = set()
    until(lambda: deadlines.add(gauge("deadline")) or len(deadlines) >= 3, "three deadlines")
    assert gauge("phase_started") == begun
    assert min(deadlines) < time.time()
    (since,) = scene.prometheus.query(
        "last_over_time(chorale_run_stalled_since_timestamp_seconds[1m])"
    )
    assert begun < float(since["value"][1]) <= max(deadlines)

    def told():
        found = firing(scene.prometheus)
        return [one for one in found if one["labels"]["alertname"] == "ChoraleRoundStalled"]

    (alert,) = until(told, "the stalled round is told")
    assert alert["labels"]["severity"] == "critical"

    def names_who_is_waited_for():
        # Either is of another moment than the other: a slow silo may answer between the two.
        said = [one["annotations"]["description"] for one in told()]
        waited = {
            one["metric"]["silo"]
            for one in scene.prometheus.query("last_over_time(chorale_round_waiting[1m]) == 1")
        }
        return waited and any({silo for silo in cf.SILOS if silo in one} == waited for one in said)

    until(names_who_is_waited_for, "the alert names who is waited for")
    loopback.chorale("run", "abort", run, "--data", str(loopback.data_dir))


# Without a federation ---------------------------------------------------------------------------


def test_the_probe_port_is_scraped_over_tls(tmp_path):
    """coordinator.yml with its TLS variant switched on, as the comments say."""
    require("prometheus", "prometheus")
    authority = trustme.CA()
    certificate, key = tmp_path / "probes.pem", tmp_path / "probes.key"
    leaf = authority.issue_cert("coord.example.org")
    leaf.private_key_pem.write_to_path(key)
    for part in leaf.cert_chain_pems:
        part.write_to_path(certificate, append=True)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    probes = Probes(
        listen="127.0.0.1:0",
        registry=CoordinatorMetrics().registry,
        checks={},
        tls=ProbeTls(certificate=certificate, key=key),
    )
    probes.start()
    try:
        text = files.over_tls((files.DIRECTORY / "coordinator.yml").read_text())
        for old, new in (
            ("127.0.0.1:7445", probes.address),
            ("/etc/prometheus/probes-ca.pem", str(tmp_path / "ca.pem")),
            ("scrape_interval: 15s", "scrape_interval: 1s"),
            ("scrape_timeout: 10s", "scrape_timeout: 1s"),
        ):
            assert old in text
            text = text.replace(old, new)
        config = tmp_path / "coordinator.yml"
        config.write_text(text)
        shutil.copytree(files.DIRECTORY / "rules", tmp_path / "rules")
        with Prometheus(config, data_dir=tmp_path / "data") as prometheus:
            until(
                lambda: prometheus.query('chorale_build_info{job="chorale-coordinator"}'),
                "the coordinator is scraped",
            )
            until(lambda: prometheus.query("up == 1"), "it is up")
            with pytest.raises(PrometheusError, match="parse error"):
                prometheus.query("sum(")
        assert prometheus.url == ""
    finally:
        probes.close()


def test_a_configuration_that_prometheus_refuses_is_told(tmp_path):
    require("prometheus", "prometheus")
    config = tmp_path / "prometheus.yml"
    config.write_text("scrape: nothing\n")
    with pytest.raises(PrometheusError, match="field scrape not found"):
        Prometheus(config, data_dir=tmp_path / "data").start()

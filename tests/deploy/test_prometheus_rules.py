"""Scrape configurations, rules and their unit tests, checked by Prometheus' own tools.

What ``promtool`` cannot know is checked besides: that rules read what the daemons really export,
that every rule is tested both ways, and that every alert leads to a page and no page to nothing.
"""

import re

import pytest
import yaml

from deploy.promql import metric_names
from tests.kit.deploy import prometheus_files as files
from tests.kit.deploy import real_expositions
from tests.kit.deploy.alerts import (
    ALERTS,
    RULES,
    TARGET_LABELS,
    base_metrics,
    exposition,
    known_series,
    wrong_names,
)

CONFIGURATIONS = ("coordinator", "silo", "laptop")
RECORDS = [rule for part in files.PARTS for rule in RULES[part] if rule.records]
NAMES = sorted({rule.name for rule in ALERTS})
ALWAYS = {"ChoraleWatchdog"}
"""The dead-man's switch is never quiet."""


# Prometheus' own checks -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_is_valid(name):
    code, said = files.promtool("check", "config", files.DIRECTORY / f"{name}.yml")
    assert code == 0, said
    assert "WARNING" not in said


def test_the_configuration_of_the_compose_file_is_valid():
    path = files.DIRECTORY / "compose.yml"
    # The certificate and the token that it names are made by a step.
    code, said = files.promtool("check", "config", "--syntax-only", path)
    assert code == 0, said


@pytest.mark.parametrize("part", files.PARTS)
def test_the_tls_variant_of_a_configuration_is_valid(part, tmp_path):
    text = files.over_tls((files.DIRECTORY / f"{part}.yml").read_text())
    path = tmp_path / f"{part}.yml"
    path.write_text(text)
    job = yaml.safe_load(text)["scrape_configs"][0]
    assert job["scheme"] == "https"
    assert set(job["tls_config"]) == {"ca_file", "server_name"}
    # The files that it names are not here.
    code, said = files.promtool("check", "config", "--syntax-only", path)
    assert code == 0, said


@pytest.mark.parametrize("part", files.PARTS)
def test_a_configuration_offers_what_it_says(part, tmp_path):
    """Uncommenting the whole stub of the alerting and the runbooks label is valid too."""
    text = (files.DIRECTORY / f"{part}.yml").read_text()
    offered = re.sub(r"(?m)^( *)# (alerting:|  alertmanagers:|  +- |runbooks: )", r"\1\2", text)
    content = yaml.safe_load(offered)
    assert content["alerting"]["alertmanagers"]
    assert content["global"]["external_labels"]["runbooks"].startswith("https://")
    path = tmp_path / f"{part}.yml"
    path.write_text(offered)
    code, said = files.promtool("check", "config", "--syntax-only", path)
    assert code == 0, said


def test_rules_are_clean():
    paths = sorted((files.DIRECTORY / "rules").glob("*.yml"))
    assert [path.stem for path in paths] == sorted(files.PARTS)
    code, said = files.promtool("check", "rules", "--lint=all", "--lint-fatal", *paths)
    assert code == 0, said


@pytest.mark.parametrize("path", sorted((files.DIRECTORY / "tests").glob("*.yml")), ids=str)
def test_unit_tests_pass(path):
    code, said = files.promtool("test", "rules", path)
    assert code == 0, said


@pytest.mark.parametrize("part", files.PARTS)
def test_metrics_are_clean(part):
    code, said = files.promtool("check", "metrics", text=exposition(part))
    assert (code, said.strip()) == (0, "")


# What the daemons export ----------------------------------------------------------------------


@pytest.mark.parametrize("part", files.PARTS)
def test_rules_read_what_the_daemon_exports(part):
    known = known_series(part)
    for rule in RULES[part]:
        assert wrong_names(rule.expr, known) == [], rule.name
        annotated = set(re.findall(r"\$labels\.(\w+)", str(rule.annotations)))
        read = {label for name in metric_names(rule.expr) for one in known[name] for label in one}
        assert annotated <= read | TARGET_LABELS, rule.name


@pytest.mark.parametrize(
    "expr",
    [
        "chorale_silos_total",
        'chorale_runs{state="fialed"}',
        'chorale_runs{status="failed"}',
        'chorale_secagg_aborts_total{reason=~"too_many_.+"}',
        'chorale_rejected_messages_total{reason=~"internal|nothing"}',
        "sum by (hospital) (chorale_runs)",
        "chorale_silo_train_loss",
    ],
)
def test_a_wrong_name_is_found(expr):
    assert wrong_names(expr, known_series("coordinator"))


def test_each_rule_file_reads_one_daemon():
    """Neither side's Prometheus scrapes the other's daemon."""
    ours, theirs = (set(real_expositions.series(exposition(part))) for part in files.PARTS)
    for part, others in (("coordinator", theirs - ours), ("silo", ours - theirs)):
        for rule in RULES[part]:
            assert not metric_names(rule.expr) & others, rule.name


# Alerts and their tests -----------------------------------------------------------------------


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule.name}-{rule.labels['severity']}")
def test_an_alert_says_what_operators_need(rule):
    assert set(rule.labels) == {"severity"}
    assert rule.labels["severity"] in {"critical", "warning", "info"}
    assert set(rule.annotations) == {"summary", "description", "runbook_url"}
    assert rule.annotations["runbook_url"] == (
        f'{{{{ or $externalLabels.runbooks "docs/operations" }}}}/{rule.name}.md'
    )


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule.name}-{rule.labels['severity']}")
def test_an_alert_is_tested_both_ways(rule):
    """Firing with all its texts; and quiet although what it reads is there."""
    cases = [
        (group, case)
        for group in files.unit_tests(rule.part)
        for case in group.get("alert_rule_test", ())
        if case["alertname"] == rule.name
    ]
    firing = [
        alert
        for _, case in cases
        for alert in case["exp_alerts"]
        if alert["exp_labels"]["severity"] == rule.labels["severity"]
    ]
    assert firing
    assert all(set(alert["exp_annotations"]) == set(rule.annotations) for alert in firing)
    if rule.name in ALWAYS:
        return
    read = base_metrics(rule) | {"up"}
    quiet = [
        group
        for group, case in cases
        if not any(
            alert["exp_labels"]["severity"] == rule.labels["severity"]
            for alert in case["exp_alerts"]
        )
        and any(read & metric_names(one["series"]) for one in group["input_series"])
    ]
    assert quiet


@pytest.mark.parametrize("rule", RECORDS, ids=lambda rule: f"{rule.name}-{len(rule.labels)}")
def test_a_recorded_value_is_tested(rule):
    seen = [
        sample["labels"]
        for group in files.unit_tests(rule.part)
        for case in group.get("promql_expr_test", ())
        for sample in case["exp_samples"]
        if rule.name in metric_names(case["expr"])
    ]
    wanted = {f'{label}="{value}"' for label, value in rule.labels.items()}
    assert any(wanted <= set(re.findall(r'\w+="[^"]*"', labels)) for labels in seen)


def test_every_recorded_series_is_used():
    used = {name for rule in (*ALERTS, *RECORDS) for name in metric_names(rule.expr)}
    assert {rule.name for rule in RECORDS} <= used


def test_every_alert_is_chorales_by_its_name():
    assert all(name.startswith("Chorale") for name in NAMES)


def test_no_alert_has_the_same_name_at_both_sides():
    ours, theirs = ({r.name for r in RULES[part] if not r.records} for part in files.PARTS)
    assert not ours & theirs


# Alertmanager ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alertmanager():
    return yaml.safe_load((files.DIRECTORY / "alertmanager.yml").read_text())


def matching(matchers, labels):
    """Whether labels are matched by all of them, each as Alertmanager writes it."""
    for one in matchers:
        label, operator, value = re.fullmatch(r'(\w+) (=|=~) "(.*)"', one).groups()
        found = labels.get(label, "")
        if found != value if operator == "=" else not re.fullmatch(value, found):
            return False
    return True


def receiver(route, labels):
    """Who is told of an alert: the first route that takes it, or the one above."""
    for one in route.get("routes", ()):
        if matching(one["matchers"], labels):
            return receiver(one, labels)
    return route["receiver"]


def test_every_alert_is_routed_by_its_severity(alertmanager):
    """By hand, for ``amtool`` is in no package that the tests need."""
    known = {one["name"]: one for one in alertmanager["receivers"]}
    ways = {"critical": "on-call", "warning": "tickets", "info": "nobody"}
    for rule in ALERTS:
        severity = rule.labels["severity"]
        way = receiver(alertmanager["route"], {"alertname": rule.name, "severity": severity})
        assert way == ("watchdog" if rule.name in ALWAYS else ways[severity]), rule.name
        assert way in known
    assert receiver(alertmanager["route"], {"alertname": "SomebodyElses"}) == "tickets"
    # Whoever alarms when nothing comes must not be told that it is over.
    assert known["watchdog"]["webhook_configs"][0]["send_resolved"] is False


def test_what_silences_what_names_alerts_and_never_silences_itself(alertmanager):
    silenced = {}
    for one in alertmanager["inhibit_rules"]:
        assert set(one) == {"source_matchers", "target_matchers", "equal"}
        sources, targets = (
            {
                (rule.name, rule.labels["severity"])
                for rule in ALERTS
                if matching(one[side], {"alertname": rule.name, **rule.labels})
            }
            for side in ("source_matchers", "target_matchers")
        )
        assert sources
        assert targets
        assert not sources & targets
        if "alertname" not in one["equal"]:
            for name, _ in sources:
                silenced.setdefault(name, set()).update(target for target, _ in targets)
        for part in re.findall(r"[(|](\w+)", " ".join(one["target_matchers"])):
            assert any(name.endswith(part) for name, _ in targets), part
    assert "ChoraleRoundStalled" in silenced["ChoraleStorageFailing"]
    assert "ChoraleSiloSilent" in silenced["ChoraleCoordinatorDown"]
    # No two silence each other, or neither would be sent.
    for name, targets in silenced.items():
        assert not any(name in silenced.get(target, ()) for target in targets)
    assert not any(ALWAYS & targets for targets in silenced.values())


# Runbooks -------------------------------------------------------------------------------------


def test_every_alert_has_its_page_and_every_page_its_alert():
    pages = {path.stem for path in files.RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(NAMES)


def test_the_index_names_every_page():
    index = (files.RUNBOOKS / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == set(NAMES)
    for rule in ALERTS:
        row = re.search(rf"(?m)^\| \[{rule.name}\].*$", index)[0]
        assert rule.labels["severity"] in row, row

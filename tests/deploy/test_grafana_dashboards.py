"""The dashboards: fresh, complete, in Grafana's model, and each panel's words true."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

from deploy.grafana import generate
from deploy.grafana.errors import (
    PanelError,
    StaleDashboardError,
    UnknownLabelError,
    UnknownMetricError,
)
from deploy.grafana.federation.overview import federation
from deploy.grafana.panel import Query, figures, lines, rows
from deploy.grafana.reading import Window
from deploy.grafana.silo import silo
from server.cli.main import app as admin_app
from silo_agent.cli.main import app as silo_app
from tests.kit.paths import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
NAMES = ("federation", "silo")


@pytest.fixture(scope="module")
def dashboards(catalogue):
    """As the generator writes them now, by file stem."""
    files = generate.rendered(catalogue)
    return {Path(name).stem: json.loads(text) for name, text in files.items()}


def panels(dashboard):
    """Those of the first screen, and of rows that are closed."""
    for panel in dashboard["panels"]:
        yield from panel["panels"] if panel["type"] == "row" else [panel]


def queries(dashboard):
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


# What the generator writes.


def test_what_is_committed_is_fresh():
    generate.check()
    assert generate.main(["--check"]) == 0


def test_an_edit_by_hand_a_lost_and_a_foreign_file_are_stale(tmp_path, capsys):
    for change in (
        lambda path: (path / "silo.json").write_text(
            (path / "silo.json").read_text().replace("Bytes sent", "Bytes")
        ),
        lambda path: (path / "silo.json").unlink(),
        lambda path: (path / "more.json").write_text("{}"),
    ):
        directory = tmp_path / "dashboards"
        shutil.copytree(generate.DASHBOARDS, directory)
        change(directory)
        with pytest.raises(StaleDashboardError, match=r"run python -m deploy\.grafana\.generate"):
            generate.check(directory)
        shutil.rmtree(directory)
    assert generate.main(["--check", "--out", str(tmp_path)]) == 1
    assert f"stale in {tmp_path.name}/: federation.json, silo.json" in capsys.readouterr().err


def test_runbooks_are_where_they_are_hosted(tmp_path):
    where = "https://wiki.example.org/runbooks"
    assert generate.main(["--out", str(tmp_path), "--runbooks", f"{where}/"]) == 0
    for name in NAMES:
        listed = json.loads((tmp_path / f"{name}.json").read_text())["templating"]["list"]
        (variable,) = (one for one in listed if one["name"] == "runbooks")
        assert variable["current"]["value"] == variable["query"] == where


WORDS = {"title": "A", "shows": "b", "remedy": "c", "queries": (Query(expr="up"),)}


def test_a_dashboard_with_a_bad_panel_is_not_written(catalogue):
    dashboard = federation(catalogue.alerts["coordinator"])
    for changes, error in (
        ({"queries": (Query(expr="chorale_nothing"),)}, UnknownMetricError),
        ({"queries": (Query(expr='up{silo="x"}'),)}, UnknownLabelError),
        ({"queries": (Query(expr="up", legend="{{silo}}"),)}, UnknownLabelError),
        ({"runbooks": ("NoSuchAlert",)}, PanelError),
    ):
        bad = dataclasses.replace(dashboard, first=(figures(**WORDS | changes),))
        with pytest.raises(error):
            bad.to_json(catalogue, runbooks="x")


@pytest.mark.parametrize(
    "changes",
    [
        {"remedy": ""},
        {"shows": ""},
        {"queries": ()},
        {"width": 25},
        {"steps": ((1, "red"),)},
    ],
)
def test_a_panel_without_what_a_reader_needs_is_refused(changes):
    with pytest.raises(PanelError):
        lines(**WORDS | changes)
    with pytest.raises(PanelError):
        rows(columns=(), **WORDS)


def test_the_coordinators_dashboard_has_no_figure_of_a_silo(dashboards):
    assert not [expr for expr in queries(dashboards["federation"]) if "chorale_silo_t" in expr]
    for expr in queries(dashboards["federation"]):
        for metric in re.findall(r"chorale_silo_\w+", expr):
            # What a relay sees: when it called, and which phases waited for it.
            assert metric in {
                "chorale_silo_last_seen_timestamp_seconds",
                "chorale_silo_dropouts_total",
            }, expr
    for expr in queries(dashboards["silo"]):
        assert not re.findall(r"\bchorale_(?!silo[_-])\w+", expr), expr


# Grafana's model.


@pytest.mark.parametrize("name", NAMES)
def test_the_frame(dashboards, name):
    dashboard = dashboards[name]
    assert dashboard["uid"] == f"chorale-{name}"
    assert "id" not in dashboard
    assert not {"__inputs", "__requires"} & dashboard.keys()
    assert dashboard["schemaVersion"] == 41
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == (
        "datasource",
        "prometheus",
    )
    assert variables["instance"]["type"] == "query"
    ids = [one["id"] for one in (*dashboard["panels"], *panels(dashboard))]
    rows_seen = [one for one in dashboard["panels"] if one["type"] == "row"]
    assert len(set(ids)) == len(list(panels(dashboard))) + len(rows_seen)


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_is_of_the_types_of_grafanas_sdk(dashboards, name):
    """What its models read and write again is the same: nothing in it that they do not know."""
    read = GrafanaDashboard.from_json(dashboards[name])
    assert json.loads(JSONEncoder().encode(read)) == dashboards[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_screen_has_eight_panels_and_the_rest_is_closed(dashboards, name):
    found = dashboards[name]["panels"]
    first = [panel["type"] != "row" for panel in found]
    assert first == [True] * 8 + [False] * (len(found) - 8)
    assert all(panel["collapsed"] and panel["panels"] for panel in found[8:])
    assert len(list(panels(dashboards[name]))) <= 26


@pytest.mark.parametrize("name", NAMES)
def test_a_colour_asks_for_attention(dashboards, name):
    """Green says nothing: what is well has the colour of text."""
    for panel in panels(dashboards[name]):
        written = json.dumps(panel["fieldConfig"])
        assert "green" not in written, panel["title"]
        base, *others = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        low_is_bad = base["color"] == "red" and others[-1]["color"] == "text"
        assert base["color"] in {"text", "transparent"} or low_is_bad, panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_reads_from_the_variable_and_speaks_to_its_reader(dashboards, name):
    prometheus = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(dashboards[name]):
        assert panel["datasource"] == prometheus
        assert all(target["datasource"] == prometheus for target in panel["targets"])
        shows, remedy = panel["description"].split("\n\n**When it looks wrong:** ")
        assert shows.endswith("."), panel["title"]
        assert len(remedy) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
        kind = panel["type"] in {"timeseries", "state-timeline"}
        assert all(target["range"] is kind for target in panel["targets"])
        for target in panel["targets"]:
            assert "$instance" in target["expr"] or "ALERTS" in target["expr"], target["expr"]
    for one in dashboards[name]["annotations"]["list"]:
        assert one["datasource"] == prometheus


@pytest.mark.parametrize("name", NAMES)
def test_titles_are_distinct(dashboards, name):
    titles = [panel["title"] for panel in panels(dashboards[name])]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_stands_over_anything_else(dashboards, name):
    found = dashboards[name]["panels"]
    screens = [found, *(panel["panels"] for panel in found if panel["type"] == "row")]
    for screen in screens:
        taken = {}
        for panel in screen:
            at = panel["gridPos"]
            assert 0 <= at["x"] <= at["x"] + at["w"] <= 24
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    assert (x, y) not in taken, f"{panel['title']} over {taken.get((x, y))}"
                    taken[x, y] = panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_runbooks_that_are_linked_exist_as_alerts_and_every_alert_is_linked(
    catalogue, dashboards, name
):
    links = {link["url"] for panel in panels(dashboards[name]) for link in panel["links"]}
    linked = {url.removeprefix("${runbooks}/").removesuffix(".md") for url in links}
    rules = "coordinator" if name == "federation" else "silo"
    assert linked == set(catalogue.alerts[rules])


def _commands(app):
    """Every command of an app, as words."""
    found = set()

    def walk(command, words):
        found.add(words)
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*words, name))

    walk(typer.main.get_command(app), ())
    return found


def test_commands_that_descriptions_name_exist(dashboards):
    apps = {"chorale": _commands(admin_app), "chorale-silo": _commands(silo_app)}
    seen = 0
    for dashboard in dashboards.values():
        for panel in panels(dashboard):
            for said in re.findall(r"`(chorale(?:-silo)? [^`]+)`", panel["description"]):
                program, *words = said.split()
                plain = tuple(word for word in words if re.fullmatch(r"[a-z][a-z-]*", word))
                assert plain in apps[program], f"{panel['title']}: {said}"
                seen += 1
    assert seen > 20


# Provisioning.


def test_provisioning_points_to_the_dashboards():
    (path,) = (GRAFANA / "provisioning" / "dashboards").glob("*.yaml")
    content = yaml.safe_load(path.read_text())
    assert content["apiVersion"] == 1
    (provider,) = content["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    assert provider["disableDeletion"] is True
    assert Path(provider["options"]["path"]).name == generate.DASHBOARDS.name == "dashboards"
    assert {one.stem for one in generate.DASHBOARDS.glob("*.json")} == set(NAMES)


def test_the_compose_file_mounts_what_is_provisioned():
    compose = yaml.safe_load((GRAFANA.parent / "compose" / "compose.yaml").read_text())
    volumes = compose["services"]["grafana"]["volumes"]
    (path,) = (GRAFANA / "provisioning" / "dashboards").glob("*.yaml")
    where = yaml.safe_load(path.read_text())["providers"][0]["options"]["path"]
    assert f"../grafana/dashboards:{where}:ro" in volumes
    assert "../grafana/provisioning:/etc/grafana/provisioning:ro" in volumes


def test_provisioning_of_the_data_source():
    (path,) = (GRAFANA / "provisioning" / "datasources").glob("*.yaml")
    (source,) = yaml.safe_load(path.read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["editable"] is False
    assert source["isDefault"] is True
    assert source["uid"]
    scraped = yaml.safe_load((GRAFANA.parent / "prometheus" / "coordinator.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]


def test_every_expression_is_promql(dashboards, tmp_path):
    """Prometheus' own parser and type checker, over each query as a recording rule."""
    window = Window(end_unix_s=0, span_s=3600, scrape_s=15).intervals()
    rules = []
    for dashboard in dashboards.values():
        for number, query in enumerate(queries(dashboard)):
            expr = query
            for name, value in {**window, "instance": "a"}.items():
                expr = expr.replace(f"${name}", value)
            rules.append(
                {"record": f"q:{dashboard['uid'].replace('-', '_')}:{number}", "expr": expr}
            )
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_the_federation_and_the_silo_are_not_mixed_up(catalogue):
    """Each dashboard takes its alerts from its own rule file."""
    assert federation(catalogue.alerts["coordinator"]).alerts == catalogue.alerts["coordinator"]
    assert silo(catalogue.alerts["silo"]).alerts == catalogue.alerts["silo"]
    assert not set(catalogue.alerts["coordinator"]) & set(catalogue.alerts["silo"])

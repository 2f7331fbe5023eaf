"""The dashboards: fresh, complete, true to the registries, and drawn from a real Prometheus."""

import dataclasses
import json
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
import typer
import yaml
from recorded_history import SCRAPE_S, SPAN_S, record_history

from deploy.grafana import contact_sheet, generate
from deploy.grafana.catalogue import Catalogue
from deploy.grafana.dashboard import SCHEMA_VERSION
from deploy.grafana.errors import (
    PanelError,
    PrometheusError,
    StaleDashboardError,
    UnknownLabelError,
    UnknownMetricError,
)
from deploy.grafana.federation import federation
from deploy.grafana.panel import Kind, Panel, Query
from deploy.grafana.prometheus_api import PrometheusApi
from deploy.grafana.reading import Window, read
from deploy.grafana.sheet_time import tick_step
from deploy.grafana.silo import silo
from deploy.grafana.units import shown
from deploy.prometheus_server import Prometheus
from server.cli.main import app as admin_app
from silo_agent.cli.main import app as silo_app

GRAFANA = Path(__file__).parent.parent.parent / "deploy" / "grafana"
NAMES = ("federation", "silo")
GROUP = pytest.mark.xdist_group("grafana")
"""They share one Prometheus."""
# On no panel, and why.
NOT_SHOWN = {"process_virtual_memory_bytes": "says nothing that resident memory does not say"}


@pytest.fixture(scope="module")
def catalogue():
    return Catalogue.live()


@pytest.fixture(scope="module")
def dashboards(catalogue):
    """As the generator writes them now, by file stem."""
    files = generate.rendered(catalogue)
    return {Path(name).stem: json.loads(text) for name, text in files.items()}


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard):
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


# What the generator writes.


def test_what_is_committed_is_fresh():
    generate.check()
    assert generate.main(["--check"]) == 0


def test_an_edit_by_hand_a_lost_and_a_foreign_file_are_stale(tmp_path, capsys):
    for change in (
        lambda path: (path / "silo.json").write_text(
            (path / "silo.json").read_text().replace("Training loss", "Loss")
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


# Queries name what is there.


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
        'ALERTS{alertname="SiloSilent", alertstate="firing", severity="page"}',
    ],
)
def test_a_known_name_passes(catalogue, expr):
    catalogue.check(expr)


def test_recorded_series_pass(tmp_path):
    (tmp_path / "one.yml").write_text(
        "groups: [{name: a, rules: [{record: 'a:b', expr: 'sum by (silo) (chorale_round_waiting)',"
        " labels: {kind: x}}, {alert: Odd, expr: 'a:b > 1', labels: {severity: page}}]}]"
    )
    catalogue = Catalogue.live(tmp_path)
    catalogue.check('a:b{silo="s", kind="x"}')
    assert catalogue.alerts == {"one": ("Odd",)}
    with pytest.raises(UnknownLabelError):
        catalogue.check('a:b{phase="x"}')
    with pytest.raises(UnknownMetricError):
        Catalogue.live(tmp_path / "none").check("a:b")


def _with_panel(dashboard, **changes):
    """The dashboard with one panel changed."""
    row, *others = dashboard.rows
    changed = dataclasses.replace(row.panels[0], **changes)
    row = dataclasses.replace(row, panels=(changed, *row.panels[1:]))
    return dataclasses.replace(dashboard, rows=(row, *others))


def test_a_dashboard_with_a_bad_panel_is_not_written(catalogue):
    dashboard = federation(catalogue.alerts["coordinator"])
    dashboard.to_json(catalogue, runbooks="x")
    for changes, error in (
        ({"queries": (Query(expr="chorale_nothing"),)}, UnknownMetricError),
        ({"queries": (Query(expr='up{silo="x"}'),)}, UnknownLabelError),
        ({"runbooks": ("NoSuchAlert",)}, PanelError),
        ({"repeat": "planet"}, PanelError),
    ):
        with pytest.raises(error):
            _with_panel(dashboard, **changes).to_json(catalogue, runbooks="x")


@pytest.mark.parametrize(
    "changes", [{"remedy": ""}, {"shows": ""}, {"unit": ""}, {"queries": ()}, {"width": 25}]
)
def test_a_panel_without_what_a_reader_needs_is_refused(changes):
    whole = Panel(
        kind=Kind.STAT,
        title="A",
        shows="b",
        remedy="c",
        queries=(Query(expr="up"),),
        unit="none",
    )
    with pytest.raises(PanelError):
        dataclasses.replace(whole, **changes)


def test_every_metric_is_on_a_panel(catalogue, dashboards):
    """The other direction: nothing is measured that nobody sees."""
    said = " ".join(expr for one in dashboards.values() for expr in queries(one))
    recorded = {name for name in catalogue.labels if ":" in name}
    for metric in sorted(catalogue.labels.keys() - recorded - NOT_SHOWN.keys()):
        family = re.sub(r"_(bucket|sum|count)$", "", metric)
        assert re.search(rf"\b{family}(_bucket|_sum|_count)?\b", said), f"{metric} is on no panel"


def test_the_coordinators_dashboard_has_no_figure_of_a_silo(dashboards):
    assert not [expr for expr in queries(dashboards["federation"]) if "chorale_silo_t" in expr]
    for expr in queries(dashboards["federation"]):
        for metric in re.findall(r"chorale_silo_\w+", expr):
            assert metric == "chorale_silo_last_seen_timestamp_seconds", expr
    for expr in queries(dashboards["silo"]):
        assert not re.findall(r"\bchorale_(?!silo[_-])\w+", expr), expr


# Grafana's model.


@pytest.mark.parametrize("name", NAMES)
def test_the_frame(dashboards, name):
    dashboard = dashboards[name]
    assert dashboard["uid"] == f"chorale-{name}"
    assert "id" not in dashboard
    assert not {"__inputs", "__requires"} & dashboard.keys()
    assert dashboard["schemaVersion"] == SCHEMA_VERSION == 41
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == (
        "datasource",
        "prometheus",
    )
    assert variables["instance"]["type"] == "query"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


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
    for one in dashboards[name]["annotations"]["list"][1:]:
        assert one["datasource"] == prometheus


@pytest.mark.parametrize("name", NAMES)
def test_titles_are_distinct_within_their_row(dashboards, name):
    seen = set()
    for panel in dashboards[name]["panels"]:
        seen = set() if panel["type"] == "row" else seen
        assert panel["title"] not in seen
        seen.add(panel["title"])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_stands_over_anything_else(dashboards, name):
    taken = {}
    for panel in dashboards[name]["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} over {taken.get((x, y))}"
                taken[x, y] = panel["title"]
    # Repeated panels grow downwards and need their lines for themselves.
    for panel in panels(dashboards[name]):
        assert not panel.get("repeat") or panel["gridPos"]["w"] == 24


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


# The contact sheet.


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.825, "percentunit", 0, "82 %"),
        (0.5, "percentunit", None, "50 %"),
        (90, "s", None, "1.5 min"),
        (0.0042, "s", None, "4.2 ms"),
        (0, "s", None, "0 s"),
        (3 * 86400, "s", 0, "3 d"),
        (2**30, "bytes", None, "1 GiB"),
        (0, "bytes", None, "0 B"),
        (1_500_000, "Bps", None, "1.5 MB/s"),
        (0.25, "reqps", None, "0.25 req/s"),
        (1234, "si:tok/s", None, "1.23 ktok/s"),
        (21.04, "suffix:d", 1, "21.0 d"),
        (-3, "none", 0, "−3"),
        (float("inf"), "none", 2, "∞"),
        (float("nan"), "none", 2, "NaN"),
    ],
)
def test_values_as_a_person_reads_them(value, unit, decimals, text):
    assert shown(value, unit, decimals) == text


def test_an_unknown_unit_is_not_drawn():
    with pytest.raises(PanelError, match="furlong"):
        shown(1, "furlong")


@pytest.mark.parametrize(
    ("span", "unit", "most", "step"),
    [(1.0, "percentunit", 5, 0.2), (200, "s", 4, 60), (90 * 2**20, "bytes", 5, 20 * 2**20)],
)
def test_marks_are_round_in_their_unit(span, unit, most, step):
    assert tick_step(span, unit, most) == pytest.approx(step)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return record_history(tmp_path_factory.mktemp("recorded") / "history", time.time() - 60)


@pytest.fixture(scope="module")
def prometheus(history, tmp_path_factory):
    """The address of a real one over the recorded half hour."""
    config = tmp_path_factory.mktemp("prometheus") / "prometheus.yml"
    config.write_text("global: {scrape_interval: 15s}\n")
    with Prometheus(config, data_dir=history.directory) as running:
        yield running.url


def sheet(prometheus, history, out, *more):
    minutes = str(SPAN_S / 60)
    return contact_sheet.main(
        [
            "--prometheus",
            prometheus,
            "--out",
            str(out),
            "--minutes",
            minutes,
            "--end",
            str(history.end_unix_s),
            "--scrape-interval",
            str(SCRAPE_S),
            *map(str, more),
        ]
    )


@GROUP
@pytest.mark.parametrize(
    # What is quiet in the recorded half hour; all else has data.
    "seen",
    [("federation", set()), ("silo", {"What fires", "Failed checks in this range"})],
    ids=NAMES,
)
def test_every_panel_is_drawn_from_a_real_prometheus(prometheus, history, tmp_path, capsys, seen):
    from matplotlib.image import imread

    name, quiet = seen
    out = tmp_path / "new" / "sheet.png"
    assert sheet(prometheus, history, out, generate.DASHBOARDS / f"{name}.json") == 0
    said = capsys.readouterr().out
    assert "failed" not in said
    assert set(re.findall(r"no data: (.+)", said)) == quiet
    height, width, _ = imread(out).shape
    assert (width, height > 2000) == (1856, True)


@GROUP
def test_several_dashboards_make_several_pictures(prometheus, history, tmp_path, capsys):
    query = 'chorale_silo_train_loss{instance="$instance"}'
    one = _changed(tmp_path, "Training loss", query)
    other = one.with_name("other.json")
    shutil.copy(one, other)
    choice = ["--variable", "changed:instance=elsewhere:1"]
    assert sheet(prometheus, history, tmp_path / "sheet.png", *choice, one, other) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/sheet-changed.png: 1 panels",
        "  no data: Training loss",
        f"{tmp_path}/sheet-other.png: 1 panels",
    ]
    assert (tmp_path / "sheet-changed.png").exists()
    assert (tmp_path / "sheet-other.png").exists()
    assert sheet(prometheus, history, tmp_path / "x.png", "--variable", "instance", one) == 1


@GROUP
def test_panels_read_what_was_recorded(prometheus, history, dashboards):
    window = Window(end_unix_s=history.end_unix_s, span_s=SPAN_S, scrape_s=SCRAPE_S)
    with PrometheusApi(prometheus) as api:
        reading = read(dashboards["federation"], api, window)
        one = read(dashboards["federation"], api, window, {"environment": "maze"})
    panels = {each.title: each for each in reading.panels}
    lines = {line.name: line.series for line in panels["Rounds closed"].lines}
    assert lines["aggregated"].values[-1] == 5
    assert lines["skipped"].values[-1] == 1
    # One panel for each environment, side by side, with the edges of its area.
    titles = [f"{family}: success ± standard error" for family in ("craft", "maze", "wordle")]
    assert [panels[title].place[0] for title in titles] == [0, 8, 16]
    middle, lower, upper = (line.series.values[-1] for line in panels[titles[0]].lines)
    assert (middle - lower, upper - middle) == pytest.approx((0.03, 0.03))
    assert titles[0] not in {each.title for each in one.panels}
    assert titles[1] in {each.title for each in one.panels}
    (line,) = panels["What fires"].lines
    assert line.series.labels["alertname"] == "SiloSilent"
    assert [text for _, text, _ in reading.marks] == ["SiloSilent"]
    slowest = [line.name for line in panels["Slowest methods in this range"].lines]
    assert slowest[0] == "UploadMaskedInput"
    silent = panels["Time since a silo called"].lines[0]
    assert silent.name == "hospital-c"
    assert silent.series.values[0] > 300
    assert not reading.failed


@GROUP
def test_what_a_silo_recorded_is_read_of_one_silo(prometheus, history, dashboards):
    # Whoever looks back to when something began has no whole seconds.
    window = Window(end_unix_s=history.end_unix_s, span_s=SPAN_S - 0.505, scrape_s=SCRAPE_S)
    with PrometheusApi(prometheus) as api:
        reading = read(dashboards["silo"], api, window)
        other = read(dashboards["silo"], api, window, {"instance": "elsewhere:1"})
        with pytest.raises(PanelError, match="planet"):
            read(dashboards["silo"], api, window, {"planet": "mars"})
    assert reading.variables["instance"] == "hospital-a.example.org:7446"
    panels = {each.title: each for each in reading.panels}
    # Families that were never played have no line.
    assert {line.name for line in panels["Success by environment"].lines} == {"craft", "maze"}
    assert not other.failed
    assert {each.title for each in other.panels if not each.empty} == {"Firing alerts"}


@GROUP
def test_a_panel_without_data_says_so_and_is_no_failure(prometheus, history, tmp_path, capsys):
    dashboard = _changed(tmp_path, "Training loss", "chorale_silo_train_loss > 1e9")
    assert sheet(prometheus, history, tmp_path / "sheet.png", dashboard) == 0
    assert "no data: Training loss" in capsys.readouterr().out


@GROUP
def test_a_query_that_prometheus_refuses_is_a_failure(prometheus, history, tmp_path, capsys):
    dashboard = _changed(tmp_path, "Training loss", "rate(chorale_silo_train_loss[5m)")
    assert sheet(prometheus, history, tmp_path / "sheet.png", dashboard) == 1
    said = capsys.readouterr().out
    assert "failed: Training loss: bad_data" in said
    assert said.count("failed:") == 1
    assert (tmp_path / "sheet.png").stat().st_size > 5_000


@GROUP
def test_a_prometheus_that_is_away_is_a_failure(history, tmp_path, capsys):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert sheet(url, history, tmp_path / "sheet.png") == 1
        assert f"no Prometheus at {url}" in capsys.readouterr().err
        with PrometheusApi(url) as api, pytest.raises(PrometheusError):
            api.instant("up", 0)
    assert not list(tmp_path.iterdir())


def _changed(directory, title, expr):
    """The silo's dashboard with one panel alone, and another query in it."""
    dashboard = json.loads((generate.DASHBOARDS / "silo.json").read_text())
    (panel,) = (one for one in dashboard["panels"] if one["title"] == title)
    panel["targets"][0]["expr"] = expr
    dashboard["panels"] = [panel]
    path = directory / "changed.json"
    path.write_text(json.dumps(dashboard))
    return path


def test_every_expression_is_promql(dashboards, tmp_path):
    """Prometheus' own parser and type checker, over each query as a recording rule."""
    window = Window(end_unix_s=0, span_s=3600, scrape_s=15).intervals()
    rules = []
    for dashboard in dashboards.values():
        for number, query in enumerate(queries(dashboard)):
            expr = query
            for name, value in {**window, "instance": "a", "environment": "maze"}.items():
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

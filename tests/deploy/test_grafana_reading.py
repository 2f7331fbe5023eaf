"""Every query of both dashboards, answered by a real Prometheus over a recorded half hour."""

import copy
import json
import re
import socket
import time
from pathlib import Path

import pytest

from deploy.grafana import generate
from deploy.grafana.errors import PanelError, PrometheusError
from deploy.grafana.prometheus_api import PrometheusApi
from deploy.grafana.reading import Window, read
from deploy.ops_demo import print_first_screen
from deploy.prometheus_server import Prometheus
from tests.deploy.recorded_history import SCRAPE_S, SPAN_S, record_history

NAMES = ("federation", "silo")
pytestmark = pytest.mark.xdist_group("grafana")
"""They share one Prometheus."""


@pytest.fixture(scope="module")
def dashboards():
    """As they are committed, by file stem; another test holds them to the generator."""
    return {name: json.loads((generate.DASHBOARDS / f"{name}.json").read_text()) for name in NAMES}


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return record_history(tmp_path_factory.mktemp("recorded") / "history", time.time() - 60)


@pytest.fixture(scope="module")
def prometheus(history, tmp_path_factory):
    """A client of a real one over the recorded half hour."""
    config = tmp_path_factory.mktemp("prometheus") / "prometheus.yml"
    config.write_text("global: {scrape_interval: 15s}\n")
    with (
        Prometheus(config, data_dir=history.directory) as running,
        PrometheusApi(running.url) as api,
    ):
        yield api


@pytest.fixture(scope="module")
def window(history):
    # Whoever looks back to when something began has no whole seconds.
    return Window(end_unix_s=history.end_unix_s, span_s=SPAN_S - 0.505, scrape_s=SCRAPE_S)


@pytest.mark.parametrize("name", NAMES)
def test_every_query_is_answered_and_no_panel_is_empty(prometheus, window, dashboards, name):
    reading = read(dashboards[name], prometheus, window)
    assert not reading.failed
    quiet = {"silo": {"Firing alerts"}}.get(name, set())
    assert {one.title for one in reading.panels if one.empty} == quiet
    rows = [one for one in dashboards[name]["panels"] if one["type"] == "row"]
    inside = sum(len(one["panels"]) for one in rows)
    # Those of closed rows as well.
    assert len(reading.panels) == inside + len(dashboards[name]["panels"]) - len(rows)


def test_the_first_screen_says_who_is_in_the_way(prometheus, window, dashboards):
    reading = read(dashboards["federation"], prometheus, window)
    panels = {one.title: one for one in reading.panels}

    def values(title):
        return {line.name: line.series.values[-1] for line in panels[title].lines}

    assert set(values("Run")) == {"stalled"}
    assert values("Round") == {"round": 7, "of": 20}
    assert values("Silos") == {"live": 3, "needed": 3, "spare": 0}
    phase = values("Phase")
    assert set(phase) == {"training", "closes in"}
    assert phase["training"] == 180
    assert phase["closes in"] == -60
    waiting = panels["Who we wait for, and since when"].lines
    assert {line.series.labels["silo"] for line in waiting} == {"hospital-d"}
    success = values("Success")
    assert {"craft", "± craft"} <= set(success)
    assert success["± craft"] == pytest.approx(0.03)
    assert set(values("ε")) == {"spent", "cap", "of the rounds"}
    (line,) = panels["Firing alerts"].lines
    assert line.series.labels["alertname"] == "ChoraleSiloSilent"


def test_the_demonstration_prints_the_first_screen(prometheus, window, dashboards, capsys):
    for name in NAMES:
        print_first_screen(read(dashboards[name], prometheus, window), 8)
    said = capsys.readouterr().out
    for line in (
        r"  Run +stalled",
        r"  Round +round 7; of 20",
        r"  Silos +live 3; needed 3; spare 0",
        r"  Phase +training 180 s; closes in -60 s",
        r"  Who we wait for, and since when +hospital-d 180 s, 6 s",
        r"  Success +craft 65%; .*± craft 3%.*",
        r"  Firing alerts +ChoraleSiloSilent warning 1",
        r"  Firing alerts +nothing fires",
        r"  and 18 panels in closed rows, every query answered",
    ):
        assert re.search(rf"(?m)^{line}$", said), line


def test_panels_read_what_was_recorded(prometheus, window, dashboards):
    reading = read(dashboards["federation"], prometheus, window)
    panels = {one.title: one for one in reading.panels}
    ended = {
        line.name: line.series.values[-1]
        for line in panels["How rounds and attempts ended, in this range"].lines
    }
    assert ended["round: skipped"] == 1
    assert ended["attempt given up: too_few_masked_input"] == 1
    assert ended["silo lost at: masked_input"] >= 1
    silent = panels["Time since a silo called"].lines[0]
    assert silent.name == "hospital-c"
    assert silent.series.values[0] > 300
    assert [text for _, text in reading.marks] == ["Firing alerts"]


def test_what_a_silo_recorded_is_read_of_one_silo(prometheus, window, dashboards):
    reading = read(dashboards["silo"], prometheus, window)
    other = read(dashboards["silo"], prometheus, window, {"instance": "elsewhere:1"})
    with pytest.raises(PanelError, match="planet"):
        read(dashboards["silo"], prometheus, window, {"planet": "mars"})
    assert reading.variables["instance"] == "hospital-a.example.org:7446"
    panels = {one.title: one for one in reading.panels}
    # Families that were never played have no line.
    assert {line.name for line in panels["Success"].lines} == {"craft", "maze"}
    assert not other.failed
    assert all(one.empty for one in other.panels)


def test_a_query_that_prometheus_refuses_is_a_failure(prometheus, window, dashboards):
    changed = copy.deepcopy(dashboards["silo"])
    changed["panels"][0]["targets"][0]["expr"] = "rate(up[5m)"
    reading = read(changed, prometheus, window)
    (said,) = reading.failed
    assert said.startswith("Silo: bad_data")


def test_a_prometheus_that_is_away_is_a_failure():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with PrometheusApi(url) as api, pytest.raises(PrometheusError, match="no Prometheus at"):
            api.instant("up", 0)


def test_what_was_recorded_started_once_also_across_midnight(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(
        "tests.deploy.recorded_history.subprocess.run",
        lambda command, **_: lines.extend(Path(command[4]).read_text().splitlines()),
    )
    record_history(tmp_path / "history", 20_000 * 86_400 + 600)
    starts = {line.split()[-2] for line in lines if line.startswith("process_start_time_seconds")}
    assert len(starts) == 1

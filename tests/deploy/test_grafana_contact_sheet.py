"""The contact sheet: every panel read from a real Prometheus over half an hour, and drawn."""

import json
import re
import shutil
import socket
import time
from pathlib import Path

import pytest

from deploy.grafana import contact_sheet, generate
from deploy.grafana.errors import PanelError, PrometheusError
from deploy.grafana.prometheus_api import PrometheusApi
from deploy.grafana.reading import Window, read
from deploy.grafana.sheet.time_axis import tick_step
from deploy.grafana.sheet.units import shown
from deploy.prometheus_server import Prometheus
from tests.deploy.recorded_history import SCRAPE_S, SPAN_S, record_history

NAMES = ("federation", "silo")
GROUP = pytest.mark.xdist_group("grafana")
"""They share one Prometheus."""


@pytest.fixture(scope="module")
def dashboards():
    """As they are committed, by file stem; another test holds them to the generator."""
    return {name: json.loads((generate.DASHBOARDS / f"{name}.json").read_text()) for name in NAMES}


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
    [
        ("federation", set()),
        (
            "silo",
            {"What fires", "Failed checks in this range", "Releases that ε does not speak of"},
        ),
    ],
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
    assert line.series.labels["alertname"] == "ChoraleSiloSilent"
    assert [text for _, text, _ in reading.marks] == ["ChoraleSiloSilent"]
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


def test_what_was_recorded_started_once_also_across_midnight(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(
        "tests.deploy.recorded_history.subprocess.run",
        lambda command, **_: lines.extend(Path(command[4]).read_text().splitlines()),
    )
    record_history(tmp_path / "history", 20_000 * 86_400 + 600)
    starts = {line.split()[-2] for line in lines if line.startswith("process_start_time_seconds")}
    assert len(starts) == 1

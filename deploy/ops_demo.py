"""A federation as ops see it: three rounds, dead silos, a stalled round, and what is said of it.

``make demo-ops`` (``python -m deploy.ops_demo --out DIR``):

1. a coordinator and four silos of the small base model, real processes over mutual TLS, with a real
   Prometheus that scrapes all of them by ``deploy/prometheus/laptop.yml`` and its rules, unchanged;
2. a run of three rounds under ``record_local``; in the second one silo is killed, and stays dead;
   in the third another, and now too few are left: the round stalls;
3. then what somebody sees who was woken: every alert that fires or is about to, the first screen of
   both dashboards as tables, each query answered by that Prometheus, and pictures of the
   coordinator's status page, ``stalled-light`` and ``stalled-phone``;
4. the second silo is started again, the round goes on, and the status page of the finished run:
   light, dark, and as wide as a phone.

Everything ends with the command; DIR keeps the pictures, the logs and Prometheus' data.

Covered: this machine over loopback; every query of every panel is asked, those of closed rows as
well, and one that is refused ends the command. Not covered: Grafana itself, which is not run, so
what the panels look like in it; an Alertmanager.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.browser import Browser, BrowserError
from deploy.browser import executable as chromium
from deploy.grafana.generate import DASHBOARDS
from deploy.grafana.prometheus_api import PrometheusApi
from deploy.grafana.reading import DashboardReading, PanelReading, Window, read
from deploy.prometheus_server import Prometheus, PrometheusError
from lab.demo.progress import Progress
from lab.demo.run import Demo
from lab.demo.scenario import SILOS, DemoSettings
from lab.loopback import LoopbackError, LoopbackFederation

RULES: Final = Path(__file__).parent / "prometheus"
VICTIM, SECOND = SILOS[-1], SILOS[-2]
DIES_IN_ROUND: Final = 2
STALLS_IN_ROUND: Final = 3
WORK_S: Final = 90
"""From when silos say ready to when the round has stalled."""
EXPECTED: Final = "ChoraleSiloDown"
ALERT_PATIENCE_S: Final = 300.0
WIDTH, PHONE = 1280, 360
STALLED: Final = (("stalled-light", WIDTH, False), ("stalled-phone", PHONE, False))
FINISHED: Final = (
    ("status-light", WIDTH, False),
    ("status-dark", WIDTH, True),
    ("status-phone", PHONE, False),
)
"""Pictures of the status page: name, width in pixels, dark."""
SCRAPE_S: Final = 5.0
"""As laptop.yml says."""


class OpsDemo:
    """One demonstration in one directory."""

    def __init__(self, out: Path, *, episodes: int) -> None:
        self.out = out
        self.progress = Progress()
        self._shown = ""
        """Address of the silo whose dashboard is shown."""
        self.demo = Demo(
            directory=out / "federation",
            settings=DemoSettings(rounds=3, episodes=episodes),
            progress=self.progress,
            kill=False,
            alone=False,
        )

    def run(self) -> list[Path]:
        """Run every stage; returns the pictures."""
        say = self.progress.say
        with LoopbackFederation(directory=self.demo.directory) as loopback:
            self.demo.set_up(loopback)
            self._shorten()
            begun = time.time()
            config = self._write_config(loopback)
            with Prometheus(config, data_dir=self.out / "prometheus" / "data") as prometheus:
                say(
                    f"Prometheus on {prometheus.url} scrapes the coordinator and {len(SILOS)} silos"
                )
                pictures = self._three_rounds(loopback, prometheus, begun)
            return [*pictures, *self._status_page(loopback, FINISHED)]

    def _shorten(self) -> None:
        """A deadline at which a round stalls while somebody still looks."""
        plan, recipe = self.demo.plan_file, self.demo.settings.recipe
        text, replaced = re.subn(
            r"(?m)^ready_deadline_s = .*$",
            f"ready_deadline_s = {recipe.ready_after_s + WORK_S}",
            plan.read_text(encoding="utf-8"),
        )
        if replaced != 1:
            raise LoopbackError(f"{plan} has {replaced} ready_deadline_s; one was expected")
        plan.write_text(text, encoding="utf-8")

    def _write_config(self, loopback: LoopbackFederation) -> Path:
        directory = self.out / "prometheus" / "config"
        shutil.copytree(RULES, directory, ignore=shutil.ignore_patterns("targets", "tests"))
        (directory / "targets").mkdir()
        addresses = [address_of(loopback, silo) for silo in SILOS]
        self._shown = addresses[0]
        for name, targets in (
            ("coordinator", [f"127.0.0.1:{loopback.probes_port}"]),
            ("silos", addresses),
        ):
            path = directory / "targets" / f"{name}.yml"
            path.write_text(json.dumps([{"targets": targets}]))
        return directory / "laptop.yml"

    def _three_rounds(
        self, loopback: LoopbackFederation, prometheus: Prometheus, begun: float
    ) -> list[Path]:
        """The run; returns the pictures that were made while a round was stalled."""
        pictures: list[Path] = []
        say, demo = self.progress.say, self.demo
        run = loopback.start_run(demo.plan_file, demo.adapter_file, token="demo-ops")  # noqa: S106  # names the submission, opens nothing
        say(f"run {run} started")
        last: dict[str, Any] = {}
        recipe = demo.settings.recipe
        with self.progress.stretch(
            "together",
            steps=recipe.rounds,
            called="rounds",
            guess_s=recipe.rounds * recipe.round_s,
        ) as part:
            for status in loopback.watch(run):
                self.progress.status(status, part)
                last = status
                current = status.get("current") or {}
                number = current.get("round") if current.get("phase") == "training" else 0
                if number == DIES_IN_ROUND and loopback.alive(VICTIM):
                    loopback.kill(VICTIM)
                    say(f"killed {VICTIM} in round {number}; nobody starts it again")
                if number != STALLS_IN_ROUND or pictures:
                    continue
                if loopback.alive(SECOND):
                    loopback.kill(SECOND)
                    say(f"killed {SECOND} in round {number}: too few are left, so that it stalls")
                elif current.get("stalled_since_unix_s"):
                    pictures = self._woken(loopback, prometheus, begun)
                    loopback.start_silo(SECOND)
                    say(f"started {SECOND} again: the round goes on")
        if not pictures:
            raise LoopbackError(f"round {STALLS_IN_ROUND} did not stall, though too few were left")
        if last["run"]["state"] != "finished":
            raise LoopbackError(f"the run ended as {last['run']['state']}: {last.get('error')}")
        return pictures

    def _woken(
        self, loopback: LoopbackFederation, prometheus: Prometheus, begun: float
    ) -> list[Path]:
        """What somebody sees who looks while the round is stalled."""
        self.progress.say("the round is stalled: alerts, first screens, pictures")
        self._await_alert(prometheus)
        time.sleep(2 * SCRAPE_S)
        print_alerts(alerts(prometheus))
        self._first_screens(prometheus.url, begun)
        return self._status_page(loopback, STALLED)

    def _await_alert(self, prometheus: Prometheus) -> None:
        self.progress.say(f"waiting for the alert {EXPECTED}, which holds for two minutes first")
        give_up_at = time.monotonic() + ALERT_PATIENCE_S
        while EXPECTED not in {
            found["labels"]["alertname"] for found in alerts(prometheus, "firing")
        }:
            if time.monotonic() > give_up_at:
                raise PrometheusError(f"{EXPECTED} does not fire, though {VICTIM} is dead")
            time.sleep(1)

    def _first_screens(self, url: str, begun: float) -> None:
        now = time.time()
        window = Window(end_unix_s=now, span_s=now - begun, scrape_s=SCRAPE_S)
        with PrometheusApi(url) as api:
            for path in sorted(DASHBOARDS.glob("*.json")):
                dashboard = json.loads(path.read_text(encoding="utf-8"))
                chosen = {"instance": self._shown} if path.stem == "silo" else None
                reading = read(dashboard, api, window, chosen)
                if reading.failed:
                    raise PrometheusError(f"{path.name}: {'; '.join(reading.failed)}")
                first = sum(panel["type"] != "row" for panel in dashboard["panels"])
                print_first_screen(reading, first)

    def _status_page(
        self, loopback: LoopbackFederation, wanted: Sequence[tuple[str, int, bool]]
    ) -> list[Path]:
        pictures = []
        with Browser() as opened:
            for name, width, dark in wanted:
                opened.open(f"http://127.0.0.1:{loopback.probes_port}/", width=width, dark=dark)
                pictures.append(opened.capture(self.out / f"{name}.png"))
        return pictures


def address_of(loopback: LoopbackFederation, silo: str) -> str:
    """Where a silo's probes are; waits for its daemon."""
    path = loopback.silo_dir(silo) / "probes.address"
    give_up_at = time.monotonic() + ALERT_PATIENCE_S
    while not path.exists():
        if not loopback.alive(silo) or time.monotonic() > give_up_at:
            raise LoopbackError(f"{silo} has no probes:\n{loopback.log(silo)[-2000:]}")
        time.sleep(0.2)
    return path.read_text().strip()


def alerts(prometheus: Prometheus, state: str | None = None) -> list[Mapping[str, Any]]:
    """What fires or is pending, by name, or only what is in a state, ``firing`` or ``pending``."""
    found = prometheus.ask("alerts")["alerts"]
    chosen = [one for one in found if state in {None, one["state"]}]
    return sorted(chosen, key=lambda one: (one["state"], one["labels"]["alertname"]))


def print_alerts(found: list[Mapping[str, Any]]) -> None:
    """One paragraph for each alert, on stdout."""
    for one in found:
        labels, notes = one["labels"], one["annotations"]
        about = ", ".join(
            f"{name}={value}"
            for name, value in sorted(labels.items())
            if name not in {"alertname", "severity", "job"}
        )
        print(f"{one['state'].upper():8} {labels['alertname']} ({labels['severity']}) {about}")
        print(f"         {notes['summary']} {notes['description']}")
        print(f"         {notes['runbook_url']}\n")


def print_first_screen(reading: DashboardReading, panels: int) -> None:
    """The newest value of every series of the first panels, on stdout."""
    print(f"{reading.title} ({', '.join(f'{k}: {v}' for k, v in reading.variables.items())})")
    for panel in reading.panels[:panels]:
        print(f"  {panel.title:42} {said_by(panel)}")
    print(f"  and {len(reading.panels) - panels} panels in closed rows, every query answered\n")


def said_by(panel: PanelReading) -> str:
    """What a panel says in words: names and newest values, or what stands in place of them."""
    defaults = panel.panel["fieldConfig"]["defaults"]
    if panel.empty:
        return str(defaults.get("noValue", "nothing"))
    columns = panel.panel["fieldConfig"]["overrides"]
    units = [one["value"] for each in columns for one in each["properties"] if one["id"] == "unit"]
    unit = units[0] if panel.panel["type"] == "table" and units else defaults["unit"]
    unit = {"percentunit": "", "none": ""}.get(unit, unit)
    said: dict[str, str] = {}
    for line in panel.lines:
        labels = line.series.labels
        table = panel.panel["type"] == "table"
        name = " ".join(labels[key] for key in sorted(labels)) if table else line.name
        value = line.series.values[-1]
        shown = f"{value:.0%}" if defaults["unit"] == "percentunit" else f"{value:.4g}"
        told = f"{shown} {unit.removeprefix('suffix:')}".strip()
        said[name] = f"{said[name]}, {told}" if name in said else told
    if panel.panel["options"].get("textMode") == "name":
        return ", ".join(said)
    return "; ".join(f"{name} {told}" for name, told in said.items())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="demo-ops", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--out", type=Path, default=Path("demo-ops"), help="a new directory")
    parser.add_argument("--episodes", type=int, default=240, help="per silo and round")
    options = parser.parse_args()
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if chromium() is None:
        missing.append("chromium")
    if missing:
        parser.error(f"not installed: {', '.join(missing)} (Debian: prometheus, chromium)")
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty: name another with --out, or remove it")
    try:
        pictures = OpsDemo(options.out.resolve(), episodes=options.episodes).run()
    except (BrowserError, LoopbackError, PrometheusError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    print("To look at:")
    for picture in pictures:
        print(f"  {picture}")


if __name__ == "__main__":
    main()

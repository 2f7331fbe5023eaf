"""Every panel of a dashboard on one picture, from a live Prometheus, without a Grafana.

``python -m deploy.grafana.contact_sheet --prometheus URL --out sheet.png [--minutes N]
[DASHBOARD.json …]``: one picture for each dashboard; with several, its name goes into the file's.

Invariants: the exit code is 1 if Prometheus refused any query, and the picture is written all the
same; a panel without data is no error, but it is counted and drawn as one.

Covered: everything that the dashboards of this folder use. Not covered: whether Grafana itself
draws it so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.grafana.errors import GrafanaError, PanelError
from deploy.grafana.generate import DASHBOARDS
from deploy.grafana.prometheus_api import PrometheusApi
from deploy.grafana.reading import DashboardReading, Window, read
from deploy.grafana.sheet.draw import draw

__all__ = ["contact_sheet", "main"]

_MINUTES: Final = 30.0
_SCRAPE_S: Final = 15.0


def contact_sheet(
    dashboard: Path,
    *,
    prometheus: str,
    out: Path,
    window: Window,
    chosen: Mapping[str, str] | None = None,
) -> DashboardReading:
    """Read one dashboard, Grafana's JSON, and draw it as a PNG file.

    ``chosen`` gives values of variables. In what was read, ``failed`` names what Prometheus
    refused.
    """
    content = json.loads(dashboard.read_text(encoding="utf-8"))
    with PrometheusApi(prometheus) as api:
        reading = read(content, api, window, chosen)
    draw(reading, out)
    return reading


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, and say what was seen; 0, or 1 if a query failed."""
    asked = _parser().parse_args(arguments)
    window = Window(
        end_unix_s=time.time() if asked.end is None else asked.end,
        span_s=60 * asked.minutes,
        scrape_s=asked.scrape_interval,
    )
    dashboards = asked.dashboards or sorted(DASHBOARDS.glob("*.json"))
    failed = False
    for path in dashboards:
        name = asked.out.name if len(dashboards) == 1 else f"{asked.out.stem}-{path.stem}.png"
        out = asked.out.with_name(name)
        try:
            reading = contact_sheet(
                path,
                prometheus=asked.prometheus,
                out=out,
                window=window,
                chosen=_chosen(asked.variable, path),
            )
        except (GrafanaError, OSError, ValueError) as error:
            sys.stderr.write(f"{path.name}: {error}\n")
            return 1
        empty = [one.title for one in reading.panels if one.empty]
        sys.stdout.write(f"{out}: {len(reading.panels)} panels\n")
        sys.stdout.writelines(f"  no data: {title}\n" for title in empty)
        sys.stdout.writelines(f"  failed: {said}\n" for said in reading.failed)
        failed = failed or bool(reading.failed)
    return int(failed)


def _chosen(pairs: Sequence[str], dashboard: Path) -> dict[str, str]:
    """``name=value``, or ``dashboard:name=value`` where several are drawn."""
    chosen = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise PanelError(f"a variable is given as NAME=VALUE, got {pair!r}")
        where, colon, bare = name.partition(":")
        if not colon:
            chosen[name] = value
        elif where == dashboard.stem:
            chosen[bare] = value
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.grafana.contact_sheet",
        description="Draw every panel of dashboards from a live Prometheus.",
    )
    parser.add_argument("dashboards", nargs="*", type=Path, help="Grafana's JSON; all when absent")
    parser.add_argument("--prometheus", required=True, help="such as http://127.0.0.1:9090")
    parser.add_argument("--out", required=True, type=Path, help="the PNG file to write")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="how far to look back")
    parser.add_argument("--end", type=float, help="Unix time to look back from; now when absent")
    parser.add_argument(
        "--scrape-interval", type=float, default=_SCRAPE_S, help="seconds, as Prometheus has it"
    )
    parser.add_argument(
        "--variable",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="choose a value; DASHBOARD:NAME=VALUE for one dashboard alone",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

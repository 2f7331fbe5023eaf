"""Writes the dashboards: ``python -m deploy.grafana.generate [--check]``.

``--runbooks URL --out DIRECTORY`` writes them with links to where you host docs/operations.

Invariants: the same code, registries and rule files write the same bytes; nothing is written unless
every query of every dashboard names what is there.

Covered: writing, and comparing with what is committed. Not covered: putting them into a Grafana,
which its provisioning does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.grafana.catalogue import Catalogue
from deploy.grafana.errors import GrafanaError, StaleDashboardError
from deploy.grafana.federation.overview import RULE_FILE as FEDERATION_RULES
from deploy.grafana.federation.overview import federation
from deploy.grafana.silo import RULE_FILE as SILO_RULES
from deploy.grafana.silo import silo
from deploy.promql import PromqlError

__all__ = ["DASHBOARDS", "check", "main", "rendered", "write"]

DASHBOARDS: Final = Path(__file__).parent / "dashboards"
RUNBOOKS: Final = "https://runbooks.example.org/chorale"
"""To be changed, as in Prometheus' own configuration: nobody but you knows where you host them."""


def rendered(catalogue: Catalogue | None = None, *, runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Every dashboard's file name and content, checked against the live catalogue by default.

    ``runbooks`` is where the runbooks are read.

    Raises:
        GrafanaError: A dashboard names what is not there.
    """
    known = Catalogue.live() if catalogue is None else catalogue
    return {
        "federation.json": federation(known.alerts[FEDERATION_RULES]).to_json(
            known, runbooks=runbooks
        ),
        "silo.json": silo(known.alerts[SILO_RULES]).to_json(known, runbooks=runbooks),
    }


def write(directory: Path = DASHBOARDS, *, runbooks: str = RUNBOOKS) -> None:
    """Write every dashboard into a directory that is created if absent.

    Raises:
        GrafanaError: A dashboard names what is not there; nothing is written.
    """
    contents = rendered(runbooks=runbooks)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_text(content, encoding="utf-8")


def check(directory: Path = DASHBOARDS) -> None:
    """Compare the committed dashboards with what would be written.

    Raises:
        StaleDashboardError: They differ, or there is one that nothing writes.
        GrafanaError: A dashboard names what is not there.
    """
    expected = rendered()
    found = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.json")}
    stale = sorted(name for name in expected | found if expected.get(name) != found.get(name))
    if stale:
        raise StaleDashboardError(
            f"stale in {directory.name}/: {', '.join(stale)}; run python -m deploy.grafana.generate"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or compare; 0 if all is well, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.grafana.generate", description="Write the dashboards."
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--out", type=Path, default=DASHBOARDS, help="where to write")
    parser.add_argument("--runbooks", default=RUNBOOKS, help="where docs/operations is hosted")
    asked = parser.parse_args(arguments)
    try:
        if asked.check:
            check(asked.out)
        else:
            write(asked.out, runbooks=asked.runbooks.rstrip("/"))
    except (GrafanaError, PromqlError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stderr.write("dashboards are fresh\n" if asked.check else f"wrote {asked.out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A pytest plugin that writes down what failed, and that the mutated copy was what ran.

A mutant counts as caught only on this evidence: the exit status of pytest alone cannot tell a
failed assertion from a file that no longer imports.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PACKAGES = ("secagg", "dp", "federation", "ops", "evolution", "silo_agent", "server", "chorale")


class Witness:
    """Collects failures of one session."""

    def __init__(self, root: Path, report: Path) -> None:
        self.root = root
        self.report = report
        self.failures: list[dict[str, str]] = []
        self.kind = ""

    def pytest_runtest_makereport(self, call):
        self.kind = "" if call.excinfo is None else call.excinfo.typename

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failures.append(
                {
                    "test": report.nodeid,
                    "when": report.when,
                    "kind": self.kind,
                    "text": report.longreprtext,
                }
            )

    def pytest_collectreport(self, report):
        if report.failed:
            self.failures.append(
                {
                    "test": report.nodeid,
                    "when": "collect",
                    "kind": "",
                    "text": report.longreprtext,
                }
            )

    def pytest_sessionfinish(self):
        outside = [
            name
            for name, module in sorted(sys.modules.items())
            if name.split(".")[0] in PACKAGES
            and getattr(module, "__file__", None) is not None
            and not Path(module.__file__).resolve().is_relative_to(self.root)
        ]
        evidence = {"failures": self.failures, "outside": outside}
        self.report.write_text(json.dumps(evidence), encoding="utf-8")


def pytest_configure(config):
    root = Path(os.environ["MUTANT_ROOT"]).resolve()
    config.pluginmanager.register(Witness(root, Path(os.environ["MUTANT_REPORT"])))

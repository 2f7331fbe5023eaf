"""The rules and their unit tests, as data; and the tools that read them."""

import functools
import re
import subprocess
from dataclasses import dataclass, field

import yaml

from tests.kit.deploy.tools import require
from tests.kit.paths import ROOT

DIRECTORY = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "operations"
PARTS = ("coordinator", "silo")
"""Rule files, by whose they are."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of a file."""

    part: str
    name: str
    records: bool
    expr: str
    labels: dict = field(default_factory=dict)
    annotations: dict = field(default_factory=dict)


def rules(part):
    """Every rule of one file, in order."""
    content = yaml.safe_load((DIRECTORY / "rules" / f"{part}.yml").read_text())
    return [
        Rule(
            part=part,
            name=rule.get("record") or rule["alert"],
            records="record" in rule,
            expr=rule["expr"],
            labels=rule.get("labels", {}),
            annotations=rule.get("annotations", {}),
        )
        for group in content["groups"]
        for rule in group["rules"]
    ]


@functools.cache
def unit_tests(part):
    """Every group of unit tests of a rule file."""
    return [
        group
        for path in sorted((DIRECTORY / "tests").glob(f"{part}-*.yml"))
        for group in yaml.safe_load(path.read_text())["tests"]
    ]


def promtool(*arguments, text=None):
    """The exit code of promtool, and everything it said."""
    require("promtool", "prometheus")
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def over_tls(config):
    """A scrape configuration with its TLS variant, which is in comments, switched on."""
    at = config.index("    # scheme: https")
    return config[:at] + re.sub(r"(?m)^    # ", "    ", config[at:])

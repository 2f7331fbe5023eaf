"""Parts and recipes know no privacy mode, and see nothing that the driver does not hand them."""

import ast
import re

import pytest

from tests.kit.paths import ROOT

PARTS = sorted((ROOT / "evolution" / "parts").rglob("*.py"))
MODES = re.compile(
    r"record_local|record_distributed|RECORD_MODES|\bMode\b|\bprotected\(|PrivacySpec"
)
HIDDEN = ("evolution.methods", "evolution.rollout", "evolution.memory", "evolution.envs", "dp.")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize(
    "path", [*PARTS, ROOT / "federation" / "plan" / "methods.py"], ids=lambda path: path.stem
)
def test_no_part_and_no_card_mentions_a_privacy_mode(path):
    assert MODES.findall(path.read_text()) == []


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.stem)
def test_no_part_imports_an_engine_a_store_or_the_driver(path):
    assert [name for name in imported(path) if name.startswith(HIDDEN)] == []

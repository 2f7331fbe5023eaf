"""Rules about the source itself that no linter knows."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.kit.paths import ROOT

PACKAGES = ("secagg", "dp", "federation", "ops", "evolution", "server", "silo_agent", "lab")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 600
LONGER: dict[str, str] = {}
"""Files over the limit, each with its reason."""


def problems(path: Path) -> list[str]:
    text = path.read_text()
    tree = ast.parse(text)
    name = str(path.relative_to(ROOT))
    found = [] if ast.get_docstring(tree) else [f"{name} has no module docstring"]
    lines = len(text.splitlines())
    if lines > MAX_LINES and name not in LONGER:
        found.append(f"{name} has {lines} lines")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append(f"{name}:{node.lineno} checks input with assert")
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{name}:{node.lineno} has a bare except")
    if path.stem in {"utils", "common", "helpers", "manager"}:
        found.append(f"{name} is named after nothing that it does")
    return found


def test_every_file_keeps_the_rules():
    assert len(FILES) > 100
    assert [problem for path in FILES for problem in problems(path)] == []


@pytest.mark.parametrize("package", ["secagg", "dp"])
def test_the_cores_draw_no_unkeyed_randomness(package):
    pattern = re.compile(r"np\.random|numpy\.random|import random|torch\.(randn|rand|normal)")
    for path in (ROOT / package).rglob("*.py"):
        assert not pattern.search(path.read_text()), path


def test_nothing_unsafe_is_loaded_or_evaluated():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert names.isdisjoint({"pickle", "cloudpickle", "dill", "shelve"}), path
            if isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                unsafe = {"eval", "exec", "torch.load", "yaml.load", "np.load"}
                assert call not in unsafe, f"{path}:{node.lineno}"


def test_toml_is_read_within_bounds():
    reads = [path for path in FILES if "tomllib" in path.read_text()]
    assert reads == [ROOT / "federation" / "plan" / "toml.py"]


def test_no_big_or_forbidden_file_is_tracked():
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in filter(None, tracked):
        path = ROOT / name.decode()
        if path.exists():
            assert path.stat().st_size <= 5 << 20, path
            assert path.suffix not in {".pkl", ".pt", ".bin", ".ckpt", ".key", ".pem"}, path


def test_spans_are_begun_noted_and_ended_in_one_place():
    """OpenTelemetry's own ways to say something of a span know no list of what may be said."""
    ways = re.compile(
        r"\.(add_event|add_link|record_exception|set_attributes?|set_status|update_name)\("
    )
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        if name in {"ops/tracing/otel.py", "ops/tracing/spans.py"}:
            continue
        text = path.read_text()
        assert not ways.search(text), path
        taken = {
            (node.module, alias.name)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and "opentelemetry" in (node.module or "")
            for alias in node.names
        }
        allowed = {("opentelemetry.trace", word) for word in ("INVALID_SPAN", "Span", "SpanKind")}
        assert taken <= allowed, path
        assert "import opentelemetry" not in text, path

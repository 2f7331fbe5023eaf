"""The house: rooms at the top, no crowd in a folder, no circle of modules, no path to nowhere.

The floors inside the rooms, and that no file stands beside them, are import-linter's
(`[tool.importlinter]` in pyproject.toml).
"""

import re
import subprocess
from collections import Counter
from pathlib import PurePosixPath

import grimp

from tests.kit.paths import ROOT

ROOMS = ("secagg", "dp", "federation", "ops", "evolution", "server", "silo_agent", "lab")
BESIDE = ("benchmarks", "deploy", "proto", "tests")
"""Folders with Python that are no room: nothing of them is in the wheel but the generated code."""

MAX_ENTRIES = 25
TRACKED = [
    PurePosixPath(line)
    for line in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if (ROOT / line).exists()
]


def test_python_stands_in_rooms():
    tops = {path.parts[0] for path in TRACKED if path.suffix == ".py"}
    assert tops == {*ROOMS, *BESIDE}


def test_no_folder_is_a_crowd():
    folders = {
        path.parent
        for path in TRACKED
        if path.suffix == ".py" and path.parts[0] in {*ROOMS, "deploy", "benchmarks"}
    }
    entries = Counter(
        folder
        for folder, _entry in {
            (parent, path.parts[len(parent.parts)])
            for path in TRACKED
            for parent in path.parents
            if parent in folders
        }
    )
    assert {folder for folder, count in entries.items() if count > MAX_ENTRIES} == set()


def test_every_folder_says_its_purpose():
    for folder in {path.parent for path in TRACKED if path.parts[0] in ROOMS}:
        first = ROOT / folder / "__init__.py"
        if any(path.parent == folder and path.suffix == ".py" for path in TRACKED):
            assert first.read_text().startswith('"""'), folder


def test_no_module_imports_itself_through_others():
    graph = grimp.build_graph(*ROOMS, cache_dir=None)
    imports = {
        name: graph.find_modules_directly_imported_by(name) & graph.modules
        for name in graph.modules
    }
    # Whoever imports nothing that is left is on no circle; what cannot be taken away so is.
    while ends := {name for name, imported in imports.items() if not imported & imports.keys()}:
        imports = {name: imported for name, imported in imports.items() if name not in ends}
    # And whatever nobody left imports only leads to a circle.
    while starts := imports.keys() - set().union(*imports.values()):
        imports = {name: imported for name, imported in imports.items() if name not in starts}
    assert set(imports) == set()


PATH = re.compile(
    rf"(?<![\w/.{{}}$-])(?:{'|'.join((*ROOMS, 'tests'))})/[\w/.-]*\.(?:py|sh|toml|json)\b"
)


def test_paths_in_prose_lead_somewhere():
    # An ADR may name what stood there when it was decided; the wheel has files of its own.
    prose = [
        path
        for path in TRACKED
        if path.suffix in {".md", ".py", ".toml", ".yaml", ".yml", ".sh", ".proto"}
        and path.parts[:2] not in {("docs", "adr"), ("tests", "arch")}
    ]
    missing = {
        f"{path}: {named}"
        for path in [*prose, PurePosixPath("Makefile")]
        for named in PATH.findall((ROOT / path).read_text())
        if not any((top / named).exists() for top in (ROOT, ROOT / "tests"))
        and "deployment_files" not in named
    }
    assert missing == set()

"""The package of docs/parts.md, word for word, and installing it as pip does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.kit.paths import ROOT

DOCUMENT = ROOT / "docs" / "parts.md"
NAME = "chorale-rloo"
FILES = ("pyproject.toml", "chorale_rloo/card.py", "chorale_rloo/credit.py")


def sources() -> dict[str, str]:
    """Each file's text."""
    text = DOCUMENT.read_text()
    found = {}
    for name in FILES:
        _, _, rest = text.partition(f"`{name}`:\n")
        block = re.match(r"\n```\w+\n(.*?)```", rest, re.DOTALL)
        assert block is not None, name
        found[name] = block[1]
    return found


def install(directory: Path) -> Path:
    """Build it and install it with pip, offline; the directory to import from."""
    source, site = directory / "source", directory / "site"
    for name, text in {**sources(), "chorale_rloo/__init__.py": '"""RLOO."""\n'}.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-index", "--no-build-isolation", "--target", str(site)),
            str(source),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return site

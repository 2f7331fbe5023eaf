"""Packages of parts, and installing them as pip does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.kit.paths import ROOT

DOCUMENT = ROOT / "docs" / "parts.md"
DOCUMENTED = ("pyproject.toml", "chorale_rloo/card.py", "chorale_rloo/credit.py")

RETRY = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "chorale-retry"
version = "1.0"

[project.entry-points."chorale.parts"]
again = "chorale_retry.card:CARD"

[tool.setuptools]
packages = ["chorale_retry"]
""",
    "chorale_retry/card.py": """\
from federation.plan.methods import Couples, PartCard, Reads

CARD = PartCard(
    kind="sampler",
    name="again",
    code="chorale_retry.sampler:Retry",
    says="what the last round did not solve, then anything",
    couples=Couples.ALL,
    reads=Reads.SILO,
)
""",
    "chorale_retry/sampler.py": """\
from evolution.part import BasePart
from federation.plan.methods import Couples, Reads


class Retry(BasePart):
    couples = Couples.ALL
    reads = Reads.SILO

    def draw(self, pool, past, work, *, count):
        unsolved = {
            (group.task.environment, group.task.task_id)
            for group in past.groups()
            if group.round == work.round - 1 and not any(one.success for one in group.trajectories)
        }
        each = max(1, count // len(pool.environments))
        tasks = []
        for environment in pool.environments:
            ids = environment.task_ids
            missed = [one for one in ids if (environment.environment, one) in unsolved]
            others = [one for one in ids if (environment.environment, one) not in unsolved]
            chosen = missed + [others[int(one)] for one in work.rng.permutation(len(others))]
            tasks += [environment.task(one) for one in chosen[:each]]
        return tasks
""",
}
"""A package with a sampler that reads results."""


def documented() -> dict[str, str]:
    """The package of docs/parts.md, word for word."""
    text = DOCUMENT.read_text()
    found = {}
    for name in DOCUMENTED:
        _, _, rest = text.partition(f"`{name}`:\n")
        block = re.match(r"\n```\w+\n(.*?)```", rest, re.DOTALL)
        assert block is not None, name
        found[name] = block[1]
    return found


def install(directory: Path, sources: dict[str, str]) -> Path:
    """Build a package and install it with pip, offline; the directory to import from."""
    source, site = directory / "source", directory / "site"
    modules = {str(Path(name).parent) for name in sources} - {"."}
    for name, text in {**sources, **{f"{one}/__init__.py": "" for one in modules}}.items():
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

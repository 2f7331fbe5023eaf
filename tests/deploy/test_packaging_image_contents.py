"""What the coordinator's image holds: its own build steps, run without an engine.

The instructions of ``coordinator.Dockerfile`` up to the installation are executed here, its RUN
lines by the shell, with directories of this test in the place of the image's. Covered: that they
work, what they install, that it runs, what the wheel carries. Not covered: the base image, the
silo's image (two gigabytes of torch and what it needs).
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ops.deploy.files import PARTS, shipped
from tests.kit.deploy import dockerfile
from tests.kit.paths import ROOT

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("packaging_image")]

FILE = ROOT / "deploy" / "images" / "coordinator.Dockerfile"
MOST_BYTES = 250_000_000
"""Of the whole installation."""
FORBIDDEN = {
    "torch", "transformers", "peft", "accelerate", "vllm", "opacus", "gymnasium", "minigrid", "ray",
    "triton", "pip", "setuptools", "wheel", "hatchling", "pytest", "moto",
}  # fmt: skip
DIRECT = {"psycopg", "obstore", "grpcio", "sqlalchemy", "alembic", "cryptography", "numpy"}


class Build:
    """The image's file system, below a directory."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.found = dockerfile.read(FILE)

    def path(self, inside: str, at: str) -> Path:
        return self.directory / (inside if inside.startswith("/") else f"{at}/{inside}").lstrip("/")

    def runs(self, stage):
        at = "/"
        for word, text in stage.instructions:
            if word == "WORKDIR":
                at = text
                self.path(at, "/").mkdir(parents=True, exist_ok=True)
            elif word == "COPY" and not text.startswith("--from="):
                self.copies(*text.split(), at)
            elif word == "RUN":
                self.shell(text, at)

    def copies(self, source, target, at):
        into = self.path(target, at)
        if source != ".":
            shutil.copy(ROOT / source, into)
            return
        for path in context():
            place = into / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)

    def shell(self, text, at):
        words = dockerfile.exec_form(text) or ["sh", "-c", text]
        # The image's directories are absolute; here they are below the test's.
        words = [re.sub(r"(?<![\w/.])/(source|tools|dist|opt)\b", rf"{self.directory}/\1", w)
                 for w in words]  # fmt: skip
        # How pip reaches its index is this machine's business.
        own = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_")) or k == "HOME"}
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        environment = {**own, **self.found.arguments, "PATH": path}
        done = subprocess.run(
            words, cwd=self.path(at, "/"), env=environment, capture_output=True, text=True,
            check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def context():
    """The files that .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    named = [line.removeprefix("!") for line in lines if line.startswith("!")]
    left_out = [line for line in lines[1:] if not line.startswith("!")]
    for name in named:
        top = ROOT / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            relative = path.relative_to(ROOT).as_posix()
            hidden = any(
                fnmatch.fnmatch(relative, pattern.replace("**/", "*"))
                or relative.startswith(f"{pattern}/")
                or f"/{pattern.removeprefix('**/')}/" in f"/{relative}"
                for pattern in left_out
            )
            if path.is_file() and not hidden:
                yield path


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    build = Build(tmp_path_factory.mktemp("image"))
    wheel, installed, _ = build.found.stages
    build.runs(wheel)
    build.runs(installed)
    return build.directory / "opt" / "chorale"


def python(installation, code):
    done = subprocess.run(
        [installation / "bin" / "python", "-I", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_what_is_installed(installation):
    listing = "import importlib.metadata as m; print(*sorted({d.name.lower().replace('_', '-')"
    names = set(python(installation, f"{listing} for d in m.distributions()}}))").split())
    assert names >= DIRECT | {"chorale"}
    assert not names & FORBIDDEN
    assert not {name for name in names if name.startswith(("nvidia", "cuda"))}
    size = sum(p.stat().st_size for p in installation.rglob("*") if p.is_file())
    print(f"{len(names)} distributions, {size / 1e6:.0f} MB: {' '.join(sorted(names))}")
    assert size <= MOST_BYTES


def test_it_cannot_import_torch_and_the_build_would_notice(installation):
    with pytest.raises(subprocess.CalledProcessError):
        python(installation, "import torch")
    (looking,) = [words for stage in dockerfile.read(FILE).stages for text in stage.of("RUN")
                  if (words := dockerfile.exec_form(text))]  # fmt: skip
    (site,) = installation.glob("lib/python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    try:
        command = [installation / "bin" / "python", *looking[1:]]
        assert subprocess.run(command, check=False, capture_output=True).returncode == 1
    finally:
        shutil.rmtree(site / "torch")


@pytest.mark.parametrize("program", ["chorale", "chorale-coordinator"])
def test_its_programs_run(installation, program):
    done = subprocess.run(
        [installation / "bin" / program, "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage:" in done.stdout


def test_the_wheel_carries_the_status_pages_templates(installation):
    # They are read and compiled when the module is imported.
    names = python(installation, "from server.status_page.page import TEMPLATES; "
                                 "print(*sorted(p.name for p in TEMPLATES.iterdir()))")  # fmt: skip
    here = ROOT / "server" / "status_page" / "templates"
    assert names.split() == sorted(path.name for path in here.iterdir())


def test_the_wheel_carries_what_deploy_writes(installation, tmp_path):
    where = python(installation, "import ops.deploy; print(ops.deploy.__file__)").strip()
    assert Path(where).is_relative_to(installation)
    files = {
        place.relative_to(Path(where).parent / "deployment_files").as_posix()
        for place in (Path(where).parent / "deployment_files").rglob("*")
        if place.is_file()
    }
    for part in PARTS:
        for file in shipped(part):
            assert file.path.as_posix() in files
    assert not [name for name in files if "secret" in name or name.endswith(".pyc")]
    for kind in ("systemd", "compose", "helm"):
        done = subprocess.run(
            [installation / "bin" / "chorale", "deploy", kind, "--out", tmp_path / kind,
             "--format", "json"],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
        assert json.loads(done.stdout)["data"]["files"]
    here = Path(sys.executable).with_name("chorale")
    subprocess.run([here, "deploy", "helm", "--out", tmp_path / "here"], check=True,
                   capture_output=True)  # fmt: skip
    differing = subprocess.run(
        ["diff", "-r", tmp_path / "here", tmp_path / "helm"], capture_output=True, check=False
    )
    assert differing.stdout == b""

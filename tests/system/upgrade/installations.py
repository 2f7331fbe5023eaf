"""Two installations: the previous release, built from its commit, and the version under test.

Each is an environment of its own with nothing but the wheel; everything else it finds where the
tests have theirs, so a change of requirements between the two is not seen here.
"""

import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.kit.paths import ROOT

PREVIOUS = ROOT / "deploy" / "previous-release"


@dataclass(frozen=True, kw_only=True)
class Installation:
    """A version that can be started."""

    version: str
    bin: Path

    @property
    def python(self) -> tuple[str, ...]:
        # -P: what stands in the directory it is started in is not what it runs.
        return (str(self.bin / "python"), "-P")


def install_both(directory: Path) -> tuple[Installation, Installation]:
    """The previous release, and this version."""
    version, commit = PREVIOUS.read_text().split()
    source = directory / "source"
    source.mkdir()
    archive = directory / "source.tar"
    # A clone without history cannot test an upgrade: git says so.
    subprocess.run(["git", "archive", "--output", archive, commit], cwd=ROOT, check=True)
    subprocess.run(["tar", "-x", "-f", archive, "-C", source], check=True)
    previous = _install(directory / "previous", _wheel(source, directory / "previous-wheel"))
    current = _install(directory / "current", _wheel(ROOT, directory / "current-wheel"))
    assert previous.version == version
    assert current.version != version, "this version has the previous release's number"
    return previous, current


def _wheel(source: Path, directory: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--wheel-dir", directory, source],
        check=True,
    )  # fmt: skip
    (wheel,) = directory.glob("chorale-*.whl")
    return wheel


def _install(directory: Path, wheel: Path) -> Installation:
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--no-warn-conflicts", "--no-deps", wheel],
        check=True,
    )  # fmt: skip
    (site,) = directory.glob("lib/python*/site-packages")
    # Behind the environment's own: whatever chorale lies there is not the one that is found.
    (site / "heavy.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    asked = (
        "import server, silo_agent, torch; from importlib.metadata import version; "
        "print(version('chorale'), server.__file__, silo_agent.__file__)"
    )
    said = subprocess.run(
        [python, "-P", "-c", asked], check=True, capture_output=True, text=True
    ).stdout.split()
    assert all(path.startswith(str(site)) for path in said[1:]), said
    return Installation(version=said[0], bin=directory / "bin")

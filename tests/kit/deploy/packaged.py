"""The wheel that this tree makes, for tests of what is in it."""

import subprocess
import sys
from pathlib import Path

from tests.kit.paths import ROOT


def build_wheel(directory: Path) -> Path:
    """Build the wheel into a directory; about ten seconds."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--wheel-dir", directory, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = directory.glob("chorale-*.whl")
    return wheel


def system_python() -> str | None:
    """A Python of this minor version that no sandbox hides, or None."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for place in (Path("/usr/bin") / name, Path("/usr/local/bin") / name):
        done = place.exists() and subprocess.run(
            [place, "-c", "import venv, ensurepip"], capture_output=True, check=False
        )
        if done and done.returncode == 0:
            return str(place)
    return None

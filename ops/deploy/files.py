"""The files an installation is deployed with: where they are, and how they are written out.

``deploy/`` of the source tree is their one source. The wheel carries the parts of it that are named
here as ``ops/deploy/deployment_files``; an editable installation reads the source tree itself.

Invariants:

1. Nothing that exists is overwritten: where one of the files is there already, none is written.
2. What is written is what was shipped, byte for byte, but for what the caller filled in.
3. A file is written under a name below the directory that was asked for, and under no other.

Covered: finding, reading and writing. Not covered: installing what was written, which takes rights
that no command of ours asks for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from federation.errors import DeploymentError

__all__ = ["PARTS", "DeploymentFile", "shipped", "write_files"]

PARTS: Final = (
    "compose/compose.yaml",
    "compose/plan.toml",
    "compose/steps",
    "grafana/dashboards",
    "grafana/provisioning",
    "helm/chorale",
    "prometheus/compose.yml",
    "prometheus/rules",
    "prometheus/targets",
    "systemd",
)
"""What the wheel carries of ``deploy/``; ``pyproject.toml`` lists the same."""
_HERE: Final = Path(__file__).parent
_PLACES: Final = (_HERE / "deployment_files", _HERE.parents[1] / "deploy")
READABLE: Final = 0o644
RUNNABLE: Final = 0o755


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentFile:
    """One file, to be written below a directory."""

    path: PurePosixPath
    """Relative, without steps up."""
    content: bytes
    mode: int = READABLE


def shipped(part: str, *, below: str = "") -> tuple[DeploymentFile, ...]:
    """Read a file or a folder of ``deploy/`` that this installation carries.

    Every file of it comes in the order of their paths, which start with ``below``, or with the
    part's own name where that is empty.

    Raises:
        DeploymentError: This installation does not carry them.
    """
    place = next((place for place in _PLACES if (place / part).exists()), None)
    if place is None:
        raise DeploymentError(
            f"this installation carries no {part}: install chorale from its wheel, or from a whole "
            "source tree"
        )
    source, target = place / part, PurePosixPath(below or part)
    if source.is_file():
        return (_read(source, target),)
    return tuple(
        _read(path, target / path.relative_to(source).as_posix())
        for path in sorted(source.rglob("*"))
        if path.is_file()
    )


def _read(path: Path, target: PurePosixPath) -> DeploymentFile:
    runnable = path.suffix == ".sh"
    return DeploymentFile(
        path=target, content=path.read_bytes(), mode=RUNNABLE if runnable else READABLE
    )


def write_files(files: Iterable[DeploymentFile], out: Path) -> tuple[Path, ...]:
    """Write files below a directory, which is made if it is not there.

    Returns where each of them is, in the order given.

    Raises:
        DeploymentError: One of them is there already, or has a name that leads elsewhere; nothing
            was written.
        OSError: The directory cannot be written.
    """
    files = tuple(files)
    for file in files:
        if file.path.is_absolute() or ".." in file.path.parts:
            raise DeploymentError(f"{file.path} is no name below {out}")
    places = tuple(out / file.path for file in files)
    found = [str(place) for place in places if os.path.lexists(place)]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise DeploymentError(f"there is already {found[0]}{more}: choose a new directory")
    for file, place in zip(files, places, strict=True):
        _make_directory(place.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(place, flags, file.mode), "wb") as opened:
            # Accounts of services and of containers read these files, whatever the umask.
            os.fchmod(opened.fileno(), file.mode)
            opened.write(file.content)
    return places


def _make_directory(place: Path) -> None:
    """Make a directory for every account to enter, and what is missing above it."""
    if not place.is_dir():
        _make_directory(place.parent)
        place.mkdir()
        place.chmod(RUNNABLE)

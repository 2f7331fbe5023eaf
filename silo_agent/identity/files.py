"""Where an identity is on disk, and the one before it while the newest is not accepted yet.

A new identity takes the place of the one before, which stays as ``identity.previous`` until the
coordinator accepted the new one. So there is a usable identity at every moment: a crash between two
renames is healed when the identity is read, and a new one that is refused gives way to the old.

Covered: a crash at any point. Not covered: what the files hold
(``silo_agent/identity/identity.py``).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from ops.files import sync_directory

__all__ = [
    "DIRECTORY",
    "PARTIAL",
    "PREVIOUS",
    "forget_previous",
    "has_previous",
    "restore_previous",
]

DIRECTORY: Final = "identity"
PREVIOUS: Final = "identity.previous"
PARTIAL: Final = "identity.partial"


def has_previous(data_dir: Path) -> bool:
    """Whether nobody knows yet if the coordinator accepts the newest identity.

    Args:
        data_dir: The silo's data directory.
    """
    return (data_dir / PREVIOUS).exists()


def forget_previous(data_dir: Path) -> None:
    """Delete the identity before: the newest one was accepted.

    Args:
        data_dir: The silo's data directory.
    """
    previous, partial = data_dir / PREVIOUS, data_dir / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    if previous.exists():
        # Half a directory must never be taken for an identity.
        previous.rename(partial)
        sync_directory(data_dir)
        shutil.rmtree(partial, ignore_errors=True)


def restore_previous(data_dir: Path) -> None:
    """Go back to the identity before: the newest one was refused.

    Args:
        data_dir: The silo's data directory.
    """
    directory, previous, partial = (data_dir / name for name in (DIRECTORY, PREVIOUS, PARTIAL))
    shutil.rmtree(partial, ignore_errors=True)
    directory.rename(partial)
    previous.rename(directory)
    sync_directory(data_dir)
    shutil.rmtree(partial, ignore_errors=True)

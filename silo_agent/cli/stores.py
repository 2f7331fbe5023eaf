"""What the commands about a silo's stores share: which there are, and that no daemon has them open.

Covered: memories, principles. Not covered: stores of rehearsals (``chorale-silo alone --out``),
which are in the directory that was named there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ops.cli.envelope import CommandError, Exit

if TYPE_CHECKING:
    from evolution.memory.memory import Memory
    from evolution.memory.principles import Principles

__all__ = ["daemon_stopped", "memories", "principles_of", "typed"]


@contextmanager
def typed() -> Iterator[None]:
    """The errors of stores and of files of demonstrations as those of a command."""
    from evolution.errors import ConversationError, EvolveError, MemoryStoreError

    try:
        yield
    except (MemoryStoreError, EvolveError, ConversationError) as error:
        code = type(error).__name__.removesuffix("Error")
        code = "".join(f"_{c.lower()}" if c.isupper() else c for c in code).lstrip("_")
        raise CommandError(str(error), code=code, exit_code=Exit.ARGUMENTS) from error


@contextmanager
def daemon_stopped(data_dir: Path) -> Iterator[None]:
    """Hold the lock that a daemon holds on its ledger.

    Raises:
        CommandError: A daemon runs.
    """
    from silo_agent.books.ledger import LEDGER_FILE

    try:
        descriptor = os.open(data_dir / LEDGER_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        # A silo whose daemon never ran.
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(
                "the daemon of this silo is running",
                code="daemon_running",
                exit_code=Exit.SERVER,
                hint="it has the memory open",
                next_step="stop it, then try again",
            ) from error
        yield
    finally:
        os.close(descriptor)


def memories(data_dir: Path) -> Iterator[tuple[Path, Memory]]:
    """The demonstrations and each run's memory, open one after the other."""
    from evolution.memory.memory import Memory
    from evolution.methods.population import EXPERT_FILE, MEMORY_FILE

    for path in (data_dir / EXPERT_FILE, *sorted(data_dir.glob(f"evolve/*/{MEMORY_FILE}"))):
        if path.is_file():
            with Memory(path) as memory:
                yield path, memory


def principles_of(data_dir: Path) -> Iterator[tuple[str, Principles]]:
    """Each run's principles, open one after the other, under the name of the run's directory."""
    from evolution.memory.principles import PRINCIPLES_FILE, Principles

    for path in sorted(data_dir.glob(f"evolve/*/{PRINCIPLES_FILE}")):
        if path.is_file():
            with Principles(path) as kept:
                yield path.parent.name, kept

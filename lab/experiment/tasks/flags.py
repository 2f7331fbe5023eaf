"""Which training tasks the base solves: a file of JSON lines.

::

    {"environment": "craft", "task_id": 1008000, "solved": true}

Invariants: a file that is read has the digest that its run stands for; each line has these keys,
of these types, and no others; a task has one line.

Covered: reading, writing. Not covered: playing the base (``reference.py``), and which tasks have to
be there (``dealing.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from lab.experiment.errors import ExperimentFileError
from lab.experiment.tables import EnvironmentName, Section
from ops.files import replace_file

__all__ = ["Flag", "Flags", "read_flags", "write_flags"]

MAX_LINE_BYTES: Final = 512
Flags = Mapping[tuple[str, int], bool]
"""Whether a task, by environment and id, is solved."""


class Flag(Section):
    """One line."""

    environment: EnvironmentName
    """Where."""
    task_id: Annotated[int, Field(ge=0, le=2**53)]
    """Which."""
    solved: bool
    """Whether the base's success rate at it reaches the threshold."""


@lru_cache(maxsize=4)
def read_flags(path: str, sha256: str) -> Flags:
    """The flags of a file with this digest.

    Raises:
        ExperimentFileError: It cannot be read, is another file, or a line is no flag.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ExperimentFileError([f"partition.solved: {error}"]) from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ExperimentFileError(
            [f"partition.solved: {path} has changed since the experiment was read: start it again"]
        )
    found: dict[tuple[str, int], bool] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        where = f"partition.solved: {path}, line {number}"
        if len(line) > MAX_LINE_BYTES:
            raise ExperimentFileError([f"{where}: longer than {MAX_LINE_BYTES} bytes: correct it"])
        try:
            flag = Flag.model_validate_json(line)
        except ValidationError as error:
            raise ExperimentFileError(
                [f'{where}: not {{"environment": …, "task_id": …, "solved": …}}: correct it']
            ) from error
        task = (flag.environment, flag.task_id)
        if task in found:
            raise ExperimentFileError(
                [f"{where}: task {task[1]} of {task[0]!r} has two lines: remove one"]
            )
        found[task] = flag.solved
    return found


def write_flags(path: Path, flags: Iterable[Flag]) -> str:
    """Write a file; returns its digest.

    Raises:
        OSError: The disk refused.
    """
    content = "".join(flag.model_dump_json() + "\n" for flag in flags).encode()
    replace_file(path, (content,))
    return hashlib.sha256(content).hexdigest()

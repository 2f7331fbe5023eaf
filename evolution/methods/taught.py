"""What a teacher says of a row: the same policy, after an opening that helped somebody to succeed.

The teacher reads ``Row.taught_ids``, which end with the row's own answers, under the adapter that
the training begins with; its log-probability of each answer's token is the row's ``teacher``.

Covered: rows of a credit that says what the teacher reads. Not covered: another model as teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from evolution.errors import PartError
from evolution.methods.evolver import EvolveSettings
from evolution.methods.streams import temperature_of
from evolution.part import Part
from evolution.train.rows import Row
from evolution.train.trainer import Trainer

__all__ = ["taught"]

_TEACHER: Final = "teacher"


def taught(
    trainer: Trainer, rows: Sequence[Row], objective: Part, settings: EvolveSettings
) -> list[Row]:
    """The rows with their teacher's word where the objective asks for it, else as they are.

    A row whose teacher would read more than is trained on is left out.

    Raises:
        PartError: The objective asks, and the credit does not say what the teacher reads.
    """
    if _TEACHER not in objective.needs or not rows:
        return list(rows)
    if any(row.taught_ids is None for row in rows):
        raise PartError("the objective asks for a teacher, and the credit names none: use 'distil'")
    pairs = [
        (row, read)
        for row in rows
        if (read := _read(row)) is not None and len(read) <= settings.max_sequence_tokens
    ]
    said = trainer.logprobs(
        [read for _, read in pairs], temperature=temperature_of(settings, objective)
    )
    found = []
    for (row, read), values in zip(pairs, said, strict=True):
        own = np.zeros(len(row), dtype=np.float32)
        answers = _answers(row)
        own[len(row) - answers :] = values[len(read) - answers :]
        found.append(replace(row, known={**row.known, _TEACHER: own}, taught_ids=None))
    return found


def _answers(row: Row) -> int:
    """Tokens from the first answer on."""
    return len(row) - int(row.mask.argmax())


def _read(row: Row) -> Row | None:
    """The row as the teacher reads it; None where there is nothing to say."""
    if row.taught_ids is None or not row.mask.any():
        return None
    answers, length = _answers(row), len(row.taught_ids)

    def moved(values: np.ndarray) -> np.ndarray:
        found = np.zeros(length, dtype=values.dtype)
        found[length - answers :] = values[-answers:]
        return found

    return Row(
        token_ids=row.taught_ids,
        mask=moved(row.mask),
        weights=moved(row.weights),
        logprobs=moved(row.logprobs),
        name=row.name,
        unit=row.unit,
    )

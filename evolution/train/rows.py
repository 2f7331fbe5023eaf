"""Training rows, and how a step's batch is divided into forward passes and over processes.

Invariants:

1. A batch is cut from the rows sorted by length, so that little is padded. No row is split and no
   two share a sequence: a row's tokens never see another row's.
2. Dividing a batch loses and repeats nothing: its micro-batches over all processes are the batch.
3. All processes make the same number of passes in a step, as collectives need; a process without a
   row left gets an empty micro-batch.

Covered: bounding padded tokens per pass. Not covered: splitting one long row over processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evolution.trajectory import Trajectory

__all__ = ["Row", "cut", "deal", "micro_batches", "rows_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory's tokens."""

    token_ids: npt.NDArray[np.int64]
    """All of them, in order."""
    agent: npt.NDArray[np.bool_]
    """True where the agent sampled the token."""

    def __len__(self) -> int:
        """How many tokens."""
        return len(self.token_ids)

    @property
    def loss_tokens(self) -> int:
        """Agent tokens that something stands before: those with a loss."""
        return int(self.agent[1:].sum())


def rows_of(trajectories: Sequence[Trajectory], *, max_sequence_tokens: int) -> list[Row]:
    """Rows by length, equal lengths by content: the set alone decides the order.

    Rows of more than ``max_sequence_tokens`` are left out; a trainer says how many
    (``SftReport.too_long``).
    """
    by_length = sorted(
        (t for t in trajectories if t.token_count <= max_sequence_tokens),
        key=lambda t: (t.token_count, t.conversation_sha256),
    )
    return [
        Row(np.array(t.token_ids, dtype=np.int64), np.array(t.agent_mask, dtype=np.bool_))
        for t in by_length
    ]


def cut(rows: Sequence[Row], batch_size: int) -> list[Sequence[Row]]:
    """The plan's batches of rows that are sorted by length; the last may be smaller.

    Those that hold no token with loss are left out, for they have no gradient.
    """
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return [batch for batch in batches if any(row.loss_tokens for row in batch)]


def micro_batches(rows: Sequence[Row], most_tokens: int) -> list[Sequence[Row]]:
    """Divide rows that are sorted by length into forward passes, in this order; none is empty.

    A pass has at most ``most_tokens``, padding included; a longer row goes alone. 0 makes one pass.
    """
    if most_tokens == 0:
        return [rows] if rows else []
    passes: list[Sequence[Row]] = []
    start = 0
    for end, row in enumerate(rows):
        # Row ``end`` is the longest so far, so every row is padded to it.
        if end > start and (end + 1 - start) * len(row) > most_tokens:
            passes.append(rows[start:end])
            start = end
    if rows:
        passes.append(rows[start:])
    return passes


def deal(rows: Sequence[Row], *, processes: int, most_tokens: int) -> list[list[Sequence[Row]]]:
    """Divide a batch over processes: every n-th row each, so that lengths are alike.

    The batch is sorted by length; for ``most_tokens`` see ``micro_batches``. Each process gets
    equally many passes; those that fill up are empty.
    """
    dealt = [micro_batches(rows[rank::processes], most_tokens) for rank in range(processes)]
    turns = max(map(len, dealt))
    return [passes + [()] * (turns - len(passes)) for passes in dealt]

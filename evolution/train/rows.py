"""Training rows, and how a step's batch is divided into forward passes and over processes.

A row is one training sequence: tokens, which of them an objective is about, one weight for each of
these, and what the behaviour policy said of them.

Invariants:

1. A batch is cut from the rows sorted by length, so that little is padded. No row is split and no
   two share a sequence: a row's tokens never see another row's.
2. Dividing a batch loses and repeats nothing: its micro-batches over all processes are the batch.
3. All processes make the same number of passes in a step, as collectives need; a process without a
   row left gets an empty micro-batch.
4. A row's arrays are of one length, and its weights and log-probabilities are finite.

Covered: bounding padded tokens per pass. Not covered: splitting one long row over processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from dp.steps.units import UnitId
from evolution.errors import RowError
from evolution.trajectory import Trajectory

__all__ = ["Row", "cut", "deal", "in_order", "micro_batches"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """One training sequence of T tokens.

    Raises:
        RowError: Its arrays do not fit each other, or a number is not finite.
    """

    token_ids: npt.NDArray[np.int64]
    """All of them, in order."""
    mask: npt.NDArray[np.bool_]
    """True at the tokens that the objective is about."""
    weights: npt.NDArray[np.float32]
    """One for each token; what is outside the mask has no effect."""
    logprobs: npt.NDArray[np.float32]
    """Of the behaviour policy; zero where it sampled nothing."""
    name: str = ""
    """Orders rows of equal length."""
    unit: UnitId | None = None
    """Whose it is, for a mean of units' means."""
    known: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Log-probabilities and values of each token that an objective needs and that were computed
    before, by their name in ``evolution/train/objective.py``; the trainer computes what is not
    here."""
    taught_ids: npt.NDArray[np.int64] | None = None
    """The same answers after another opening, that of a teacher who has seen more: all its tokens.
    They end as the row's own do from its first answer on. What the teacher says of each answer's
    token is ``known["teacher"]``, and the driver computes it (``methods/taught.py``)."""

    def __post_init__(self) -> None:
        """Refuse what is no row, whoever made it."""
        arrays = (self.mask, self.weights, self.logprobs, *self.known.values())
        if self.token_ids.ndim != 1 or any(a.shape != self.token_ids.shape for a in arrays):
            raise RowError("a row's tokens, mask, weights and log-probabilities are of one length")
        if not (np.isfinite(self.weights).all() and np.isfinite(self.logprobs).all()):
            raise RowError("a row's weights and log-probabilities are finite numbers")
        if self.taught_ids is not None and self.mask.any():
            said = len(self) - int(self.mask.argmax())
            if not np.array_equal(self.taught_ids[-said:], self.token_ids[-said:]):
                raise RowError("what a teacher reads does not end with the row's own answers")

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        *,
        weight: float | Sequence[float] = 1.0,
        mask: Sequence[bool] | None = None,
    ) -> Self:
        """The row of a try, whose unit is its task.

        ``weight`` is one for all of the try's tokens, or one for each. The mask is by default the
        tokens that the agent sampled. A scaffold that helped in playing is taken away: the row
        begins as the try would have begun without it. The behaviour policy's log-probabilities are
        those of the policy that read it.

        Raises:
            RowError: Something does not fit the trajectory's tokens.
        """
        ids = np.array(trajectory.token_ids, dtype=np.int64)
        weights = np.asarray(weight, dtype=np.float32)
        weights = np.full(ids.shape, weights) if weights.ndim == 0 else weights
        about = np.array(trajectory.agent_mask if mask is None else mask, dtype=np.bool_)
        behaviour = np.array(trajectory.logprobs, dtype=np.float32)
        if any(a.shape != ids.shape for a in (weights, about, behaviour)):
            raise RowError("a row's tokens, mask, weights and log-probabilities are of one length")
        first = trajectory.steps[0] if trajectory.steps else None
        if first is not None and first.bare_ids is not None:
            opening, played = len(first.bare_ids), len(first.context_ids)
            ids = np.concatenate([np.array(first.bare_ids, dtype=np.int64), ids[played:]])
            weights, about, behaviour = (
                np.concatenate([np.zeros(opening, dtype=one.dtype), one[played:]])
                for one in (weights, about, behaviour)
            )
        return cls(
            token_ids=ids,
            mask=about,
            weights=weights,
            logprobs=behaviour,
            name=trajectory.conversation_sha256,
            unit=UnitId(trajectory.task.environment, str(trajectory.task.task_id)),
        )

    def knowing(self, known: Mapping[str, npt.NDArray[np.float32]]) -> Row:
        """The same row with what is known of it."""
        return replace(self, known=dict(known))

    def __len__(self) -> int:
        """How many tokens."""
        return len(self.token_ids)

    @property
    def loss_tokens(self) -> int:
        """Tokens of the mask that something stands before: those with a loss."""
        return int(self.mask[1:].sum())

    def __eq__(self, other: object) -> bool:
        """Whether another row is the same bit for bit."""
        if not isinstance(other, Row):
            return NotImplemented
        if (self.name, self.unit, set(self.known)) != (other.name, other.unit, set(other.known)):
            return False
        pairs = [
            (self.token_ids, other.token_ids),
            (self.mask, other.mask),
            (self.weights, other.weights),
            (self.logprobs, other.logprobs),
            *((value, other.known[name]) for name, value in self.known.items()),
        ]
        mine, theirs = self.taught_ids, other.taught_ids
        if mine is None or theirs is None:
            return mine is theirs and all(one.tobytes() == two.tobytes() for one, two in pairs)
        return all(one.tobytes() == two.tobytes() for one, two in [*pairs, (mine, theirs)])

    __hash__ = None  # type: ignore[assignment]  # its arrays can change

    def __repr__(self) -> str:
        """Redacted: tokens are private."""
        return f"Row({len(self)} tokens, {self.loss_tokens} with a loss)"


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows by length, equal lengths by name: the set alone decides the order."""
    return sorted(rows, key=lambda row: (len(row), row.name))


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

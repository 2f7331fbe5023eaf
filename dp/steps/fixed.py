"""Per-unit gradients in passes of fixed shapes: batched, and not one bit from the rows beside it.

A float32's last bits depend on how a matrix product is cut into pieces, and that on its shape. So
every pass has one of a few shapes. A unit's longest row alone decides about its tokens, and the
rows are a power of two::

    tokens    the next of 16, 24, 32, 48, 64, 96, 128, …
    rows      1, 2, 4, … up to 2048 / tokens, as many as 2^26 coordinates allow

What a pass lacks is filled with null rows: zeros, which no token of a loss stands in. In passes of
so many tokens a row gets the same bits whoever its mates are, wherever it stands and however many
there are. Where no pass may have two rows, or one row is work enough for a core (2^34 products, of
every token with every weight), ``LoopBackend`` computes one unit at a time, which is faster there
and has no mates to test.

That a row gets the same bits is a property of the libraries and of the machine, not of this code,
so it is tested and not believed: on public rows, for a number of tokens when it is first used,
again after ``renew``, and for another number of threads. The most rows that a pass may have are
computed once as they are, and once with all of them in other places, a quarter of them null rows.
Then half as many of them, a quarter, … are, in other places again. Numbers of rows at which a bit
differs are not used; where it does at the most rows, such units are computed one by one, by
``LoopBackend``, and so is everything where hooks do not see a parameter. ``one_by_one`` says it.

Invariants:

1. A unit's vector is, bit for bit, a function of the model and of that unit's rows in their order.
   Which way computes it follows from its longest row and from public rows.
2. A unit's rows are added in their order, one after another.
3. Units that stand next to each other and need as many tokens share passes. So units that are
   sorted by their longest row cost least.

Covered: what ``HooksBackend`` covers; CPUs, one thread and several; 16-bit bases of which hooks
give what autograd gives. Not covered: libraries whose rounding depends on values, which no test on
other values can see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeVar

import numpy as np
import torch

from dp.errors import SpecError
from dp.steps.grads import (
    MOST_COORDINATES,
    GradientBackend,
    HooksBackend,
    LoopBackend,
    RowLoss,
    Vector,
)

__all__ = ["FixedBackend", "passes_up_to"]

RowT = TypeVar("RowT")

_PASS_TOKENS: Final = 2048
"""Of a pass, padding included: on a CPU more gains nothing."""
_LEAST_TOKENS: Final = 16
_ROW_PRODUCTS: Final = 1 << 34
"""Tokens times weights of a row. Measured on 135 million weights: at 64 tokens passes take 0.86
times as long as one unit at a time, at 128 tokens 1.15 times.
"""  # a measurement


class FixedBackend(GradientBackend[RowT]):
    """Hooks in passes of fixed shapes where that keeps units apart, else one unit at a time."""

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        parameters: Mapping[str, torch.nn.Parameter],
        loss: RowLoss[RowT],
        probe: Sequence[RowT],
        divisor: float | None = None,
    ) -> None:
        """See ``GradientBackend`` for the arguments and for what is raised."""
        self._loop = LoopBackend(
            model=model, parameters=parameters, loss=loss, probe=probe, divisor=divisor
        )
        self._hooks: HooksBackend[RowT] | None = None
        self._unhooked = ""
        try:
            self._hooks = HooksBackend(
                model=model, parameters=parameters, loss=loss, probe=probe, divisor=divisor
            )
        except SpecError as error:
            self._unhooked = str(error)
        self._public = loss.collate(probe[:2])
        self._weights = sum(parameter.numel() for parameter in model.parameters())
        self._counts: dict[tuple[int, int], tuple[int, ...]] = {}
        """By tokens and threads: the numbers of rows in which rows stand apart, ascending."""
        super().__init__(
            model=model, parameters=parameters, loss=loss, probe=probe, divisor=divisor
        )

    @property
    def one_by_one(self) -> str:
        """What is computed one unit at a time so far, and why; empty if nothing is."""
        if self._hooks is None:
            return f"all units: {self._unhooked}"
        failed = sorted({tokens for (tokens, _), counts in self._counts.items() if not counts})
        if not failed:
            return ""
        return f"units of {', '.join(map(str, failed))} tokens: here a row's bits depend on others"

    def renew(self) -> None:
        """Test every shape again before it is used again."""
        self._counts.clear()

    def tested_up_to(self, longest: int) -> list[int]:
        """The numbers of tokens, ascending, of passes that units of up to so many may have a test
        of; none if everything is computed one by one from the start.
        """  # noqa: D205  # one sentence
        if self._hooks is None:
            return []
        return [tokens for tokens in passes_up_to(longest) if self._most_rows(tokens) > 1]

    def tokens_of(self, rows: Sequence[RowT]) -> int:
        """Of the passes that compute a unit of these rows; 0 without a row."""
        longest = self.longest(rows)
        return passes_up_to(longest)[-1] if longest else 0

    def unit_gradients(self, units: Sequence[Sequence[RowT]]) -> Iterator[Vector]:
        """Yield −∇ℓ_u for every unit."""
        for tokens, alike in groupby(units, key=self.tokens_of):
            if not tokens:
                for _ in alike:
                    yield np.zeros(self.dimension, dtype=np.float32)
            elif self._hooks is not None and (counts := self._apart(self._hooks, tokens)):
                together = list(alike)
                passes = self._passes(self._hooks, tokens, counts, together)
                yield from self._summed(passes, len(together))
            else:
                yield from self._loop.unit_gradients(list(alike))

    def _passes(
        self,
        hooks: HooksBackend[RowT],
        tokens: int,
        counts: Sequence[int],
        units: Sequence[Sequence[RowT]],
    ) -> Iterator[tuple[int, Vector, int]]:
        listed = [(index, row) for index, rows in enumerate(units) for row in rows]
        for start in range(0, len(listed), counts[-1]):
            chunk = listed[start : start + counts[-1]]
            rows = next(count for count in counts if count >= len(chunk))
            batch = self._loss.collate([row for _, row in chunk])
            matrix, said = hooks.row_gradients([_filled(one, rows, tokens) for one in batch])
            for (index, _), gradient, count in zip(chunk, matrix.numpy(), said, strict=False):
                yield index, gradient, count

    def _most_rows(self, tokens: int) -> int:
        if tokens * self._weights > _ROW_PRODUCTS:
            return 1
        most = min(_PASS_TOKENS // tokens, MOST_COORDINATES // self.dimension)
        return 1 << (most.bit_length() - 1) if most else 0

    def _apart(self, hooks: HooksBackend[RowT], tokens: int) -> tuple[int, ...]:
        rows = self._most_rows(tokens)
        if rows < 2:
            return ()
        key = (tokens, torch.get_num_threads())
        if key not in self._counts:
            self._counts[key] = _counts_apart(hooks, self._public, rows, tokens)
        return self._counts[key]


def passes_up_to(longest: int) -> list[int]:
    """The numbers of tokens that passes may have for units of up to so many, ascending."""
    sizes = [_LEAST_TOKENS]
    while sizes[-1] < longest:
        sizes.append(sizes[-1] + (1 << (sizes[-1].bit_length() - 1)) // 2)
    return sizes


def _filled(batch: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
    """Null rows below, and padding to the right."""
    return torch.nn.functional.pad(batch, (0, tokens - batch.shape[1], 0, rows - batch.shape[0]))


def _counts_apart(
    hooks: HooksBackend[RowT], public: Sequence[torch.Tensor], rows: int, tokens: int
) -> tuple[int, ...]:
    """The powers of two up to ``rows``, two or more, of which no row changes a bit of another, on
    public rows.
    """  # noqa: D205  # one sentence
    batch = [_made(one, rows, tokens) for one in public]
    apart, _ = hooks.row_gradients(batch)
    counts: list[int] = []
    count = rows if bool(apart[0].any()) else 0
    while count:
        # Of a power of two none stays in its place, and no two come to one.
        origin = [(3 * place + 1) % rows for place in range(count)]
        moved = [tensor[origin] for tensor in batch]
        # Where all are there: whoever stood in the place of a null row stands elsewhere now.
        null = set(range(min(4, rows) - 1, rows, 4)) if count == rows else set()
        for tensor in moved:
            tensor[sorted(null)] = 0
        held = [place for place in range(count) if place not in null]
        found, _ = hooks.row_gradients(moved)
        if not _same(found[held], apart[[origin[place] for place in held]]):
            break
        counts.insert(0, count)
        count //= 2
    return tuple(counts)


def _made(public: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
    """Rows out of the tokens of two, the longest first, no two of them alike."""
    times = -(-tokens // public.shape[1])
    made = torch.stack(
        [public[index % 2].roll(index).repeat(times)[:tokens] for index in range(rows)]
    )
    for index, row in enumerate(made):
        row[tokens - index * tokens // (2 * rows) :] = 0
    return made


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two are equal bit for bit."""
    return one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()

"""A key/value cache for a ragged batch of conversations.

Each row holds the tokens of one conversation without gaps: token i of a row is at column i, so a
token's column is its position. A chunk of new tokens per row is left-padded for the model, and only
the real tokens' keys and values are written down. Invariants:

1. A query sees exactly the columns up to its own position. A padded query sees column 0, so that no
   row of the softmax is empty; what it computes is written nowhere.
2. Columns that were never written are zeros, and no query reaches them. A row that a new
   conversation takes over is zeros first: nothing of the one before is left in it.
3. Storage grows by doubling; a chunk writes its own tokens and nothing else.
4. A chunk may be cut into *parts* of rows of like length, each with a forward pass of its own,
   where that saves more padding than a pass costs, and is cut where a pass would have more than
   ``MOST_TOKENS``, so that what it takes for a moment is bounded. While answers grow token by
   token, rows whose answer has ended sit out once they are half of all. Which rows share a part
   changes a row's result by rounding alone.

Covered: full attention. Not covered: sliding windows, recurrent states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from transformers.cache_utils import Cache, DynamicLayer

from evolution.errors import RolloutError

__all__ = ["MOST_TOKENS", "RaggedCache", "RaggedInputs", "parts_of"]

MOST_TOKENS: Final = 16_384
"""Of one pass, padded; a row that is longer goes alone. The forecast counts with the same number
(``federation/adapter/memory.py``)."""
_LEAST_COLUMNS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class RaggedInputs:
    """What one forward pass over a part of a chunk needs: P rows, W columns, S keys."""

    rows: list[int]
    """The part's rows, in order."""
    input_ids: torch.Tensor
    """P·W tokens, left-padded; column −1 is the last token of every row that got any."""
    position_ids: torch.Tensor
    """P·W positions."""
    attention_mask: torch.Tensor
    """P·1·W·S: True where a query sees a key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where the tokens of the pass under way belong."""

    rows: torch.Tensor | None
    """The part's rows in storage; None for all of them."""
    count: int
    """Rows of storage."""
    columns: int
    """S: as many as the part's longest row."""
    source: tuple[torch.Tensor, torch.Tensor]
    """Of each real token: row and column in the chunk."""
    target: tuple[torch.Tensor, torch.Tensor]
    """Of each real token: row and column in storage."""


@dataclass(slots=True)
class _UnderWay:
    """What the layers of a cache are told of the pass under way.

    They know this and not their cache, which knows them: a circle would keep a dropped cache's
    tensors until the garbage collector comes by.
    """

    place: _Place | None = None


class _Layer(DynamicLayer):  # type: ignore[misc]  # transformers ships no types
    """One layer's keys and values, written where the cache says."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, under_way: _UnderWay) -> None:
        super().__init__()
        self._under_way = under_way

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: object, **_more: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        place = self._under_way.place
        if place is None:
            raise RolloutError("a layer was fed beside the cache's own passes")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = _written(self.keys, key_states, place)
        self.values = _written(self.values, value_states, place)
        return _seen(self.keys, place), _seen(self.values, place)

    def copy(
        self, held: _Layer, to: torch.Tensor, of: torch.Tensor, *, count: int, columns: int
    ) -> None:
        if not self.is_initialized:
            self.lazy_initialization(held.keys, held.values)
        self.keys = _copied(self.keys, held.keys, to, of, count=count, columns=columns)
        self.values = _copied(self.values, held.values, to, of, count=count, columns=columns)

    def arrange(self, rows: torch.Tensor | None, empty: torch.Tensor | None) -> None:
        if rows is not None:
            self.keys = self.keys.index_select(0, rows)
            self.values = self.values.index_select(0, rows)
        if empty is not None:
            self.keys[empty] = 0
            self.values[empty] = 0


def _roomy(store: torch.Tensor, like: torch.Tensor, *, count: int, columns: int) -> torch.Tensor:
    """The storage, with so many columns at least; another tensor only where it had to grow."""
    held = store.shape[-2] if store.numel() else 0
    if held >= columns:
        return store
    _, heads, _, width = like.shape
    grown = like.new_zeros(count, heads, max(_LEAST_COLUMNS, 2 * columns), width)
    if held:
        grown[:, :, :held] = store
    return grown


def _copied(
    store: torch.Tensor,
    held: torch.Tensor,
    to: torch.Tensor,
    of: torch.Tensor,
    *,
    count: int,
    columns: int,
) -> torch.Tensor:
    store = _roomy(store, held, count=count, columns=columns)
    store[to, :, :columns] = held[of, :, :columns]
    return store


def _written(store: torch.Tensor, states: torch.Tensor, place: _Place) -> torch.Tensor:
    """The storage with the chunk's real tokens in it."""
    store = _roomy(store, states, count=place.count, columns=place.columns)
    (from_row, from_column), (row, column) = place.source, place.target
    store[row, :, column] = states[from_row, :, from_column]
    return store


def _seen(store: torch.Tensor, place: _Place) -> torch.Tensor:
    columns = store[:, :, : place.columns]
    return columns if place.rows is None else columns.index_select(0, place.rows)


class RaggedCache:
    """The cache of one batch and the tokens each of its rows holds."""

    def __init__(self, rows: int, *, device: str = "cpu") -> None:
        self._under_way = under_way = _UnderWay()
        self.layers = Cache(layer_class_to_replicate=lambda: _Layer(under_way))
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self._device = device

    def feed(self, chunks: Sequence[Sequence[int]], *, pass_cost: int) -> Iterator[RaggedInputs]:
        """Take one chunk per row, and give the forward passes that fill the cache with it.

        Each pass must be done before the next is asked for. A row may get no new token, but not all
        of them. ``pass_cost`` is how many tokens' worth of work a forward pass costs by itself.
        """
        starts = [len(tokens) for tokens in self.tokens]
        for tokens, chunk in zip(self.tokens, chunks, strict=True):
            tokens.extend(chunk)
        for rows in parts_of([len(chunk) for chunk in chunks], pass_cost=pass_cost):
            yield self._inputs(rows, chunks, starts)

    def arrange(self, rows: Sequence[int]) -> None:
        """Make the rows those with these indices, in this order; -1 is a row that holds nothing.

        Rows that stay where they are are not copied.
        """
        empty = [place for place, row in enumerate(rows) if row < 0]
        stays = len(rows) == len(self.tokens) and all(row in {-1, i} for i, row in enumerate(rows))
        if stays and not empty:
            return
        taken = None if stays else self._index([max(row, 0) for row in rows])
        emptied = self._index(empty) if empty else None
        for layer in self.layers.layers:
            layer.arrange(taken, emptied)
        self.tokens = [[] if row < 0 else self.tokens[row] for row in rows]

    def _index(self, rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self._device)

    def copy(self, other: RaggedCache, source: Mapping[int, int]) -> None:
        """Begin rows, which are empty, with rows of another cache: from whose row to which."""
        to, of = self._index([*source]), self._index([*source.values()])
        columns = max(len(tokens) for tokens in other.tokens)
        while len(self.layers.layers) < len(other.layers.layers):
            self.layers.layers.append(_Layer(self._under_way))
        for layer, held in zip(self.layers.layers, other.layers.layers, strict=True):
            layer.copy(held, to, of, count=len(self.tokens), columns=columns)
        for row, theirs in source.items():
            self.tokens[row] = list(other.tokens[theirs])

    def _inputs(
        self, rows: list[int], chunks: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> RaggedInputs:
        width = max(len(chunks[row]) for row in rows)
        ids, positions, real = [], [], []
        for row in rows:
            chunk, start = chunks[row], starts[row]
            padding = [0] * (width - len(chunk))
            ids.append([*padding, *chunk])
            positions.append([*padding, *range(start, start + len(chunk))])
            real.append([*padding, *(1 for _ in chunk)])
        ids_PW, positions_PW, real_PW = torch.tensor([ids, positions, real], device=self._device)
        row_P = torch.tensor(rows, device=self._device)
        columns = max(len(self.tokens[row]) for row in rows)
        from_row, from_column = real_PW.nonzero(as_tuple=True)
        whole = rows == list(range(len(self.tokens)))
        self._under_way.place = _Place(
            rows=None if whole else row_P,
            count=len(self.tokens),
            columns=columns,
            source=(from_row, from_column),
            target=(row_P[from_row], positions_PW[from_row, from_column]),
        )
        mask = torch.arange(columns, device=self._device) <= positions_PW[:, :, None]
        return RaggedInputs(
            rows=rows, input_ids=ids_PW, position_ids=positions_PW, attention_mask=mask[:, None]
        )


def parts_of(
    lengths: Sequence[int], *, pass_cost: int, most_tokens: int = MOST_TOKENS
) -> list[list[int]]:
    """Group rows, given by their numbers of new tokens, so that passes and padding cost least.

    A part costs ``pass_cost`` and its longest row times its number of rows. Parts of rows that are
    neighbours in length are best, so this is a shortest path over the lengths in order. The rows of
    a part are in ascending order. Rows without new tokens are in a part only where every row has
    one token at most and more than half have one: then all of them are, which copies nothing.
    """
    if max(lengths) <= 1:
        rows = [row for row, n in enumerate(lengths) if n]
        return [rows if 2 * len(rows) <= len(lengths) else list(range(len(lengths)))]
    ordered = sorted((row for row, n in enumerate(lengths) if n), key=lambda row: -lengths[row])
    best = [0]
    """Of the first so many rows: the least cost."""
    cut = [0]
    for end in range(1, len(ordered) + 1):
        costs = [
            best[start] + pass_cost + lengths[ordered[start]] * (end - start)
            for start in range(end)
        ]
        least = min(costs)
        best.append(least)
        cut.append(costs.index(least))
    parts: list[list[int]] = []
    end = len(ordered)
    while end:
        # The first of a part is its longest.
        most = max(1, most_tokens // lengths[ordered[cut[end]]])
        parts += [
            sorted(ordered[start : min(start + most, end)]) for start in range(cut[end], end, most)
        ]
        end = cut[end]
    return parts

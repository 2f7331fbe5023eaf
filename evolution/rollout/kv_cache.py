"""A key/value cache for a ragged batch of conversations.

Each row holds the tokens of one conversation without gaps: token i of a row is at column i, so a
token's column is its position. A chunk of new tokens per row is left-padded for the model, and only
the real tokens' keys and values are written down. Invariants:

1. A query sees exactly the columns up to its own position. A padded query sees column 0, so that no
   row of the softmax is empty; what it computes is written nowhere.
2. Columns that a pass sees and no token was written to are zeros, and no query reaches them. A row
   that a new conversation takes over is zeros first: nothing of the one before is left in it.
3. Storage grows by doubling; a chunk writes its own tokens and nothing else, a row of memory for
   each. What no pass has seen yet is not touched. Each row has a *seat* in storage, and keeps it
   until storage gets smaller than that: when conversations end, only those from the last seats are
   copied, into the seats that fall free.
4. A chunk may be cut into *parts* of rows of like length, each with a forward pass of its own,
   where that saves more padding than a pass costs, and is cut where a pass would have more than
   ``MOST_TOKENS``, so that what it takes for a moment is bounded. While answers grow token by
   token, rows whose answer has ended sit out once they are half of all. Which rows share a part
   changes a row's result by rounding alone.

Covered: full attention. Not covered: sliding windows, recurrent states.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
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
    """The part's rows, in the order of their seats, which is that of everything below."""
    input_ids: torch.Tensor
    """P·W tokens, left-padded; column −1 is the last token of every row that got any."""
    position_ids: torch.Tensor
    """P·W positions."""
    attention_mask: torch.Tensor
    """P·1·W·S, added to scores: 0 where a query sees a key, else −∞."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Size:
    """What storage must be before tokens are written to it."""

    count: int
    """Seats."""
    room: int
    """Columns."""
    new: slice
    """Those of them that are seen from now on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where the tokens of the pass under way belong."""

    seats: torch.Tensor | None
    """Of the part's rows; None for all of them."""
    size: _Size
    columns: int
    """S: as many as the part's longest row."""
    source: torch.Tensor | None
    """Of each real token: its place in the chunk, row after row; None where all are real."""
    target: torch.Tensor
    """Of each real token: its place in storage, seat after seat."""


@dataclass(slots=True)
class _UnderWay:
    """What the layers of a cache are told of the pass under way.

    They know this and not their cache, which knows them: a circle would keep a dropped cache's
    tensors until the garbage collector comes by.
    """

    place: _Place | None = None


class _Layer(DynamicLayer):  # type: ignore[misc]  # transformers ships no types
    """One layer's keys and values, written where the cache says.

    Each of seats × columns × heads × width.
    """

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
        self, held: _Layer, to: torch.Tensor, of: torch.Tensor, *, columns: int, size: _Size
    ) -> None:
        if not self.is_initialized:
            self.lazy_initialization(held.keys, held.values)
        self.keys = _sized(self.keys, held.keys.shape[2:], size)
        self.values = _sized(self.values, held.values.shape[2:], size)
        self.keys[to, :columns] = held.keys[of, :columns]
        self.values[to, :columns] = held.values[of, :columns]

    def arrange(
        self, count: int, moved: tuple[torch.Tensor, torch.Tensor], empty: torch.Tensor, seen: int
    ) -> None:
        self.keys = _arranged(self.keys, count, moved, empty, seen)
        self.values = _arranged(self.values, count, moved, empty, seen)


def _arranged(
    store: torch.Tensor,
    count: int,
    moved: tuple[torch.Tensor, torch.Tensor],
    empty: torch.Tensor,
    seen: int,
) -> torch.Tensor:
    """The storage with so many seats; the first seats move to the second, others are emptied."""
    origin, target = moved
    if len(origin):
        store[target, :seen] = store[origin, :seen]
    if count > len(store):
        grown = store.new_empty(count, *store.shape[1:])
        grown[: len(store), :seen] = store[:, :seen]
        store = grown
    if len(empty):
        store[empty, :seen] = 0
    return store if len(store) == count else store[:count]


def _sized(store: torch.Tensor, like: torch.Size, size: _Size) -> torch.Tensor:
    """The storage with room enough; another tensor only where it had to grow."""
    if not store.numel():
        store = store.new_empty(size.count, size.room, *like)
    elif store.shape[1] < size.room:
        held = store[:, : size.new.start]
        store = store.new_empty(size.count, size.room, *like)
        store[:, : size.new.start] = held
    store[:, size.new] = 0
    return store


def _written(store: torch.Tensor, states: torch.Tensor, place: _Place) -> torch.Tensor:
    """The storage with the chunk's real tokens in it."""
    tokens = states.transpose(1, 2).flatten(0, 1)
    if place.source is not None:
        tokens = tokens.index_select(0, place.source)
    store = _sized(store, tokens.shape[1:], place.size)
    store.view(-1, *tokens.shape[1:]).index_copy_(0, place.target, tokens)
    return store


def _seen(store: torch.Tensor, place: _Place) -> torch.Tensor:
    columns = store[:, : place.columns]
    if place.seats is not None:
        columns = columns.index_select(0, place.seats)
    return columns.transpose(1, 2)


class RaggedCache:
    """The cache of one batch and the tokens each of its rows holds."""

    def __init__(
        self, rows: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self._under_way = under_way = _UnderWay()
        self.layers = Cache(layer_class_to_replicate=lambda: _Layer(under_way))
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self._seats = list(range(rows))
        self._room = self._seen = 0
        self._device = device
        self._dtype = dtype

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

        Only rows whose seat there is no longer are copied.
        """
        seats = [self._seats[row] if row >= 0 else -1 for row in rows]
        left = {seat for seat in seats if seat < len(rows)}
        free = [seat for seat in range(len(rows)) if seat not in left]
        origin, target, empty = [], [], []
        for row, seat in enumerate(seats):
            if 0 <= seat < len(rows):
                continue
            seats[row] = free.pop()
            if seat < 0:
                empty.append(seats[row])
            else:
                origin.append(seat)
                target.append(seats[row])
        moved = self._index(origin), self._index(target)
        for layer in self.layers.layers:
            layer.arrange(len(rows), moved, self._index(empty), self._seen)
        self.tokens = [[] if row < 0 else self.tokens[row] for row in rows]
        self._seats = seats

    def _index(self, rows: Sequence[int] | np.ndarray) -> torch.Tensor:
        return torch.as_tensor(rows, dtype=torch.long, device=self._device)

    def copy(self, other: RaggedCache, source: Mapping[int, int]) -> None:
        """Begin rows, which are empty, with rows of another cache: from whose row to which."""
        to = self._index([self._seats[row] for row in source])
        of = self._index([other._seats[row] for row in source.values()])
        columns = max(len(tokens) for tokens in other.tokens)
        size = self._size_for(columns)
        while len(self.layers.layers) < len(other.layers.layers):
            self.layers.layers.append(_Layer(self._under_way))
        for layer, held in zip(self.layers.layers, other.layers.layers, strict=True):
            layer.copy(held, to, of, columns=columns, size=size)
        for row, theirs in source.items():
            self.tokens[row] = list(other.tokens[theirs])

    def _size_for(self, columns: int) -> _Size:
        """What storage must be before a pass sees so many columns."""
        new = slice(self._seen, max(self._seen, columns))
        self._seen = new.stop
        if columns > self._room:
            self._room = max(_LEAST_COLUMNS, 2 * columns)
        return _Size(count=len(self.tokens), room=self._room, new=new)

    def _inputs(
        self, rows: list[int], chunks: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> RaggedInputs:
        rows = sorted(rows, key=self._seats.__getitem__)
        begin_P = np.array([starts[row] for row in rows])
        count_P = np.array([len(chunks[row]) for row in rows])
        seat_P = np.array([self._seats[row] for row in rows])
        width, columns = int(count_P.max()), int((begin_P + count_P).max())
        index_PW = np.arange(width) - (width - count_P)[:, None]
        real_PW = index_PW >= 0
        ids_PW = np.zeros_like(index_PW)
        ids_PW[real_PW] = list(itertools.chain.from_iterable(chunks[row] for row in rows))
        positions_PW = np.where(real_PW, begin_P[:, None] + index_PW, 0)
        size = self._size_for(columns)
        self._under_way.place = _Place(
            seats=None if len(rows) == len(self.tokens) else self._index(seat_P),
            size=size,
            columns=columns,
            source=None if real_PW.all() else self._index(np.flatnonzero(real_PW)),
            target=self._index((seat_P[:, None] * size.room + positions_PW)[real_PW]),
        )
        position_ids = self._index(positions_PW)
        return RaggedInputs(
            rows=rows,
            input_ids=self._index(ids_PW),
            position_ids=position_ids,
            attention_mask=self._mask(position_ids, columns),
        )

    def _mask(self, positions_PW: torch.Tensor, columns: int) -> torch.Tensor:
        """The mask of P·1·W·S: each row a stretch of one strip, copied, with the zeros it sees."""
        strip = torch.zeros(2 * columns - 1, dtype=self._dtype, device=self._device)
        strip[columns:] = -torch.inf
        begins = (columns - 1 - positions_PW).flatten()
        mask = strip.unfold(0, columns, 1).index_select(0, begins)
        return mask.view(len(positions_PW), 1, -1, columns)


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

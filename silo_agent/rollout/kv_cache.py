"""A key/value cache for a ragged batch of conversations.

Rows grow by columns. A chunk is left-padded to the longest row's chunk; padded columns stay behind
as *holes* that no query ever sees. Invariants:

1. ``valid[b, s]`` says whether column ``s`` of row ``b`` holds a token; attention reaches exactly
   the valid columns up to the query's own. A hole attends to itself alone, so that no row of the
   softmax is empty.
2. A token's position is its index in its own row, not its column.
3. Storage grows by doubling; appending copies the new columns and nothing else.

Covered: full attention. Not covered: sliding windows, recurrent states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, DynamicLayer

__all__ = ["RaggedCache", "RaggedInputs"]


class _GrowingLayer(DynamicLayer):  # type: ignore[misc]  # transformers ships no types
    """One layer's keys and values as views into storage that doubles when it is full."""

    keys: torch.Tensor
    values: torch.Tensor
    _key_store: torch.Tensor
    _value_store: torch.Tensor

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: object, **_more: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        old = self.get_seq_length()
        new = old + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if old == 0 or new > self._key_store.shape[-2]:
            self._key_store = _grown(self.keys, key_states, old, new)
            self._value_store = _grown(self.values, value_states, old, new)
        self._key_store[..., old:new, :] = key_states
        self._value_store[..., old:new, :] = value_states
        self.keys = self._key_store[..., :new, :]
        self.values = self._value_store[..., :new, :]
        return self.keys, self.values

    def keep_rows(self, rows: torch.Tensor) -> None:
        length = self.get_seq_length()
        self._key_store = self._key_store[rows]
        self._value_store = self._value_store[rows]
        self.keys = self._key_store[..., :length, :]
        self.values = self._value_store[..., :length, :]


def _grown(old: torch.Tensor, like: torch.Tensor, used: int, needed: int) -> torch.Tensor:
    batch, heads, _, width = like.shape
    store = like.new_empty(batch, heads, max(64, 2 * needed), width)
    if used:
        store[..., :used, :] = old
    return store


class RaggedInputs:
    """What one forward pass over a chunk needs."""

    __slots__ = ("attention_mask", "input_ids", "position_ids")

    def __init__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> None:
        self.input_ids = input_ids
        self.position_ids = position_ids
        self.attention_mask = attention_mask


class RaggedCache:
    """The cache of one batch and the tokens each of its rows holds."""

    def __init__(self, rows: int) -> None:
        self.layers = Cache(layer_class_to_replicate=_GrowingLayer)
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self._valid = torch.zeros(rows, 0, dtype=torch.bool)

    def append(self, chunks: Sequence[Sequence[int]]) -> RaggedInputs:
        """Reserve columns for one chunk per row.

        Args:
            chunks: The new tokens of each row; a row may get none.

        Returns:
            The inputs of the forward pass that fills the columns. Column ``-1`` is every non-empty
            row's last token.
        """
        rows, width = len(chunks), max(len(chunk) for chunk in chunks)
        ids = torch.zeros(rows, width, dtype=torch.long)
        positions = torch.zeros(rows, width, dtype=torch.long)
        fresh = torch.zeros(rows, width, dtype=torch.bool)
        for row, chunk in enumerate(chunks):
            if chunk:
                start = width - len(chunk)
                seen = len(self.tokens[row])
                ids[row, start:] = torch.tensor(chunk)
                positions[row, start:] = torch.arange(seen, seen + len(chunk))
                fresh[row, start:] = True
                self.tokens[row].extend(chunk)
        before = self._valid.shape[1]
        self._valid = torch.cat([self._valid, fresh], dim=1)
        total = before + width
        column = torch.arange(total)
        query = torch.arange(before, total)
        causal = column[None, :] <= query[:, None]
        itself = column[None, :] == query[:, None]
        mask = (self._valid[:, None, :] & causal) | itself
        return RaggedInputs(ids, positions, mask[:, None])

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and drop the others.

        Args:
            rows: Indices of rows.
        """
        if list(rows) == list(range(len(self.tokens))):
            return
        index = torch.tensor(rows, dtype=torch.long)
        for layer in self.layers.layers:
            layer.keep_rows(index)
        self._valid = self._valid[index]
        self.tokens = [self.tokens[row] for row in rows]

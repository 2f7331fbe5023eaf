"""Tiles of a long sum made ahead of the reader, by threads that share the work.

A ring of buffers holds the tiles next in line. Whoever is free takes the lowest tile that nobody
has taken and makes it; the reader, when its tile is not there yet, does the same instead of
waiting. Tiles are taken in order, and the reader's tile has been taken or a buffer is free, so it
cannot wait for ever. A failure in a thread is raised at the reader.

Covered: one reader. Not covered: reading tiles out of order.
"""

import threading
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

Tile = npt.NDArray[np.uint32]

# Buffers per thread: enough to bridge the reader's work on a tile without leaving the cache.
_RING_PER_THREAD: Final = 4


class Maker(Protocol):
    """Makes tiles; each thread has one of its own."""

    def seek(self, word: int) -> None:
        """Go to the word that a tile starts with."""

    def add_next(self, tile: Tile) -> None:
        """Add the next words of the sum to a tile."""

    def wipe(self) -> None:
        """Erase secrets and buffers."""


class TilesAhead:
    """A sum of `words` words, made by len(makers) threads of which the reader's is one."""

    __slots__ = (
        "_buffers",
        "_changed",
        "_closed",
        "_error",
        "_free",
        "_made",
        "_makers",
        "_position",
        "_taken",
        "_threads",
        "_tile_words",
        "_tiles",
        "_words",
    )

    def __init__(self, makers: Sequence[Maker], *, words: int, tile_words: int) -> None:
        self._makers = makers
        self._words = words
        self._tile_words = tile_words
        self._tiles = -(-words // tile_words)
        self._position = 0
        # Guards everything below; held for bookkeeping only, never while a tile is made.
        self._changed = threading.Condition()
        self._taken = 0
        self._made: dict[int, Tile] = {}
        ring = min(self._tiles, _RING_PER_THREAD * len(makers))
        self._buffers = tuple(np.zeros(tile_words, dtype="<u4") for _ in range(ring))
        self._free = list(self._buffers)
        self._error: BaseException | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(maker,), name="keystream", daemon=True)
            for maker in makers[1:]
        ]
        for thread in self._threads:
            thread.start()

    def add_next(self, piece: Tile) -> None:
        """Add the next words of the sum to a piece, which ends within the sum."""
        start = 0
        while start < piece.size:
            number, offset = divmod(self._position, self._tile_words)
            tile = self._wait_for(number)
            count = min(piece.size - start, tile.size - offset)
            target = piece[start : start + count]
            np.add(target, tile[offset : offset + count], out=target)
            start += count
            self._position += count
            if offset + count == tile.size:
                self._give_back(number)

    def close(self) -> None:
        """End the threads and overwrite every buffer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for maker in self._makers:
            maker.wipe()
        for buffer in self._buffers:
            buffer.fill(0)

    def _wait_for(self, number: int) -> Tile:
        while True:
            with self._changed:
                if self._error is not None:
                    raise self._error
                if number in self._made:
                    return self._made[number]
                taken = self._take()
                if taken is None:
                    self._changed.wait()
                    continue
            self._make(self._makers[0], *taken)

    def _give_back(self, number: int) -> None:
        with self._changed:
            tile = self._made.pop(number)
            # The last tile may be shorter than its buffer, and then no other follows.
            if tile.size == self._tile_words:
                self._free.append(tile)
            self._changed.notify_all()

    def _take(self) -> tuple[int, Tile] | None:
        """Take the next tile and a buffer for it; the lock is held."""
        if self._taken == self._tiles or not self._free:
            return None
        number = self._taken
        self._taken += 1
        size = min(self._tile_words, self._words - number * self._tile_words)
        return number, self._free.pop()[:size]

    def _make(self, maker: Maker, number: int, tile: Tile) -> None:
        tile.fill(0)
        maker.seek(number * self._tile_words)
        maker.add_next(tile)
        with self._changed:
            self._made[number] = tile
            self._changed.notify_all()

    def _work(self, maker: Maker) -> None:
        try:
            while True:
                with self._changed:
                    taken = self._take()
                    while taken is None and not self._closed and self._taken < self._tiles:
                        self._changed.wait()
                        taken = self._take()
                    if taken is None or self._closed:
                        return
                self._make(maker, *taken)
        # Handed to the reader, who raises it: a thread has nobody to raise to.
        except BaseException as error:  # noqa: BLE001 (nothing may be lost, an interrupt included)
            with self._changed:
                self._error = error
                self._changed.notify_all()

"""Where a silo keeps the adapter that is its own: one file per round, the newest two.

Two, because a round may be done again after a crash: it then starts from the file of the round
before, never from its own, so nothing is trained twice. Invariants:

1. A file is whole or absent, whatever crashes when, and readable by its owner alone.
2. Writing round r leaves r and the newest round before it, and nothing else.
3. A damaged file is an error. Starting over is the operator's decision, by deleting the directory.

Covered: LoRA factors, all of them or some. Not covered: encryption at rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from evolution.errors import PersonalStoreError
from federation.adapter.encoding import decode_adapter, encode_adapter
from federation.errors import FederationError
from ops.files import replace_file

__all__ = ["PersonalStore"]

_MAX_BYTES = 1 << 30
_NAME = re.compile(r"(\d{10})\.safetensors")


class PersonalStore:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        """Use the silo's own directory for one run and one kind of personal adapter.

        It is made when something is first written.
        """
        self._directory = directory

    def before(self, round_index: int) -> dict[str, np.ndarray] | None:
        """The adapter that a round starts from: that of the newest earlier round, if there is one.

        Raises:
            PersonalStoreError: It cannot be read.
        """
        return self._read(max((r for r in self._rounds() if r < round_index), default=None))

    def newest(self) -> dict[str, np.ndarray] | None:
        """The adapter of the newest round; None if there is none.

        Raises:
            PersonalStoreError: It cannot be read.
        """
        return self._read(max(self._rounds(), default=None))

    def write(self, round_index: int, tensors: Mapping[str, np.ndarray]) -> None:
        """Keep the adapter that a round ended with, float32.

        What was kept of this round, or of a later one, is replaced.

        Raises:
            PersonalStoreError: A value is not finite, or the disk refuses.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._path(round_index), [encode_adapter(dict(tensors))])
            earlier = max((r for r in self._rounds() if r < round_index), default=None)
            for gone in set(self._rounds()) - {round_index, earlier}:
                self._path(gone).unlink()
        except (FederationError, OSError) as error:
            raise PersonalStoreError(f"{self._directory}: {error}") from error

    def _rounds(self) -> list[int]:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        return [int(found[1]) for found in map(_NAME.fullmatch, names) if found]

    def _path(self, round_index: int) -> Path:
        return self._directory / f"{round_index:010d}.safetensors"

    def _read(self, round_index: int | None) -> dict[str, np.ndarray] | None:
        if round_index is None:
            return None
        path = self._path(round_index)
        try:
            return dict(decode_adapter(path.read_bytes(), max_bytes=_MAX_BYTES))
        except (FederationError, OSError) as error:
            raise PersonalStoreError(f"{path}: {error}") from error

"""What an unfinished run needs to go on: kept after each round, so that a kill costs one round.

::

    state/round-000007.json    digest of what follows; rows so far, counters, names of blobs
    state/blobs/SHA256         adapters and aggregation state (safetensors), files of the stores

A round's state is whole by itself: the adapter of each circle, the state of its aggregation and of
its sums, and every file of the silos' stores (success buffers, personal adapters) as it was between
two rounds. What did not change from one round to the next is one blob.

Invariants:
    1. Blobs are on the disk before the file that names them, and that file appears at once
       (``ops.files.replace_file``): a kill at any point leaves the newest round that was kept.
    2. The newest two rounds are kept, and no blob that neither of them names.
    3. Nothing is taken up whose digests do not agree. Where the newest round is damaged the one
       before it is taken up, and the log says so; where there is none that is whole, that is an
       error, and nothing is overwritten.
    4. A state belongs to the run whose digest it has and to the versions that made it. One of
       another run or of other versions is never taken up; it is removed, and the log says so.
    5. Nothing in it can run code: JSON, safetensors, and bytes of files that go where they were.

Covered: crashes at any point, damaged files. Not covered: two processes with one directory
(``results.py`` holds a lock).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from federation.adapter.encoding import decode_adapter, encode_adapter
from federation.errors import FederationError
from lab.experiment.config import Run
from lab.experiment.errors import StateError
from lab.experiment.federation_round import CircleState
from lab.experiment.rows import Row
from lab.experiment.tables import Section
from ops.files import is_partial, private_directory, replace_file

__all__ = ["Kept", "RunStates", "remove_states"]

_DIRECTORY: Final = "state"
_BLOBS: Final = "blobs"
_NAME: Final = re.compile(r"round-(\d{6})\.json")
_KEPT: Final = 2
_MAX_HEAD_BYTES: Final = 1 << 28
_MAX_BLOB_BYTES: Final = 1 << 32
_DATABASE: Final = ".sqlite"
_BESIDE_DATABASE: Final = ("-journal", "-wal", "-shm")

_Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Path = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*){0,7}$")
]
_Count = Annotated[int, Field(ge=0, le=1 << 53)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A run between two rounds; before the first one by default."""

    round: int = 0
    """How many rounds are done."""
    rows: Sequence[Row] = ()
    """Of these rounds."""
    episodes: int = 0
    """Explored so far."""
    wall_s: float = 0.0
    """What they took."""
    circles: Sequence[CircleState] = ()
    """Circle after circle."""


class _Circle(Section):
    """A circle by its blobs."""

    adapter: _Sha
    aggregation: _Sha
    sums: Annotated[tuple[_Count, ...], Field(max_length=1024)]
    ended: Annotated[tuple[_Sha, ...], Field(max_length=10_001)] = ()
    restored: dict[_Count, _Count] = Field(default_factory=dict, max_length=10_000)
    back_to: _Count | None = None
    record: _Sha | None = None


class _Head(Section):
    """A round's file."""

    format: Literal["chorale/lab-state/v1"]
    run_sha256: _Sha
    versions: dict[str, str]
    round: Annotated[int, Field(ge=1, le=10_000)]
    rows: list[dict[str, Any]]
    episodes: _Count
    wall_s: Annotated[float, Field(ge=0)]
    circles: Annotated[tuple[_Circle, ...], Field(min_length=1, max_length=1024)]
    stores: dict[_Path, _Sha]

    def blobs(self) -> Iterator[str]:
        """Every blob that it names."""
        for circle in self.circles:
            yield from (circle.adapter, circle.aggregation, *circle.ended)
            if circle.record is not None:
                yield circle.record
        yield from self.stores.values()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStates:
    """The states of one run, in ``state`` of its directory."""

    directory: Path
    """The run's."""
    run: Run
    """Whose."""
    versions: Mapping[str, str]
    """Of what computes it."""
    say: Callable[[str], None]
    """Takes a line for the run's log."""

    def take_up(self, stores: Path) -> Kept | None:
        """The newest state that is whole; None where there is none at all.

        The silos' files are written into ``stores``, which is made and must be empty.

        Raises:
            StateError: There are states of this run, and none is whole.
        """
        damaged: list[str] = []
        for path in self._heads():
            try:
                head = self._read(path)
                if head.run_sha256 != self.run.sha256 or head.versions != dict(self.versions):
                    self.say(f"{path} is of another run or of other versions: it is removed")
                    path.unlink()
                    continue
                kept = self._opened(head)
                for name, sha256 in head.stores.items():
                    self._restore(stores / name, sha256)
            except StateError as error:
                damaged.append(f"{path}: {error}")
                self.say(f"{path} is damaged and not taken up: {error}")
                shutil.rmtree(stores, ignore_errors=True)
                continue
            self.say(f"the run goes on after round {kept.round}")
            return kept
        if damaged:
            raise StateError(
                f"nothing whole is left of the rounds that were done ({'; '.join(damaged)}): "
                f"remove {self.directory / _DIRECTORY}, and the run begins again"
            )
        return None

    def keep(self, kept: Kept, stores: Path) -> None:
        """Keep the state after a round, durably, and let go of all but the newest two.

        Raises:
            OSError: The disk refused; the states are as they were.
        """
        private_directory(self.directory / _DIRECTORY)
        private_directory(self._blobs)
        head = _Head(
            format="chorale/lab-state/v1",
            run_sha256=self.run.sha256,
            versions=dict(self.versions),
            round=kept.round,
            rows=list(kept.rows),
            episodes=kept.episodes,
            wall_s=kept.wall_s,
            circles=tuple(
                _Circle(
                    adapter=self._blob(encode_adapter(dict(circle.adapter))),
                    aggregation=self._blob(save(_contiguous(circle.aggregation))),
                    sums=circle.sums,
                    ended=tuple(self._blob(encode_adapter(dict(one))) for one in circle.ended),
                    restored=dict(circle.restored),
                    back_to=circle.back_to,
                    record=self._blob(circle.record) if circle.record else None,
                )
                for circle in kept.circles
            ),
            stores={
                path.relative_to(stores).as_posix(): self._blob(_content(path))
                for path in sorted(stores.rglob("*"))
                if path.is_file() and not _is_passing(path)
            },
        )
        text = head.model_dump_json().encode()
        name = f"round-{kept.round:06d}.json"
        replace_file(
            self.directory / _DIRECTORY / name, (_sha256(text).encode(), b"\n", text, b"\n")
        )
        self._let_go()

    @property
    def _blobs(self) -> Path:
        return self.directory / _DIRECTORY / _BLOBS

    def _heads(self) -> list[Path]:
        """The files of rounds, the newest first."""
        with contextlib.suppress(FileNotFoundError):
            found = (self.directory / _DIRECTORY).iterdir()
            return sorted((p for p in found if _NAME.fullmatch(p.name)), reverse=True)
        return []

    def _read(self, path: Path) -> _Head:
        """A round's file.

        Raises:
            StateError: It is damaged.
        """
        digest, _, rest = _bytes_of(path, max_bytes=_MAX_HEAD_BYTES).partition(b"\n")
        text = rest.removesuffix(b"\n")
        if digest != _sha256(text).encode():
            raise StateError("its digest is another one")
        try:
            head = _Head.model_validate_json(text)
        except ValidationError as error:
            raise StateError(f"it is no state of a round: {error}") from error
        if f"round-{head.round:06d}.json" != path.name:
            raise StateError("it is that of another round")
        return head

    def _opened(self, head: _Head) -> Kept:
        try:
            circles = [
                CircleState(
                    adapter=self._adapter(one.adapter),
                    aggregation=load(self._verified(one.aggregation)),
                    sums=one.sums,
                    ended=tuple(map(self._adapter, one.ended)),
                    restored=one.restored,
                    back_to=one.back_to,
                    record=b"" if one.record is None else self._verified(one.record),
                )
                for one in head.circles
            ]
        except (FederationError, SafetensorError) as error:
            raise StateError(f"a blob is no adapter or no state: {error}") from error
        return Kept(
            round=head.round,
            rows=head.rows,
            episodes=head.episodes,
            wall_s=head.wall_s,
            circles=circles,
        )

    def _adapter(self, sha256: str) -> dict[str, np.ndarray]:
        return decode_adapter(self._verified(sha256), max_bytes=_MAX_BLOB_BYTES)

    def _restore(self, path: Path, sha256: str) -> None:
        content = self._verified(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)

    def _verified(self, sha256: str) -> bytes:
        """A blob.

        Raises:
            StateError: It is absent or damaged.
        """
        content = _bytes_of(self._blobs / sha256, max_bytes=_MAX_BLOB_BYTES)
        if _sha256(content) != sha256:
            raise StateError(f"blob {sha256} has another digest")
        return content

    def _blob(self, content: bytes) -> str:
        """Keep a blob; again changes nothing, unless what is there is damaged."""
        sha256 = _sha256(content)
        path = self._blobs / sha256
        try:
            self._verified(sha256)
        except StateError:
            replace_file(path, (content,))
        return sha256

    def _let_go(self) -> None:
        """Remove what neither of the newest two states needs."""
        heads = self._heads()
        needed: set[str] = set()
        for path in heads[:_KEPT]:
            # What cannot be read is worth nothing, and its blobs cannot be known.
            with contextlib.suppress(StateError):
                needed.update(self._read(path).blobs())
        for path in heads[_KEPT:]:
            path.unlink()
        for directory in (self.directory / _DIRECTORY, self._blobs):
            for path in directory.iterdir():
                if is_partial(path) or (directory == self._blobs and path.name not in needed):
                    path.unlink()


def remove_states(directory: Path) -> None:
    """Remove the states of a run, given its directory; there may be none."""
    shutil.rmtree(directory / _DIRECTORY, ignore_errors=True)


def _content(path: Path) -> bytes:
    """A file of a store, between two rounds."""
    if path.suffix != _DATABASE:
        return path.read_bytes()
    # Through SQLite, which reads what is committed: opening the file itself and closing it again
    # would end the locks that this process holds on it.
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        return database.serialize()


def _is_passing(path: Path) -> bool:
    """Whether a file is one that its writer removes again, or what a crash left of one."""
    return is_partial(path) or path.name.endswith(
        tuple(f"{_DATABASE}{suffix}" for suffix in _BESIDE_DATABASE)
    )


def _contiguous(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _bytes_of(path: Path, *, max_bytes: int) -> bytes:
    """A file's content.

    Raises:
        StateError: It is absent, unreadable or too large.
    """
    try:
        if path.stat().st_size > max_bytes:
            raise StateError(f"{path} is larger than {max_bytes} bytes")
        return path.read_bytes()
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error}") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""Where uploads become a sum: a spool for each upload in flight, two generations of the sum.

Generation k holds k uploads, in the file of its parity. A fold reads generation k and the spool
tile by tile, writes generation k + 1 over generation k - 1, syncs it, and only then is k + 1
committed by the caller's transaction. Whenever the process or the machine stops, the committed
generation is whole on disk, and either it holds the upload or the upload's spool is still there.

Ordered invariants:

1. Nothing is committed unless the bytes that were folded are the signed ones. In suite v1 they are
   hashed while they are folded. From suite v2 on each chunk is checked against its leaf before it
   is written to the spool, and hashed again while it is folded only if an earlier process left it.
   Either way, what a crash left in a spool need not be trusted before.
2. An upload enters the sum once; its spool is deleted after the commit.
3. Memory is O(tile). Disk is two vectors and the uploads in flight, whatever the number of silos;
   the result is written over the generation that is no longer needed.
4. A chunk past the announced length is refused before it is written.
5. A stream that outlived its attempt cannot write into a later one's spool: every attempt has a
   directory of its own.
6. From suite v2 on a spool ends at a border of the digest tree's chunks: a bad chunk leaves it as
   it was, and the silo goes on from there.

Covered: truncated, extended, repeated and corrupted uploads; resuming at an offset, also after a
restart; a crash at any instant of a fold or a release. Not covered: a power cut may leave bytes in
a spool that were never written: the digest finds them and the silo starts again at offset zero. A
disk that gives back other bytes than this process wrote: v1's digest finds it, v2 does not look
again.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from ops.files import sync_directory
from secagg import digest_tree
from secagg.errors import Check, VerificationError
from secagg.prg import Vector
from secagg.server.folding import Fold, Hasher
from server.errors import LostAttemptError, StorageFullError, UploadError

__all__ = ["Accumulator", "Chunk", "Upload", "clear_scratch"]

MAX_CHUNK_BYTES = digest_tree.CHUNK_BYTES
TILE_BYTES = MAX_CHUNK_BYTES
WORD_BYTES = 4
ATTEMPT_OVER = "the attempt that this upload was for is over"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes that an upload takes at an offset, once they were checked."""

    offset_bytes: int
    content: bytes


class Upload:
    """One silo's masked vector on its way in.

    ``digest_id`` is the descriptor's from suite v2 on: ``sha256`` is then the root of the digest
    tree, and chunks are taken whole and in order, after the leaf list. 0 stands for suite v1.
    """

    def __init__(
        self, path: Path, *, silo_id: str, length_bytes: int, sha256: bytes, digest_id: int = 0
    ) -> None:
        self.path = path
        self.silo_id = silo_id
        self.sha256 = sha256
        self.length_bytes = length_bytes
        self.digest_id = digest_id
        self.queued = False
        """A fold of it is running, or waits for its turn."""
        self._leaves = b""
        path.touch(mode=0o600)
        found = path.stat().st_size
        kept = self._border(found)
        if kept != found:
            os.truncate(path, kept)
        self.received_bytes = kept
        self._left_by_another = kept > 0

    def take_leaves(self, leaves: bytes) -> None:
        """Take the leaf list of the digest tree, before the first chunk.

        Raises:
            VerificationError: digest_leaf; suite, if this upload has no tree.
        """
        if not self.digest_id:
            if leaves:
                raise VerificationError(
                    Check.SUITE, "suite v1 knows no digest tree", silo=self.silo_id
                )
            return
        if leaves == self._leaves:
            return
        digest_tree.check_leaves(
            leaves, self.length_bytes, self.digest_id, self.sha256, silo=self.silo_id
        )
        self._leaves = leaves

    def check(self, offset_bytes: int, content: bytes) -> Chunk:
        """Check one chunk before it is written; nothing changes, so any thread may do it.

        Raises:
            UploadError: The chunk is empty, too big, or none of the digest tree's.
            VerificationError: digest_leaf.
        """
        if not 0 < len(content) <= MAX_CHUNK_BYTES:
            raise UploadError(f"a chunk has 1 to {MAX_CHUNK_BYTES} bytes, not {len(content)}")
        if self.digest_id:
            index, past_border = divmod(offset_bytes, MAX_CHUNK_BYTES)
            whole = min(MAX_CHUNK_BYTES, self.length_bytes - offset_bytes)
            if past_border or len(content) != whole:
                raise UploadError(f"{len(content)} bytes at {offset_bytes} are no whole chunk")
            digest_tree.check_chunk(self._leaves, index, content, self.digest_id, silo=self.silo_id)
        return Chunk(offset_bytes, content)

    def put(self, chunk: Chunk) -> None:
        """Write one chunk at its offset.

        Raises:
            UploadError: the chunk leaves a gap or runs past the end, or the attempt is over.
            StorageFullError: the disk is full.
        """
        offset_bytes, content = chunk.offset_bytes, chunk.content
        if offset_bytes != self.received_bytes:
            raise UploadError(
                f"the next chunk starts at byte {self.received_bytes}, not {offset_bytes}: "
                "ask GetUploadOffset and resume there"
            )
        if offset_bytes + len(content) > self.length_bytes:
            raise UploadError(f"the upload is longer than its signed {self.length_bytes} bytes")
        with _file_errors(), self.path.open("r+b", buffering=0) as spool:
            spool.seek(offset_bytes)
            _write_all(spool, memoryview(content))
        self.received_bytes += len(content)

    def append(self, offset_bytes: int, content: bytes) -> None:
        """Check one chunk and write it.

        Raises:
            UploadError, VerificationError, StorageFullError: as ``check`` and ``put``.
        """
        self.put(self.check(offset_bytes, content))

    def hasher(self) -> Hasher | None:
        """What the bytes are hashed with while they are folded; None if all were checked before.

        It is given one tile, which is one chunk of the tree, after the other.
        """
        if not self.digest_id:
            return hashlib.sha256()
        if not self._left_by_another:
            return None
        return digest_tree.TreeHasher(self.length_bytes, self.digest_id, threads=1)

    @property
    def complete(self) -> bool:
        """Whether every announced byte has arrived."""
        return self.received_bytes == self.length_bytes

    def rewind(self) -> None:
        """Forget the last chunk, so that a silo that asks where to resume sends it again.

        A spool that is whole but was not folded would otherwise wait for a stream that its silo
        thinks it has ended.
        """
        self._truncate((self.length_bytes - 1) // MAX_CHUNK_BYTES * MAX_CHUNK_BYTES)

    def discard(self) -> None:
        """Forget every byte; the silo may start again at offset zero."""
        self._truncate(0)
        self._left_by_another = False

    def _truncate(self, length_bytes: int) -> None:
        with _file_errors():
            os.truncate(self.path, length_bytes)
        self.received_bytes = length_bytes

    def _border(self, found_bytes: int) -> int:
        """How much of what a spool holds is kept when it is opened."""
        if found_bytes > self.length_bytes:
            return 0
        if not self.digest_id or found_bytes == self.length_bytes:
            return found_bytes
        return found_bytes // MAX_CHUNK_BYTES * MAX_CHUNK_BYTES


class Accumulator:
    """The running sum modulo 2^32 of one attempt, in a directory of its own."""

    def __init__(self, directory: Path, *, length: int) -> None:
        """Start at zero; whatever the directory held is deleted."""
        self._directory = directory
        self.length = length
        self.generation = 0
        """How many uploads are in the committed sum."""
        shutil.rmtree(directory, ignore_errors=True)
        try:
            directory.mkdir(parents=True, mode=0o700)
            for generation in (0, 1):
                with self._path(generation).open("xb") as file:
                    # Reserved now: a disk that is full later would cost silos what they charged.
                    os.posix_fallocate(file.fileno(), 0, WORD_BYTES * length)
                    os.fsync(file.fileno())
            sync_directory(directory)
        except OSError as error:
            raise StorageFullError(
                f"cannot reserve {2 * WORD_BYTES * length} bytes: {error}"
            ) from error

    @classmethod
    def reopen(cls, directory: Path, *, length: int, generation: int) -> Self:
        """Go on after a restart with the generation that was committed.

        Raises:
            LostAttemptError: its file is gone.
            StorageFullError: nothing was folded, the files are gone, and there is no room for new.
        """
        if generation == 0 and not directory.is_dir():
            return cls(directory, length=length)
        self = cls.__new__(cls)
        self._directory, self.length, self.generation = directory, length, generation
        for number in (generation, generation + 1):
            path = self._path(number)
            if not path.is_file() or path.stat().st_size != WORD_BYTES * length:
                raise LostAttemptError(f"the sum of {generation} uploads is not in {directory}")
        return self

    def open_upload(
        self, silo_id: str, *, length_bytes: int, sha256: bytes, digest_id: int = 0
    ) -> Upload:
        """Start the spool of one silo, or go on with the one that a restart left.

        Raises:
            UploadError: the announced length is not four bytes a coordinate.
        """
        if length_bytes != WORD_BYTES * self.length:
            raise UploadError(
                f"this aggregation takes {WORD_BYTES * self.length} bytes, "
                f"the header says {length_bytes}"
            )
        with _file_errors():
            return Upload(
                self._spool(silo_id),
                silo_id=silo_id,
                length_bytes=length_bytes,
                sha256=sha256,
                digest_id=digest_id,
            )

    def keep_spools(self, silo_ids: frozenset[str]) -> None:
        """Delete the spools of everyone else: what a restart found folded, or too late."""
        kept = {self._spool(silo_id) for silo_id in silo_ids}
        for path in self._directory.glob("*.masked"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def fold(self, upload: Upload, commit: Callable[[int], None]) -> None:
        """Add a finished upload to the sum, tile by tile, and delete its spool.

        ``commit`` makes the generation it is given the current one, durably; it may be called again
        with the same one after it failed.

        Raises:
            UploadError: bytes are missing, or they are not the signed ones.
        """
        if not upload.complete:
            raise UploadError(f"{upload.length_bytes - upload.received_bytes} bytes are missing")
        following = self.generation + 1
        with _file_errors(), ExitStack() as files:
            current = files.enter_context(self._path(self.generation).open("rb", buffering=0))
            spool = files.enter_context(upload.path.open("rb", buffering=0))
            target = files.enter_context(self._path(following).open("r+b", buffering=0))
            fold = files.enter_context(Fold(upload.hasher()))
            for total, masked in zip(self._tiles(current), self._tiles(spool), strict=True):
                fold.add(total, masked)
                _write_all(target, total.data.cast("B"))
            digest = fold.digest()
            signed = digest is None or hmac.compare_digest(digest, upload.sha256)
            if signed:
                os.fsync(target.fileno())
        if not signed:
            upload.discard()
            raise UploadError("the bytes are not those of the signed digest")
        commit(following)
        self.generation = following
        upload.path.unlink(missing_ok=True)

    def committed(self) -> Vector:
        """Map the current sum, read-only."""
        return self._map(self.generation)

    def release(self, unmask: Callable[[Vector], None]) -> Vector:
        """Write the sum without its masks over the generation before; repeatable after a crash.

        ``unmask`` takes the masks off in place, of one piece of the vector after another. The
        result is a read-only map that stays valid when the files are deleted.
        """
        with _file_errors(), ExitStack() as files:
            current = files.enter_context(self._path(self.generation).open("rb", buffering=0))
            result = files.enter_context(self._path(self.generation + 1).open("r+b", buffering=0))
            for tile in self._tiles(current):
                unmask(tile)
                _write_all(result, tile.data.cast("B"))
        return self._map(self.generation + 1)

    def close(self) -> None:
        """Delete everything this attempt wrote."""
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._directory.exists():
            raise UploadError(f"could not delete the accumulator at {os.fspath(self._directory)}")

    def _path(self, generation: int) -> Path:
        return self._directory / f"sum.{generation % 2}.u32"

    def _spool(self, silo_id: str) -> Path:
        return self._directory / f"{silo_id}.masked"

    def _map(self, generation: int) -> Vector:
        return np.memmap(self._path(generation), dtype="<u4", mode="r", shape=(self.length,))

    def _tiles(self, file: BinaryIO) -> Iterator[Vector]:
        """The vector in a file, tile by tile, in two buffers that take turns."""
        words = min(TILE_BYTES // WORD_BYTES, self.length)
        buffers = itertools.cycle([np.empty(words, dtype="<u4") for _ in range(2)])
        for start, buffer in zip(range(0, self.length, words), buffers, strict=False):
            tile = buffer[: min(words, self.length - start)]
            _read_all(file, tile.data.cast("B"))
            yield tile


def clear_scratch(scratch: Path, keep: Path | None) -> None:
    """Delete what attempts that ended, or were never opened, left in the scratch directory.

    It holds a directory for each run, and in it one for each attempt; ``keep`` is that of the
    attempt that goes on.
    """
    for path in scratch.glob("*/*"):
        if path == keep:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for run in scratch.glob("*"):
        if run.is_dir() and not any(run.iterdir()):
            run.rmdir()


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UploadError(ATTEMPT_OVER) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(f"no space for an upload: {error}") from error
        raise


def _write_all(file: BinaryIO, content: memoryview) -> None:
    while content:
        content = content[file.write(content) :]


def _read_all(file: BinaryIO, content: memoryview) -> None:
    while content:
        count = file.readinto(content)  # type: ignore[attr-defined]  # raw files have it
        if not count:
            raise UploadError("a file of this attempt is shorter than it was")
        content = content[count:]

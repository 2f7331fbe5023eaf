"""The digest tree of an upload: one hash a chunk, so that a chunk is checked before it is used.

Of `total` bytes in n = ⌈total / 1 MiB⌉ chunks, integers big-endian::

    leaf = H(0x00 ‖ index u64 ‖ len u32 ‖ chunk)
    root = H(0x01 ‖ suite u32 ‖ digest id u8 ‖ chunk_bytes u32 ‖ n u64 ‖ total u64 ‖ leaves)

The descriptor says which hash and, by its length, how many bytes; so a leaf list has exactly 32·n
bytes before any of it is believed. A silo signs the root alone. Chunks are independent, so they are
hashed on all cores: both hashes release the interpreter.

Covered: leaves, roots, bytes given in pieces of any size, a leaf list and a chunk that are not the
signed ones. Not covered: where the bytes come from and go to. BLAKE3 needs the extra
``chorale[blake3]``.
"""

import hashlib
import hmac
import os
import struct
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Protocol, Self

from secagg import bounds, hybrid
from secagg.errors import Check, ParameterError, VerificationError

CHUNK_BYTES: Final = 1 << 20
SHA256: Final = 1
BLAKE3: Final = 2
DIGESTS: Final = {SHA256: "sha256", BLAKE3: "blake3"}
LEAF_BYTES: Final = 32
ALL_CORES: Final = os.cpu_count() or 1
_LEAF: Final = struct.Struct(">BQI")
_ROOT: Final = struct.Struct(">BIBIQQ")
Content = bytes | bytearray | memoryview


class _Hash(Protocol):
    def update(self, data: Content, /) -> object: ...

    def digest(self) -> bytes: ...


def is_available(digest_id: int) -> bool:
    """Tell whether this machine can compute a digest; False of an unknown one too."""
    if digest_id not in DIGESTS:
        return False
    try:
        _start(digest_id)
    except ParameterError:
        return False
    return True


def chunk_count(total_bytes: int) -> int:
    """Return n, which is at least 1.

    Raises:
        ParameterError: There are no bytes.
    """
    if not 1 <= total_bytes <= bounds.UINT64_MAX:
        raise ParameterError("a digest tree is over at least one byte")
    return -(-total_bytes // CHUNK_BYTES)


def leaf(index: int, chunk: Content, digest_id: int) -> bytes:
    """Return the leaf of one chunk.

    Raises:
        ParameterError: The index, the length or the digest is none.
    """
    return _leaf(index, (memoryview(chunk).cast("B"),), digest_id)


def root_of(leaves: Content, total_bytes: int, digest_id: int) -> bytes:
    """Return the root over a leaf list.

    Raises:
        ParameterError: The list is not as long as the bytes demand, or the digest is none.
    """
    count = chunk_count(total_bytes)
    if memoryview(leaves).nbytes != LEAF_BYTES * count:
        raise ParameterError(f"{total_bytes} bytes have {count} leaves of {LEAF_BYTES} bytes")
    whole = _start(digest_id)
    whole.update(_ROOT.pack(1, hybrid.SUITE, digest_id, CHUNK_BYTES, count, total_bytes))
    whole.update(leaves)
    return whole.digest()


def check_leaves(
    leaves: bytes, total_bytes: int, digest_id: int, root: bytes, *, silo: str | None = None
) -> None:
    """Check a leaf list that came from outside against the signed root.

    Raises:
        VerificationError: digest_leaf.
        ParameterError: The digest is none, or there are no bytes.
    """
    if len(leaves) != LEAF_BYTES * chunk_count(total_bytes):
        raise VerificationError(
            Check.DIGEST_LEAF, "the leaf list is not as long as the upload demands", silo=silo
        )
    if not hmac.compare_digest(root_of(leaves, total_bytes, digest_id), root):
        raise VerificationError(
            Check.DIGEST_LEAF, "the leaf list is not that of the signed root", silo=silo
        )


def check_chunk(
    leaves: bytes, index: int, chunk: Content, digest_id: int, *, silo: str | None = None
) -> None:
    """Check one chunk against a leaf list that was checked.

    Raises:
        VerificationError: digest_leaf.
        ParameterError: The index, the length or the digest is none.
    """
    expected = leaves[LEAF_BYTES * index : LEAF_BYTES * (index + 1)]
    if not hmac.compare_digest(leaf(index, chunk, digest_id), expected):
        raise VerificationError(
            Check.DIGEST_LEAF, f"chunk {index} is not the one that was signed", silo=silo
        )


class TreeHasher:
    """The digest tree of bytes that come piece by piece; a context, so that its threads end.

    A piece must stay as it is until `leaves` or `root`: it is not copied. `threads` threads hash,
    the caller's included when the others are behind, so that memory beyond the pieces is the leaf
    list and at most two chunks a thread are kept waiting.
    """

    __slots__ = (
        "_digest_id",
        "_executor",
        "_gathered",
        "_given",
        "_hashing",
        "_leaves",
        "_threads",
        "_total_bytes",
    )

    def __init__(self, total_bytes: int, digest_id: int, *, threads: int = ALL_CORES) -> None:
        """Start.

        Raises:
            ParameterError: There are no bytes, or the digest is none of this machine's.
        """
        count = chunk_count(total_bytes)
        _start(digest_id)
        self._total_bytes = total_bytes
        self._digest_id = digest_id
        self._leaves = bytearray(LEAF_BYTES * count)
        self._given = 0
        # The pieces of the chunk at hand.
        self._gathered: list[memoryview] = []
        self._threads = min(threads, count)
        self._executor: ThreadPoolExecutor | None = None
        self._hashing: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def update(self, piece: Content) -> None:
        """Take the next bytes.

        Raises:
            ParameterError: They run past the total; nothing changed.
        """
        view = memoryview(piece).cast("B")
        if self._given + len(view) > self._total_bytes:
            raise ParameterError(f"more than the {self._total_bytes} bytes of this tree")
        while view:
            index, offset = divmod(self._given, CHUNK_BYTES)
            end = min(CHUNK_BYTES, self._total_bytes - index * CHUNK_BYTES)
            part, view = view[: end - offset], view[end - offset :]
            self._gathered.append(part)
            self._given += len(part)
            if offset + len(part) == end:
                chunk, self._gathered = tuple(self._gathered), []
                self._end_chunk(index, chunk)

    def leaves(self) -> bytes:
        """Return the leaf list.

        Raises:
            ParameterError: Bytes are missing.
        """
        if self._given != self._total_bytes:
            raise ParameterError(f"{self._given} of {self._total_bytes} bytes were given")
        while self._hashing:
            self._hashing.popleft().result()
        self._stop()
        return bytes(self._leaves)

    def root(self) -> bytes:
        """Return the root.

        Raises:
            ParameterError: Bytes are missing.
        """
        return root_of(self.leaves(), self._total_bytes, self._digest_id)

    def digest(self) -> bytes:
        """Return the root, by the name that hashlib's objects have for it."""
        return self.root()

    def _end_chunk(self, index: int, chunk: tuple[memoryview, ...]) -> None:
        workers = self._threads - 1
        while self._hashing and self._hashing[0].done():
            self._hashing.popleft().result()
        if len(self._hashing) >= 2 * workers:
            self._hash(index, chunk)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(workers, thread_name_prefix="digest-tree")
        self._hashing.append(self._executor.submit(self._hash, index, chunk))

    def _hash(self, index: int, chunk: tuple[memoryview, ...]) -> None:
        start = LEAF_BYTES * index
        self._leaves[start : start + LEAF_BYTES] = _leaf(index, chunk, self._digest_id)

    def _stop(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None


def _leaf(index: int, pieces: tuple[memoryview, ...], digest_id: int) -> bytes:
    length = sum(len(piece) for piece in pieces)
    if not 0 <= index <= bounds.UINT64_MAX or not 1 <= length <= CHUNK_BYTES:
        raise ParameterError(f"a chunk has an index and 1 to {CHUNK_BYTES} bytes")
    content = _start(digest_id)
    content.update(_LEAF.pack(0, index, length))
    for piece in pieces:
        content.update(piece)
    return content.digest()


def _start(digest_id: int) -> _Hash:
    if digest_id == SHA256:
        return hashlib.sha256()
    if digest_id != BLAKE3:
        raise ParameterError(f"there is no digest {digest_id}")
    try:
        import blake3
    except ImportError as error:
        raise ParameterError(
            "this machine cannot compute BLAKE3: install chorale[blake3]"
        ) from error
    return blake3.blake3()

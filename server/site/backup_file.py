"""The file of a backup: a plain tar whose first member lists all others with size and SHA-256.

The manifest comes first, so that a reader knows what is to come before it writes a byte. Any tar
program lists and unpacks the file; this reader accepts only what this writer makes.

Invariants of the reader:

1. Every member is a regular file whose name ``NAMES`` allows: no link, device, directory, absolute
   path or ``..``, no extended header, no name twice.
2. The members are those of the manifest, in its order, with its sizes and digests. A file that is
   cut, altered, extended or reordered is a ``BackupError`` that names the first bad member.
3. What the manifest announces is bounded, one by one and in sum, before any of it is read.

Covered: accidents, and hostile files. Not covered: who made the file; whoever can replace it can
replace its manifest too.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from server.errors import BackupError

__all__ = ["BackupReader", "Manifest", "Member", "write_backup"]

FORMAT: Final = "chorale-backup/1"
MANIFEST: Final = "manifest.json"
NAMES: Final = re.compile(
    r"coordinator\.toml|coordinator\.db|protocol\.key|root\.pub|audit\.jsonl"
    r"|(?:pki|admin)(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,79}){1,3}"
    r"|adapters/[0-9a-f]{2}/[0-9a-f]{64}"
)
MAX_MANIFEST_BYTES: Final = 256 << 20
MAX_FILES: Final = 1_000_000
MAX_FILE_BYTES: Final = 1 << 40
MAX_TEXT: Final = 200
BLOCK: Final = 512
PIECE: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One file of the backup."""

    name: str
    """Where it belongs in the data directory."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a backup holds."""

    taken_at: str
    """RFC 3339, UTC."""
    version: str
    """Of chorale, that made it."""
    schema: str
    """Revision of ``coordinator.db``."""
    audit_index: int
    """Of the newest audit record."""
    audit_sha256: str
    """Of that record."""
    adapters_url: str
    """Where the adapters are, if not in this file; empty otherwise."""
    blobs: tuple[str, ...]
    """SHA-256 of every adapter and sum that a record names."""
    files: tuple[Member, ...]
    """In the order in which they follow."""

    def encode(self) -> bytes:
        """Return the JSON document."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Read and check a document.

        Raises:
            BackupError: It is not one that :meth:`encode` makes.
        """
        try:
            fields = json.loads(content)
            if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
                raise BackupError(f"the manifest is not of the form {FORMAT}")
            files = tuple(_member(item) for item in _listed(fields.pop("files")))
            blobs = tuple(_digest(item) for item in _listed(fields.pop("blobs")))
            manifest = cls(files=files, blobs=blobs, **{k: _scalar(v) for k, v in fields.items()})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BackupError("the manifest cannot be read") from error
        _number(manifest.audit_index)
        names = [member.name for member in files]
        if len(set(names)) != len(names):
            raise BackupError("the manifest names a file twice")
        return manifest


def write_backup(
    sink: BinaryIO, manifest: Manifest, contents: Mapping[str, Path | bytes], *, at_unix_s: int
) -> None:
    """Write the file to a stream, which need not be seekable.

    ``contents`` has each file that the manifest lists by its name; a path's bytes are read now.
    ``at_unix_s`` is for the members' times.

    Raises:
        BackupError: A file is not what the manifest says any more.
        OSError: Something cannot be read or written.
    """
    document = manifest.encode()
    first = Member(
        name=MANIFEST, size_bytes=len(document), sha256=hashlib.sha256(document).hexdigest()
    )
    for member in (first, *manifest.files):
        content = document if member is first else contents[member.name]
        sink.write(_header(member, at_unix_s))
        digest, left = hashlib.sha256(), member.size_bytes
        for piece in _pieces(content):
            digest.update(piece)
            left -= len(piece)
            sink.write(piece)
        if left or digest.hexdigest() != member.sha256:
            raise BackupError(f"{member.name} is not what it is named, or changed meanwhile")
        sink.write(bytes(-member.size_bytes % BLOCK))
    sink.write(bytes(2 * BLOCK))


class BackupReader:
    """Reads a file once, from its beginning to its end."""

    def __init__(self, source: BinaryIO) -> None:
        """Read the manifest.

        Raises:
            BackupError: The file is no backup, or announces what cannot be.
        """
        self._source = source
        size = self._member(MANIFEST)
        if size > MAX_MANIFEST_BYTES:
            raise BackupError("the manifest is too long")
        self.manifest = Manifest.decode(b"".join(self._content(size)))

    def files(self) -> Iterator[tuple[Member, Iterator[bytes]]]:
        """Go through the files; each one's bytes must be read to the end before the next.

        The last piece of a file comes before its digest is checked: nothing may be used before the
        iteration is over.

        Raises:
            BackupError: The file is not what its manifest says.
        """
        for member in self.manifest.files:
            if self._member(member.name) != member.size_bytes:
                raise BackupError(f"{member.name} is not as long as the manifest says")
            yield member, self._checked(member)
        if self._block() != bytes(BLOCK):
            raise BackupError("the file goes on behind what its manifest lists")

    def _checked(self, member: Member) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for piece in self._content(member.size_bytes):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != member.sha256:
            raise BackupError(f"{member.name} was altered")

    def _member(self, name: str) -> int:
        """Read a header, which must be this file's; returns its size."""
        block = self._block()
        try:
            header = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise BackupError(f"the file is no backup, or is cut, before {name}") from error
        if header.type != tarfile.REGTYPE or header.linkname or header.name != name:
            raise BackupError(f"something else than the regular file {name} is in its place")
        if not 0 <= header.size <= MAX_FILE_BYTES:
            raise BackupError(f"{name} is too long")
        return header.size

    def _content(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            piece = self._source.read(min(left, PIECE))
            if not piece:
                raise BackupError("the file is cut")
            left -= len(piece)
            yield piece
        padding = -size % BLOCK
        if len(self._exactly(padding)) != padding:
            raise BackupError("the file is cut")

    def _block(self) -> bytes:
        return self._exactly(BLOCK)

    def _exactly(self, size: int) -> bytes:
        """So many bytes, fewer only at the end; a pipe may give them piece by piece."""
        content = b""
        while len(content) < size:
            piece = self._source.read(size - len(content))
            if not piece:
                break
            content += piece
        return content


def _header(member: Member, at_unix_s: int) -> bytes:
    info = tarfile.TarInfo(member.name)
    info.size, info.mode, info.mtime = member.size_bytes, 0o600, at_unix_s
    return info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")


def _pieces(content: Path | bytes) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _listed(value: object) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > MAX_FILES:
        raise BackupError("the manifest lists too much")
    return value


def _member(item: Any) -> Member:
    member = Member(**item)
    if type(member.name) is not str or NAMES.fullmatch(member.name) is None:
        raise BackupError("the manifest names a file that does not belong into a data directory")
    _digest(member.sha256)
    _number(member.size_bytes)
    return member


def _digest(value: Any) -> str:
    if type(value) is not str or re.fullmatch(r"[0-9a-f]{64}", value) is None:
        raise BackupError("the manifest holds a digest that is none")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_FILE_BYTES:
        raise BackupError("the manifest holds a number out of bounds")
    return value


def _scalar(value: Any) -> Any:
    if type(value) is int or (type(value) is str and len(value) <= MAX_TEXT):
        return value
    raise BackupError("the manifest holds a value out of bounds")

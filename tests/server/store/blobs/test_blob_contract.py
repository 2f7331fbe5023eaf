"""Published bytes in a directory and in S3-compatible storage: the same promises.

The storage is a real S3 server in its own process. Tampering goes behind the coordinator's back:
to the file, or to the object with another client; the coordinator then starts with an empty cache,
so that nothing it remembers can help it.
"""

import hashlib
import os
from dataclasses import dataclass

import obstore
import pytest

from server.errors import BlobError, BlobUnavailableError
from server.store.blobs.directory import BlobStore
from server.store.blobs.objects import ObjectBlobs
from server.store.blobs.storage import CHUNK_BYTES

PREFIX = "oncology/adapters"


@dataclass
class Directory:
    path: object

    def open(self):
        return BlobStore(self.path)

    def alter(self, sha256, content):
        self.open().path(sha256).write_bytes(content)

    def remove(self, sha256):
        self.open().path(sha256).unlink()

    def names(self):
        return sorted(path.name for path in self.path.rglob("*") if path.is_file())


@dataclass
class Objects:
    path: object
    server: object
    bucket: str
    caches: int = 0

    def open(self):
        self.caches += 1
        cache = self.path / f"cache-{self.caches}"
        return ObjectBlobs(f"s3://{self.bucket}/{PREFIX}", cache=cache, retries=1)

    def _key(self, sha256):
        return f"{PREFIX}/{sha256.hex()[:2]}/{sha256.hex()}"

    def alter(self, sha256, content):
        obstore.put(self.server.objects(self.bucket), self._key(sha256), content)

    def remove(self, sha256):
        obstore.delete(self.server.objects(self.bucket), self._key(sha256))

    def names(self):
        keys = self.server.keys(self.bucket)
        assert all(key == self._key(bytes.fromhex(key[-64:])) for key in keys)
        return sorted(key.rpartition("/")[2] for key in keys)


@pytest.fixture(params=["directory", "s3"])
def backend(request, tmp_path, monkeypatch):
    if request.param == "directory":
        return Directory(tmp_path / "adapters")
    server = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return Objects(tmp_path, server, server.bucket())


def test_a_blob_is_found_by_its_digest_by_another_process(backend):
    blobs = backend.open()
    sha256 = blobs.put(b"adapter")
    assert sha256 == hashlib.sha256(b"adapter").digest()
    assert blobs.put(b"adapter") == sha256
    assert backend.names() == [sha256.hex()]
    for opened in (blobs, backend.open()):
        assert bytes(opened.get(sha256)) == b"adapter"
        assert opened.size_bytes(sha256) == 7
    empty = blobs.put(b"")
    assert bytes(backend.open().get(empty)) == b""
    assert list(backend.open().chunks(empty)) == []


def test_large_blobs_go_in_in_parts_and_come_out_in_chunks(backend):
    # More than one part of a multipart upload.
    content = os.urandom(9 * CHUNK_BYTES + 17)
    blobs = backend.open()
    sha256 = blobs.put(
        memoryview(content)[start : start + 777_777] for start in range(0, len(content), 777_777)
    )
    assert sha256 == hashlib.sha256(content).digest()
    for opened in (blobs, backend.open()):
        assert opened.size_bytes(sha256) == len(content)
        assert opened.get(sha256) == content
        chunks = list(opened.chunks(sha256))
        assert b"".join(chunks) == content
        assert {len(chunk) for chunk in chunks[:-1]} == {CHUNK_BYTES}
        for offset in (1, CHUNK_BYTES, CHUNK_BYTES + 1, len(content) - 1, len(content), 2**40):
            assert b"".join(opened.chunks(sha256, offset)) == content[offset:]


def test_what_was_altered_or_cut_never_arrives_whole_and_can_be_mended(backend):
    content = os.urandom(2 * CHUNK_BYTES)
    blobs = backend.open()
    sha256 = blobs.put(content)
    for altered in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1], content + b"x", b""):
        backend.alter(sha256, altered)
        opened = backend.open()
        received = []
        with pytest.raises(BlobError, match="corrupt"):
            received.extend(opened.chunks(sha256))
        assert b"".join(received) != altered or not altered
        with pytest.raises(BlobError, match="corrupt"):
            opened.get(sha256)
    assert blobs.put(content) == sha256
    assert backend.open().get(sha256) == content


def test_what_is_not_there_is_a_typed_error(backend):
    blobs = backend.open()
    sha256 = blobs.put(b"adapter")
    backend.remove(sha256)
    opened = backend.open()
    for missing in (sha256, bytes(32)):
        for read in (opened.get, opened.size_bytes, lambda d: next(opened.chunks(d))):
            with pytest.raises(BlobError, match="no blob") as caught:
                read(missing)
            assert not isinstance(caught.value, BlobUnavailableError)
    for wrong in (b"", b"../../etc/passwd", b"\0" * 33):
        with pytest.raises(BlobError, match="32 bytes"):
            opened.get(wrong)


def test_a_put_that_fails_leaves_no_blob(backend):
    def cut():
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        backend.open().put(cut())
    assert backend.names() == []

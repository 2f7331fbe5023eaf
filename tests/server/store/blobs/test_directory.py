"""Blobs: complete or absent, checked on the way out."""

import hashlib
import os

import pytest

from federation.errors import UpdateError
from server.errors import BlobError
from server.store.blobs.directory import BlobStore
from server.store.blobs.storage import CHUNK_BYTES


def test_put_get_and_put_again(tmp_path):
    blobs = BlobStore(tmp_path / "adapters")
    sha256 = blobs.put(b"adapter")
    assert sha256 == hashlib.sha256(b"adapter").digest()
    assert blobs.put(b"adapter") == sha256
    assert blobs.get(sha256) == b"adapter"
    assert [p.name for p in (tmp_path / "adapters").rglob("*") if p.is_file()] == [sha256.hex()]


def test_corruption_is_found_and_healed_by_writing_again(tmp_path):
    blobs = BlobStore(tmp_path)
    sha256 = blobs.put(b"adapter")
    blobs.path(sha256).write_bytes(b"adapteR")
    with pytest.raises(BlobError, match="corrupt"):
        blobs.get(sha256)
    blobs.put(b"adapter")
    assert blobs.get(sha256) == b"adapter"


def test_blobs_are_streamed_in_and_out_and_mapped(tmp_path):
    content = os.urandom(3 * CHUNK_BYTES + 17)
    blobs = BlobStore(tmp_path)
    whole = blobs.put(content)
    parts = [b"", content[:5], memoryview(content)[5 : CHUNK_BYTES + 9], content[CHUNK_BYTES + 9 :]]
    assert blobs.put(iter(parts)) == whole == hashlib.sha256(content).digest()
    found = blobs.get(whole)
    assert found == content
    assert found.readonly
    assert b"".join(blobs.chunks(whole)) == content
    assert max(len(chunk) for chunk in blobs.chunks(whole)) == CHUNK_BYTES
    for offset in (1, CHUNK_BYTES, len(content) - 1, len(content), len(content) + 5):
        assert b"".join(blobs.chunks(whole, offset)) == content[offset:]
    empty = blobs.put(b"")
    assert blobs.get(empty) == b""
    assert list(blobs.chunks(empty)) == []


def test_an_altered_blob_never_arrives_whole(tmp_path):
    content = os.urandom(2 * CHUNK_BYTES)
    blobs = BlobStore(tmp_path)
    sha256 = blobs.put(content)
    for altered in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1]):
        blobs.path(sha256).write_bytes(altered)
        received = []
        with pytest.raises(BlobError, match="corrupt"):
            received.extend(blobs.chunks(sha256))
        with pytest.raises(BlobError, match="corrupt"):
            blobs.get(sha256)
    with pytest.raises(BlobError, match="no blob"):
        next(blobs.chunks(bytes(32)))


def test_a_put_that_fails_or_crashes_leaves_no_blob(tmp_path):
    blobs = BlobStore(tmp_path)

    def cut():
        yield b"half"
        raise UpdateError("the update is not finite")

    with pytest.raises(UpdateError):
        blobs.put(cut())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    # What a kill leaves behind is deleted at the next start.
    (tmp_path / "0123456789abcdef.partial").write_bytes(b"half")
    BlobStore(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("sha256", [b"", b"\x00" * 32, b"../../etc/passwd"])
def test_what_is_not_there_is_a_typed_error(tmp_path, sha256):
    with pytest.raises(BlobError):
        BlobStore(tmp_path).get(sha256)

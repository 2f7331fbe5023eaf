"""Blobs and durable files: complete or absent, checked on the way out."""

import hashlib
import os

import pytest

from server.blobs import BlobStore
from server.durable import write_durably
from server.errors import BlobError


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


@pytest.mark.parametrize("sha256", [b"", b"\x00" * 32, b"../../etc/passwd"])
def test_what_is_not_there_is_a_typed_error(tmp_path, sha256):
    with pytest.raises(BlobError):
        BlobStore(tmp_path).get(sha256)


def test_modes_hold_against_the_umask(tmp_path):
    before = os.umask(0)
    try:
        write_durably(tmp_path / "secret", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_durably(path, b"old")
    monkeypatch.setattr("server.durable.os.fsync", _fail)
    with pytest.raises(OSError, match="disk full"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def _fail(_descriptor):
    raise OSError("disk full")

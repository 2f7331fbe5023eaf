"""Suite v2: a chunk is checked before it is written, and what is folded is what was signed."""

import hashlib

import numpy as np
import pytest

from secagg import digest_tree
from secagg.digest_tree import BLAKE3, SHA256, TreeHasher
from secagg.errors import Check, VerificationError
from server.attempt.accumulator import MAX_CHUNK_BYTES, Accumulator
from server.errors import StoreError, UploadError

LENGTH = 2 * MAX_CHUNK_BYTES // 4 + 37
"""Two chunks and a short one."""


def vector(seed):
    return np.random.default_rng(seed).integers(0, 2**32, LENGTH, dtype=np.uint32).astype("<u4")


def tree(content, digest_id=SHA256):
    hasher = TreeHasher(len(content), digest_id, threads=1)
    hasher.update(content)
    return hasher.leaves(), hasher.root()


def opened(accumulator, name, content, digest_id=SHA256):
    """An upload whose leaf list has come."""
    leaves, root = tree(content, digest_id)
    upload = accumulator.open_upload(
        name, length_bytes=len(content), sha256=root, digest_id=digest_id
    )
    upload.take_leaves(leaves)
    return upload


def send(upload, content, start=0, stop=None):
    for offset in range(start, len(content) if stop is None else stop, MAX_CHUNK_BYTES):
        upload.append(offset, content[offset : offset + MAX_CHUNK_BYTES])


def refused(action):
    with pytest.raises(VerificationError) as error:
        action()
    assert (error.value.check, error.value.silo) == (Check.DIGEST_LEAF, "a")


def flipped(content, where):
    return content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]


@pytest.fixture
def accumulator(tmp_path):
    made = Accumulator(tmp_path / "sum", length=LENGTH)
    yield made
    made.close()


@pytest.mark.parametrize("digest_id", [SHA256, BLAKE3])
def test_whole_uploads_are_added_without_a_second_hash(accumulator, monkeypatch, digest_id):
    contents = [vector(seed).tobytes() for seed in range(3)]
    uploads = [opened(accumulator, f"{k}", each, digest_id) for k, each in enumerate(contents)]
    for upload, content in zip(uploads, contents, strict=True):
        send(upload, content)
    monkeypatch.setattr(digest_tree, "_start", None)
    monkeypatch.setattr(hashlib, "sha256", None)
    for upload in uploads:
        accumulator.fold(upload, lambda _: None)
    np.testing.assert_array_equal(accumulator.committed(), vector(0) + vector(1) + vector(2))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_bad_chunk_is_not_written_and_the_upload_goes_on_at_its_border(accumulator, number):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    border = number * MAX_CHUNK_BYTES
    send(upload, content, stop=border)
    damaged = flipped(content, border + 5)[border : border + MAX_CHUNK_BYTES]
    refused(lambda: upload.append(border, damaged))
    assert upload.received_bytes == border == upload.path.stat().st_size
    assert not accumulator.committed().any()
    send(upload, content, border)
    accumulator.fold(upload, lambda _: None)
    np.testing.assert_array_equal(accumulator.committed(), vector(1))


def test_signed_chunks_in_another_order_are_refused(accumulator):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    refused(lambda: upload.append(0, content[MAX_CHUNK_BYTES : 2 * MAX_CHUNK_BYTES]))


@pytest.mark.parametrize("change", ["none", "short", "long", "another"])
def test_no_chunk_is_taken_before_the_leaf_list_of_the_signed_root(accumulator, change):
    content = vector(1).tobytes()
    leaves, root = tree(content)
    upload = accumulator.open_upload("a", length_bytes=len(content), sha256=root, digest_id=SHA256)
    offered = {
        "none": b"",
        "short": leaves[:-32],
        "long": leaves + bytes(32),
        "another": tree(vector(2).tobytes())[0],
    }[change]
    if change != "none":
        refused(lambda: upload.take_leaves(offered))
    refused(lambda: send(upload, content))
    assert upload.received_bytes == 0
    upload.take_leaves(leaves)
    send(upload, content)
    assert upload.complete


def test_a_leaf_list_replayed_from_another_upload_does_not_replace_the_signed_one(accumulator):
    content, other = vector(1).tobytes(), vector(2).tobytes()
    upload = opened(accumulator, "a", content)
    refused(lambda: upload.take_leaves(tree(other)[0]))
    refused(lambda: send(upload, other))
    send(upload, content)
    assert upload.complete


def test_a_leaf_list_has_no_place_in_suite_v1(accumulator):
    upload = accumulator.open_upload("a", length_bytes=4 * LENGTH, sha256=bytes(32))
    upload.take_leaves(b"")
    with pytest.raises(VerificationError) as error:
        upload.take_leaves(bytes(96))
    assert error.value.check is Check.SUITE


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 1000), (0, MAX_CHUNK_BYTES - 1), (4, MAX_CHUNK_BYTES), (2 * MAX_CHUNK_BYTES, 4)],
)
def test_only_whole_chunks_are_taken(accumulator, offset, size):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    with pytest.raises(UploadError, match="no whole chunk"):
        upload.append(offset, content[offset : offset + size])


def test_a_good_chunk_out_of_turn_is_refused(accumulator):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    with pytest.raises(UploadError, match="starts at byte 0"):
        send(upload, content, MAX_CHUNK_BYTES)
    with pytest.raises(UploadError, match="no whole chunk"):
        upload.append(3 * MAX_CHUNK_BYTES, bytes(4))


# Restarts ----------------------------------------------------------------------------------------


def test_a_spool_goes_on_at_the_border_below_its_end(tmp_path):
    content = vector(3).tobytes()
    before = Accumulator(tmp_path / "sum", length=LENGTH)
    spool = opened(before, "a", content).path
    spool.write_bytes(content[: MAX_CHUNK_BYTES + 300_000])
    after = Accumulator.reopen(tmp_path / "sum", length=LENGTH, generation=0)
    upload = opened(after, "a", content)
    assert upload.received_bytes == MAX_CHUNK_BYTES == spool.stat().st_size
    send(upload, content, MAX_CHUNK_BYTES)
    after.fold(upload, lambda _: None)
    np.testing.assert_array_equal(after.committed(), vector(3))


@pytest.mark.parametrize("left", [MAX_CHUNK_BYTES, 4 * LENGTH])
def test_what_an_earlier_process_left_is_hashed_while_it_is_folded(tmp_path, left):
    content = vector(3).tobytes()
    before = Accumulator(tmp_path / "sum", length=LENGTH)
    spool = opened(before, "a", content).path
    spool.write_bytes(flipped(content, 7)[:left])
    after = Accumulator.reopen(tmp_path / "sum", length=LENGTH, generation=0)
    upload = opened(after, "a", content)
    send(upload, content, left)
    with pytest.raises(UploadError, match="signed digest"):
        after.fold(upload, lambda _: None)
    assert upload.received_bytes == 0
    assert not after.committed().any()
    send(upload, content)
    after.fold(upload, lambda _: None)
    np.testing.assert_array_equal(after.committed(), vector(3))


def test_a_whole_spool_is_folded_after_a_restart_before_its_leaves_come_again(tmp_path):
    content = vector(3).tobytes()
    before = Accumulator(tmp_path / "sum", length=LENGTH)
    upload = opened(before, "a", content)
    send(upload, content)

    def fail(_):
        raise StoreError("disk full")

    with pytest.raises(StoreError):
        before.fold(upload, fail)
    after = Accumulator.reopen(tmp_path / "sum", length=LENGTH, generation=0)
    again = after.open_upload(
        "a", length_bytes=len(content), sha256=tree(content)[1], digest_id=SHA256
    )
    assert again.complete
    after.fold(again, lambda _: None)
    np.testing.assert_array_equal(after.committed(), vector(3))


def test_a_rewound_spool_ends_at_a_border(accumulator):
    content = vector(1).tobytes()
    upload = opened(accumulator, "a", content)
    send(upload, content)
    upload.rewind()
    assert upload.received_bytes == 2 * MAX_CHUNK_BYTES
    send(upload, content, upload.received_bytes)
    accumulator.fold(upload, lambda _: None)
    np.testing.assert_array_equal(accumulator.committed(), vector(1))

"""Attack 24: the leaf list of an upload replayed or altered, and chunks that are not its leaves'.

From version 2 on a silo signs the root of a tree over its upload's chunks, and sends the leaf list
before them. A failure: one byte in the sum, or kept, that is not under the signed root. Not a
failure: a silo that is refused until it sends what it signed.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from secagg import digest_tree
from secagg.digest_tree import CHUNK_BYTES, LEAF_BYTES, SHA256, TreeHasher
from secagg.errors import Check, VerificationError
from server.attempt.accumulator import Accumulator
from server.errors import UploadError
from tests.kit.simulation.secagg_tampering import PEER, flip

# Two whole chunks and a part of one.
LENGTH = 2 * CHUNK_BYTES + 4096


class Signed(NamedTuple):
    """What a silo masked, and what it signed of it."""

    content: bytes
    leaves: bytes
    root: bytes

    def chunk(self, index: int) -> bytes:
        return self.content[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def signed(length: int = LENGTH) -> Signed:
    content = os.urandom(length)
    with TreeHasher(length, SHA256) as hasher:
        hasher.update(content)
        return Signed(content, hasher.leaves(), hasher.root())


OLD, NEW = signed(), signed()


@pytest.fixture
def opened(tmp_path):
    accumulator = Accumulator(tmp_path / "sum", length=LENGTH // 4)
    upload = accumulator.open_upload(PEER, length_bytes=LENGTH, sha256=NEW.root, digest_id=SHA256)
    yield accumulator, upload
    accumulator.close()


LISTS: dict[str, Callable[[], bytes]] = {
    "A24a-of-an-earlier-upload": lambda: OLD.leaves,
    "A24b-with-one-leaf-of-an-earlier-upload":
        lambda: NEW.leaves[:LEAF_BYTES] + OLD.leaves[LEAF_BYTES : 2 * LEAF_BYTES]
        + NEW.leaves[2 * LEAF_BYTES :],
    "A24c-one-leaf-short": lambda: NEW.leaves[:-LEAF_BYTES],
    "A24d-one-leaf-long": lambda: NEW.leaves + NEW.leaves[:LEAF_BYTES],
    "A24e-in-another-order": lambda: NEW.leaves[LEAF_BYTES:] + NEW.leaves[:LEAF_BYTES],
    "A24f-altered": lambda: flip(NEW.leaves),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(LISTS))
def test_a_leaf_list_that_is_not_under_the_signed_root_is_refused(opened, case):
    """Attack 24: before the first chunk, and after it; no chunk is taken without a list."""
    accumulator, upload = opened
    for _ in range(2):
        with pytest.raises(VerificationError) as caught:
            upload.take_leaves(LISTS[case]())
        assert (caught.value.check, caught.value.silo) == (Check.DIGEST_LEAF, PEER)
        for chunk in (OLD.chunk(0), NEW.chunk(0)):
            with pytest.raises(VerificationError) as caught:
                upload.append(0, chunk)
            assert caught.value.check is Check.DIGEST_LEAF
        assert upload.received_bytes == 0
    upload.take_leaves(NEW.leaves)
    upload.append(0, NEW.chunk(0))
    with pytest.raises(VerificationError):
        upload.take_leaves(LISTS[case]())
    finished(accumulator, upload, 1)


def finished(accumulator: Any, upload: Any, first: int) -> None:
    """The genuine rest is taken, and the sum is what was signed."""
    for index in range(first, 3):
        upload.append(index * CHUNK_BYTES, NEW.chunk(index))
    accumulator.fold(upload, lambda _: None)
    np.testing.assert_array_equal(accumulator.committed(), np.frombuffer(NEW.content, dtype="<u4"))


CHUNKS: dict[str, Callable[[], bytes]] = {
    "A24g-of-an-earlier-upload": lambda: OLD.chunk(1),
    "A24h-of-another-index": lambda: NEW.chunk(0),
    "A24i-with-one-bit-flipped": lambda: flip(NEW.chunk(1)),
}


@pytest.mark.parametrize("case", sorted(CHUNKS))
def test_a_chunk_that_is_not_its_leafs_is_refused_and_nothing_of_it_is_kept(opened, case):
    """Attack 24: the silo may go on with the chunk that it signed."""
    accumulator, upload = opened
    upload.take_leaves(NEW.leaves)
    upload.append(0, NEW.chunk(0))
    with pytest.raises(VerificationError) as caught:
        upload.append(CHUNK_BYTES, CHUNKS[case]())
    assert (caught.value.check, caught.value.silo) == (Check.DIGEST_LEAF, PEER)
    assert upload.received_bytes == CHUNK_BYTES == upload.path.stat().st_size
    finished(accumulator, upload, 1)


@pytest.mark.parametrize("cut", [1, 4096, CHUNK_BYTES - 1])
def test_a24j_a_part_of_a_chunk_is_none(opened, cut):
    """Attack 24: a leaf is over one whole chunk, so nothing smaller can be checked."""
    accumulator, upload = opened
    upload.take_leaves(NEW.leaves)
    with pytest.raises(UploadError):
        upload.append(0, NEW.chunk(0)[:cut])
    finished(accumulator, upload, 0)


def test_a24k_a_root_is_of_one_length_one_digest_and_one_suite():
    """Attack 24: the same list under another total is another root."""
    roots = {
        digest_tree.root_of(NEW.leaves, total, SHA256)
        for total in (LENGTH, LENGTH - 4, LENGTH + 4, 3 * CHUNK_BYTES)
    }
    assert len(roots) == 4
    with pytest.raises(VerificationError) as caught:
        digest_tree.check_leaves(NEW.leaves, LENGTH + 4, SHA256, NEW.root)
    assert caught.value.check is Check.DIGEST_LEAF

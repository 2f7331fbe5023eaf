"""The digest tree against a reference of its own, at chunk borders, in pieces, over threads."""

import hashlib
import sys
import tracemalloc

import numpy as np
import pytest

from secagg import digest_tree
from secagg.digest_tree import BLAKE3, CHUNK_BYTES, SHA256, TreeHasher
from secagg.errors import Check, ParameterError, VerificationError

# SHA-256 over the one chunk "abc", for a second implementation to check itself.
KNOWN_ROOT = "bf3ae19038b68b5685489a065d0c96d21580ed4a43677595424f9b1b1fb112f3"
SIZES = (1, 4, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 4)


def _content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def _reference(content: bytes, digest_id: int = SHA256) -> tuple[bytes, bytes]:
    """Leaf list and root, written out from the specification."""
    if digest_id == SHA256:
        digest = lambda x: hashlib.sha256(x).digest()  # noqa: E731
    else:
        blake3 = pytest.importorskip("blake3")
        digest = lambda x: blake3.blake3(x).digest()  # noqa: E731
    mebi = 1048576
    chunks = [content[start : start + mebi] for start in range(0, len(content), mebi)]
    leaves = b"".join(
        digest(b"\x00" + index.to_bytes(8, "big") + len(chunk).to_bytes(4, "big") + chunk)
        for index, chunk in enumerate(chunks)
    )
    head = (1, 1), (2, 4), (digest_id, 1), (mebi, 4), (len(chunks), 8), (len(content), 8)
    return leaves, digest(b"".join(value.to_bytes(size, "big") for value, size in head) + leaves)


@pytest.mark.parametrize("digest_id", [SHA256, BLAKE3])
@pytest.mark.parametrize("size", SIZES)
def test_leaves_and_root_are_those_of_the_specification(size, digest_id):
    content = _content(size)
    leaves, root = _reference(content, digest_id)
    with TreeHasher(size, digest_id) as tree:
        tree.update(content)
        assert (tree.leaves(), tree.root()) == (leaves, root)
    assert digest_tree.root_of(leaves, size, digest_id) == root
    digest_tree.check_leaves(leaves, size, digest_id, root)
    for index, start in enumerate(range(0, size, CHUNK_BYTES)):
        chunk = content[start : start + CHUNK_BYTES]
        digest_tree.check_chunk(leaves, index, chunk, digest_id)


def test_a_known_tree():
    tree = TreeHasher(3, SHA256)
    tree.update(b"abc")
    assert tree.root().hex() == KNOWN_ROOT


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("piece", [1 << 18, CHUNK_BYTES, CHUNK_BYTES + 12, 10 * CHUNK_BYTES])
def test_pieces_and_threads_make_no_difference(piece, threads):
    content = _content(7 * CHUNK_BYTES + 8)
    with TreeHasher(len(content), SHA256, threads=threads) as tree:
        for start in range(0, len(content), piece):
            tree.update(memoryview(content)[start : start + piece])
        assert (tree.leaves(), tree.root()) == _reference(content)


def test_ring_elements_are_taken_as_their_bytes():
    vector = np.arange(1000, dtype="<u4")
    tree = TreeHasher(vector.nbytes, SHA256)
    tree.update(vector.data)
    assert tree.root() == _reference(vector.tobytes())[1]


@pytest.mark.parametrize("given", [0, 7])
def test_too_few_bytes_have_no_tree(given):
    tree = TreeHasher(8, SHA256)
    tree.update(bytes(given))
    with pytest.raises(ParameterError):
        tree.leaves()
    with pytest.raises(ParameterError):
        tree.root()


def test_what_runs_past_the_end_changes_nothing():
    content = _content(CHUNK_BYTES + 5)
    tree = TreeHasher(len(content), SHA256)
    tree.update(content[:-1])
    with pytest.raises(ParameterError):
        tree.update(b"ab")
    tree.update(content[-1:])
    assert tree.root() == _reference(content)[1]


def test_no_bytes_have_no_tree():
    for total in (0, -1, 1 << 64):
        with pytest.raises(ParameterError):
            TreeHasher(total, SHA256)
        with pytest.raises(ParameterError):
            digest_tree.root_of(b"", total, SHA256)


@pytest.mark.parametrize("change", ["short", "long", "bit", "swapped", "total", "root"])
def test_a_leaf_list_that_is_not_the_signed_one_is_refused(change):
    size = 2 * CHUNK_BYTES
    leaves, root = _reference(_content(size))
    match change:
        case "short":
            leaves = leaves[:-32]
        case "long":
            leaves += bytes(32)
        case "bit":
            leaves = leaves[:-1] + bytes([leaves[-1] ^ 1])
        case "swapped":
            leaves = leaves[32:] + leaves[:32]
        case "total":
            size -= 4
        case "root":
            root = bytes(32)
    with pytest.raises(VerificationError) as refused:
        digest_tree.check_leaves(leaves, size, SHA256, root, silo="silo-a")
    assert (refused.value.check, refused.value.silo) == (Check.DIGEST_LEAF, "silo-a")


def test_a_chunk_stands_at_its_own_index_with_its_own_length():
    content = bytes(2 * CHUNK_BYTES)
    leaves, _ = _reference(content)
    chunk = content[:CHUNK_BYTES]
    digest_tree.check_chunk(leaves, 1, chunk, SHA256)
    for index, wrong in [(0, chunk[:-1]), (0, chunk[:-1] + b"\1"), (2, chunk)]:
        with pytest.raises(VerificationError) as refused:
            digest_tree.check_chunk(leaves, index, wrong, SHA256, silo="silo-a")
        assert (refused.value.check, refused.value.silo) == (Check.DIGEST_LEAF, "silo-a")
    # The same bytes elsewhere are another leaf.
    assert leaves[:32] != leaves[32:64]
    for index, wrong in [(-1, chunk), (0, b""), (0, bytes(CHUNK_BYTES + 1))]:
        with pytest.raises(ParameterError):
            digest_tree.leaf(index, wrong, SHA256)


def test_an_unknown_digest_is_refused():
    assert not digest_tree.is_available(0)
    for make in (
        lambda: TreeHasher(8, 3),
        lambda: digest_tree.leaf(0, b"x", 0),
        lambda: digest_tree.root_of(bytes(32), 8, 3),
    ):
        with pytest.raises(ParameterError, match="there is no digest"):
            make()


def test_without_the_extra_blake3_is_refused_in_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "blake3", None)
    assert digest_tree.is_available(SHA256)
    assert not digest_tree.is_available(BLAKE3)
    with pytest.raises(ParameterError, match=r"chorale\[blake3\]"):
        TreeHasher(8, BLAKE3)


def test_memory_does_not_grow_with_the_upload():
    # Each piece is new: what is hashed must be let go, whoever is faster.
    count = 48
    tracemalloc.start()
    with TreeHasher(count * CHUNK_BYTES, SHA256, threads=2) as tree:
        for _ in range(count):
            tree.update(bytes(CHUNK_BYTES))
        tree.root()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * CHUNK_BYTES

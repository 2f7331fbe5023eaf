"""Merkle trees of R1, against RFC 6962's recursive definition."""

import hashlib

import pytest

from secagg import merkle
from secagg.errors import ParameterError

LEAVES = [merkle.leaf_hash(bytes([number])) for number in range(200)]
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 199)


def rfc_root(leaves):
    """§2.1: split at the largest power of two below the size."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while 2 * split < len(leaves):
        split *= 2
    below = rfc_root(leaves[:split]) + rfc_root(leaves[split:])
    return hashlib.sha256(b"\x01" + below).digest()


@pytest.mark.parametrize("size", SIZES)
def test_the_root_is_that_of_rfc_6962(size):
    assert merkle.Tree(LEAVES[:size]).root == merkle.root(LEAVES[:size]) == rfc_root(LEAVES[:size])


@pytest.mark.parametrize("size", SIZES)
def test_every_leaf_leads_to_the_root_at_its_own_index_alone(size):
    tree = merkle.Tree(LEAVES[:size])
    for index in range(size):
        path = tree.path(index)
        assert len(path) <= merkle.MAX_PATH
        found = [
            other
            for other in range(size)
            if merkle.leads_to(tree.root, LEAVES[index], other, size, path)
        ]
        assert found == [index]


@pytest.mark.parametrize("size", SIZES)
def test_no_other_path_leads_to_the_root(size):
    tree = merkle.Tree(LEAVES[:size])
    for index in (0, size // 2, size - 1):
        path = tree.path(index)
        others = [(*path, bytes(32)), (bytes(32), *path)]
        others += [path[1:], path[:-1]] if path else []
        others += [(*path[:k], bytes(32), *path[k + 1 :]) for k in range(len(path))]
        for other in others:
            assert not merkle.leads_to(tree.root, LEAVES[index], index, size, other)
        for other_index in (-1, size):
            assert not merkle.leads_to(tree.root, LEAVES[index], other_index, size, path)


def test_a_node_is_no_leaf():
    left, right = LEAVES[:2]
    node = merkle.node_hash(left, right)
    assert merkle.leaf_hash(left + right) != node
    # What a tree of two and one of one leaf with this content would otherwise have in common.
    assert merkle.root([left, right]) != merkle.root([merkle.leaf_hash(left + right)])


def test_a_tree_has_a_leaf_and_no_more_than_it_has():
    with pytest.raises(ParameterError):
        merkle.Tree([])
    for index in (-1, 3):
        with pytest.raises(ParameterError):
            merkle.path(LEAVES[:3], index)

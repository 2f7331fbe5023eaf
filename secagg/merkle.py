"""Merkle trees over what a silo deals in R1 (RFC 6962 §2.1), with SHA-256.

A leaf's hash is H(0x00 ‖ content), a node's H(0x01 ‖ left ‖ right), so that no leaf can be offered
as a node. A tree of m > 1 leaves splits at the largest power of two below m.

Built level by level, neighbours joined and a last one without a neighbour lifted, which gives the
same tree: every path is then a look-up a level.

Covered: roots, paths, and whether a path leads from one index of a tree of m leaves to its root.
Not covered: what a leaf says, which its content names (ctx, sender and recipient).
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from secagg.errors import ParameterError

# Of the path in a tree of at most 256 leaves.
MAX_PATH: Final = 8


def leaf_hash(content: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\x00" + content).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class Tree:
    """A tree of at least one leaf, kept as its levels: 64 bytes a leaf."""

    __slots__ = ("_levels",)

    def __init__(self, leaf_hashes: Sequence[bytes]) -> None:
        """Hash the nodes.

        Raises:
            ParameterError: There is no leaf.
        """
        if not leaf_hashes:
            raise ParameterError("a tree has at least one leaf")
        level = tuple(leaf_hashes)
        self._levels = [level]
        while len(level) > 1:
            nodes = [node_hash(*pair) for pair in zip(level[::2], level[1::2], strict=False)]
            level = (*nodes, *level[len(nodes) * 2 :])
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        """The hash that stands for all leaves."""
        return self._levels[-1][0]

    def path(self, index: int) -> tuple[bytes, ...]:
        """Return the siblings from a leaf up to the root.

        Raises:
            ParameterError: There is no such leaf.
        """
        if not 0 <= index < len(self._levels[0]):
            raise ParameterError("the tree has no such leaf")
        siblings = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                siblings.append(level[index ^ 1])
            index >>= 1
        return tuple(siblings)


def root(leaf_hashes: Sequence[bytes]) -> bytes:
    """Return the root over the leaves' hashes, of which there is at least one.

    Raises:
        ParameterError: There is none.
    """
    return Tree(leaf_hashes).root


def path(leaf_hashes: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """Return the siblings from one leaf up to the root.

    Raises:
        ParameterError: There is no such leaf.
    """
    return Tree(leaf_hashes).path(index)


def leads_to(
    expected_root: bytes, leaf: bytes, index: int, count: int, siblings: Sequence[bytes]
) -> bool:
    """Tell whether a leaf's hash is at an index of the tree of `count` leaves with this root."""
    if not 0 <= index < count:
        return False
    found = _climb(leaf, index, count, list(siblings))
    return found is not None and hmac.compare_digest(found, expected_root)


def _climb(leaf: bytes, index: int, count: int, siblings: list[bytes]) -> bytes | None:
    """Return the root that the siblings, lowest first, give; None if their number is wrong."""
    if count == 1:
        return leaf if not siblings else None
    if not siblings:
        return None
    split, sibling = _split(count), siblings.pop()
    if index < split:
        below = _climb(leaf, index, split, siblings)
        return None if below is None else node_hash(below, sibling)
    below = _climb(leaf, index - split, count - split, siblings)
    return None if below is None else node_hash(sibling, below)


def _split(count: int) -> int:
    """Return the largest power of two below `count`."""
    return 1 << ((count - 1).bit_length() - 1)

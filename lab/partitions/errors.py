"""What a partition ends with when it cannot be made.

The tree::

    PartitionError
    ├── DialError         a dial, a length or bounds are outside what they may be
    ├── PoolError         the pool does not have the tasks that are to be dealt
    └── UnreachableError  no dial has the dispersion that is asked for
"""

from __future__ import annotations

__all__ = ["DialError", "PartitionError", "PoolError", "UnreachableError"]


class PartitionError(Exception):
    """The tasks cannot be dealt as asked."""


class DialError(PartitionError):
    """A dial, a length or bounds are outside what they may be."""


class PoolError(PartitionError):
    """The pool does not have the tasks that are to be dealt."""


class UnreachableError(PartitionError):
    """No dial has the dispersion that is asked for."""

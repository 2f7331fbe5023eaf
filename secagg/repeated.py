"""Repeated fields of the wire: counted before an item is built.

Covered: the count. Not covered: the items, which the given conversion checks.
"""

from collections.abc import Callable, Iterable, Sized
from typing import Protocol, TypeVar

from secagg.errors import MalformedMessageError

SourceT = TypeVar("SourceT")
TargetT = TypeVar("TargetT")
ItemT_co = TypeVar("ItemT_co", covariant=True)


class _Repeated(Sized, Iterable[ItemT_co], Protocol[ItemT_co]):
    """A repeated protobuf field."""


def items(
    repeated: _Repeated[SourceT], convert: Callable[[SourceT], TargetT], most: int, field: str
) -> tuple[TargetT, ...]:
    """Convert the items of a repeated field.

    Raises:
        MalformedMessageError: There are more than `most`, or one of them is malformed.
    """
    if len(repeated) > most:
        raise MalformedMessageError(f"{field} has more than {most} items")
    return tuple(convert(item) for item in repeated)


def same(value: SourceT) -> SourceT:
    """Return the item itself, for fields whose items are checked where they are used."""
    return value

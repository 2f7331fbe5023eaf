"""Whom to leave out so that no two survivors masked differently for their pair.

One silo says that another dealt it a bad secret. Which of the two lies cannot be told; two honest
ones never say so of each other, so at most c silos, those that collude, are in all such pairs.

Covered: as few as will do, so that one silo that accuses many costs the round itself alone; among
as many, the accused go before those who accuse them. Not covered: a search that more than c
colluding silos make too long; it ends without a result.
"""

from collections.abc import Sequence
from typing import Final

# A step a silo where it goes well; seconds at the worst.
_MOST_STEPS: Final = 2_000


class _TooLongError(Exception):
    pass


def left_out(pairs: Sequence[tuple[str, str]], most: int) -> tuple[str, ...] | None:
    """Return as few silos as are in all pairs (accused, accuser), at most `most`, in order of id.

    None where there are none such, or none were found in time.
    """
    steps = 0

    def search(left: Sequence[tuple[str, str]], most: int) -> tuple[str, ...] | None:
        nonlocal steps
        steps += 1
        if steps > _MOST_STEPS:
            raise _TooLongError
        if not left:
            return ()
        if _disjoint(left) > most:
            return None
        for silo in left[0]:
            rest = search([pair for pair in left if silo not in pair], most - 1)
            if rest is not None:
                return (silo, *rest)
        return None

    try:
        sizes = (search(sorted(pairs), size) for size in range(most + 1))
        found = next((silos for silos in sizes if silos is not None), None)
    except _TooLongError:
        return None
    return None if found is None else tuple(sorted(found))


def _disjoint(pairs: Sequence[tuple[str, str]]) -> int:
    """Count pairs of which no two share a silo; each of them costs one."""
    taken: set[str] = set()
    count = 0
    for pair in pairs:
        if taken.isdisjoint(pair):
            taken.update(pair)
            count += 1
    return count

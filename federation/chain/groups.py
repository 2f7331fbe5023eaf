"""Who is in which group of a round: a public function of the round, which every silo recomputes.

The invited silos of the round task are put in the order of

    SHA-256 of canonical("chorale/v2/groups", run, round, roster digest, silo)

and dealt out in turn: the k-th of them, from 0, is in group k mod g. So groups are disjoint, their
sizes differ by at most one, they are others in every round, and nothing is chosen: what enters is
in the signed task. A group is the part of the same number, in every step and every attempt of the
round, so that a retry never puts a silo beside others. Its cohort is whoever of it is ready.

Covered: the assignment, and whether a cohort is within a group. Not covered: whether a group is
large enough for its sum (``Plan.require_cohort``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from secagg import canonical

GROUPS_DOMAIN: Final = "chorale/v2/groups"


def groups_of(
    invited: Iterable[str], count: int, *, run_id: str, round_number: int, roster_sha256: bytes
) -> tuple[tuple[str, ...], ...]:
    """The groups of a round in order of part, each with its silos in ascending order.

    ``invited`` are the round task's, whose roster digest it is. A group is empty where fewer are
    invited than there are groups.
    """

    def drawn(silo_id: str) -> tuple[bytes, str]:
        return (
            canonical.digest(GROUPS_DOMAIN, run_id, round_number, roster_sha256, silo_id),
            silo_id,
        )

    ordered = sorted(frozenset(invited), key=drawn)
    return tuple(tuple(sorted(ordered[part::count])) for part in range(count))

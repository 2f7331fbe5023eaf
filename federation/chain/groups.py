"""Who is in which group or half of a round: a public function of the round.

The invited silos of the round task are put in the order of

    SHA-256 of canonical("chorale/v2/groups", run, round, roster digest, silo)

and dealt out in turn: the k-th of them, from 0, is in group k mod g. So groups are disjoint, their
sizes differ by at most one, they are others in every round, and nothing is chosen: what enters is
in the signed task, and every silo computes it again. A group is the part of the same number, in
every step and every attempt of the round, so that a retry never puts a silo beside others. Its
cohort is whoever of it is ready.

The halves of a bisected round are drawn alike, under another name: SHA-256 of

    canonical("chorale/v2/halves", run, round, roster digest, silo)

puts the suspects in order, and after them the others; dealt out in turn, each half has every second
of the suspects and its share of the others.

Covered: the assignments, and whether a cohort is within a group. Not covered: whether a group or a
half is large enough for its sum (``Plan.require_cohort``, ``Plan.require_sum``); who is a suspect,
which the coordinator's admin says and no silo is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from secagg import canonical

GROUPS_DOMAIN: Final = "chorale/v2/groups"
HALVES_DOMAIN: Final = "chorale/v2/halves"


def groups_of(
    invited: Iterable[str], count: int, *, run_id: str, round_number: int, roster_sha256: bytes
) -> tuple[tuple[str, ...], ...]:
    """The groups of a round in order of part, each with its silos in ascending order.

    ``invited`` are the round task's, whose roster digest it is. A group is empty where fewer are
    invited than there are groups.
    """
    ordered = _drawn(GROUPS_DOMAIN, invited, run_id, round_number, roster_sha256)
    return tuple(tuple(sorted(ordered[part::count])) for part in range(count))


def halves_of(
    invited: Iterable[str],
    suspects: Iterable[str],
    *,
    run_id: str,
    round_number: int,
    roster_sha256: bytes,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The halves of a bisected round in order of part, each with its silos in ascending order.

    Suspects that are not invited are in neither. In size the halves differ by at most one, and so
    do the suspects in them.
    """
    everyone = frozenset(invited)
    split = everyone.intersection(suspects)
    ordered = [
        silo_id
        for silo_ids in (split, everyone - split)
        for silo_id in _drawn(HALVES_DOMAIN, silo_ids, run_id, round_number, roster_sha256)
    ]
    return tuple(sorted(ordered[0::2])), tuple(sorted(ordered[1::2]))


def _drawn(
    domain: str, silo_ids: Iterable[str], run_id: str, round_number: int, roster_sha256: bytes
) -> list[str]:
    """The silos in the order of their digests."""

    def key(silo_id: str) -> tuple[bytes, str]:
        return canonical.digest(domain, run_id, round_number, roster_sha256, silo_id), silo_id

    return sorted(frozenset(silo_ids), key=key)

"""Which silos take part in a round: M of N, drawn anew for each round.

All silos are put in an order that the seed and the round decide, and the first M of it take part.
The order is that of SHA-256 over seed, round and place, so each set of M is as likely as any other.

Invariants:
    1. The choice depends on the seed, the round, M and N, on nothing else: settings of one seed
       draw the same silos, and those of a smaller M are among those of a larger one.
    2. No other stream of a run is drawn from it, so nothing else changes with it.

Covered: the draw, and why a method needs all silos. Not covered: what becomes of the others: they
keep what they have and do nothing (``federation_round.py``).
"""

from __future__ import annotations

import hashlib
from typing import Final

from lab.experiment.methods import LEAST_CLUSTER, METHODS, Method

__all__ = ["taking_part", "wrong_part"]

_DOMAIN: Final = b"chorale/lab-participation/v1\0"


def taking_part(seed: int, round_number: int, *, silos: int, per_round: int) -> tuple[int, ...]:
    """Places of those of so many silos that take part in a round, in ascending order.

    Rounds count from 1.
    """

    def rank(place: int) -> bytes:
        return hashlib.sha256(_DOMAIN + f"{seed}/{round_number}/{place}".encode()).digest()

    return tuple(sorted(sorted(range(silos), key=rank)[:per_round]))


def _needs_all(method: Method) -> str:
    """Why every silo of a method takes part in each round; empty where some may stay away."""
    if method.topology == "none":
        return "it has no rounds"
    if method.topology == "alone":
        return "its silos share nothing, so one that stays away is only trained less"
    if method.topology == "central":
        return "it has one learner, which has the data of all silos"
    if method.clustered:
        return "a cluster may have three silos, and a sum needs all three"
    return ""


def wrong_part(per_round: int, silos: int, name: str) -> str:
    """Why so many of the silos cannot take part in a round of a method; empty if they can."""
    if per_round == 0:
        return ""
    if reason := _needs_all(METHODS[name]):
        return f"method {name!r} needs all silos, because {reason}: set per_round = 0 here"
    if not LEAST_CLUSTER <= per_round < silos:
        return (
            f"a number from {LEAST_CLUSTER}, the fewest of a sum, to {silos - 1}, or 0, with which "
            f"all {silos} silos take part; got {per_round}"
        )
    return ""

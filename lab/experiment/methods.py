"""The methods of an experiment: who learns from what, and what is shared.

::

    name              adapters            learns from                shares
    pretrained        the base's          nothing                    –
    local_static      one for each silo   its demonstrations         nothing
    local_evolution   one for each silo   its successes              nothing
    central_static    one                 pooled demonstrations      the data themselves
    central_evolution one                 pooled exploration         the data themselves
    fedit             one                 demonstrations             sums of deltas
    fedse             one                 successes                  sums of deltas
    fedse_personal    one, and one each   successes                  sums of deltas
    fedsa             A, and B each       successes                  sums of deltas of A
    clustered         one for each family successes                  sums within a cluster

``local_*`` and ``central_*`` are what Fed-SE (arXiv 2512.08870, section 5) and
``docs/experiments/fedse.md`` compare with; they neither clip nor add noise. Where a method learns
from successes, ``evolve.use_expert`` decides whether demonstrations seed the buffer (algorithm 1).
``evolve.personal`` says how ``fedse_personal`` trains each silo's own adapter: pulled to the shared
one, from it, or as what is added to it; with ``evolve.personal_choice`` each silo also chooses what
it would use (``judge.py``). Families are public, so clustering by them tells nobody anything.

Covered: which arithmetic a name stands for. Not covered: the arithmetic (``federation_round.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

__all__ = ["LEAST_CLUSTER", "METHODS", "Method", "clusters"]

LEAST_CLUSTER: Final = 3
"""Fewest silos of a sum (``secagg.parameters.MIN_SILOS``), hence of a cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """What a name stands for."""

    topology: Literal["none", "alone", "central", "federated"]
    """Who shares an adapter."""
    explores: bool = True
    """False learns from demonstrations alone."""
    personal: Literal["", "ditto", "fedsa"] = ""
    """What each silo keeps for itself beside the shared adapter."""
    clustered: bool = False
    """One federation for each family that has enough silos."""


METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        "pretrained": Method(topology="none", explores=False),
        "local_static": Method(topology="alone", explores=False),
        "local_evolution": Method(topology="alone"),
        "central_static": Method(topology="central", explores=False),
        "central_evolution": Method(topology="central"),
        "fedit": Method(topology="federated", explores=False),
        "fedse": Method(topology="federated"),
        "fedse_personal": Method(topology="federated", personal="ditto"),
        "fedsa": Method(topology="federated", personal="fedsa"),
        "clustered": Method(topology="federated", clustered=True),
    }
)


def clusters(families: list[frozenset[str]]) -> tuple[tuple[int, ...], ...]:
    """The federations of ``clustered``: indices of silos, each silo in one.

    A family of at least ``LEAST_CLUSTER`` silos that declare it and no other is a cluster of its
    own; all other silos form a common one, last.
    """
    by_family: dict[frozenset[str], list[int]] = {}
    for index, declared in enumerate(families):
        by_family.setdefault(declared, []).append(index)
    own = [
        tuple(members)
        for declared, members in sorted(by_family.items(), key=lambda item: sorted(item[0]))
        if len(declared) == 1 and len(members) >= LEAST_CLUSTER
    ]
    clustered = {index for members in own for index in members}
    rest = tuple(index for index in range(len(families)) if index not in clustered)
    return (*own, rest) if rest else tuple(own)

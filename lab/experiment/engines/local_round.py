"""One member's local work of one round: all that it takes, and all that it gives.

A member is built for the round and closed after it, from the run's description and the member's
indices; what it learned before is in its stores. So members are as many as one likes, and the
models, databases and environments in memory are those of one.

Invariants:
    1. The result follows from the run, the work and the member's stores, on nothing else: any
       process may do any member's round, and does it alike, bit for bit, on one machine with equal
       versions and one thread of torch.
    2. What crosses into another process is a ``LocalRound`` and an ``Evolution``: names, numbers
       and arrays. No model, no database, no environment.

Covered: the work. Not covered: which copy of the stores (``stores.py``), where it is done.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from evolution.methods.evolver import Evolution
from evolution.methods.machines import Machines
from lab.experiment.config import Run
from lab.experiment.guards.silo import Head
from lab.experiment.member import Adapter, Member

__all__ = ["LocalRound", "play_local_round"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRound:
    """What one member is to do in a round."""

    indices: tuple[int, ...]
    """Of the silos that it stands for."""
    round_number: int
    """Counted from 1."""
    adapter: Adapter
    """What the round starts from: all factors, float32."""
    trainable: frozenset[str]
    """The factors of the delta."""
    correction: Adapter | None = None
    """SCAFFOLD's c − c_k."""
    judged: Head | None = None
    """Which adapter it is, where the silo's guard judges it first."""
    learns: bool = True
    """False where it is judged, and nothing more."""


def play_local_round(run: Run, work: LocalRound, stores: Path, *, machines: Machines) -> Evolution:
    """Do a member's round in its directory of ``stores``, with machines that are lent.

    Raises:
        ExperimentError: As ``Member`` and its ``evolve``.
    """
    member = Member(run, work.indices, stores, chat=machines.engine.chat, machines=machines)
    with closing(member):
        if member.refuses(work.adapter, work.judged) or not work.learns:
            return member.nothing(work.adapter, work.trainable)
        return member.evolve(
            work.adapter,
            round_number=work.round_number,
            trainable=work.trainable,
            correction=work.correction,
        )

"""What a round's local work came to: a vector, silence, or a refusal.

Invariants:

1. A failure that private data may have caused does not show outside. Where the release adds noise
   to everything, the outcome is the zero vector. Under ``record_local`` the noise is in the
   training, and a vector without it would be told from one with it: there the round is charged and
   the silo says nothing, as if it had crashed.
2. A refusal depends on the ledger, or on the configuration alone. The latter costs no charge, for
   it is found before anything is explored. What setting the method up already shows refuses in
   every mode: zeros of a silo that cannot work would count towards a sum that is about the others.
   What shows later refuses where units are protected, for there the method checks it before it
   explores; elsewhere it may come with having something to learn from.

Covered: all modes. Not covered: failures of one unit, which the method itself keeps to that unit
(``evolution/methods/evolver.py``, invariant 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog

from dp.config import RECORD_MODES, Mode, PrivacySpec
from dp.noise.grid import l2_norm
from evolution.errors import EvolverSetupError
from evolution.methods.evolver import Evolution, Evolver, Work
from federation.adapter.layout import Layout
from federation.chain.task import RoundTask
from silo_agent.errors import PolicyRefusalError, WorkCalledOffError
from silo_agent.local_work.reservation import Reservation
from silo_agent.policy.refusal import cannot_run, refused_charge

__all__ = ["NOTHING", "RoundOutcome", "outcome_of", "own_report"]

NOTHING = Evolution(delta={}, episodes={}, successes={}, metrics={}, duration_s={})
"""Nothing played and nothing learned."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundOutcome:
    """Of one round; without evolution and refusal the silo is silent."""

    evolution: Evolution | None = None
    """What was made of the round."""
    delta: np.ndarray | None = None
    """Its flat delta, present with it."""
    refusal: PolicyRefusalError | None = None
    """Why the round is not worked on."""
    called_off: bool = False
    """Nobody asks for the round any more, and nothing of it was begun."""

    def __repr__(self) -> str:
        """Redacted: these numbers must not reach a log."""
        return f"RoundOutcome(refused={self.refusal is not None}, values redacted)"


def outcome_of(
    method: Callable[[], Evolver],
    work: Callable[[], Work],
    *,
    spec: PrivacySpec,
    layout: Layout,
    reservation: Reservation,
    on_failure: Callable[[], None],
) -> RoundOutcome:
    """Do a round's work.

    Args:
        method: Gives the plan's method, made by the first job that needs it.
        work: Makes the round's work.
        spec: The plan's.
        layout: Of the shared vector.
        reservation: Charges ``record_local``; settled here.
        on_failure: Counts a round that failed.
    """
    local = spec.mode is Mode.RECORD_LOCAL
    done = RoundOutcome()
    public = True
    try:
        evolver = method()
        public = spec.mode in RECORD_MODES
        evolution = evolver.evolve(work())
        done = RoundOutcome(evolution=evolution, delta=layout.flatten(evolution.delta))
    except WorkCalledOffError:
        # Before anything was explored, so there is nothing to charge for.
        return RoundOutcome(called_off=True)
    except Exception as error:
        if public and isinstance(error, EvolverSetupError):
            return RoundOutcome(refusal=cannot_run(error))
        if reservation.failure is None:
            on_failure()
            log.exception("evolve_failed", contributes="nothing" if local else "zeros")
        if not local:
            zeros = np.zeros(layout.dimension, dtype=np.float32)
            done = RoundOutcome(evolution=NOTHING, delta=zeros)
    if local:
        reservation.settle()
    if reservation.failure is not None:
        return RoundOutcome(refusal=refused_charge(reservation.failure))
    return done


def own_report(
    task: RoundTask, evolution: Evolution, delta: np.ndarray, *, duration_s: float
) -> dict[str, Any]:
    """What the silo's own file says of a round; it stays here.

    Args:
        task: The round's.
        evolution: What was made of it.
        delta: Its flat delta, as it is before clipping.
        duration_s: Of all of it.
    """
    return {
        "run": task.run_id,
        "round": task.round,
        "delta_norm": l2_norm(delta),
        "episodes": dict(evolution.episodes),
        "successes": dict(evolution.successes),
        "metrics": dict(evolution.metrics),
        "duration_s": {**evolution.duration_s, "total": duration_s},
    }

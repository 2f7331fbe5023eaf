"""What a round's local work came to: a vector with its figures, silence, or a refusal.

Invariants of how work ends:

1. A failure that private data may have caused does not show outside. Where the release adds noise
   to everything, the result is the zero vector. Under ``record_local`` the noise is in the
   training, and a vector without it would be told from one with it: there the round is charged and
   the silo says nothing, as if it had crashed. So it does in both record-level modes where the work
   took longer than the plan gives it: noise for one unit does not hide that all are missing.
2. A refusal depends on the ledger, or on the configuration alone. The latter costs no charge, for
   it is found before anything is explored. What setting the method up already shows refuses in
   every mode: zeros of a silo that cannot work would count towards a sum that is about the others.
   What shows later refuses where units are protected, for there the method checks it before it
   explores; elsewhere it may come with having something to learn from.
3. Work that nobody wants any more (``reservation.py``) comes to nothing: no result, no word to
   anybody, and no charge that was not made before.

Invariants of a result on its way into sums:

4. A round's figures go into one sum: that of step 0. The blocks of later steps are zeros under full
   noise, so that the figures are charged once.
5. What the block says of the update's norm is said of the vector that is released. Under
   ``record_distributed`` it is zero: the norm of a sum of unit gradients is no figure of a silo.
6. A delta is there when an attempt begins. A sum of unit gradients may still be under way on the
   worker's thread: whoever needs it waits a short while and is then told to come again, so that
   the daemon's thread never stands still. It is computed for one attempt and given out once. When
   the attempt is over before it began, it is not computed at all.
7. Nothing here is printed.

Covered: all modes. Not covered: failures of one unit, which the method itself keeps to that unit
(``evolution/methods/evolver.py``, invariant 2); what a failed sum contributes instead
(``silo_agent/local_work/step_sum.py``); clip and noise (``dp.noise.share``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from dp.config import RECORD_MODES, Mode
from dp.noise.grid import l2_norm
from dp.noise.unit_sum import UnitSum
from evolution.errors import EvolverSetupError, LocalTimeError, NotWantedError
from evolution.methods.evolver import Evolution, Evolver, Work
from federation.adapter.layout import Layout
from federation.chain.sums import UPDATE_NORM_SQ, VETOES
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from ops.logs.logger import get_logger
from secagg.descriptor import OTHER_FAMILY, MetricsLayout
from silo_agent.errors import NotReadyError, PolicyRefusalError, SessionError, WorkCalledOffError
from silo_agent.local_work.reservation import Reservation
from silo_agent.policy.refusal import cannot_run, refused_charge

__all__ = ["KeptResults", "Result", "result_of"]

_WAIT_S: Final = 1.0
"""How long the daemon's thread waits for a sum before it looks after the coordinator again.

A sum that is done ends the wait at once; each poll in between carries all boxes once more.
"""
MAX_RUNS: Final = 4
"""Deltas of several runs are kept at once: of those paused most recently, and the newest."""

log = get_logger(__name__)


@dataclass(kw_only=True, slots=True, repr=False)
class Result:
    """One round's, as it is kept; and, with the figures of its block, one attempt's share of it."""

    run_id: str
    """The run."""
    round: int
    """The round."""
    plan: Plan
    """Under which it was done."""
    layout: Layout
    """Of the shared vector."""
    delta: np.ndarray | Future[UnitSum] | None
    """Flat float32 over ``layout``; not clipped. Under ``record_distributed`` empty, and for an
    attempt the sum that is computed for it alone. None when it was taken."""
    episodes: Mapping[str, int] = field(default_factory=dict)
    """Played, by family."""
    successes: Mapping[str, int] = field(default_factory=dict)
    """Solved, by family."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The method's own figures; they stay in the silo."""
    duration_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage; they stay in the silo."""
    evolved: bool = False
    """Whether a method made it; else it stands in for work that failed, or was not done."""
    vetoes: bool = False
    """Whether this site's guard refuses the adapter that it would have been made with."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Of an attempt: the value of each coordinate of its metrics block."""

    @classmethod
    def of(cls, task: RoundTask, plan: Plan, layout: Layout, evolution: Evolution | None) -> Self:
        """What a round's evolution leaves behind; without one, nothing played and nothing learned.

        Under ``record_distributed`` its delta is not kept: the sums come one by one.
        """
        if evolution is None:
            delta = np.zeros(layout.dimension, dtype=np.float32)
        else:
            delta = layout.flatten(evolution.delta)
        if plan.spec.mode is Mode.RECORD_DISTRIBUTED:
            delta = np.zeros(0, dtype=np.float32)
        mine = cls(run_id=task.run_id, round=task.round, plan=plan, layout=layout, delta=delta)
        if evolution is not None:
            mine.evolved = True
            mine.episodes, mine.successes = evolution.episodes, evolution.successes
            mine.metrics, mine.duration_s = evolution.metrics, evolution.duration_s
        return mine

    def for_attempt(
        self, metrics: MetricsLayout, *, step: int = 0, unit_sum: Future[UnitSum] | None = None
    ) -> Self:
        """The vector and the figures for one attempt at the sum of a step.

        Under ``record_distributed`` the vector is ``unit_sum``.
        """
        return replace(
            self,
            delta=self.delta if unit_sum is None else unit_sum,
            figures=self._block(metrics.names) if step == 0 else dict.fromkeys(metrics.names, 0.0),
        )

    def require_ready(self) -> None:
        """Wait a short while for the vector.

        Raises:
            NotReadyError: It is still being computed, or its time has not come.
            PrivacyError: There is none to release: more units were sampled than may be.
            LateWorkError: There is none: it took longer than the plan gives it.
        """
        if isinstance(self.delta, Future):
            _ended(self.delta)

    def take(self) -> np.ndarray | UnitSum:
        """The vector, once; nothing here holds it any more.

        Raises:
            NotReadyError: It is still being computed, and may be asked for again.
            SessionError: It was taken or dropped before.
            PrivacyError: There is none to release.
        """
        if self.delta is None:
            raise SessionError("this contribution was already used")
        taken = _ended(self.delta) if isinstance(self.delta, Future) else self.delta
        self.delta = None
        return taken

    def drop(self) -> None:
        """Forget the vector; a computation that has not begun does not begin."""
        vector, self.delta = self.delta, None
        if isinstance(vector, Future):
            vector.cancel()

    def report(self, *, duration_s: float) -> dict[str, Any]:
        """What the silo's own file says of the round, and of its delta before clipping."""
        return {
            "run": self.run_id,
            "round": self.round,
            "delta_norm": self._norm(),
            "episodes": dict(self.episodes),
            "successes": dict(self.successes),
            "metrics": dict(self.metrics),
            "duration_s": {**self.duration_s, "total": duration_s},
        }

    def _norm(self) -> float:
        return l2_norm(self.delta) if isinstance(self.delta, np.ndarray) else 0.0

    def _block(self, names: tuple[str, ...]) -> dict[str, float]:
        """Values by coordinate name; families that are not listed are counted as `other`."""
        figures = dict.fromkeys(names, 0.0)
        spec = self.plan.spec
        if UPDATE_NORM_SQ in figures and spec.mode is not Mode.RECORD_DISTRIBUTED:
            # What is released is the clipped vector, so its norm is what the sum is compared with.
            # NaN passes through min() on the left alone; the encoder must see it and refuse it.
            figures[UPDATE_NORM_SQ] = min(self._norm(), spec.release.clip_l2) ** 2
        if VETOES in figures:
            figures[VETOES] = float(self.vetoes)
        for kind, counts in (("episodes", self.episodes), ("successes", self.successes)):
            for family, count in counts.items():
                name = f"{kind}/{family}"
                if name not in figures:
                    name = f"{kind}/{OTHER_FAMILY}"
                if name in figures:
                    figures[name] += count
        return figures

    def __repr__(self) -> str:
        """Redacted: these numbers must not reach a log."""
        return f"Result(run_id={self.run_id!r}, round={self.round}, values redacted)"


class KeptResults:
    """The newest result of each of the last runs; not safe for threads by itself."""

    def __init__(self) -> None:
        self._newest: dict[str, Result] = {}

    def find(self, run_id: str, round_number: int) -> Result | None:
        """Return the result of a round, if it is kept."""
        done = self._newest.get(run_id)
        return done if done is not None and done.round == round_number else None

    def keep(self, result: Result) -> tuple[str, int] | None:
        """Keep a result in the place of its run's older one.

        Returns run and round of the result that had to go to make room, if one had to.
        """
        self._newest.pop(result.run_id, None)
        self._newest[result.run_id] = result
        if len(self._newest) <= MAX_RUNS:
            return None
        gone = self._newest.pop(next(iter(self._newest)))
        return gone.run_id, gone.round

    def forget(self, run_id: str) -> tuple[str, int] | None:
        """Let go of a run's result: the run is over; returns run and round of it, if any."""
        gone = self._newest.pop(run_id, None)
        return None if gone is None else (gone.run_id, gone.round)


def result_of(
    method: Callable[[], Evolver],
    work: Callable[[], Work],
    *,
    task: RoundTask,
    plan: Plan,
    layout: Layout,
    reservation: Reservation,
    on_failure: Callable[[], None],
    vetoes: bool = False,
) -> Result | None:
    """Do a round's work; None where the silo is silent about it.

    ``method`` gives the plan's method, made by the first job that needs it. ``reservation`` charges
    ``record_local`` and is settled here; ``on_failure`` counts a round that failed. Whoever vetoes
    the adapter sets the method up, and neither explores nor learns: zeros stand in for it, under
    the same noise and for the same charge.

    Raises:
        WorkCalledOffError: Nobody asks for the round any more; what was charged by then stays so.
        PolicyRefusalError: The round is not worked on.
    """
    mode = plan.spec.mode
    local = mode is Mode.RECORD_LOCAL
    done: Result | None = None
    refusal: PolicyRefusalError | None = None
    public = True
    try:
        evolver = method()
        public = mode in RECORD_MODES
        done = Result.of(task, plan, layout, None if vetoes else evolver.evolve(work()))
        done.vetoes = vetoes
    except WorkCalledOffError:
        raise
    except NotWantedError as error:
        # Between two steps. What was not charged by now is not charged any more.
        raise WorkCalledOffError(str(error)) from error
    except Exception as error:
        if public and isinstance(error, EvolverSetupError):
            refusal = cannot_run(error)
        else:
            silent = local or (mode in RECORD_MODES and isinstance(error, LocalTimeError))
            if reservation.failure is None:
                on_failure()
                log.exception("evolve_failed", contributes="nothing" if silent else "zeros")
            if not silent:
                done = Result.of(task, plan, layout, None)
    if refusal is not None:
        raise refusal
    if local:
        reservation.settle()
    # The method may have swallowed what told it to stop.
    reservation.require_wanted()
    if reservation.failure is not None:
        raise refused_charge(reservation.failure)
    return done


def _ended(future: Future[UnitSum]) -> UnitSum:
    try:
        return future.result(timeout=_WAIT_S)
    except TimeoutError as error:
        raise NotReadyError("the sum of unit gradients is still being computed") from error

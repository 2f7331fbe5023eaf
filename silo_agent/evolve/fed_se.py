"""Fed-SE: explore, keep what succeeded, imitate it (arXiv 2512.08870, algorithm 1).

One local round, with Θ the frozen base and φ_t the global adapter::

    φ ← φ_t                                                        hard reset
    D_new = { τ ~ π_{Θ,φ_t} at temperature 1 : R(τ) = 1 }           strict binary filter
    D     = D ∪ D_new                                              the silo's buffer
    φ     ← argmin_φ E_{τ∈select(D)} −Σ_agent log π_{Θ,φ}          a few epochs of AdamW
    Δ     = φ − φ_t                                                what leaves, clipped and masked

``select`` is the last ``window`` rounds and, per task, the shortest success of its tries; window 0
and all successes is the paper's own setting. The selection looks at one task at a time, never
across tasks.

Assumption: the base solves some tasks already; where success is 0 the filter keeps nothing.

dp_compat: all modes. Where units inside a silo are protected (``record_local``,
``record_distributed``), a unit is a task with all its tries, or the user whose data tasks are of:

- a round's tasks are distinct; all of them are units, solved or not (``population``);
- ``record_local``: after exploring, the round's steps are charged, and S noisy steps (``dp.sgd``)
  with Adam replace the last line but one. With nothing to learn from, or where exploring failed as
  a whole, the S steps still run and are noise: no delta leaves that noise is not in;
- ``record_distributed``: ``evolve`` explores and stores, and ``unit_sum`` answers each step;
- a task whose environment, conversation or storing fails is dropped alone, and a unit whose
  gradient fails is a null unit (``dp.sgd``): a unit's failure moves its own part alone;
- what the configuration makes impossible is found before exploring (``protection``);
- nothing looks across units: no cap over all tasks, no packing, no sampling by success.

There ``epochs``, ``batch_size`` and ``grad_clip_l2`` play no part.

Options: ``buffer_capacity`` (most successes kept; refused where units are protected, because one
task would push out another's), ``buffer_capacity_per_task`` and ``gradient_backend`` (``loop``,
``hooks`` or ``functorch``; see ``dp.grads``).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import structlog

from dp.config import Mode, PrivacySpec
from dp.errors import PrivacyError
from dp.grads import BACKENDS
from dp.sgd import DpStep, unit_sum
from dp.unit_sum import UnitSum
from silo_agent.buffer import SuccessBuffer
from silo_agent.evolve.evolver import (
    DP_MODES,
    Evaluation,
    EvaluationRow,
    Evolution,
    EvolveError,
    Evolver,
    EvolverSetup,
    EvolverSetupError,
    EvolveSettings,
    StepWork,
    Work,
)
from silo_agent.evolve.explore import Stream, draw_tasks, round_seed
from silo_agent.evolve.held_out import judge
from silo_agent.evolve.population import Population, population_of
from silo_agent.evolve.protection import (
    protected,
    require_apart,
    require_setup_apart,
    require_steps,
    require_units,
    wave_size,
)
from silo_agent.evolve.trainers import make_trainer
from silo_agent.rollout.engines import make_engine
from silo_agent.rollout.episodes import EpisodeBatch, run_episodes
from silo_agent.trajectory import Task, Trajectory

__all__ = ["FedSeEvolver"]

_OPTIONS = frozenset({"buffer_capacity", "buffer_capacity_per_task", "gradient_backend"})
_DEFAULT_CAPACITY = 20_000

_NOTHING_PLAYED = EpisodeBatch(trajectories=(), dropped=0, environment_steps=0)
_NOBODY = Population(units=(), rows_of={})
_log = structlog.get_logger(__name__)

_COUNTERS = ("rounds", "episodes", "successes", "dropped")


class FedSeEvolver(Evolver):
    """See the module."""

    name: ClassVar[str] = "fed-se"
    dp_compat: ClassVar[frozenset[str]] = DP_MODES

    def __init__(self, setup: EvolverSetup) -> None:
        unknown = set(setup.options) - _OPTIONS
        if unknown:
            raise EvolverSetupError(f"fed-se has no option {min(unknown)!r}")
        if setup.base_dir is None or setup.state_dir is None or not setup.assignments:
            raise EvolverSetupError("fed-se needs a base model, a state directory and environments")
        self._gradients = str(setup.options.get("gradient_backend", "loop"))
        if self._gradients not in BACKENDS:
            raise EvolverSetupError(
                f"there is no gradient_backend {self._gradients!r}; known: {', '.join(BACKENDS)}"
            )
        require_setup_apart(setup, backend=self._gradients)
        self._setup = setup
        self._environments = {
            a.environment: setup.catalogue.make(a.environment) for a in setup.assignments
        }
        self._buffer = _open_buffer(setup)
        self._engine = make_engine(
            setup.base_dir,
            alpha=setup.alpha,
            dtype=setup.dtype,
            threads=setup.threads,
            spec=setup.engine,
        )
        self._trainer = make_trainer(
            setup.base_dir,
            rank=setup.rank,
            alpha=setup.alpha,
            dtype=setup.dtype,
            state_dir=setup.state_dir,
            spec=setup.trainer,
        )
        self._counters = dict.fromkeys(_COUNTERS, 0)

    def evolve(self, work: Work) -> Evolution:
        """Run one local round.

        Args:
            work: The round.

        Returns:
            The delta and the counts.
        """
        spec = self._spec_of(work)
        started_s = time.perf_counter()
        self._trainer.reset(work.adapter)
        if spec is not None:
            self._require_steps(work, spec)
        tasks = self._draw(work, spec)
        played, population = _NOTHING_PLAYED, _NOBODY
        try:
            played = self._explore(work, tasks, spec)
            if spec is not None and spec.mode is Mode.RECORD_LOCAL:
                population = self._population(work.round, work.settings, spec)
        except Exception as error:
            if spec is None or isinstance(error, EvolveError):
                raise
            # No single unit can do this. Without noise the silo would say that it happened.
            _log.exception("explore_failed", round=work.round, contributes="noise")
        explored_s = time.perf_counter()
        if spec is None:
            figures = self._imitate(work)
        elif spec.mode is Mode.RECORD_LOCAL:
            figures = self._descend(work, spec, population)
        else:
            # Every step of the round is an aggregation of its own: see unit_sum.
            figures = {}
        local = self._trainer.adapter()
        delta = {name: local[name] - work.adapter[name] for name in sorted(work.trainable)}
        episodes, successes = self._count(played)
        return Evolution(
            delta=delta,
            episodes=episodes,
            successes=successes,
            metrics={
                **figures,
                "delta_l2": math.sqrt(
                    sum(float(np.square(d, dtype=np.float64).sum()) for d in delta.values())
                ),
                "dropped": float(played.dropped),
                "environment_steps": float(played.environment_steps),
            },
            duration_s={
                "explore": explored_s - started_s,
                "train": time.perf_counter() - explored_s,
            },
        )

    def unit_sum(self, work: StepWork) -> UnitSum:
        """Sum the clipped gradients of a fresh sample of units at the step's adapter.

        Args:
            work: The step; its round has been explored.

        Returns:
            Integers without noise, which only a noise share can take.

        Raises:
            EvolverSetupError: The method was not set up for this.
            CouplingError: The model has no gradient per unit.
            TooManyUnitsError: The sample is larger than B_max.
        """
        if work.spec != self._setup.privacy or work.spec.mode is not Mode.RECORD_DISTRIBUTED:
            raise EvolverSetupError("the step's privacy is not the one this method was set up with")
        require_apart(work.settings)
        self._trainer.reset(work.adapter)
        population = self._population(work.round, work.settings, work.spec)
        return unit_sum(
            population.units,
            population.rows_of if work.settings.learn else {},
            spec=work.spec,
            dimension=sum(work.adapter[name].size for name in work.names),
            backend=self._trainer.gradients(work.names, backend=self._gradients),
        )

    def evaluate(self, work: Evaluation) -> list[EvaluationRow]:
        """Judge an adapter on held-out tasks.

        Args:
            work: The adapter and how to judge it.

        Returns:
            One row per environment, label and temperature.
        """
        self._engine.load_adapter(work.adapter_sha256, work.adapter)
        return judge(
            self._engine,
            self._setup.judged or tuple(self._environments),
            work,
            make_environment=self._setup.catalogue.make,
        )

    def state_dict(self) -> dict[str, int]:
        """Counters since the silo joined; the buffer is on disk.

        Returns:
            Counters by name.
        """
        return dict(self._counters)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue counting.

        Args:
            state: What ``state_dict`` returned.
        """
        self._counters = {name: int(state[name]) for name in _COUNTERS}

    def metrics(self) -> dict[str, float]:
        """Counters and the size of the buffer.

        Returns:
            Gauges by name.
        """
        return {**{k: float(v) for k, v in self._counters.items()}, "buffer": len(self._buffer)}

    def close(self) -> None:
        """Release the models and close the buffer."""
        self._engine.close()
        self._buffer.close()

    def _spec_of(self, work: Work) -> PrivacySpec | None:
        """The spec where the units inside the silo are protected, else None."""
        require_apart(work.settings)
        asked = protected(None if work.privacy is None else work.privacy.spec)
        if asked != protected(self._setup.privacy):
            raise EvolverSetupError("the work's privacy is not the one this method was set up with")
        return asked

    def _imitate(self, work: Work) -> dict[str, float]:
        settings = work.settings
        chosen = self._buffer.select(
            round_index=work.round, window=settings.window, best_per_task=settings.best_per_task
        )
        report = self._trainer.train(
            chosen if settings.learn else [],
            trainable=work.trainable,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            grad_clip_l2=settings.grad_clip_l2,
            max_sequence_tokens=settings.max_sequence_tokens,
            seed=round_seed(work, Stream.TRAIN),
        )
        return {
            "agent_tokens": float(report.agent_tokens),
            "first_loss": report.first_loss,
            "last_loss": report.last_loss,
            "optimiser_steps": float(report.optimiser_steps),
            "selected": float(len(chosen)),
        }

    def _descend(self, work: Work, spec: PrivacySpec, population: Population) -> dict[str, float]:
        """The charged steps; with nobody to learn from they are noise, as without data."""
        if work.privacy is None or work.privacy.reserve is None or spec.record is None:
            raise EvolverSetupError("record_local charges the ledger before it trains: no ledger")
        if not work.settings.learn:
            return {"optimiser_steps": 0.0}
        names = sorted(work.trainable)
        backend = self._trainer.gradients(names, backend=self._gradients)
        step = DpStep(receipt=work.privacy.reserve(), dimension=backend.dimension, backend=backend)
        steps = spec.record.steps_per_round
        self._trainer.descend(
            names,
            lambda: step.gradient(population.units, population.rows_of),
            steps=steps,
            learning_rate=work.settings.learning_rate,
        )
        return {
            "null_units": float(step.null_units),
            "optimiser_steps": float(steps),
            "population": float(len(population.units)),
            "units_with_rows": float(len(population.rows_of)),
        }

    def _population(
        self, round_index: int, settings: EvolveSettings, spec: PrivacySpec
    ) -> Population:
        return population_of(
            self._buffer, round_index=round_index, settings=settings, unit=spec.unit
        )

    def _require_steps(self, work: Work, spec: PrivacySpec) -> None:
        """Find out before anything is played or charged what would fail every step."""
        names = sorted(work.trainable)
        require_steps(spec, sum(work.adapter[name].size for name in names))
        try:
            self._trainer.gradients(names, backend=self._gradients)
        except PrivacyError as error:
            raise EvolverSetupError(f"this model has no gradient per unit: {error}") from error

    def _draw(self, work: Work, spec: PrivacySpec | None) -> list[Task]:
        if not work.settings.explore:
            return []
        tasks = draw_tasks(work, self._setup.assignments, self._environments)
        if spec is not None:
            require_units(tasks, spec)
        return tasks

    def _explore(self, work: Work, tasks: list[Task], spec: PrivacySpec | None) -> EpisodeBatch:
        """Play the tasks and keep what succeeded."""
        if not tasks:
            return _NOTHING_PLAYED
        self._buffer.explore(tasks, round_index=work.round, adapter_sha256=work.adapter_sha256)
        self._engine.load_adapter(work.adapter_sha256, work.adapter)
        played = run_episodes(
            self._engine,
            tasks,
            temperature=work.settings.temperature,
            seed=round_seed(work, Stream.EXPLORE),
            max_new_tokens=work.settings.max_new_tokens,
            batch_size=wave_size(work.settings, spec, self._setup.dtype),
            round_index=work.round,
            make_environment=self._setup.catalogue.make,
        )
        if any(t.adapter_sha256 != work.adapter_sha256 for t in played.trajectories):
            raise EvolveError("episodes were not played with the released adapter")
        for trajectory in played.trajectories:
            if trajectory.success:
                self._keep(trajectory)
        return played

    def _keep(self, trajectory: Trajectory) -> None:
        try:
            self._buffer.add([trajectory])
        except Exception as error:  # noqa: BLE001  # one episode's tokens may do it: the others stay
            _log.warning("trajectory_not_stored", error=type(error).__name__)

    def _count(self, played: EpisodeBatch) -> tuple[dict[str, int], dict[str, int]]:
        episodes = Counter({e.family: 0 for e in self._environments.values()})
        successes = Counter(episodes)
        for trajectory in played.trajectories:
            family = self._environments[trajectory.task.environment].family
            episodes[family] += 1
            successes[family] += trajectory.success
        self._counters["rounds"] += 1
        self._counters["episodes"] += episodes.total()
        self._counters["successes"] += successes.total()
        self._counters["dropped"] += played.dropped
        return dict(episodes), dict(successes)


def _open_buffer(setup: EvolverSetup) -> SuccessBuffer:
    per_task = setup.options.get("buffer_capacity_per_task")
    if setup.state_dir is None:
        raise EvolverSetupError("fed-se needs a state directory")
    setup.state_dir.mkdir(parents=True, exist_ok=True)
    return SuccessBuffer(
        setup.state_dir / "successes.sqlite",
        capacity=None
        if protected(setup.privacy)
        else int(setup.options.get("buffer_capacity", _DEFAULT_CAPACITY)),
        capacity_per_task=None if per_task is None else int(per_task),
    )

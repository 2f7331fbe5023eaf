"""Fed-SE: explore, keep what succeeded, imitate it (arXiv 2512.08870, algorithm 1).

One local round, with Θ the frozen base and φ_t the global adapter::

    φ ← φ_t                                                        hard reset
    D_new = { τ ~ π_{Θ,φ_t} at temperature 1 : R(τ) = 1 }           strict binary filter
    D     = D ∪ D_new                          the silo's memory, which begins with D_expert
    φ     ← argmin_φ E_{τ∈select(D)} −Σ_agent log π_{Θ,φ}          a few epochs of AdamW
    Δ     = φ − φ_t                                                what leaves, clipped and masked

``select`` is the last ``window`` rounds and, per task, the shortest success of its tries; window 0
and all successes is the paper's own setting. The selection looks at one task at a time, never
across tasks. With ``use_expert`` every demonstration is part of the training set as well, whatever
the window: D_train[k, 0] = D_expert[k].

Assumption: the base solves some tasks already; where success is 0 the filter keeps nothing.

dp_compat: all modes. Where units inside a silo are protected (``record_local``,
``record_distributed``), a unit is a task with all its tries, or the user whose data tasks are of:

- a round's tasks are distinct; all of them are units, solved or not (``population``);
- ``record_local``: after exploring, the round's steps are charged, and S noisy steps
  (``dp.steps.sgd``) with Adam replace the last line but one. With nothing to learn from, or where
  exploring failed as a whole, the S steps still run and are noise: no delta leaves that noise is
  not in;
- ``record_distributed``: ``evolve`` explores and stores, and ``unit_sum`` answers each step;
- a task whose environment, conversation or storing fails, or whose environment takes longer than
  a try may (``evolution/rollout/own_time.py``), is dropped alone, and a unit whose gradient fails
  is a null unit (``dp.steps.sgd``): a unit's failure moves its own part alone;
- work that takes longer than the whole of it may is ended, and nothing of it leaves
  (``evolution/local_time.py``);
- what the configuration makes impossible is found before exploring (``protection``);
- nothing looks across units: no cap over all tasks, no packing, no sampling by success;
- demonstrations are not trained on, whatever ``use_expert`` says: their tasks were not drawn by
  seeds, so they are in no population, and no released adapter played them.

There ``epochs``, ``batch_size`` and ``grad_clip_l2`` play no part, and FedProx and SCAFFOLD are
refused. Options: ``evolution/methods/fed_se_options.py``. Adapters of the silo's own:
``evolution/methods/personal/personal.py``.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import structlog

from dp.config import Mode, PrivacySpec
from dp.noise.unit_sum import UnitSum
from dp.steps.sgd import unit_sum
from evolution.errors import (
    EnvironmentPluginError,
    EnvironmentSetupError,
    EvolveError,
    EvolverSetupError,
    LocalTimeError,
    UnknownEnvironmentError,
)
from evolution.methods.descend import descend, require_descent
from evolution.methods.evolver import (
    DP_MODES,
    Evaluation,
    EvaluationRow,
    Evolution,
    Evolver,
    EvolverSetup,
    EvolveSettings,
    StepWork,
    Work,
)
from evolution.methods.explore import Stream, draw_tasks, round_seed
from evolution.methods.fed_se_options import FedSeOptions
from evolution.methods.held_out import judge
from evolution.methods.imitate import (
    figures_of,
    imitate,
    require_plain_gradients,
    training_set,
)
from evolution.methods.machines import make_machines
from evolution.methods.personal.choice import Choice, choose, validation_tasks
from evolution.methods.personal.personal import PersonalAdapter, identity_of
from evolution.methods.population import Population, open_run_memory, population_of
from evolution.methods.protection import protected, require_apart, require_units, wave_size
from evolution.rollout.episodes import EpisodeBatch, run_episodes
from evolution.trajectory import Group, Task, Trajectory
from ops.tracing.spans import spanned

__all__ = ["FedSeEvolver"]

_NOTHING_PLAYED = EpisodeBatch(trajectories=(), dropped=0, environment_steps=0)
_NOBODY = Population(units=(), rows_of={})
_log = structlog.get_logger(__name__)


class FedSeEvolver(Evolver):
    """See the module."""

    name: ClassVar[str] = "fed-se"
    dp_compat: ClassVar[frozenset[str]] = DP_MODES

    def __init__(self, setup: EvolverSetup) -> None:
        self._options = FedSeOptions.of(setup)
        self._gradients = self._options.gradient_backend
        if setup.base_dir is None or setup.state_dir is None or not setup.assignments:
            raise EvolverSetupError("fed-se needs a base model, a state directory and environments")
        self._setup = setup
        known = setup.catalogue
        self._explored = known if protected(setup.privacy) is None else known.apart()
        try:
            self._environments = {
                a.environment: setup.catalogue.make(a.environment) for a in setup.assignments
            }
        except (UnknownEnvironmentError, EnvironmentPluginError, EnvironmentSetupError) as error:
            # That something is not installed, or does not start, is no data.
            raise EvolverSetupError(str(error)) from error
        self._buffer = open_run_memory(
            setup.state_dir,
            expert_file=setup.expert_file,
            capacity=self._options.buffer_capacity,
            capacity_per_task=self._options.buffer_capacity_per_task,
            failure_capacity=self._options.failure_capacity,
            failure_capacity_per_task=self._options.failure_capacity_per_task,
            max_age_days=self._options.memory_max_age_days,
            environments=self._environments,
        )
        self._personal = PersonalAdapter(self._options, state_dir=setup.state_dir)
        machines = setup.machines or make_machines(setup)
        self._engine, self._trainer = machines.engine, machines.trainer

    def evolve(self, work: Work) -> Evolution:
        """Run one local round."""
        spec = self._spec_of(work)
        started_s = time.perf_counter()
        start = self._personal.start_of(work)
        self._trainer.reset(start)
        if spec is not None:
            require_descent(self._trainer, work, spec, gradient_backend=self._gradients)
        tasks = self._draw(work, spec)
        played, population = _NOTHING_PLAYED, _NOBODY
        try:
            with spanned("explore"):
                played = self._explore(work, tasks, spec, start)
            if spec is not None:
                population = self._population(work.round, work.settings, spec)
        except Exception as error:
            if spec is None or isinstance(error, EvolveError | LocalTimeError):
                # What is over as a whole is silent: without rows it would be without all units.
                raise
            # No single unit can do this. Without noise the silo would say that it happened.
            _log.exception("explore_failed", round=work.round, contributes="noise")
        explored_s = time.perf_counter()
        figures: dict[str, float] = {}
        mean_gradient = None
        if spec is None:
            chosen = training_set(self._buffer, work, success_filter=self._options.success_filter)
            names = self._personal.trained_names(work)
            report = imitate(self._trainer, chosen, work, trainable=names)
            figures = figures_of(report, len(chosen))
            mean_gradient = report.mean_gradient if work.correction is not None else None
        elif spec.mode is Mode.RECORD_LOCAL:
            figures = descend(
                self._trainer, work, spec, population, gradient_backend=self._gradients
            )
        else:
            # Every step is an aggregation of its own: see unit_sum.
            figures = {"too_long": float(population.too_long)}
        local = self._trainer.adapter()
        if figures.get("too_long"):
            _log.warning(
                "trajectories_too_long",
                round=work.round,
                trajectories=int(figures["too_long"]),
                max_tokens=work.settings.max_sequence_tokens,
            )
        delta = {name: local[name] - work.adapter[name] for name in sorted(work.trainable)}
        self._personal.keep_factors(work, local)
        figures |= self._train_apart(work)
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
                **played.figures,
            },
            duration_s={
                "explore": explored_s - started_s,
                "train": time.perf_counter() - explored_s,
            },
            mean_gradient=mean_gradient,
        )

    def unit_sum(self, work: StepWork) -> UnitSum:
        """Sum the clipped gradients of a fresh sample of units at the step's adapter.

        The step's round has been explored. The integers are without noise, which only a noise share
        can take.

        Raises:
            EvolverSetupError: The method was not set up for this.
            CouplingError: The model has no gradient per unit.
            TooManyUnitsError: The sample is larger than B_max.
        """
        if work.spec != self._setup.privacy or work.spec.mode is not Mode.RECORD_DISTRIBUTED:
            raise EvolverSetupError("the step's privacy is not the one this method was set up with")
        require_apart(work.settings)
        require_plain_gradients(work.spec, work.settings)
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
        """Judge an adapter on held-out tasks: one row per environment, label and temperature.

        Raises:
            EvolverSetupError: The personal adapter is to be judged, and the silo keeps none.
            PersonalStoreError: It cannot be read.
        """
        own = self._personal.current(work.adapter) if work.personal else work.adapter
        self._engine.load_adapter(identity_of(own) if work.personal else work.adapter_sha256, own)
        return judge(
            self._engine,
            self._setup.judged or tuple(self._environments),
            work,
            make_environment=self._setup.catalogue.make,
        )

    def choose(
        self,
        work: Evaluation,
        *,
        others: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    ) -> Choice:
        """Which adapter this silo should use, by tasks that nobody learned from.

        ``global``, ``personal`` or one of the others, for example what the silo reaches alone, with
        the counts. The work's ``episodes`` is the number of tasks per environment, and the first of
        its ``temperatures`` is used.

        Raises:
            PersonalStoreError: The personal adapter cannot be read.
        """
        candidates = {"global": work.adapter}
        if self._options.personal != "off":
            candidates["personal"] = self._personal.current(work.adapter)
        return choose(
            self._engine,
            {**candidates, **(others or {})},
            validation_tasks(
                self._setup.assignments,
                self._environments,
                known=self._buffer.known_tasks(),
                count=work.episodes,
            ),
            work,
            make_environment=self._setup.catalogue.make,
        )

    def close(self) -> None:
        """Release the models that are the method's own, and close the memory."""
        if self._setup.machines is None:
            self._engine.close()
        self._buffer.close()

    def _spec_of(self, work: Work) -> PrivacySpec | None:
        """The spec where the units inside the silo are protected, else None."""
        require_apart(work.settings)
        asked = protected(None if work.privacy is None else work.privacy.spec)
        if asked != protected(self._setup.privacy):
            raise EvolverSetupError("the work's privacy is not the one this method was set up with")
        require_plain_gradients(asked, work.settings, work.correction)
        return asked

    def _train_apart(self, work: Work) -> dict[str, float]:
        """The personal adapter; the round's delta is made already."""
        if not self._personal.trained_apart:
            return {}
        try:
            chosen = training_set(self._buffer, work, success_filter=self._options.success_filter)
            return self._personal.train_apart(self._trainer, chosen, work)
        except Exception:  # noqa: BLE001  # what is uploaded may not depend on it
            _log.exception("personal_adapter_not_trained", round=work.round)
            return {"personal_failed": 1.0}

    def _population(
        self, round_index: int, settings: EvolveSettings, spec: PrivacySpec
    ) -> Population:
        return population_of(
            self._buffer, round_index=round_index, settings=settings, unit=spec.unit
        )

    def _draw(self, work: Work, spec: PrivacySpec | None) -> list[Task]:
        if not work.settings.explore:
            return []
        tasks = draw_tasks(work, self._setup.assignments, self._environments)
        if spec is not None:
            require_units(tasks, spec)
        return tasks

    def _explore(
        self,
        work: Work,
        tasks: list[Task],
        spec: PrivacySpec | None,
        start: Mapping[str, np.ndarray],
    ) -> EpisodeBatch:
        """Play the tasks and keep every try."""
        if not tasks:
            return _NOTHING_PLAYED
        identity = work.adapter_sha256 if start is work.adapter else identity_of(start)
        self._buffer.explore(tasks, round_index=work.round, adapter_sha256=identity)
        self._engine.load_adapter(identity, start)
        played = run_episodes(
            self._engine,
            tasks,
            temperature=work.settings.temperature,
            seed=round_seed(work, Stream.EXPLORE),
            max_new_tokens=work.settings.max_new_tokens,
            batch_size=wave_size(work.settings, spec, self._setup.dtype),
            round_index=work.round,
            try_s=None if spec is None else work.settings.try_s,
            make_environment=self._explored.make,
        )
        if any(t.adapter_sha256 != identity for t in played.trajectories):
            raise EvolveError("episodes were not played with the round's released adapter")
        for group in played.groups:
            self._keep(group)
        return played

    def _keep(self, group: Group) -> None:
        """Store a task's tries; where that fails, those of them that can be stored."""
        if not self._stored(group.trajectories):
            for trajectory in group.trajectories:
                self._stored([trajectory])

    def _stored(self, tries: Sequence[Trajectory]) -> bool:
        try:
            self._buffer.add(tries)
        except Exception as error:  # noqa: BLE001  # one try's tokens may do it: the others stay
            _log.warning("trajectory_not_stored", error=type(error).__name__)
            return False
        return True

    def _count(self, played: EpisodeBatch) -> tuple[dict[str, int], dict[str, int]]:
        episodes = Counter({e.family: 0 for e in self._environments.values()})
        successes = Counter(episodes)
        for trajectory in played.trajectories:
            family = self._environments[trajectory.task.environment].family
            episodes[family] += 1
            successes[family] += trajectory.success
        return dict(episodes), dict(successes)

"""The driver of every recipe: five parts, one round, and the privacy mode that it alone knows.

One local round, with Θ the frozen base and φ_t the global adapter::

    φ ← φ_t                                                   hard reset, or the silo's own start
    tasks ← sampler                                           once a round
    local_epochs times:
        tries ← play(tasks) by π_{Θ,φ}; all are remembered
        rows  ← credit(tries, memory)
        φ     ← argmin_φ Σ_rows objective / normaliser        a few epochs of AdamW
    Δ = φ − φ_t, or 0 where a gate says no                    what leaves, clipped and masked

``fed-se`` is ``uniform``, ``once``, ``shortest-success``, ``nll`` (arXiv 2512.08870, algorithm 1):
the paper's buffer is the memory, which begins with D_expert, and window 0 with all successes is its
own setting.

Parts declare what they couple and read; this driver holds them to it. Where units inside a silo are
protected (``record_local``, ``record_distributed``), a unit is a task with all its tries, or the
user whose data tasks are of:

- a round's tasks are distinct and no more than planned; all of them are units, solved or not;
- play, credit and objective are made anew for each unit and see its tries, its part of the memory
  and its random stream; the memory's other parts are shut;
- ``record_local``: after exploring, the round's steps are charged, and S noisy steps
  (``dp.steps.sgd``) with Adam replace the training. With nothing to learn from, or where exploring
  failed as a whole, the S steps still run and are noise: no delta leaves that noise is not in;
- ``record_distributed``: ``evolve`` explores and remembers, and ``unit_sum`` answers each step;
- a unit's terms are divided by its own tokens, or by the plan's constant;
- a unit whose play or credit fails has no rows, a task whose environment, conversation or storing
  fails, or whose environment takes longer than a try may (``evolution/rollout/own_time.py``), is
  dropped alone, and a unit whose gradient fails is a null unit (``dp.steps.sgd``): a unit's failure
  moves its own part alone;
- work that takes longer than the whole of it may is ended, and nothing of it leaves
  (``evolution/local_time.py``);
- what the configuration makes impossible is found before exploring (``protection``);
- nothing looks across units: no cap over all tasks, no packing, no sampling by success;
- demonstrations are not trained on, whatever ``use_expert`` says: their tasks were not drawn by
  seeds, so they are in no population, and no released adapter played them;
- ``epochs``, ``batch_size`` and ``grad_clip_l2`` play no part; FedProx and SCAFFOLD are refused.

Options of the silo's own: ``evolution/methods/options.py``. Adapters of the silo's own:
``evolution/methods/personal/personal.py``.

Covered: every recipe. Not covered: what parts of a package keep in their module's globals, which
fresh instances cannot stop; admission to the record modes tests it (``admission``).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from dp.config import Mode, PrivacySpec
from dp.noise.unit_sum import UnitSum
from dp.steps.sgd import unit_sum
from dp.steps.units import UnitId
from evolution.envs.tasks import Split
from evolution.errors import (
    EnvironmentPluginError,
    EnvironmentSetupError,
    EvolveError,
    EvolverSetupError,
    LocalTimeError,
    NotWantedError,
    UnknownEnvironmentError,
)
from evolution.methods.chosen import parts_of
from evolution.methods.descend import Descent, descend, knowing, require_descent, tell_one_by_one
from evolution.methods.evolver import (
    Evaluation,
    EvaluationRow,
    Evolution,
    Evolver,
    EvolverSetup,
    EvolveSettings,
    StepWork,
    Work,
)
from evolution.methods.exploring import NOTHING_PLAYED, Explorer, part_work, whole_memory
from evolution.methods.held_out import judge
from evolution.methods.machines import make_machines
from evolution.methods.noted import open_run_principles
from evolution.methods.options import RecipeOptions
from evolution.methods.personal.choice import choose, tasks_to_choose_by, tensors_of, version_of
from evolution.methods.personal.compared import Choices
from evolution.methods.personal.own_head import OwnHead
from evolution.methods.personal.personal import PersonalAdapter, identity_of
from evolution.methods.playing import Played
from evolution.methods.population import (
    Population,
    UnitMemory,
    open_run_memory,
)
from evolution.methods.probes import MOST_PROBES, NO_PROBES, SiloProbes, validation_tasks
from evolution.methods.protection import (
    protected,
    require_apart,
    require_drawn,
    require_plain_gradients,
    require_units,
)
from evolution.methods.returned import (
    Tally,
    groups_of,
    pool_of,
    require_rows,
    require_tasks,
    short_enough,
)
from evolution.methods.streams import (
    Stream,
    round_seed,
    temperature_of,
    train_settings,
)
from evolution.methods.taught import taught
from evolution.parts.seam import (
    Credit,
    Gate,
    MemoryView,
    Sampler,
)
from evolution.train.rows import Row
from evolution.trajectory import Group, Task
from federation.plan.methods import Normaliser, Reads
from ops.logs.logger import get_logger
from ops.tracing.spans import spanned

__all__ = ["RecipeEvolver"]

_NOBODY = Population(units=(), rows_of={})
_log = get_logger(__name__)


class RecipeEvolver(Evolver):
    """See the module."""

    def __init__(self, setup: EvolverSetup) -> None:
        self.name = setup.recipe.method.name
        self._options = RecipeOptions.of(setup)
        if setup.base_dir is None or setup.state_dir is None or not setup.assignments:
            raise EvolverSetupError(
                f"{self.name} needs a base model, a state directory and environments"
            )
        self._setup = setup
        self._parts = parts_of(setup, self._options)
        known = setup.catalogue
        explored = known if protected(setup.privacy) is None else known.apart()
        try:
            self._environments = {
                a.environment: setup.catalogue.make(a.environment) for a in setup.assignments
            }
        except (UnknownEnvironmentError, EnvironmentPluginError, EnvironmentSetupError) as error:
            # That something is not installed, or does not start, is no data.
            raise EvolverSetupError(str(error)) from error
        self._memory = open_run_memory(
            setup.state_dir,
            expert_file=setup.expert_file,
            capacity=self._options.buffer_capacity,
            capacity_per_task=self._options.buffer_capacity_per_task,
            failure_capacity=self._options.failure_capacity,
            failure_capacity_per_task=self._options.failure_capacity_per_task,
            max_age_days=self._options.memory_max_age_days,
            environments=self._environments,
        )
        self._principles = open_run_principles(
            setup.state_dir,
            self._parts["play"],
            capacity=self._options.principle_capacity,
            max_age_days=self._options.memory_max_age_days,
        )
        self._head = OwnHead(setup, setup.base_dir, state_dir=setup.state_dir)
        self._personal = PersonalAdapter(self._options, state_dir=setup.state_dir)
        machines = setup.machines or make_machines(setup)
        self._engine, self._trainer = machines.engine, machines.trainer
        self._part_work = partial(part_work, chat=self._engine.chat)
        self._explorer = Explorer(
            engine=self._engine,
            memory=self._memory,
            play=self._parts["play"],
            dtype=setup.dtype,
            make_environment=explored.make,
            principles=self._principles,
        )

    def evolve(self, work: Work) -> Evolution:
        """Run one local round."""
        spec = self._spec_of(work)
        self._head.require_shared(work)
        started_s = time.perf_counter()
        start = {**self._personal.start_of(work), **self._head.start_of(work)}
        self._trainer.reset(start)
        if spec is not None:
            require_descent(self._trainer, work, spec, self._descent(work.settings))
        families = Counter({e.family: 0 for e in self._environments.values()})
        tally = Tally(episodes=families, successes=Counter(families))
        tally.add(too_long=0.0, **NOTHING_PLAYED.figures)
        tasks = self._draw(work, spec)
        if spec is None:
            self._learn(work, tasks, start, tally)
        else:
            self._learn_apart(work, tasks, spec, tally)
        # Under record_distributed every step is an aggregation of its own: see unit_sum.
        local = self._trainer.adapter()
        delta = {name: local[name] - work.adapter[name] for name in sorted(work.trainable)}
        if tally.figures["too_long"]:
            _log.warning(
                "trajectories_too_long",
                round=work.round,
                trajectories=int(tally.figures["too_long"]),
                max_tokens=work.settings.max_sequence_tokens,
            )
        if not self._admits(work, start, local):
            tally.add(gate_refused=1.0)
            delta = {name: np.zeros_like(change) for name, change in delta.items()}
        self._personal.keep_factors(work, local)
        self._head.keep(work, local)
        figures = tally.figures | self._train_apart(work)
        trained_s = time.perf_counter() - started_s - tally.explored_s
        return Evolution(
            delta=delta,
            episodes=dict(tally.episodes),
            successes=dict(tally.successes),
            metrics={
                **figures,
                "delta_l2": math.sqrt(
                    sum(float(np.square(d, dtype=np.float64).sum()) for d in delta.values())
                ),
            },
            duration_s={"explore": tally.explored_s, "train": trained_s},
            mean_gradient=tally.mean_gradient,
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
        population = self._population(work, work.spec)
        descent = self._descent(work.settings)
        backend = descent.gradients(self._trainer, work.names, progress=work.progress)
        total = unit_sum(
            population.units,
            population.rows_of if work.settings.learn else {},
            spec=work.spec,
            dimension=sum(work.adapter[name].size for name in work.names),
            backend=backend,
        )
        tell_one_by_one(backend)
        return total

    def evaluate(self, work: Evaluation) -> list[EvaluationRow]:
        """Judge an adapter on held-out tasks: one row per environment, label and temperature.

        Raises:
            EvolverSetupError: The personal adapter is to be judged, and the silo keeps none.
            PersonalStoreError: It cannot be read.
        """
        if work.chosen:
            return self._evaluate_chosen(work)
        own = self._personal.current(work.adapter) if work.personal else work.adapter
        version = identity_of(own) if work.personal else work.adapter_sha256
        names = work.environments or self._setup.judged or tuple(self._environments)
        return self._judge(own, version, names, work)

    def _evaluate_chosen(self, work: Evaluation) -> list[EvaluationRow]:
        own = self._personal.current(work.adapter)
        rows: list[EvaluationRow] = []
        for name, candidate in work.chosen.items():
            tensors = tensors_of(candidate, shared=work.adapter, own=own)
            rows += self._judge(tensors, version_of(tensors), (name,), work)
        return rows

    def _judge(
        self,
        tensors: Mapping[str, np.ndarray],
        version: str,
        names: Sequence[str],
        work: Evaluation,
    ) -> list[EvaluationRow]:
        self._engine.load_adapter(version, tensors)
        catalogue = self._setup.catalogue.unperturbed()
        return judge(self._engine, names, work, make_environment=catalogue.make)

    def choose(self, work: Evaluation) -> Choices | None:
        """Which adapter this silo should use; see ``Evolver.choose``.

        Raises:
            PersonalStoreError: The personal adapter cannot be read.
            AdapterMismatchError: It is not of the layers of the shared one.
        """
        count = self._options.personal_choice
        if count is None:
            return None
        tasks: list[Task] = []
        for assignment in self._setup.assignments:
            environment = self._environments[assignment.environment]
            held_out = environment.task_ids(Split.HELD_OUT)
            tasks += tasks_to_choose_by(
                environment,
                name=assignment.environment,
                shard=assignment.shard,
                judged=held_out[work.first_task :][: work.episodes],
                count=count,
            )
        return choose(
            self._engine,
            shared=work.adapter,
            own=self._personal.current(work.adapter),
            tasks=tasks,
            members={name: one.family for name, one in self._environments.items()},
            work=work,
            make_environment=self._setup.catalogue.unperturbed().make,
        )

    def _validation(self, count: int) -> list[Task]:
        """Tasks of each environment that nobody learned from."""
        return validation_tasks(
            self._setup.assignments,
            self._environments,
            known=self._memory.known_tasks(),
            count=count,
        )

    def close(self) -> None:
        """Release the models that are the method's own, and close what is kept."""
        if self._setup.machines is None:
            self._engine.close()
        self._memory.close()
        if self._principles is not None:
            self._principles.close()

    # Where nothing inside the silo is protected ---------------------------------------------------

    def _learn(
        self, work: Work, tasks: list[Task], start: Mapping[str, np.ndarray], tally: Tally
    ) -> None:
        """Play, give credit and train, ``local_epochs`` times; one instance of each part a time."""
        for epoch in range(work.settings.local_epochs):
            adapter = start if epoch == 0 else self._trainer.adapter()
            released = epoch == 0 and self._personal.plays_released
            identity = work.adapter_sha256 if released else identity_of(adapter)
            began_s = time.perf_counter()
            with spanned("explore"):
                played = self._explorer.explore(work, tasks, adapter, identity, epoch=epoch)
            tally.explored_s += time.perf_counter() - began_s
            self._count(played, tally)
            groups = groups_of(played, tasks, work)
            rows = self._credit(work, groups, epoch=epoch)
            with spanned("train"):
                kept = short_enough(rows, work.settings, tally) if work.settings.learn else []
                report = self._trainer.train(
                    taught(self._trainer, kept, self._parts["objective"], work.settings),
                    self._parts["objective"],
                    train_settings(
                        work.settings,
                        self._parts["objective"],
                        seed=round_seed(work, Stream.TRAIN, epoch=epoch),
                    ),
                    trainable=self._personal.trained_names(work) | self._head.names,
                    anchor=start if epoch else None,
                    correction=work.correction,
                )
            tally.add(
                agent_tokens=float(report.agent_tokens),
                optimiser_steps=float(report.optimiser_steps),
                selected=float(len(rows)),
            )
            if epoch == 0:
                tally.figures["first_loss"] = report.first_loss
            tally.figures |= {**report.figures, "last_loss": report.last_loss}
            tally.add(groups=float(len(groups)), groups_used=float(len({r.unit for r in rows})))
            tally.mean_gradient = report.mean_gradient if work.correction is not None else None

    def _credit(self, work: Work, groups: Sequence[Group], *, epoch: int) -> list[Row]:
        """What the whole round comes to as rows, by one instance that may see everything."""
        view = whole_memory(self._memory, work)
        credit: Credit = self._parts["credit"].make()
        with view.opened():
            rows = credit.credit(groups, view, self._part_work(work, Stream.CREDIT, epoch=epoch))
        return require_rows(rows)

    # Where units are protected --------------------------------------------------------------------

    def _learn_apart(self, work: Work, tasks: list[Task], spec: PrivacySpec, tally: Tally) -> None:
        """Explore unit by unit; under ``record_local`` take the charged steps."""
        population = _NOBODY
        began_s = time.perf_counter()
        try:
            with spanned("explore"):
                played = self._explorer.explore(
                    work, tasks, work.adapter, work.adapter_sha256, spec=spec, epoch=0
                )
            self._count(played, tally)
            # Under record_distributed for what is too long alone: each step reads it anew.
            population = self._population(work, spec, tally)
        except Exception as error:
            if isinstance(error, EvolveError | LocalTimeError):
                # What is over as a whole is silent: without rows it would be without all units.
                raise
            # No single unit can do this. Without noise the silo would say that it happened.
            _log.exception("explore_failed", round=work.round, contributes="noise")
        tally.explored_s = time.perf_counter() - began_s
        if spec.mode is Mode.RECORD_LOCAL:
            found = descend(self._trainer, work, spec, population, self._descent(work.settings))
            tally.add(**found)

    def _population(
        self, work: Work | StepWork, spec: PrivacySpec, tally: Tally | None = None
    ) -> Population:
        """Every unit of the window, and each one's rows by its own instance of the credit."""
        memory = UnitMemory(
            self._memory, round_index=work.round, settings=work.settings, unit=spec.unit
        )
        found = {unit: self._rows_of(work, unit, memory, tally) for unit in memory.units}
        return Population(
            units=memory.units, rows_of={unit: rows for unit, rows in found.items() if rows}
        )

    def _rows_of(
        self, work: Work | StepWork, unit: UnitId, memory: UnitMemory, tally: Tally | None
    ) -> tuple[Row, ...]:
        view = memory.view(unit)
        try:
            groups = [g for g in memory.groups(unit) if g.round == work.round]
            with view.opened():
                rows = (
                    self._parts["credit"]
                    .make()
                    .credit(
                        groups,
                        view,
                        self._part_work(work, Stream.CREDIT, unit=unit),
                    )
                )
            kept = short_enough(require_rows(rows), work.settings, tally)
            return tuple(knowing(self._trainer, kept, self._parts["objective"], work.settings))
        except (LocalTimeError, NotWantedError):
            raise
        except Exception as error:  # noqa: BLE001  # which unit's credit failed is data: its rows go
            _log.warning("credit_failed", error=type(error).__name__)
            return ()

    def _descent(self, settings: EvolveSettings) -> Descent:
        constant = settings.normaliser is Normaliser.CONSTANT
        return Descent(
            objective=self._parts["objective"],
            backend=self._options.gradient_backend,
            divisor=settings.tries_per_task * float(settings.nominal_tokens or 1)
            if constant
            else None,
            temperature=temperature_of(settings, self._parts["objective"]),
        )

    # In every mode --------------------------------------------------------------------------------

    def _spec_of(self, work: Work) -> PrivacySpec | None:
        """The spec where the units inside the silo are protected, else None."""
        require_apart(work.settings)
        asked = protected(None if work.privacy is None else work.privacy.spec)
        if asked != protected(self._setup.privacy):
            raise EvolverSetupError("the work's privacy is not the one this method was set up with")
        require_plain_gradients(asked, work.settings, work.correction)
        return asked

    def _draw(self, work: Work, spec: PrivacySpec | None) -> list[Task]:
        """The round's tasks, each as often in a row as it is tried."""
        if not work.settings.explore:
            return []
        tries, assignments = work.settings.tries_per_task, self._setup.assignments
        count = work.settings.episodes // tries
        if spec is not None and count < len(assignments):
            raise EvolverSetupError(
                f"{work.settings.episodes} episodes give {len(assignments)} environments no task "
                "each: one task more than planned would be one unit more than was accounted for"
            )
        pool = pool_of(assignments, self._environments, distinct=spec is not None)
        # Who may read results is read off the cards, before anything is set up: a sampler that runs
        # where units are apart reads what is public, and its view of the memory is empty.
        view = whole_memory(self._memory, work) if spec is None else _EMPTY
        with view.opened():
            sampler: Sampler = self._parts["sampler"].make()
            drawn = sampler.draw(pool, view, self._part_work(work, Stream.DRAW), count=count)
        tasks = require_tasks(drawn, pool, most=max(count, len(assignments)))
        if spec is not None:
            require_drawn(tasks, count=count)
            require_units(tasks, spec)
        return [task for task in tasks for _ in range(tries)]

    def _admits(
        self, work: Work, start: Mapping[str, np.ndarray], local: Mapping[str, np.ndarray]
    ) -> bool:
        """Whether the gate, if there is one, takes what was learned."""
        gate = self._parts.get("gate")
        if gate is None:
            return True
        probes = SiloProbes(
            self._engine, self._validation(MOST_PROBES), work, self._setup.catalogue
        )
        shown = probes if gate.card.reads is Reads.SILO else NO_PROBES
        made: Gate = gate.make()
        return bool(made.admit(start, local, shown, self._part_work(work, Stream.GATE)))

    def _train_apart(self, work: Work) -> dict[str, float]:
        """The personal adapter; the round's delta is made already."""
        if not self._personal.trained_apart:
            return {}
        try:
            tries = self._memory.groups(round_index=work.round, window=1)
            rows = self._credit(work, tries, epoch=0)
            kept = taught(
                self._trainer,
                short_enough(rows, work.settings, None),
                self._parts["objective"],
                work.settings,
            )
            return self._personal.train_apart(
                self._trainer, kept, self._parts["objective"], work, head=self._head.first()
            )
        except Exception:  # noqa: BLE001  # what is uploaded may not depend on it
            _log.exception("personal_adapter_not_trained", round=work.round)
            return {"personal_failed": 1.0}

    def _count(self, played: Played, tally: Tally) -> None:
        for trajectory in played.counted:
            family = self._environments[trajectory.task.environment].family
            tally.episodes[family] += 1
            tally.successes[family] += trajectory.success
        tally.add(**played.figures)


_EMPTY = MemoryView(successes=lambda _shortest: (), groups=lambda: ())
"""The memory of a part that reads what is public."""

"""One learner of a run: a silo, or all of them pooled, around the product's own recipe driver.

It is built for a round and closed after it (``engines/local_round.py``); what it has learned is in
its stores, a directory of its own, and so is its personal adapter, which is read without it.

Covered: building it from the experiment's values, one round of it, its personal adapter. Not
covered: what becomes of its delta (``federation_round.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from evolution.methods.evolver import Evolution, EvolverSetup, EvolveSettings, Work
from evolution.methods.machines import Machines
from evolution.methods.options import RecipeOptions
from evolution.methods.personal.personal import PersonalAdapter
from evolution.methods.population import MEMORY_FILE
from evolution.methods.recipe import RecipeEvolver
from evolution.rollout.conversation import ChatFormat
from federation.adapter.encoding import adapter_sha256, encode_adapter
from lab.experiment.config import Run
from lab.experiment.engines.machines import THREADS, engine_spec, trainer_spec
from lab.experiment.engines.stores import directory_of
from lab.experiment.errors import ExperimentError
from lab.experiment.guards.silo import Head, is_attacker, refuses
from lab.experiment.methods import METHODS
from lab.experiment.tasks.demonstrations import seed_buffer
from lab.experiment.tasks.own_tasks import FewTasks, assignments_of

__all__ = ["VETOED", "Adapter", "Member", "identity", "personal_of"]

VETOED: Final = "vetoed"
"""The figure of a silo that vetoed."""

Adapter = Mapping[str, np.ndarray]


def identity(adapter: Adapter) -> str:
    """SHA-256 of an adapter's published bytes, hexadecimal."""
    return adapter_sha256(encode_adapter(dict(adapter))).hex()


def personal_of(
    run: Run, indices: Sequence[int], stores: Path, adapter: Adapter
) -> dict[str, np.ndarray]:
    """A learner's own adapter beside the shared one, as its stores have it.

    For a learner that has none it is the shared one.
    """
    return _personal(run, stores / directory_of(indices)).current(adapter)


class Member:
    """See the module."""

    def __init__(
        self,
        run: Run,
        indices: Sequence[int],
        scratch: Path,
        *,
        chat: ChatFormat,
        machines: Machines | None = None,
    ) -> None:
        """Build the learner, and give it its demonstrations if it has no memory.

        It stands for the silos of these indices; several are pooled. Its stores are in
        ``directory_of`` them in ``scratch``. Without ``machines`` that are lent it makes an engine
        and a trainer of its own.

        Raises:
            DemonstrationError: The expert does not solve enough tasks.
        """
        self.indices = tuple(indices)
        self._run = run
        self._settings = _settings(run, pooled=len(self.indices))
        self._seed = self.indices[0]
        self._state_dir = state_dir = scratch / directory_of(self.indices)
        if not (state_dir / MEMORY_FILE).exists():
            seed_buffer(run, self.indices, state_dir, chat=chat)
        setup = EvolverSetup(
            assignments=assignments_of(run, self.indices),
            base_dir=Path(run.base),
            state_dir=state_dir,
            rank=run.rank,
            alpha=run.alpha,
            dtype=run.dtype,
            target=run.target,
            threads=THREADS,
            engine=engine_spec(run),
            trainer=trainer_spec(run),
            machines=machines,
            catalogue=FewTasks(run, self.indices),
            recipe=run.evolve.made,
            options=_options(run),
        )
        self._evolver = RecipeEvolver(setup)
        self._personal = _personal(run, state_dir)
        self._vetoed = False

    def evolve(
        self,
        adapter: Adapter,
        *,
        round_number: int,
        trainable: frozenset[str],
        correction: Adapter | None = None,
    ) -> Evolution:
        """One local round, counted from 1, that starts from this adapter.

        ``trainable`` names the factors in the delta; ``correction`` is SCAFFOLD's c − c_k.

        Raises:
            ExperimentError: An episode was dropped, or the personal adapter was not trained: the
                product goes on without them, but figures that lack them are not comparable.
        """
        evolution = self._evolver.evolve(
            Work(
                round=round_number - 1,
                adapter=adapter,
                adapter_sha256=identity(adapter),
                trainable=trainable,
                settings=self._settings,
                seed=self._seed,
                correction=correction,
            )
        )
        if evolution.metrics.get("dropped") or evolution.metrics.get("personal_failed"):
            raise ExperimentError(
                f"round {round_number}: {evolution.metrics['dropped']:.0f} episodes were dropped, "
                "or the personal adapter was not trained; the log says why"
            )
        return evolution

    def refuses(self, adapter: Adapter, head: Head | None) -> bool:
        """Whether the silo's guard vetoes what its round begins with; there may be none to ask.

        Raises:
            EvolveError: The panel cannot be played.
        """
        (*_, index) = self.indices
        if head is None or is_attacker(self._run, index):
            return False
        self._vetoed = refuses(
            self._run,
            index,
            self._state_dir,
            evolver=self._evolver,
            head=head,
            adapter=adapter,
            adapter_sha256=identity(adapter),
        )
        return self._vetoed

    def nothing(self, adapter: Adapter, trainable: frozenset[str]) -> Evolution:
        """A round in which the silo explores and learns nothing."""
        return Evolution(
            delta={name: np.zeros_like(adapter[name]) for name in sorted(trainable)},
            episodes={},
            successes={},
            metrics={VETOED: 1.0} if self._vetoed else {},
            duration_s={},
        )

    def personal(self, adapter: Adapter) -> dict[str, np.ndarray]:
        """The silo's own adapter beside the shared one."""
        return self._personal.current(adapter)

    def close(self) -> None:
        """Release stores, and models that are not lent."""
        self._evolver.close()


def _personal(run: Run, state_dir: Path) -> PersonalAdapter:
    setup = EvolverSetup(recipe=run.evolve.made, options=_options(run))
    return PersonalAdapter(RecipeOptions.of(setup), state_dir=state_dir)


def _settings(run: Run, *, pooled: int) -> EvolveSettings:
    """The round's settings; pooled silos explore as much as they would apart."""
    method, evolve = METHODS[run.method], run.evolve
    return EvolveSettings(
        episodes=evolve.episodes * pooled,
        tries_per_task=evolve.tries_per_task,
        temperature=evolve.temperature,
        max_new_tokens=evolve.max_new_tokens,
        rollout_batch=evolve.rollout_batch,
        window=evolve.window,
        best_per_task=evolve.best_per_task,
        epochs=evolve.epochs,
        batch_size=evolve.batch_size,
        learning_rate=evolve.learning_rate,
        learning_rate_schedule=evolve.learning_rate_schedule,
        grad_clip_l2=evolve.grad_clip_l2,
        max_sequence_tokens=evolve.max_sequence_tokens,
        explore=method.explores,
        use_expert=evolve.use_expert or not method.explores,
        proximal_mu=evolve.proximal_mu,
        local_epochs=evolve.local_epochs,
        normaliser=evolve.made.normaliser,
        nominal_tokens=evolve.nominal_tokens,
        seed=run.seed,
    )


def _options(run: Run) -> dict[str, str | int | float]:
    options: dict[str, str | int | float] = {}
    kind = METHODS[run.method].personal
    if kind == "fedsa":
        options["personal"] = kind
    elif kind == "ditto":
        options["personal"] = run.evolve.personal
        if run.evolve.personal == "ditto":
            options["personal_lambda"] = run.evolve.personal_lambda
    return options

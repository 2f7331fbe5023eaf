"""The probes of one setting of an experiment, with every silo's environment at hand.

Compared are silos: where environments differ, one of each kind, the first in the file; where only
tasks differ, the first silos, on tasks of their own. No more than a number that is asked for,
because all of them are compared with all.

π̂ are made by the setting's own recipe where it compares tries, else by ``grpo`` as it stands.

Covered: every setting whose environments can be replayed. Not covered: harnesses, which play by
themselves; silos beyond the number, which may be of further kinds (the report says how many).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evolution.diagnose.bounds import chi2_to_mixture
from evolution.diagnose.diagnosis import Budget, Diagnosis, Kept, Say, diagnose
from evolution.diagnose.improve import Improver
from evolution.diagnose.patterns import Locus
from evolution.diagnose.policies import Policies
from evolution.diagnose.worlds import World, kind_of, probe_tasks
from evolution.envs.foreign.spec import HARNESS
from evolution.methods.evolver import EvolverSetup, EvolveSettings
from evolution.methods.machines import make_machines
from evolution.model.lora import initial_adapter
from federation.plan.recipe import PartsSection, recipe_of
from lab.experiment.config import Run
from lab.experiment.engines.machines import THREADS, engine_spec, trainer_spec
from lab.experiment.errors import ExperimentError
from lab.experiment.tasks.environments import catalogue_of
from lab.experiment.tasks.own_tasks import FewTasks, assignments_of, task_ids_of

__all__ = ["Compared", "compared", "diagnose_setting", "task_chi2"]

_GROUP_RELATIVE: Final = "group-relative"
_TRIES: Final = 8
_RATE: Final = 1e-3
_MOST_LABELLED: Final = 10_000
"""Tasks of a silo whose types are counted; a shard has the same shares in any such part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What a setting is probed in."""

    worlds: tuple[World, ...]
    locus: Locus
    kinds: int
    """How many kinds of environments all silos have together."""


def compared(run: Run, *, most: int, tasks: int) -> Compared:
    """Choose the worlds of a setting, with so many probe tasks each.

    Raises:
        ExperimentError: They cannot be replayed, or there are fewer than two silos.
        EnvironmentFailureError: One cannot be made.
    """
    places = [(i, name) for i, silo in enumerate(run.silos) for name in silo.environments]
    if any(name.startswith(HARNESS) for _, name in places):
        raise ExperimentError("a harness plays by itself: nobody can replay its actions")
    kinds = {place: kind_of(place[1], run.silos[place[0]].variant) for place in places}
    first = {kind: place for place, kind in reversed(kinds.items())}
    locus: Locus = "environments" if len(first) > 1 else "tasks"
    chosen = sorted(first.values()) if locus == "environments" else places
    if len(chosen) < 2:  # one silo differs from nobody
        raise ExperimentError("one silo with one environment has nobody to be compared with")
    worlds = tuple(
        _world(run, *place, tasks=tasks, own=locus == "tasks") for place in chosen[:most]
    )
    return Compared(worlds=worlds, locus=locus, kinds=len(first))


def task_chi2(run: Run) -> tuple[float, ...]:
    """χ²(D_i‖D̄) of each silo's types of tasks."""
    shares = []
    for index, silo in enumerate(run.silos):
        count: dict[str, float] = {}
        for name in silo.environments:
            environment = catalogue_of(run).make(name)
            try:
                ids = task_ids_of(run, index, name)[:_MOST_LABELLED]
                labels = Counter(environment.task_label(int(task)) for task in ids)
            finally:
                environment.close()
            for label, times in labels.items():
                # Environments of a silo weigh the same, as they do where tasks are drawn.
                count[f"{name}/{label}"] = times / labels.total()
        whole = sum(count.values())
        shares.append({name: value / whole for name, value in count.items()})
    return chi2_to_mixture(shares)


def diagnose_setting(
    run: Run, asked: Compared, *, budget: Budget, kept: Path | None, say: Say
) -> Diagnosis:
    """Run the probes of a setting.

    Raises:
        EvolverSetupError: The recipe cannot run.
        RolloutError: The engine cannot be made, or cannot play.
    """
    settings = _settings(run)
    with tempfile.TemporaryDirectory(prefix="chorale-diagnose-") as scratch:
        setup = EvolverSetup(
            base_dir=Path(run.base),
            state_dir=Path(scratch),
            rank=run.rank,
            alpha=run.alpha,
            dtype=run.dtype,
            target=run.target,
            threads=THREADS,
            engine=engine_spec(run),
            trainer=trainer_spec(run),
            recipe=run.evolve.made if _compares(run) else recipe_of("grpo", PartsSection()),
        )
        machines = make_machines(setup)
        try:
            return diagnose(
                asked.worlds,
                Policies(
                    machines.engine,
                    temperature=settings.temperature,
                    max_new_tokens=settings.max_new_tokens,
                    batch_size=settings.rollout_batch,
                    seed=budget.seed,
                ),
                Improver(setup=dataclasses.replace(setup, machines=machines), settings=settings),
                start=initial_adapter(run.base, run.rank, run.alpha, run.seed, run.target),
                locus=asked.locus,
                budget=budget,
                kept=Kept(kept, _key(run, asked, budget)),
                say=say,
            )
        finally:
            machines.close()


def _world(run: Run, index: int, name: str, *, tasks: int, own: bool) -> World:
    silo = run.silos[index]
    catalogue = FewTasks(run, [index])
    (assignment,) = (a for a in assignments_of(run, [index]) if a.environment == name)
    return World(
        name=f"{silo.name}/{name}" if len(silo.environments) > 1 else silo.name,
        assignment=assignment,
        catalogue=catalogue,
        kind=kind_of(name, silo.variant),
        tasks=probe_tasks(catalogue, assignment, tasks, own=own),
    )


def _compares(run: Run) -> bool:
    """Whether the setting's own recipe learns from tries beside each other."""
    return run.evolve.made.parts["credit"].card.name == _GROUP_RELATIVE


def _settings(run: Run) -> EvolveSettings:
    """Of one step of a probe: the setting's where its recipe is taken, else a small step's."""
    evolve = run.evolve
    tries = evolve.tries_per_task if _compares(run) else _TRIES
    episodes = max(tries, evolve.episodes - evolve.episodes % tries)
    return EvolveSettings(
        episodes=episodes,
        tries_per_task=tries,
        temperature=evolve.temperature or 1.0,
        max_new_tokens=evolve.max_new_tokens,
        rollout_batch=evolve.rollout_batch,
        epochs=evolve.epochs if _compares(run) else 1,
        batch_size=evolve.batch_size if _compares(run) else episodes,
        learning_rate=evolve.learning_rate if _compares(run) else _RATE,
        grad_clip_l2=evolve.grad_clip_l2,
        max_sequence_tokens=evolve.max_sequence_tokens,
        use_expert=False,
        local_epochs=evolve.local_epochs if _compares(run) else 1,
        normaliser=(
            evolve.made if _compares(run) else recipe_of("grpo", PartsSection())
        ).normaliser,
        nominal_tokens=evolve.nominal_tokens if _compares(run) else evolve.max_new_tokens,
        seed=run.seed,
    )


def _key(run: Run, asked: Compared, budget: Budget) -> str:
    """What the kept adapters are made from."""
    described = {
        "run": run.sha256,
        "worlds": [
            (world.name, world.kind, world.assignment.environment) for world in asked.worlds
        ],
        "settings": dataclasses.asdict(_settings(run)),
        "steps": budget.steps,
        "seed": budget.seed,
    }
    content = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(b"chorale/diagnose/v1\0" + content.encode()).hexdigest()[:32]

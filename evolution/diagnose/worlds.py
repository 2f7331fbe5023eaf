"""The environments that a diagnosis compares, one for each silo or each kind of silo.

Two worlds are of one kind where the same actions at the same task are answered alike by
construction: one environment, with the same stages. A descriptor does not make another kind: it is
told before the first observation and moves nothing.

Probe tasks are those of the pre-training split, which are everybody's: never held out, never
anybody's own. An environment that has none there is probed on the training tasks that the silo
explores, and so are silos that differ in tasks alone.

Invariants: an environment is foreign code: whatever it raises ends that replay, which is dropped
and counted; every replay is played in a fresh object, which is closed.

Covered: replaying actions, answers of the environment, what the agent is told. Not covered:
environments that play themselves (``harness:``), whose actions nobody can replay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evolution.envs.catalogue import Catalogue
from evolution.envs.environment import Environment
from evolution.envs.outcome import outcome_of
from evolution.envs.tasks import Split
from evolution.envs.variants.spec import VariantSpec
from evolution.methods.evolver import Assignment
from ops.logs.logger import get_logger

__all__ = ["Answer", "Kind", "World", "kind_of", "probe_tasks", "replay", "told"]

Kind = tuple[str, str, int, float, float, int]
"""Environment, kind of variant, place in its pool, dials of a split, number of the silo where
chance follows from it."""
_BY_INDEX: Final = ("catalog-split", "rank-wrapper")
_log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """One silo's environment."""

    name: str
    """In reports."""
    assignment: Assignment
    """What is explored there."""
    catalogue: Catalogue
    """Whose ``make`` gives it as the silo has it."""
    kind: Kind
    """Equal where kernels are equal by construction."""
    tasks: tuple[int, ...]
    """Probe tasks, in the order in which they are taken."""

    @property
    def environment(self) -> str:
        """Its name in the catalogue."""
        return self.assignment.environment

    def make(self) -> Environment:
        """A fresh object."""
        return self.catalogue.make(self.environment)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What an environment came to after an action, as far as anybody but itself can see."""

    observation: str
    reward: float
    over: bool
    success: bool
    """Its verdict, where it is over."""


def kind_of(environment: str, spec: VariantSpec | None) -> Kind:
    """Which kernel a variant gives; the same for variants that change nothing."""
    if spec is None or spec.kind == "none":
        return environment, "none", 0, 0.0, 0.0, 0
    # The first variant of a pool is the environment as it is, but for a split and lookalikes.
    if spec.kind in ("field-subset", "bm25-reweighting", "rank-wrapper") and spec.place == 0:
        return environment, "none", 0, 0.0, 0.0, 0
    env_div, keep_ratio = spec.split if spec.kind == "catalog-split" else (1.0, 0.0)
    # With env_div 0 every silo's split is the same.
    index = (spec.index or 0) if spec.kind in _BY_INDEX and env_div > 0 else 0
    return environment, spec.kind, spec.place, env_div, keep_ratio, index


def probe_tasks(
    catalogue: Catalogue, assignment: Assignment, most: int, *, own: bool = False
) -> tuple[int, ...]:
    """The first tasks that a world is probed on; with ``own`` those that the silo explores.

    Raises:
        EnvironmentFailureError: It cannot be made.
    """
    environment = catalogue.make(assignment.environment)
    try:
        public = () if own else environment.task_ids(Split.PRETRAIN)[:most]
        explored = environment.task_ids(Split.TRAIN, shard=assignment.shard)
        return tuple(int(task) for task in (public or explored[:most]))
    finally:
        _close(environment)


def told(world: World, task_id: int) -> str:
    """What the agent is told before the first observation; empty where it cannot be asked."""
    environment = world.make()
    try:
        environment.reset(task_id)
        said = environment.told
    except Exception as error:  # noqa: BLE001  # foreign code; see the module
        _log.warning(
            "environment_not_replayed", environment=world.environment, error=type(error).__name__
        )
        return ""
    else:
        return said
    finally:
        _close(environment)


def replay(world: World, task_id: int, actions: Sequence[str]) -> tuple[Answer, ...] | None:
    """The answers to a reset and then to each action, as long as the episode goes on.

    None where the environment failed.
    """
    environment = world.make()
    try:
        observation, _ = environment.reset(task_id)
        answers = [Answer(observation=observation, reward=0.0, over=False, success=False)]
        for action in actions:
            found = outcome_of(environment.step(action))
            over = found.over or len(answers) >= environment.max_steps
            success = over and bool(environment.success(found.info))
            answers.append(
                Answer(
                    observation=found.observation,
                    reward=found.reward,
                    over=over,
                    success=success,
                )
            )
            if over:
                break
    except Exception as error:  # noqa: BLE001  # foreign code; see the module
        _log.warning(
            "environment_not_replayed", environment=world.environment, error=type(error).__name__
        )
        return None
    else:
        return tuple(answers)
    finally:
        _close(environment)


def _close(environment: Environment) -> None:
    with contextlib.suppress(Exception):  # foreign code; what was played is over
        environment.close()

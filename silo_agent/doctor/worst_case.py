"""How long a round of a plan takes here in the worst case, and which times a plan should say.

In the record-level modes a plan says when silos answer (``ready_after_s`` and
``step_answer_after_s``), and work that takes longer is dropped. So the time must be enough whatever
the units are. What is measured is one wave of episodes that are as long as they can be, and the
gradient of one row that is as long as it can be; the rest is counting:

    explore   every episode of a round, in waves, each with the most turns that an environment of
              the plan takes, every answer ``max_new_tokens`` long, as long as an episode may be
    step      the rows of B_max units, each with as many as a unit may have, each of
              ``max_sequence_tokens`` tokens or the model's context, and the step's noise
    tests     of every shape that a pass may have (``dp/steps/fixed.py``), as long as of the longest
    round     explore, the tests, and in ``record_local`` its steps

A plan should say the worst case divided by what is left beside ``UNIT_SHARE``: so much a single
task's environment may take, all its tries together, before it is dropped.

Invariants: those of the dry round (``dry_round.py``): nothing is asked, charged or kept, and no
task of the silo's is played.

Covered: this machine, with this silo's engine, trainer and gradient backend, while nothing else
runs. Not covered: environments that are slow as a rule; personal adapters, which are trained in the
same time; a machine that is busier later.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from dp.config import DEFAULT_BACKEND, RECORD_MODES, Mode, RecordSpec
from dp.noise.grid import Grid
from dp.noise.share import add_noise
from dp.noise.source import NoiseSource
from dp.noise.unit_sum import UnitSum
from dp.steps.fixed import FixedBackend
from evolution.envs.environment import Environment, Info
from evolution.errors import EvolverSetupError
from evolution.methods.evolver import EvolveSettings
from evolution.methods.protection import wave_size
from evolution.part import Part
from evolution.rollout.conversation import MAX_OBSERVATION_CHARS
from evolution.rollout.engines import make_engine
from evolution.rollout.episodes import run_episodes
from evolution.train.rows import Row
from evolution.train.trainers import make_trainer
from evolution.trajectory import Step, Task, Trajectory
from federation.adapter.layout import Layout
from federation.plan.plan import UNIT_SHARE, Plan
from silo_agent.config import SiloConfig

__all__ = ["WorstCase", "worst_case"]

_NAME: Final = "worst-case"
_WORD: Final = "goal "


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstCase:
    """What was measured, and what follows."""

    explore_s: float
    """All episodes of a round."""
    step_s: float
    """One noisy step, or the sum of one."""
    rows: int
    """Of such a step."""
    ready_after_s: int
    """What the plan should say at least."""
    step_answer_after_s: int
    """The same; 0 where no step is answered."""

    def missing(self, plan: Plan) -> tuple[str, ...]:
        """The keys of a plan whose times are below what should be said."""
        return tuple(
            key
            for key in ("ready_after_s", "step_answer_after_s")
            if getattr(plan.rounds, key) < getattr(self, key)
        )


def worst_case(config: SiloConfig, plan: Plan) -> WorstCase:
    """Measure, for a plan of a record-level mode.

    Raises:
        EvolverSetupError: The plan is of another mode, this silo has no base model, or it has none
            of the plan's environments.
    """
    spec = plan.spec
    if spec.record is None or spec.mode not in RECORD_MODES:
        raise EvolverSetupError(
            f"in mode {spec.mode.value!r} a plan need not say when silos answer: nothing to measure"
        )
    if not plan.needs_tasks:
        return WorstCase(
            explore_s=0.0,
            step_s=0.0,
            rows=0,
            ready_after_s=1,
            step_answer_after_s=int(spec.mode is Mode.RECORD_DISTRIBUTED),
        )
    if config.base_model is None:
        raise EvolverSetupError("this silo has no base model to measure with: set it in silo.toml")
    # Safety: whoever has a base model has what this imports, and nobody else comes here.
    from evolution.model.lora import initial_adapter

    adapter = initial_adapter(
        config.base_model,
        plan.model.lora_rank,
        plan.model.lora_alpha,
        seed=plan.evolve.seed,
        target=plan.model.target,
        value_head=plan.recipe.shares_value_head,
    )
    explore_s, context = _explore_s(config, config.base_model, plan, adapter)
    rows = rows_of_step(plan, spec.record)
    step_s, tests_s = _step_s(config, config.base_model, plan, adapter, rows=rows, context=context)
    local = spec.mode is Mode.RECORD_LOCAL
    round_s = explore_s + (spec.record.steps_per_round * step_s + tests_s if local else 0.0)
    # A step of many silos may be the first that needs any of the shapes.
    step_s += 0.0 if local else tests_s
    return WorstCase(
        explore_s=explore_s,
        step_s=step_s,
        rows=rows,
        ready_after_s=_said(round_s),
        step_answer_after_s=0 if local else _said(step_s),
    )


def rows_of_step(plan: Plan, record: RecordSpec) -> int:
    """The most rows that the units of one step can have.

    A task has one for each of its tries in each round that is kept, or one in all where only its
    shortest success counts; a user may have every task.
    """
    credit = plan.recipe.parts["credit"].card.name
    one_each = plan.evolve.best_per_task and credit == "shortest-success"
    of_task = 1 if one_each else plan.evolve.tries_per_task * plan.kept_rounds
    of_all = plan.population_cap * (1 if one_each else plan.evolve.tries_per_task)
    return of_all if plan.privacy.unit == "user" else min(of_all, record.max_units * of_task)


def _said(worst_s: float) -> int:
    return max(1, math.ceil(worst_s / (1.0 - UNIT_SHARE)))


class _Longest(Environment):
    """Begins no task and ends none: every observation fills its part of the context."""

    name = family = _NAME
    max_steps = 1
    labels = ("all",)

    def __init__(self, *, turns: int, words: int) -> None:
        self._turns, self._played = turns, 0
        self.max_steps = turns  # type: ignore[misc]  # of the plan's environments, not of a class
        self._said = (_WORD * words)[:MAX_OBSERVATION_CHARS]

    @property
    def instruction(self) -> str:
        return _WORD

    def reset(self, task_id: int) -> tuple[str, Info]:
        del task_id
        self._played = 0
        return self._said, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        del action
        self._played += 1
        return self._said, 0.0, False, self._played >= self._turns, {}

    def success(self, info: Info) -> bool:
        del info
        return False


def _explore_s(
    config: SiloConfig, base: Path, plan: Plan, adapter: Mapping[str, np.ndarray]
) -> tuple[float, int]:
    """Seconds of all episodes of a round, and the tokens of the model's context."""
    evolve, catalogue = plan.evolve, config.catalogue()
    turns = [catalogue.make(n).max_steps for n in evolve.environments if n in catalogue]
    if not turns:
        raise EvolverSetupError("this silo has none of the plan's environments to measure with")
    engine = make_engine(
        base,
        alpha=plan.model.lora_alpha,
        dtype=plan.model.dtype,
        threads=config.threads,
        spec=config.rollout,
    )
    try:
        # An answer is as long as it may be where nothing ends it.
        engine.chat.end_ids = frozenset()
        engine.load_adapter(_NAME, adapter)
        longest = min(engine.context_limit, evolve.max_sequence_tokens + evolve.max_new_tokens)
        words = max(1, longest // max(turns) - evolve.max_new_tokens)
        settings = EvolveSettings(
            tries_per_task=evolve.tries_per_task,
            rollout_batch=config.rollout.episodes_at_once,
        )
        wave = min(evolve.episodes_per_round, wave_size(settings, plan.spec, plan.model.dtype))
        began_s = time.monotonic()
        played = run_episodes(
            engine,
            [Task(environment=_NAME, task_id=index) for index in range(wave)],
            temperature=evolve.temperature,
            seed=evolve.seed,
            max_new_tokens=evolve.max_new_tokens,
            batch_size=wave,
            max_tokens=evolve.max_sequence_tokens,
            make_environment=lambda _: _Longest(turns=max(turns), words=words),
        )
        wave_s = time.monotonic() - began_s
    finally:
        engine.close()
    answered = [len(step.action_ids) for one in played.trajectories for step in one.steps]
    if not answered:
        raise EvolverSetupError("no answer fits into the model's context: lower max_new_tokens")
    # A worker in a process of its own ends its answers sooner: count them as whole ones.
    shorter = evolve.max_new_tokens * len(answered) / sum(answered)
    return wave_s * shorter * math.ceil(evolve.episodes_per_round / wave), engine.context_limit


def _step_s(
    config: SiloConfig,
    base: Path,
    plan: Plan,
    adapter: Mapping[str, np.ndarray],
    *,
    rows: int,
    context: int,
) -> tuple[float, float]:
    """Seconds of one step, the gradient of the longest row, measured, times the rows, and noise;
    and of all tests of shapes.
    """  # noqa: D205  # one sentence
    spec, chosen = plan.spec, plan.recipe.parts["objective"]
    objective = Part(card=chosen.card, options=chosen.options)
    names = [
        one.name for one in plan.aggregator(Layout.from_tensors(adapter)).shared_layout(1).specs
    ]
    with tempfile.TemporaryDirectory(prefix="chorale-worst-case-") as directory:
        trainer = make_trainer(
            base,
            rank=plan.model.lora_rank,
            alpha=plan.model.lora_alpha,
            dtype=plan.model.dtype,
            target=plan.model.target,
            state_dir=Path(directory),
            spec=config.training,
        )
        trainer.reset(adapter)
        backend = trainer.gradients(
            names,
            objective,
            backend=str(config.options(plan.recipe).get("gradient_backend", DEFAULT_BACKEND)),
        )
        tokens = min(plan.evolve.max_sequence_tokens, context)
        row = _longest_row(tokens, objective.card.needs)
        grid = Grid(clip_l2=spec.clip_l2, steps=spec.grid, dimension=backend.dimension)
        total = UnitSum(grid, max_units=2)
        row_s = 0.0
        for _ in range(2):  # the first pass is slower for what it sets up
            began_s = time.monotonic()
            (gradient,) = backend.unit_gradients([[row]])
            total.add(gradient)
            row_s = time.monotonic() - began_s
        shapes = backend.tested_up_to(tokens) if isinstance(backend, FixedBackend) else []
        tested_s = 0.0
        if shapes:
            backend.renew()
            row = _longest_row(shapes[-1], objective.card.needs)
            began_s = time.monotonic()
            list(backend.unit_gradients([[row]]))
            tested_s = time.monotonic() - began_s
    began_s = time.monotonic()
    noise = np.zeros(backend.dimension, dtype=np.uint32)
    add_noise(noise, spec.noise_multiplier * spec.grid, NoiseSource.fresh("worst case"))
    return rows * row_s + time.monotonic() - began_s, len(shapes) * tested_s


def _longest_row(tokens: int, needs: frozenset[str]) -> Row:
    """A row of so many tokens, all but the first the agent's: each may ask for logits."""
    row = Row.of(_longest_success(tokens))
    return row.knowing(dict.fromkeys(needs, row.logprobs))


def _longest_success(tokens: int) -> Trajectory:
    own = max(1, tokens - 1)
    return Trajectory(
        task=Task(environment=_NAME, task_id=0),
        steps=(
            Step(
                observation="",
                action="",
                context_ids=(1,),
                action_ids=(2,) * own,
                action_logprobs=(0.0,) * own,
            ),
        ),
        final_observation="",
        success=True,
        adapter_sha256=_NAME,
        round=0,
    )

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

dp_compat: ``none`` and ``silo``. Record-level units need a trainer that clips per unit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from silo_agent.buffer import SuccessBuffer
from silo_agent.envs.registry import make
from silo_agent.evolve.evolver import (
    Evaluation,
    EvaluationRow,
    Evolution,
    Evolver,
    EvolverSetup,
    EvolverSetupError,
    Work,
)
from silo_agent.evolve.explore import Stream, draw_tasks, round_seed
from silo_agent.evolve.held_out import judge
from silo_agent.evolve.sft import SftTrainer
from silo_agent.rollout.episodes import EpisodeBatch, run_episodes
from silo_agent.rollout.hf import HfEngine

__all__ = ["FedSeEvolver"]

_COUNTERS = ("rounds", "episodes", "successes", "dropped")


class FedSeEvolver(Evolver):
    """See the module. Options: ``buffer_capacity``."""

    name: ClassVar[str] = "fed-se"
    dp_compat: ClassVar[frozenset[str]] = frozenset({"none", "silo"})

    def __init__(self, setup: EvolverSetup) -> None:
        unknown = set(setup.options) - {"buffer_capacity"}
        if unknown:
            raise EvolverSetupError(f"fed-se has no option {min(unknown)!r}")
        if setup.base_dir is None or setup.state_dir is None or not setup.assignments:
            raise EvolverSetupError("fed-se needs a base model, a state directory and environments")
        self._setup = setup
        self._environments = {a.environment: make(a.environment) for a in setup.assignments}
        setup.state_dir.mkdir(parents=True, exist_ok=True)
        self._buffer = SuccessBuffer(
            setup.state_dir / "successes.sqlite",
            capacity=int(setup.options.get("buffer_capacity", 20_000)),
        )
        self._engine = HfEngine(
            setup.base_dir, alpha=setup.alpha, dtype=setup.dtype, threads=setup.threads
        )
        self._trainer = SftTrainer(
            setup.base_dir, rank=setup.rank, alpha=setup.alpha, dtype=setup.dtype
        )
        self._counters = dict.fromkeys(_COUNTERS, 0)

    def evolve(self, work: Work) -> Evolution:
        """Run one local round.

        Args:
            work: The round.

        Returns:
            The delta and the counts.
        """
        settings = work.settings
        started_s = time.perf_counter()
        self._trainer.reset(work.adapter)
        played = self._explore(work)
        explored_s = time.perf_counter()
        self._buffer.add(t for t in played.trajectories if t.success)
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
        local = self._trainer.adapter()
        delta = {name: local[name] - work.adapter[name] for name in sorted(work.trainable)}
        episodes, successes = self._count(played)
        return Evolution(
            delta=delta,
            episodes=episodes,
            successes=successes,
            metrics={
                "agent_tokens": float(report.agent_tokens),
                "delta_l2": math.sqrt(
                    sum(float(np.square(d, dtype=np.float64).sum()) for d in delta.values())
                ),
                "dropped": float(played.dropped),
                "environment_steps": float(played.environment_steps),
                "first_loss": report.first_loss,
                "last_loss": report.last_loss,
                "optimiser_steps": float(report.optimiser_steps),
                "selected": float(len(chosen)),
            },
            duration_s={
                "explore": explored_s - started_s,
                "train": time.perf_counter() - explored_s,
            },
        )

    def evaluate(self, work: Evaluation) -> list[EvaluationRow]:
        """Judge an adapter on held-out tasks.

        Args:
            work: The adapter and how to judge it.

        Returns:
            One row per environment, label and temperature.
        """
        self._engine.load_adapter(work.adapter_sha256, work.adapter)
        return judge(self._engine, self._setup.judged or tuple(self._environments), work)

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

    def _explore(self, work: Work) -> EpisodeBatch:
        if not work.settings.explore:
            return EpisodeBatch(trajectories=(), dropped=0, environment_steps=0)
        self._engine.load_adapter(work.adapter_sha256, work.adapter)
        return run_episodes(
            self._engine,
            draw_tasks(work, self._setup.assignments, self._environments),
            temperature=work.settings.temperature,
            seed=round_seed(work, Stream.EXPLORE),
            max_new_tokens=work.settings.max_new_tokens,
            batch_size=work.settings.rollout_batch,
            round_index=work.round,
        )

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

"""Local work on a thread of its own: evaluate what was adopted, then evolve it.

Invariants:

1. One job at a time, in the order it was asked for; the daemon's thread never waits for one.
2. A job that fails is counted and logged, and still counts as done: the silo reports ready and
   contributes the zero vector, because what it sends and when must not depend on private data.
3. The method (and with it torch) is loaded once per run, by the first job that needs it.
4. Figures go to the silo's own files and metrics, nowhere else.
5. A silo says ready no sooner than the plan's ``ready_after_s`` after the task, however short or
   unlucky its work was; a silo that is stopped before then does not say it.

Covered: slow, failing and repeated work. Not covered: cancelling a job half-way; a round that went
on without this silo finds its result unused.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import structlog

from dp.grid import l2_norm
from federation.layout import Layout
from federation.plan import Plan
from federation.sums import UPDATE_NORM_SQ
from federation.task import RoundTask
from secagg.descriptor import OTHER_FAMILY, MetricsLayout
from silo_agent.chain import Head
from silo_agent.config import SiloConfig
from silo_agent.evolve.evolver import (
    Evaluation,
    Evolution,
    Evolver,
    EvolverSetup,
    EvolveSettings,
    Work,
)
from silo_agent.evolve.registry import make_evolver
from silo_agent.local_store import LocalStore
from silo_agent.metrics import SiloMetrics
from silo_agent.session import Contribution
from silo_agent.transport import Coordinator

__all__ = ["FinishedWork", "LocalWork"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedWork:
    """What a round of local work left, waiting for its descriptor."""

    run_id: str
    round: int
    plan: Plan
    layout: Layout
    delta: np.ndarray
    """Flat float32 over ``layout``; not clipped."""
    episodes: Mapping[str, int]
    successes: Mapping[str, int]

    def contribution(self, metrics: MetricsLayout) -> Contribution:
        """The vector and the metrics block for one attempt."""
        return Contribution(
            delta=self.delta,
            metrics=self._figures(metrics.names),
        )

    def _figures(self, names: tuple[str, ...]) -> dict[str, float]:
        """Values by coordinate name; families that are not listed are counted as `other`."""
        norm = l2_norm(self.delta)
        # What is released is the clipped vector, so its norm is what the sum is compared with.
        figures = dict.fromkeys(names, 0.0)
        # NaN passes through min() on the left alone; the encoder must see it and refuse it.
        figures[UPDATE_NORM_SQ] = min(norm, self.plan.privacy.clip_l2) ** 2
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
        return f"FinishedWork(run_id={self.run_id!r}, round={self.round}, values redacted)"


class LocalWork:
    """The worker thread and what it has done."""

    def __init__(
        self,
        *,
        config: SiloConfig,
        coordinator: Coordinator,
        store: LocalStore,
        metrics: SiloMetrics,
        seed_of: Callable[[str], int],
    ) -> None:
        """Start the thread.

        Args:
            config: This silo.
            coordinator: Told when a round is ready.
            store: The silo's own reports.
            metrics: The silo's own metrics.
            seed_of: A secret seed for a run id. Without it a second run of one plan would make the
                very same deltas, and the difference of two sums would be one silo's.
        """
        self._config = config
        self._seed_of = seed_of
        self._coordinator = coordinator
        self._store = store
        self._metrics = metrics
        self.base_sha256 = config.base_sha256()
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._finished: FinishedWork | None = None
        self._started: tuple[str, int, bytes] | None = None
        self._stopping = threading.Event()
        # A restarted silo must not report the same adapter twice.
        self._evaluated = {(row["run"], int(row["round"])) for row in store.evaluations()}
        self._evolver: tuple[str, Evolver] | None = None
        self._thread = threading.Thread(target=self._serve, name="local-work", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the current job."""
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join(timeout=30.0)
        if self._evolver is not None:
            self._evolver[1].close()

    def finished(self, run_id: str, round_number: int) -> FinishedWork | None:
        """The result of a round, if it is done."""
        with self._lock:
            done = self._finished
        if done is None or (done.run_id, done.round) != (run_id, round_number):
            return None
        return done

    def adopted(self, head: Head, plan: Plan) -> None:
        """Evaluate a newly adopted adapter on held-out tasks, if the plan says so."""
        record = head.record
        key = (record.run_id, record.round)
        due = record.round % plan.evaluate.every_rounds == 0 or record.round == plan.rounds.count
        if plan.evaluate.held_out == 0 or not self._config.evaluate or not due:
            return
        if key in self._evaluated:
            return
        self._evaluated.add(key)
        self._jobs.put(lambda: self._evaluate(head, plan))

    def start(self, *, task: RoundTask, plan: Plan, head: Head) -> None:
        """Do one round of local work and report ready; a repeat of the same task re-reports."""
        key = (task.run_id, task.round, task.adapter_sha256)
        if self._started == key:
            if self.finished(task.run_id, task.round) is not None:
                self._report(task)
            return
        self._started = key
        ready_at = time.monotonic() + plan.rounds.ready_after_s
        self._jobs.put(lambda: self._evolve(task, plan, head, ready_at))

    # On the worker thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                # A failed job is data, not a crash; the daemon must stay to be asked again.
                self._metrics.errors.labels(kind="local_work").inc()
                log.exception("local_work_failed")

    def _evolve(self, task: RoundTask, plan: Plan, head: Head, ready_at: float) -> None:
        layout = plan.aggregator(Layout.from_tensors(head.tensors)).shared_layout(task.round)
        trainable = frozenset(spec.name for spec in layout.specs)
        started = time.monotonic()
        try:
            evolution = self._method(plan, task.run_id).evolve(
                Work(
                    round=task.round,
                    adapter=head.tensors,
                    adapter_sha256=task.adapter_sha256.hex(),
                    trainable=trainable,
                    settings=settings_of(plan),
                    seed=(self._config.seed + self._seed_of(task.run_id)) % 2**63,
                )
            )
            delta = layout.flatten(evolution.delta)
        except Exception:
            # Safety: a failure inside local work may be caused by private data, so outside it must
            # look like any other round: ready in time, zeros with full noise in the sum.
            self._metrics.errors.labels(kind="local_work").inc()
            log.exception("evolve_failed", round=task.round, contributes="zeros")
            evolution = Evolution(delta={}, episodes={}, successes={}, metrics={}, duration_s={})
            delta = np.zeros(layout.dimension, dtype=np.float32)
        finished = FinishedWork(
            run_id=task.run_id,
            round=task.round,
            plan=plan,
            layout=layout,
            delta=delta,
            episodes=evolution.episodes,
            successes=evolution.successes,
        )
        try:
            for stage, duration_s in evolution.duration_s.items():
                self._metrics.observe_phase(stage, duration_s)
            self._note(task, evolution, delta, time.monotonic() - started)
        finally:
            # The silo's own books may fail; that must not show outside. Nor may a short job, and
            # a repeat of the task must not report sooner, so the result appears only now.
            # A silo that is being stopped says nothing: it would say it too soon.
            if not self._stopping.wait(max(0.0, ready_at - time.monotonic())):
                with self._lock:
                    self._finished = finished
                self._report(task)

    def _report(self, task: RoundTask) -> None:
        self._coordinator.report_ready(
            run_id=task.run_id,
            round_number=task.round,
            adapter_sha256=task.adapter_sha256,
            families=self._config.families(),
        )

    def _note(
        self, task: RoundTask, evolution: Evolution, delta: np.ndarray, duration_s: float
    ) -> None:
        self._store.append_round(
            {
                "run": task.run_id,
                "round": task.round,
                "delta_norm": l2_norm(delta),
                "episodes": dict(evolution.episodes),
                "successes": dict(evolution.successes),
                "metrics": dict(evolution.metrics),
                "duration_s": {**evolution.duration_s, "total": duration_s},
            }
        )
        self._metrics.observe_evolution(
            episodes=evolution.episodes,
            successes=evolution.successes,
            figures=evolution.metrics,
        )

    def _evaluate(self, head: Head, plan: Plan) -> None:
        record = head.record
        started = time.monotonic()
        rows = self._method(plan, record.run_id).evaluate(
            evaluation_of(
                self._config,
                plan,
                round_number=record.round,
                adapter=head.tensors,
                adapter_sha256=record.adapter_sha256.hex(),
            )
        )
        self._metrics.observe_phase("evaluate", time.monotonic() - started)
        self._store.append_evaluation(
            run_id=record.run_id,
            round_number=record.round,
            adapter_sha256=record.adapter_sha256.hex(),
            rows=[asdict(row) for row in rows],
        )

    def _method(self, plan: Plan, run_id: str) -> Evolver:
        if self._evolver is not None and self._evolver[0] == run_id:
            return self._evolver[1]
        if self._evolver is not None:
            self._evolver[1].close()
        config = self._config
        evolver = make_evolver(
            plan.evolve.method,
            evolver_setup(
                config, plan, state_dir=config.data_dir / "evolve" / _directory_of(run_id)
            ),
        )
        self._evolver = (run_id, evolver)
        return evolver


def _directory_of(run_id: str) -> str:
    """A directory name of our own making: the coordinator chose the run id."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:16]


def evolver_setup(config: SiloConfig, plan: Plan, *, state_dir: Path) -> EvolverSetup:
    """What this silo gives the plan's method."""
    return EvolverSetup(
        assignments=tuple(
            assignment
            for assignment in config.assignments()
            if assignment.environment in plan.evolve.environments
        ),
        judged=plan.evolve.environments,
        base_dir=config.base_model,
        state_dir=state_dir,
        rank=plan.model.lora_rank,
        alpha=plan.model.lora_alpha,
        dtype=plan.model.dtype,
        threads=config.threads,
        options=config.options(plan.evolve.method),
    )


def evaluation_of(
    config: SiloConfig,
    plan: Plan,
    *,
    round_number: int,
    adapter: Mapping[str, np.ndarray],
    adapter_sha256: str,
) -> Evaluation:
    """The plan's held-out evaluation of one adapter, on this silo's slice of the tasks."""
    return Evaluation(
        round=round_number,
        adapter=adapter,
        adapter_sha256=adapter_sha256,
        episodes=plan.evaluate.held_out,
        first_task=config.held_out_offset,
        temperatures=plan.evaluate.temperatures,
        max_new_tokens=plan.evolve.max_new_tokens,
        shards=max((a.shard.count for a in config.assignments() if a.shard), default=1),
        seed=config.seed,
    )


def settings_of(plan: Plan) -> EvolveSettings:
    """The plan's local settings in the method's terms."""
    evolve = plan.evolve
    return EvolveSettings(
        episodes=evolve.episodes_per_round,
        tries_per_task=evolve.tries_per_task,
        temperature=evolve.temperature,
        max_new_tokens=evolve.max_new_tokens,
        window=evolve.window,
        epochs=evolve.epochs,
        batch_size=evolve.batch_size,
        learning_rate=evolve.learning_rate,
        max_sequence_tokens=evolve.max_sequence_tokens,
        explore=evolve.explore,
        learn=evolve.learn,
        seed=evolve.seed,
    )

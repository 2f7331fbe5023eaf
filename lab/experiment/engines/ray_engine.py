"""Members' local work in Ray's actors, each a process with one base model.

An actor is made from the run's description, loads the base model, and from then on builds one
member at a time, from its indices and its stores, for one round. Any actor may do any member's
round.

Invariants:
    1. Into an actor go the run as JSON, names, numbers and arrays; out of it come an ``Evolution``
       and lines for the log. Models are never sent.
    2. An actor works in a copy of the member's stores, on the disk of this machine, and nothing of
       it counts before this process has the result (``stores.py``). When an actor's process ends,
       whatever ended it, another one takes its place, and the round that it was doing is done again
       from the state that it began with, to the same bits.
    3. A round whose actor ends ``_TRIES`` times is an error: what ends it will do so again.
    4. An error that a member ends with is raised here as it is, and is not tried again.

Covered: one machine. Not covered: several, which do not see each other's files.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog

from evolution.methods.evolver import Evolution
from evolution.model.lora import initial_adapter
from lab.experiment.config import Run
from lab.experiment.engines.engine import MACHINES, MemberEngine
from lab.experiment.engines.local_round import LocalRound, play_local_round
from lab.experiment.engines.machines import engine_of, machines_of
from lab.experiment.engines.ray_cluster import Cluster
from lab.experiment.engines.stores import Stores
from lab.experiment.errors import EngineError
from lab.experiment.member import Adapter

__all__ = ["MemberActor", "RayEngine"]

_TRIES: Final = 3
_AHEAD: Final = 2
"""How many results for each actor may wait for one before them, so that deltas do not pile up."""


class MemberActor:
    """What runs in an actor's process."""

    def __init__(self, run: str, scratch: str) -> None:
        """Load the base model of a run, given as JSON.

        Raises:
            EvolverSetupError: This machine does not have what the file asks for.
            RolloutError: The engine cannot be made.
        """
        self._log = io.StringIO()
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(self._log))
        self._run = Run.model_validate_json(run)
        jobs = Path(scratch) / MACHINES
        jobs.mkdir(parents=True, exist_ok=True)
        self._machines = machines_of(self._run, Path(tempfile.mkdtemp(dir=jobs)))

    def play(
        self, work: LocalRound, stores: str, adapter: Adapter, correction: Adapter | None
    ) -> tuple[Evolution, str]:
        """Do a member's round in its directory of ``stores``; also what it logged.

        The adapters are apart from ``work``, because Ray hands out what it holds by argument.

        Raises:
            ExperimentError: As ``play_local_round``.
        """
        self._log.seek(0)
        self._log.truncate()
        evolution = play_local_round(
            self._run,
            # Ray's arrays cannot be written to, and a method may expect that its own can.
            replace(work, adapter=_copied(adapter), correction=_copied(correction)),
            Path(stores),
            machines=self._machines,
        )
        return evolution, self._log.getvalue()


@dataclass(kw_only=True, slots=True)
class _Task:
    """A member's round on its way to a result."""

    place: int
    """In the order of the work."""
    work: LocalRound
    """What to do."""
    tries: int = 0
    """How often it was begun."""
    attempt: Path = Path()
    """The copy of the member's stores, once it was begun."""


class RayEngine(MemberEngine):
    """See the module."""

    def __init__(self, run: Run, scratch: Path, *, actors: int, gpus_per_actor: float) -> None:
        """Start a cluster and its actors, and load the judge's model.

        Raises:
            EngineError: The cluster does not start, or this machine has too few GPUs.
            RolloutError: The rollout engine cannot be made.
        """
        devices = (run.rollout.device, run.training.device)
        if gpus_per_actor == 0 and "cuda" in devices:
            raise EngineError(
                "the file plays or trains on device 'cuda', and actors have no GPU: give them a "
                "part of one, as with --gpus-per-actor 0.5"
            )
        self.stores = Stores(scratch)
        self._run = run
        self._scratch = scratch
        self._gpus = gpus_per_actor
        self._running: dict[Any, tuple[_Task, Any]] = {}
        self._put: tuple[Adapter, Any] | None = None
        first = initial_adapter(run.base, run.rank, run.alpha, run.seed, run.target)
        adapter_bytes = sum(tensor.nbytes for tensor in first.values())
        with ExitStack() as stack:
            # An adapter and a correction go to each actor, a delta and a gradient come back.
            self._cluster = Cluster(
                actors=actors,
                gpus_per_actor=gpus_per_actor,
                store_bytes=4 * (_AHEAD * actors + 1) * adapter_bytes,
            )
            stack.callback(self._cluster.close)
            self._ray = self._cluster.ray
            self._actors = actors
            self._idle = [self._actor() for _ in range(actors)]
            self.rollout = engine_of(run)
            stack.pop_all()

    def play(self, work: Sequence[LocalRound]) -> Iterator[Evolution]:
        """See ``MemberEngine``."""
        waiting = deque(_Task(place=place, work=one) for place, one in enumerate(work))
        done: dict[int, Evolution] = {}
        for place in range(len(work)):
            while place not in done:
                before = place + _AHEAD * self._actors
                while self._idle and waiting and waiting[0].place < before:
                    self._begin(waiting.popleft(), self._idle.pop())
                task, evolution = self._next()
                if evolution is None:
                    waiting.appendleft(task)
                else:
                    done[task.place] = evolution
            yield done.pop(place)

    def close(self) -> None:
        """End the cluster and release the judge's model."""
        self._cluster.close()
        self.rollout.close()

    def _actor(self) -> Any:
        """A new actor; it loads its model by itself."""
        made = self._ray.remote(MemberActor).options(
            num_cpus=1, num_gpus=self._gpus, max_restarts=0, max_task_retries=0
        )
        return made.remote(self._run.model_dump_json(), str(self._scratch))

    def _begin(self, task: _Task, actor: Any) -> None:
        task.tries += 1
        task.attempt = self.stores.begin(task.work.indices)
        if self._put is None or self._put[0] is not task.work.adapter:
            self._put = task.work.adapter, self._ray.put(dict(task.work.adapter))
        ref = actor.play.remote(
            replace(task.work, adapter={}, correction=None),
            str(task.attempt),
            self._put[1],
            task.work.correction,
        )
        self._running[ref] = task, actor

    def _next(self) -> tuple[_Task, Evolution | None]:
        """The next round that ends, and what came of it; None if its actor ended first.

        Raises:
            EngineError: An actor cannot be made, or every one that began the round ended.
        """
        errors = self._ray.exceptions
        (ref,), _ = self._ray.wait(list(self._running), num_returns=1)
        task, actor = self._running.pop(ref)
        try:
            evolution, log = self._ray.get(ref)
        except errors.RayTaskError as error:
            self.stores.forget(task.attempt)
            # The member's own, in words that do not speak of Ray.
            raise error.cause from error
        except (
            errors.RayActorError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
            errors.WorkerCrashedError,
        ) as error:
            if getattr(error, "actor_init_failed", False):
                raise EngineError(f"an actor could not be made: {error}") from error
            # Nothing may write to the attempt any more, whatever became of the process.
            self._ray.kill(actor)
            self.stores.forget(task.attempt)
            silos = ", ".join(self._run.silos[index].name for index in task.work.indices)
            _say(f"an actor ended in round {task.work.round_number} of {silos}: {error}")
            if task.tries == _TRIES:
                raise EngineError(
                    f"round {task.work.round_number} of {silos} was begun {_TRIES} times, and the "
                    "actor's process ended each time: the lines above say how; if memory ran out, "
                    "lower --actors"
                ) from error
            self._idle.append(self._actor())
            return task, None
        self.stores.keep(task.work.indices, task.attempt)
        self._idle.append(actor)
        sys.stderr.write(log)
        return task, replace(
            evolution,
            # Copies, so that Ray's store can let go of its own.
            delta=_copied(evolution.delta),
            mean_gradient=_copied(evolution.mean_gradient),
        )


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _copied(tensors: Mapping[str, np.ndarray] | None) -> Any:
    return None if tensors is None else {name: np.array(t) for name, t in tensors.items()}

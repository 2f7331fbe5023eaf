"""``harness:``, tasks that somebody else's agent plays, with the silo's model behind a gateway.

Every task is a session (``session.py``) with a process (``process.py``) and an endpoint
(``endpoint.py``) of its own. Invariants:

1. The engine is driven by the thread that asked for the episodes, and by no other: it takes the
   prompts that are waiting and answers them in one call. Where units are protected, which ``try_s``
   says, task after task is played: only tries of one task run beside each other and share a call,
   so that not even rounding passes from one to another.
2. A session that fails costs its own try: the process group is killed, the error's class is logged,
   the try is counted, and the others go on. So does an engine that fails for one prompt alone.
3. However ``play`` ends, no process, port or directory of a session is left.
4. A harness that cannot be started, or that used its seconds up, three times in a row is left alone
   for a minute, like a server that hangs; not where units are protected.

What a harness is told, in variables of its environment: ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``,
``OPENAI_MODEL``, and ``CHORALE_TASK``, a JSON object with ``index`` (the task's own number),
``label`` and ``instruction``.

Covered: harnesses that write their prompts themselves. Not covered: prefixes, variants and
scaffolds of tasks, which drop a try; a harness's rights, which are the daemon's.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from evolution.envs.environment import Environment, Info
from evolution.envs.foreign.foreign import Breaker
from evolution.envs.foreign.spec import HarnessSpec
from evolution.envs.tasks import Shard, Split
from evolution.errors import (
    EpisodeStateError,
    EvolutionError,
    HarnessLimitError,
    HarnessStartError,
    HarnessTimeoutError,
    NotWantedError,
    PrefixError,
    RolloutError,
    ScaffoldError,
    VariantError,
)
from evolution.gateway.endpoint import Endpoint
from evolution.gateway.layout import Layout
from evolution.gateway.process import require_command, run_harness
from evolution.gateway.session import Session
from evolution.local_time import require_time, require_wanted
from evolution.rollout.engine import ANY_NUMBER, Generation, Prompt, RolloutEngine, Sampling
from evolution.rollout.episodes import EpisodeBatch
from evolution.trajectory import Task
from ops.logs.logger import get_logger

__all__ = ["HarnessEnvironment"]

_log = get_logger(__name__)
_LOOK_S: Final = 0.05


class HarnessEnvironment(Environment):
    """See the module; made by ``evolution/envs/foreign/foreign.py``."""

    replays = False

    def __init__(self, spec: HarnessSpec, breaker: Breaker) -> None:
        self._spec = spec
        self._breaker = breaker
        self._breaking = threading.Lock()

    @property
    def instruction(self) -> str:
        """The operator's, for the harness."""
        return self._spec.instruction

    def task_ids(self, split: Split, *, shard: Shard | None = None) -> Sequence[int]:
        """The task ids of a split, or of one shard of it; few where the operator says so."""
        return self._spec.task_ids(split, shard)

    def reset(self, task_id: int) -> tuple[str, Info]:
        """The task as the harness is given it; nothing is started.

        Raises:
            TaskIdError: There is no such task.
            HarnessStartError: The command is not there.
        """
        require_command(self._spec.command[0])
        return self._told(task_id), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # noqa: ARG002  # the seam
        """Nobody steps through a harness's task.

        Raises:
            EpisodeStateError: Always.
        """
        raise EpisodeStateError("a harness plays its tasks itself")

    def success(self, info: Info) -> bool:  # noqa: ARG002  # the seam
        """Nothing was played here."""
        return False

    def play(
        self,
        engine: RolloutEngine,
        tasks: Sequence[Task],
        *,
        keys: Sequence[int],
        sampling: Sampling,
        batch_size: int,
        round_index: int,
        try_s: float | None,
    ) -> EpisodeBatch:
        """Play an episode of each task; see ``evolution/rollout/episodes.py``."""
        inbox: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()

        def ask(prompt: Prompt, sampling: Sampling) -> Future[Generation]:
            waiting = _Waiting(prompt=prompt, sampling=sampling, answer=Future())
            inbox.put(waiting)
            return waiting.answer

        layout = Layout(engine.chat)
        sessions = [
            Session(
                spec=self._spec,
                task=task,
                key=key,
                sampling=sampling,
                layout=layout,
                turn_end_id=engine.chat.turn_end_id,
                context_limit=engine.context_limit,
                adapter=engine.adapter_version,
                ask=ask,
            )
            for key, task in zip(keys, tasks, strict=True)
        ]
        limit_s = self._spec.timeout_s if try_s is None else min(try_s, self._spec.timeout_s)
        at_once = max(1, min(self._spec.at_once, batch_size))
        pool = ThreadPoolExecutor(at_once, thread_name_prefix="harness")
        try:
            for company in _companies(sessions, apart=try_s is not None):
                if try_s is not None:
                    engine.most_at_once = ANY_NUMBER
                running = {pool.submit(self._run, session, limit_s) for session in company}
                while running:
                    require_wanted()
                    require_time()
                    _answer(engine, _taken(inbox, batch_size))
                    done, running = wait(running, timeout=0)
                    for one in done:
                        one.result()
        finally:
            for session in sessions:
                session.end(NotWantedError("the episodes were called off"))
            pool.shutdown(wait=True, cancel_futures=True)
        tries = tuple(session.trajectory(round_index) for session in sessions)
        return EpisodeBatch(
            tries=tries,
            dropped=sum(one is None for one in tries),
            environment_steps=sum(session.answers for session in sessions),
            tasks=tuple(tasks),
            round=round_index,
        )

    def _run(self, session: Session, limit_s: float) -> None:
        """One session from its process's start to its end."""
        if session.over:
            return
        try:
            self._begun(session, limit_s)
        except EvolutionError as error:
            session.end(error)
        except OSError:
            session.end(HarnessStartError("the system has no process, port or directory left"))
        cause = session.ended_by
        if cause is None or isinstance(cause, NotWantedError):
            return
        kept = isinstance(cause, HarnessLimitError) and session.answers
        _log.warning(
            "harness_ended",
            environment=self._spec.name,
            error=type(cause).__name__,
            counts_as="unsolved" if kept else "dropped",
        )

    def _begun(self, session: Session, limit_s: float) -> None:
        task = session.task
        if task.prefix:
            raise PrefixError("a harness begins at the beginning")
        if task.variant:
            raise VariantError("a harness takes no task that somebody wrote")
        if task.scaffold is not None:
            raise ScaffoldError("a harness writes its prompts itself")
        told = self._told(task.task_id)
        with self._breaking:
            self._breaker.require_closed()
        with Endpoint(session) as endpoint:
            session.begin()
            run_harness(
                session,
                {
                    "CHORALE_TASK": told,
                    "OPENAI_API_KEY": endpoint.token,
                    "OPENAI_BASE_URL": endpoint.url,
                    "OPENAI_MODEL": session.model,
                },
                limit_s,
            )
        silent = isinstance(session.ended_by, HarnessStartError | HarnessTimeoutError)
        if not isinstance(session.ended_by, NotWantedError):
            with self._breaking:
                self._breaker.note(answered=not silent)

    def _told(self, task_id: int) -> str:
        return json.dumps(
            {
                "index": self._spec.task_index(task_id),
                "label": self.task_label(task_id),
                "instruction": self._spec.instruction,
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Waiting:
    """A prompt that a session waits to have answered."""

    prompt: Prompt
    sampling: Sampling
    answer: Future[Generation]


def _companies(sessions: Sequence[Session], *, apart: bool) -> list[list[Session]]:
    """Who may run beside whom."""
    companies: dict[tuple[str, int] | None, list[Session]] = {}
    for session in sessions:
        name = (session.task.environment, session.task.task_id) if apart else None
        companies.setdefault(name, []).append(session)
    return list(companies.values())


def _taken(inbox: queue.SimpleQueue[_Waiting], most: int) -> list[list[_Waiting]]:
    """What is waiting, dealt out over calls of the engine."""
    found: list[_Waiting] = []
    try:
        found.append(inbox.get(timeout=_LOOK_S))
        while len(found) < most:
            found.append(inbox.get_nowait())
    except queue.Empty:
        pass
    calls: dict[Sampling, list[_Waiting]] = {}
    for one in found:
        # A session that is over took its question back.
        if one.answer.set_running_or_notify_cancel():
            calls.setdefault(one.sampling, []).append(one)
    return list(calls.values())


def _answer(engine: RolloutEngine, calls: Sequence[Sequence[_Waiting]]) -> None:
    """Answer everything; a prompt that fails alone fails for its session."""
    for call in calls:
        try:
            answers = engine.generate([one.prompt for one in call], call[0].sampling)
        except Exception as error:  # noqa: BLE001  # one conversation may have done it
            _log.warning("batch_not_answered", episodes=len(call), error=type(error).__name__)
            for one in call:
                _answer_alone(engine, one)
            continue
        for one, answer in zip(call, answers, strict=True):
            one.answer.set_result(answer)


def _answer_alone(engine: RolloutEngine, one: _Waiting) -> None:
    try:
        (answer,) = engine.generate([one.prompt], one.sampling)
    except Exception as error:  # noqa: BLE001  # foreign texts may have done it
        failure = RolloutError("the engine did not answer")
        failure.__cause__ = error
        one.answer.set_exception(failure)
    else:
        one.answer.set_result(answer)

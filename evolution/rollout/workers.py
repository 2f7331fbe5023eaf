"""The rollout engine of several processes on one machine, each with its own copy of the model.

A conversation belongs to the worker with the number key modulo workers, so its key/value cache is
where its next turn is played. Environments stay in the parent, and step while other workers answer:
each worker is a lane (``engine.py``). Invariants:

1. A draw depends on seed, key and position (``sampling.py``): the same conversations come out
   whatever the number of workers, up to rounding.
2. Adapters reach a worker as safetensors, prompts and answers as plain tuples over a pipe between
   processes of the same program. Nothing from outside the silo is unpickled.
3. A worker that dies fails what it was asked for as ``RolloutWorkerError``, and nothing after that:
   the next question starts another one, with the adapter it had. A conversation that kills its
   worker thus costs no other one its answer (units are protected one by one). Workers end with
   their parent, however it ends.

Covered: CPUs, where one process leaves cores idle between its forward passes; GPUs, of which worker
i takes the one with the number i modulo their count (which one it takes is tested; playing on
several was not run). Not covered: a model that is larger than one GPU, for which a vLLM server is
the engine (``openai/engine.py``); a worker that has halved its batch feeds it anew in each turn.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save
from transformers import AutoConfig

from evolution.errors import AdapterLoadError, RolloutError, RolloutWorkerError
from evolution.model.causal_lm import load_tokenizer
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.engine import Generation, Prompt, RolloutEngine, Sampling

__all__ = ["WorkerEngine"]

_READY_S = 300.0
"""For reading the base model."""
_ANSWER_S = 1_800.0
_JOIN_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """How a worker makes its engine."""

    base_dir: str
    alpha: float
    dtype: str
    threads: int
    device: str
    worker: int = 0
    """Its number, which chooses among GPUs."""


class WorkerEngine(RolloutEngine):
    """See the module."""

    def __init__(
        self,
        base_dir: str | Path,
        *,
        alpha: float,
        dtype: str,
        threads: int,
        device: str,
        workers: int,
    ) -> None:
        """Start the workers.

        ``threads`` are torch's, in each worker; the device is as ``HfEngine`` takes it.

        Raises:
            RolloutWorkerError: They did not start.
        """
        config = AutoConfig.from_pretrained(base_dir, local_files_only=True)
        self.chat = ChatFormat.from_tokenizer(load_tokenizer(base_dir))
        self.context_limit = int(config.max_position_embeddings)
        self.adapter_version = ""
        self._made = _Made(
            base_dir=str(base_dir), alpha=alpha, dtype=dtype, threads=threads, device=device
        )
        self.lanes = self._count = workers
        self._loaded: tuple[str, str, bytes] = ("load", "", save({}))
        """What the workers play with: what another one in their place is told."""
        self._workers = [self._start(place) for place in range(workers)]
        try:
            for worker in self._workers:
                worker.receive(_READY_S)
        except BaseException:
            self.close()
            raise

    def load_adapter(self, version: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Play with this adapter in all workers.

        Raises:
            AdapterLoadError: The tensors do not fit the base model.
            RolloutWorkerError: A worker died.
        """
        self._replace_dead()
        content = save({name: np.ascontiguousarray(t) for name, t in tensors.items()})
        message = ("load", version, content)
        try:
            self._told([message] * self._count)()
        except RolloutWorkerError:
            # Some may hold the new adapter and some the old one: all begin again with the old one.
            for worker in self._workers:
                worker.stop()
            raise
        self._loaded = message
        self.adapter_version = version

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Generation]:
        """Answer each prompt, in order.

        Raises:
            RolloutWorkerError: A worker died or failed.
        """
        return self.ask(prompts, sampling)()

    def ask(self, prompts: Sequence[Prompt], sampling: Sampling) -> Callable[[], list[Generation]]:
        """Send prompts to the workers that they belong to; what is returned waits for the answers.

        Raises:
            RolloutWorkerError: There are no workers. That one died or failed is raised later.
        """
        self._replace_dead()
        rows: list[list[int]] = [[] for _ in range(self._count)]
        for row, prompt in enumerate(prompts):
            rows[prompt.key % self._count].append(row)
        asked = [
            ("generate", [(prompts[row].key, tuple(prompts[row].token_ids)) for row in mine], how)
            if mine
            else None
            for mine, how in zip(rows, [_plain(sampling)] * len(rows), strict=True)
        ]
        waited = self._told(asked)

        def answers() -> list[Generation]:
            found: dict[int, Generation] = {}
            for mine, answered in zip(rows, waited(), strict=True):
                for row, (token_ids, logprobs, ended) in zip(mine, answered, strict=True):
                    found[row] = Generation(token_ids=token_ids, logprobs=logprobs, ended=ended)
            return [found[row] for row in range(len(prompts))]

        return answers

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def _start(self, place: int) -> _Worker:
        return _Worker(replace(self._made, worker=place))

    def _replace_dead(self) -> None:
        """Start another worker for each dead one, with the adapter that is being played."""
        dead = [place for place, worker in enumerate(self._workers) if not worker.alive]
        for place in dead:
            self._workers[place].stop()
            self._workers[place] = self._start(place)
        for place in dead:
            self._workers[place].receive(_READY_S)
            self._workers[place].send(self._loaded)
        for place in dead:
            self._workers[place].receive(_READY_S)

    def _told(self, messages: Sequence[tuple[Any, ...] | None]) -> Callable[[], list[Any]]:
        """Ask workers; what is returned waits for every one asked.

        A worker whose message is None is left alone; its answer is an empty list.
        """
        if len(messages) != len(self._workers):
            raise RolloutWorkerError("the workers have ended")
        told = list(zip(self._workers, messages, strict=True))
        for worker, message in told:
            if message is not None:
                worker.send(message)

        def answers() -> list[Any]:
            found: list[Any] = []
            errors = []
            for worker, message in told:
                try:
                    found.append([] if message is None else worker.receive(_ANSWER_S))
                except RolloutError as error:
                    errors.append(error)
            if errors:
                raise errors[0]
            return found

        return answers


class _Worker:
    """The parent's end."""

    def __init__(self, made: _Made) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=_serve, args=(theirs, made), daemon=True, name="chorale-rollout"
        )
        self._process.start()
        theirs.close()
        self._owed = 1
        """Answers that nobody has waited for; the first says that it has started."""

    @property
    def alive(self) -> bool:
        return self._process.is_alive() and not self._pipe.closed

    def send(self, message: tuple[Any, ...]) -> None:
        while self._owed and self.alive:
            # Whoever asked for it has given up: it must not be taken for the next one.
            with suppress(RolloutError):
                self.receive(_ANSWER_S)
        self._owed += 1
        # A dead worker is told apart where its answer is waited for.
        with suppress(OSError):
            self._pipe.send(message)

    def receive(self, timeout_s: float) -> Any:
        self._owed -= 1
        try:
            answered = self._pipe.poll(timeout_s)
            kind, value = self._pipe.recv() if answered else ("late", "")
        except (EOFError, OSError) as error:
            self.stop()
            raise RolloutWorkerError("a rollout worker died") from error
        if kind == "late":
            # A late answer would be taken for that to the next question.
            self.stop()
            raise RolloutWorkerError("a rollout worker does not answer")
        if kind == "unfit":
            raise AdapterLoadError(value)
        if kind != "done":
            raise RolloutWorkerError(f"a rollout worker failed: {value}")
        return value

    def stop(self) -> None:
        self._pipe.close()
        self._process.join(_JOIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _plain(sampling: Sampling) -> tuple[float, int, int]:
    return sampling.temperature, sampling.max_new_tokens, sampling.seed


def _serve(pipe: Connection, made: _Made) -> None:
    """A worker's life: answer until the parent hangs up."""
    from evolution.rollout.hf import HfEngine

    # Ctrl-C reaches the whole group; it is the parent that decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        engine = HfEngine(
            made.base_dir,
            alpha=made.alpha,
            dtype=made.dtype,
            threads=made.threads,
            device=made.device,
            worker=made.worker,
        )
        pipe.send(("done", None))
        while True:
            pipe.send(_answer(engine, pipe.recv()))
    except (EOFError, OSError):
        # The parent has hung up, or is gone.
        return


def _answer(engine: RolloutEngine, message: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        if message[0] == "load":
            _, version, content = message
            engine.load_adapter(version, load(content))
            return "done", None
        _, rows, (temperature, max_new_tokens, seed) = message
        sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
        prompts = [Prompt(key=key, token_ids=token_ids) for key, token_ids in rows]
        answers = engine.generate(prompts, sampling)
        return "done", [(a.token_ids, a.logprobs, a.ended) for a in answers]
    except AdapterLoadError as error:
        return "unfit", str(error)
    except Exception as error:  # noqa: BLE001  # the parent raises it: one worker, one answer
        return "failed", f"{type(error).__name__}: {error}"

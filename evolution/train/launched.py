"""Training in workers of their own: several processes under torchrun share each batch.

The trainer holds the adapter as arrays and no model. ``train`` writes a job into the silo's private
directory, starts ``torchrun`` on this machine, waits, reads the adapter back and removes the job,
whatever happened.

Invariants:

1. The result is that of ``SftTrainer`` up to rounding: the plan's batch is divided over workers and
   weighted by tokens (``loop.py``).
2. If a worker fails, or the site's time for a round's work is over (``evolution/local_time.py``),
   all are ended and the adapter stays what it was.
3. Workers get token ids, never text, so what they print holds none; an error carries the end of it.
4. Workers talk over the loopback interface alone, and meet through files in the job's directory.
   torch's TCP store, which ``torchrun --standalone`` starts, listens on every interface, asks
   nobody who they are, and torchrun unpickles what it holds: whoever reached it could run code.
5. Workers end within seconds of a daemon, or a torchrun, that was killed; the next daemon removes
   their job.

Covered: one machine, on CPUs or GPUs. Not covered: several machines; per-unit gradients; loading a
base that does not fit into the machine's memory once per worker.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import numpy as np

from evolution.errors import EvolverSetupError, TrainingWorkerError
from evolution.local_time import require_time, require_wanted
from evolution.part import Part
from evolution.train.launched_job import (
    Job,
    read_failure,
    read_logprobs,
    read_result,
    write_job,
)
from evolution.train.rows import Row, in_order
from evolution.train.trainer import SftReport, SftSettings, Trainer, TrainerSpec
from federation.adapter.target import Target

if TYPE_CHECKING:
    from dp.steps.grads import GradientBackend

__all__ = ["LaunchedTrainer"]

_TAIL_LINES: Final = 30
_TAIL_BYTES: Final = 4096
_STOP_S: Final = 10.0
_NO_SETTINGS: Final = SftSettings(
    epochs=1, batch_size=1, learning_rate=0.0, grad_clip_l2=1.0, seed=0
)
"""Of a job that trains nothing."""
_LOOK_S: Final = 0.5
"""How often the site's time limit is looked at while workers train."""


class LaunchedTrainer(Trainer):
    """A trainer whose steps are taken by workers.

    Jobs lie in ``training`` of ``state_dir``, the silo's private directory, while they run. Those
    of a daemon that was killed are removed here.

    Raises:
        EvolverSetupError: There are not enough GPUs.
    """

    def __init__(
        self,
        base_dir: Path,
        *,
        rank: int,
        alpha: float,
        dtype: str,
        target: Target,
        state_dir: Path,
        spec: TrainerSpec,
    ) -> None:
        self._base_dir = Path(base_dir).resolve()
        self._rank = rank
        self._alpha = alpha
        self._dtype = dtype
        self._target = target
        self._spec = spec
        self._device = _device(spec)
        self._jobs = state_dir / "training"
        self._adapter: dict[str, np.ndarray] = {}
        shutil.rmtree(self._jobs, ignore_errors=True)
        self._jobs.mkdir(mode=0o700, parents=True)

    def reset(self, adapter: Mapping[str, np.ndarray]) -> None:
        """Become this adapter, bit for bit; workers check that it fits the model."""
        self._adapter = {name: value.astype(np.float32) for name, value in adapter.items()}

    def adapter(self) -> dict[str, np.ndarray]:
        """The adapter as it is now: all factors by name, float32."""
        return {name: value.copy() for name, value in self._adapter.items()}

    def train(
        self,
        rows: Sequence[Row],
        objective: Part,
        settings: SftSettings,
        *,
        trainable: frozenset[str],
        anchor: Mapping[str, np.ndarray] | None = None,
        correction: Mapping[str, np.ndarray] | None = None,
    ) -> SftReport:
        """Minimise the objective; see ``Trainer.train``.

        Raises:
            TrainingWorkerError: Workers ended without a result.
            LocalTimeError: The site's time for it is over.
            TrainingJobError: What they left is no result.
        """
        rows = in_order(rows)
        gradients_of = None if correction is None else trainable
        if not any(row.loss_tokens for row in rows) or not settings.epochs:
            return _nothing(self._adapter, gradients_of)
        job = self._job(settings, objective=objective.as_json(), trainable=trainable)
        with self._done(job, rows, anchor=anchor, correction=correction) as directory:
            self._adapter, report = read_result(
                directory, adapter=self._adapter, gradients_of=gradients_of
            )
        return report

    def logprobs(
        self, rows: Sequence[Row], *, temperature: float = 1.0, base: bool = False
    ) -> list[np.ndarray]:
        """Log-probability of every token of each row; see ``Trainer.logprobs``.

        Raises:
            TrainingWorkerError: Workers ended without a result.
            TrainingJobError: What they left is no result.
        """
        if not rows:
            return []
        # Workers deal sorted rows, so that each has lengths alike.
        ordered = sorted(range(len(rows)), key=lambda i: (len(rows[i]), rows[i].name, i))
        dealt = [rows[i] for i in ordered]
        settings = replace(_NO_SETTINGS, temperature=temperature)
        with self._done(self._job(settings, base_alone=base), dealt) as directory:
            values = read_logprobs(directory, dealt, processes=self._spec.processes)
        found = dict(zip(ordered, values, strict=True))
        return [found[i] for i in range(len(rows))]

    def values(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Refuse: only record-level privacy asks for values beforehand.

        Raises:
            EvolverSetupError: Always.
        """
        _refuse(rows)

    def _job(
        self,
        settings: SftSettings,
        *,
        objective: Mapping[str, Any] | None = None,
        trainable: frozenset[str] = frozenset(),
        base_alone: bool = False,
    ) -> Job:
        return Job(
            base_dir=str(self._base_dir),
            rank=self._rank,
            alpha=self._alpha,
            dtype=self._dtype,
            target=self._target,
            device=self._device,
            micro_batch_tokens=self._spec.micro_batch_tokens,
            gradient_checkpointing=self._spec.gradient_checkpointing,
            sharding=self._spec.sharding,
            trainable=tuple(sorted(trainable or self._adapter)),
            settings=settings,
            objective=objective,
            base_alone=base_alone,
        )

    @contextlib.contextmanager
    def _done(
        self,
        job: Job,
        rows: Sequence[Row],
        *,
        anchor: Mapping[str, np.ndarray] | None = None,
        correction: Mapping[str, np.ndarray] | None = None,
    ) -> Iterator[Path]:
        """The directory of a job that workers have done; it is gone afterwards."""
        directory = Path(tempfile.mkdtemp(prefix="job-", dir=self._jobs))
        try:
            write_job(
                directory,
                job,
                rows,
                adapter=self._adapter,
                anchor=anchor,
                correction=correction,
            )
            _launch(directory, processes=self._spec.processes)
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def gradients(
        self,
        names: Sequence[str],
        objective: Part,
        *,
        backend: str,
        divisor: float | None = None,
        temperature: float = 1.0,
        progress: float = 0.0,
    ) -> GradientBackend[Row]:
        """Refuse.

        Raises:
            EvolverSetupError: Always.
        """
        _refuse(names, objective, backend, divisor, temperature, progress)

    def descend(
        self,
        names: Sequence[str],
        direction: Callable[[], np.ndarray],
        *,
        steps: int,
        learning_rate: float,
        value_learning_rate: float | None = None,
    ) -> None:
        """Refuse.

        Raises:
            EvolverSetupError: Always.
        """
        _refuse(names, direction, steps, learning_rate, value_learning_rate)


def _refuse(*_asked: object) -> NoReturn:
    raise EvolverSetupError(
        "record-level privacy computes its gradients in the daemon: set processes to 1"
    )


def _device(spec: TrainerSpec) -> Literal["cpu", "cuda"]:
    if spec.device == "cpu":
        return "cpu"
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found == 0 and spec.device == "auto":
        return "cpu"
    if found < spec.processes:
        raise EvolverSetupError(f"{spec.processes} processes need as many GPUs; torch sees {found}")
    return "cuda"


def _nothing(adapter: Mapping[str, np.ndarray], gradients_of: frozenset[str] | None) -> SftReport:
    """The report of a job without work; no worker is started for it."""
    zeros = None
    if gradients_of is not None:
        zeros = {name: np.zeros_like(adapter[name]) for name in sorted(gradients_of)}
    return SftReport(
        optimiser_steps=0, agent_tokens=0, first_loss=0.0, last_loss=0.0, mean_gradient=zeros
    )


def _launch(directory: Path, *, processes: int) -> None:
    """Run the workers to their end."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"),
        *("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-id", "job"),
        *("--rdzv-endpoint", str(directory.resolve() / "rendezvous")),
        *("--nproc-per-node", str(processes), "--local-addr", "127.0.0.1"),
        # Removed with the job; torchrun would leave a directory of its own in /tmp.
        *("--log-dir", str(directory.resolve() / "logs")),
        *("-m", "evolution.train.worker", str(directory.resolve()), str(os.getpid())),
    ]
    log = directory / "log"
    with log.open("wb") as sink:
        worker = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            # ``-m`` puts the working directory on the path: an empty one of our own.
            cwd=directory,
            env=_environment(),
            start_new_session=True,
        )
        try:
            status = _wait(worker)
        except BaseException as ended:
            _stop(worker)
            ended.add_note(f"The training processes' last lines:\n{_tail(log, scale=8)}")
            raise
    if status != 0:
        failed = TrainingWorkerError(
            f"{processes} training processes ended with status {status}: "
            f"{read_failure(directory)}\nTheir last lines:\n{_tail(log)}"
        )
        # torchrun has the last word in the log: what a worker said stands before it.
        failed.add_note(f"What they said before:\n{_tail(log, scale=8)}")
        raise failed


def _wait(worker: subprocess.Popen[bytes]) -> int:
    while True:
        require_wanted()
        require_time()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return worker.wait(_LOOK_S)


def _environment() -> dict[str, str]:
    """The daemon's, with its import path, and with one machine's loopback for the workers."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    for backend in ("GLOO", "NCCL"):
        environment.setdefault(f"{backend}_SOCKET_IFNAME", loopback)
    # Or torchrun serves a TCP store; workers meet in a file (``train_worker``).
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # torchrun would set one as well, and say so at length.
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _stop(worker: subprocess.Popen[bytes]) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(_STOP_S)
            return


def _tail(log: Path, *, scale: int = 1) -> str:
    with log.open("rb") as source:
        source.seek(0, os.SEEK_END)
        source.seek(max(0, source.tell() - scale * _TAIL_BYTES))
        text = source.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-scale * _TAIL_LINES :])

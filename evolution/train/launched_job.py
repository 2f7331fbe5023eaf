"""A training job as files, for workers of the same silo: what goes in and what comes out.

::

    settings.json              the plan's settings, the base model, how to train
    rows.safetensors           tokens, mask, weights, log-probabilities and length of each row; no
                               text
    adapter.safetensors        all factors as the job starts
    anchor.safetensors         where asked for
    correction.safetensors     where asked for
    result.safetensors         all factors as the job ends
    mean_gradient.safetensors  where a correction was given
    report.json                counts and losses
    logprobs-N.safetensors     of worker N's rows, where the job asks for nothing else
    failure-N.txt              why worker N ended, if it did

Invariants:

1. Numbers and JSON only: reading a job runs no code.
2. The directory is the caller's, mode 0700. Contents are checked for shape when read, because a
   worker that died leaves half a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from dp.steps.units import UnitId
from evolution.errors import RowError, TrainingJobError
from evolution.train.rows import Row
from evolution.train.trainer import SftReport, SftSettings
from federation.adapter.target import Target, target_of
from federation.plan.methods import Normaliser

__all__ = [
    "Job",
    "read_failure",
    "read_job",
    "read_logprobs",
    "read_result",
    "write_failure",
    "write_job",
    "write_logprobs",
    "write_result",
]

Tensors = Mapping[str, np.ndarray]

_FAILURE_CHARS: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The part of a job that is settings; the rest is arrays."""

    base_dir: str
    """The base model."""
    rank: int
    """LoRA r."""
    alpha: float
    """LoRA α."""
    dtype: str
    """Of the base weights."""
    target: Target
    """Which layers carry an adapter."""
    device: Literal["cpu", "cuda"]
    """Where every worker trains."""
    micro_batch_tokens: int
    """See ``TrainerSpec``."""
    gradient_checkpointing: bool
    """See ``TrainerSpec``."""
    sharding: Literal["ddp", "fsdp"]
    """See ``TrainerSpec``."""
    trainable: tuple[str, ...]
    """Names of the factors to train, sorted."""
    settings: SftSettings
    """The plan's."""
    objective: Mapping[str, Any] | None
    """``Part.as_json``; None asks for log-probabilities and trains nothing."""
    base_alone: bool = False
    """Those are of the base without an adapter."""


def write_job(
    directory: Path,
    job: Job,
    rows: Sequence[Row],
    *,
    adapter: Tensors,
    anchor: Tensors | None,
    correction: Tensors | None,
) -> None:
    """Write what workers read into a directory that exists with mode 0700.

    There is at least one row, and rows are sorted by length. For anchor and correction see
    ``Trainer.train``.
    """
    units = sorted({row.unit for row in rows if row.unit is not None})
    packed = {
        "token_ids": np.concatenate([row.token_ids for row in rows]),
        "mask": np.concatenate([row.mask for row in rows]),
        "weights": np.concatenate([row.weights for row in rows]),
        "logprobs": np.concatenate([row.logprobs for row in rows]),
        "lengths": np.array([len(row) for row in rows], dtype=np.int64),
        # Whose a row is, as a number: workers need not know more.
        "units": np.array(
            [-1 if row.unit is None else units.index(row.unit) for row in rows], dtype=np.int64
        ),
    }
    for name in sorted(set(rows[0].known).intersection(*(row.known for row in rows))):
        packed[f"known.{name}"] = np.concatenate([row.known[name] for row in rows])
    save_file(packed, directory / "rows.safetensors")
    _save(directory, "adapter", adapter)
    for name, tensors in (("anchor", anchor), ("correction", correction)):
        if tensors is not None:
            _save(directory, name, tensors)
    (directory / "settings.json").write_text(json.dumps(asdict(job)))


def read_job(
    directory: Path,
) -> tuple[Job, list[Row], dict[str, np.ndarray], Tensors | None, Tensors | None]:
    """Read what ``write_job`` wrote: settings, rows, adapter, anchor and correction.

    Raises:
        TrainingJobError: The files are not a job.
    """
    try:
        found: dict[str, Any] = json.loads((directory / "settings.json").read_text())
        plain = found.pop("settings")
        settings = SftSettings(**{**plain, "normaliser": Normaliser(plain["normaliser"])})
        trainable = tuple(found.pop("trainable"))
        target = target_of(found.pop("target"))
        job = Job(**found, target=target, trainable=trainable, settings=settings)
        rows = _unpack(load_file(directory / "rows.safetensors"))
        adapter = load_file(directory / "adapter.safetensors")
        return job, rows, adapter, _load(directory, "anchor"), _load(directory, "correction")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, RowError) as error:
        raise TrainingJobError(f"the job cannot be read: {type(error).__name__}") from error


def write_result(directory: Path, adapter: Tensors, report: SftReport) -> None:
    """Write what the caller of the workers reads."""
    _save(directory, "result", adapter)
    if report.mean_gradient is not None:
        _save(directory, "mean_gradient", report.mean_gradient)
    figures = {
        "optimiser_steps": report.optimiser_steps,
        "agent_tokens": report.agent_tokens,
        "first_loss": report.first_loss,
        "last_loss": report.last_loss,
        "figures": dict(report.figures),
    }
    (directory / "report.json").write_text(json.dumps(figures))


def write_logprobs(directory: Path, process: int, found: Sequence[np.ndarray]) -> None:
    """Write the log-probabilities of one worker's rows."""
    _save(directory, f"logprobs-{process}", {str(i): value for i, value in enumerate(found)})


def read_logprobs(directory: Path, rows: Sequence[Row], *, processes: int) -> list[np.ndarray]:
    """Read what all workers wrote: worker N has every ``processes``-th row from N on.

    Raises:
        TrainingJobError: The files are not the result of this job.
    """
    found: list[np.ndarray] = [np.zeros(0, dtype=np.float32)] * len(rows)
    try:
        for process in range(processes):
            mine = range(process, len(rows), processes)
            values = load_file(directory / f"logprobs-{process}.safetensors") if mine else {}
            expected = {str(i): rows[place].logprobs for i, place in enumerate(mine)}
            _require_like(values, expected)
            for i, place in enumerate(mine):
                found[place] = values[str(i)]
    except (OSError, ValueError, SafetensorError) as error:
        raise TrainingJobError(f"the result cannot be read: {error}") from error
    return found


def read_result(
    directory: Path, *, adapter: Tensors, gradients_of: frozenset[str] | None
) -> tuple[dict[str, np.ndarray], SftReport]:
    """Read what ``write_result`` wrote: all factors, float32, and what was done.

    ``adapter`` is what the job started from; its names and shapes must come back. The mean
    gradient of the factors in ``gradients_of`` must be there.

    Raises:
        TrainingJobError: The files are not the result of this job.
    """
    try:
        figures = json.loads((directory / "report.json").read_text())
        result = load_file(directory / "result.safetensors")
        _require_like(result, adapter)
        mean = None
        if gradients_of is not None:
            mean = load_file(directory / "mean_gradient.safetensors")
            _require_like(mean, {name: adapter[name] for name in gradients_of})
        return result, SftReport(
            optimiser_steps=int(figures["optimiser_steps"]),
            agent_tokens=int(figures["agent_tokens"]),
            first_loss=float(figures["first_loss"]),
            last_loss=float(figures["last_loss"]),
            mean_gradient=mean,
            figures={str(name): float(value) for name, value in figures["figures"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise TrainingJobError(f"the result cannot be read: {type(error).__name__}") from error


def write_failure(directory: Path, failure: Exception, *, process: int) -> None:
    """Say why a worker ends: the failure's type and the beginning of its text."""
    text = f"process {process}: {type(failure).__name__}: {failure}"
    (directory / f"failure-{process}.txt").write_text(text[:_FAILURE_CHARS])


def read_failure(directory: Path) -> str:
    """The failure that came first, with its worker, or that none said why.

    The others' are mostly that they miss this worker.
    """
    found = sorted(directory.glob("failure-*.txt"), key=lambda path: path.stat().st_mtime_ns)
    return found[0].read_text(errors="replace") if found else "none of them said why"


def _save(directory: Path, name: str, tensors: Tensors) -> None:
    arrays = {k: np.ascontiguousarray(v, dtype=np.float32) for k, v in tensors.items()}
    save_file(arrays, directory / f"{name}.safetensors")


def _load(directory: Path, name: str) -> Tensors | None:
    path = directory / f"{name}.safetensors"
    return load_file(path) if path.exists() else None


def _unpack(packed: Tensors) -> list[Row]:
    lengths, units = packed["lengths"], packed["units"]
    if (lengths < 1).any() or lengths.shape != units.shape:
        raise ValueError("rows do not add up")
    ends = np.cumsum(lengths)
    parts = {}
    for name, values in packed.items():
        if name not in {"lengths", "units"}:
            if len(values) != ends[-1]:
                raise ValueError("rows do not add up")
            parts[name] = np.split(values, ends[:-1])
    known = [name for name in parts if name.startswith("known.")]
    return [
        Row(
            token_ids=parts["token_ids"][i],
            mask=parts["mask"][i],
            weights=parts["weights"][i],
            logprobs=parts["logprobs"][i],
            name=f"{i:09d}",
            unit=None if units[i] < 0 else UnitId("", str(units[i])),
            known={name.removeprefix("known."): parts[name][i] for name in known},
        )
        for i in range(len(lengths))
    ]


def _require_like(found: Tensors, expected: Tensors) -> None:
    if found.keys() != expected.keys() or any(
        found[name].shape != expected[name].shape or found[name].dtype != np.float32
        for name in expected
    ):
        raise ValueError("other names, shapes or types than the adapter's")

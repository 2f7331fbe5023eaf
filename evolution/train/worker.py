"""One of the workers that ``launched.py`` starts with torchrun; trains its part of every batch.

``ddp``: accelerate wraps the model, each process holds the base, and the last backward pass of a
step averages the gradients. ``fsdp``: the base's weights are divided over the processes, layer by
layer (torch's ``fully_shard``); the factors and a value head are small, stay whole, and their
gradients are summed once a step. Accelerate's own FSDP is for accelerators only; this way the code
that runs on GPUs is the code that a test runs on CPUs.

Invariants: every process ends a step with the same gradients and so with the same factors; only the
first writes a result; nothing that depends on a row's contents is printed; a worker whose daemon or
torchrun is gone ends by itself; no worker listens on more than the loopback interface.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from evolution.errors import EvolverSetupError
from evolution.model.lora import (
    read_adapter,
    trainable_parameters,
    without_adapter,
    write_adapter,
)
from evolution.part import Part
from evolution.train.launched_job import (
    Job,
    read_job,
    write_failure,
    write_logprobs,
    write_result,
)
from evolution.train.loop import Loop, Processes, checkpointed
from evolution.train.loss import keeps_agent_logits
from evolution.train.sft import adapted_base, autocast, choose, ready_head, saves_memory
from evolution.train.trainer import TrainerSpec

__all__ = ["main"]

_LOOK_S: Final = 5.0


class _Workers(Processes):
    """All workers, seen from this one."""

    def __init__(self, accelerator: Accelerator, model: Any, *, averaged: bool) -> None:
        self.rank = accelerator.process_index
        self.count = accelerator.num_processes
        self.averages = self.count if averaged else 1
        self._accelerator = accelerator
        self._model = model
        self._averaged = averaged

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Keep DDP from averaging yet; otherwise nothing is exchanged before ``settle``."""
        if not self._averaged:
            return contextlib.nullcontext()
        held: contextlib.AbstractContextManager[None] = self._accelerator.no_sync(self._model)
        return held

    def settle(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sum the gradients, unless DDP has averaged them."""
        if self._averaged:
            return
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]
        )
        flat = self._accelerator.reduce(flat, reduction="sum")
        parts = flat.split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all workers."""
        summed: torch.Tensor = self._accelerator.reduce(value, reduction="sum")
        return summed

    def greatest(self, value: torch.Tensor) -> torch.Tensor:
        """The greatest over all workers."""
        on_device = value.to(self._accelerator.device)
        torch.distributed.all_reduce(on_device, op=torch.distributed.ReduceOp.MAX)
        return on_device


def main(argv: Sequence[str]) -> NoReturn:
    """Do a job, given by its directory and the daemon's process id, and end this process.

    torchrun sees an exception as a failure of all.
    """
    directory = Path(argv[0])
    watched = (int(argv[1]), os.getppid())
    threading.Thread(target=_end_with, args=watched, daemon=True).start()
    job, rows, adapter, anchor, correction = read_job(directory)
    _meet(directory, job)
    accelerator = Accelerator(
        cpu=job.device == "cpu",
        mixed_precision="no",
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )
    if accelerator.device.type != job.device:
        raise EvolverSetupError(f"a worker is on {accelerator.device.type}, not {job.device}")
    device = accelerator.device
    inner = adapted_base(
        job.base_dir, rank=job.rank, alpha=job.alpha, dtype=job.dtype, target=job.target
    )
    write_adapter(inner, adapter)
    chosen = choose(inner, frozenset(job.trainable))
    if len(chosen) != len(job.trainable):
        raise EvolverSetupError("the job trains factors that the model does not have")
    spec = TrainerSpec(
        micro_batch_tokens=job.micro_batch_tokens,
        gradient_checkpointing=job.gradient_checkpointing,
    )
    keep = saves_memory(spec, device) and keeps_agent_logits(inner, "cpu")
    objective = None if job.objective is None else Part.from_json(job.objective)
    if objective is not None:
        ready_head(inner, objective)
    loop = Loop(
        settings=job.settings,
        micro_batch_tokens=job.micro_batch_tokens,
        keep=keep,
        needs=frozenset() if objective is None else objective.needs,
        without_adapter=partial(without_adapter, inner),
    )
    with checkpointed(inner, on=job.gradient_checkpointing), autocast(inner, device):
        model = _divided(inner, device) if job.sharding == "fsdp" else accelerator.prepare(inner)
        workers = _Workers(accelerator, model, averaged=job.sharding == "ddp")
        if objective is None:
            with without_adapter(inner) if job.base_alone else contextlib.nullcontext():
                found = loop.logprobs(model, rows, device=device, processes=workers)
            write_logprobs(directory, accelerator.process_index, found)
        else:
            report = loop.run(
                model,
                chosen,
                rows,
                objective.make(),
                device=device,
                processes=workers,
                anchor=anchor,
                correction=correction,
            )
            if accelerator.is_main_process:
                write_result(directory, read_adapter(inner), report)
    accelerator.wait_for_everyone()
    # The result is written and all have met. Nothing of torch is taken down: what ends a process
    # group waits for its threads while it holds the interpreter, and one of them may wait for that.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _meet(directory: Path, job: Job) -> None:
    """Find the other workers through a file: a TCP store would listen on every interface.

    Accelerate takes the process group that it finds.
    """
    torch.distributed.init_process_group(
        backend="gloo" if job.device == "cpu" else "nccl",
        init_method=f"file://{directory / 'workers'}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


def _end_with(daemon: int, launcher: int) -> None:
    """End this process once the daemon or torchrun is gone: nobody would read the result."""
    while True:
        try:
            os.kill(daemon, 0)
        except (ProcessLookupError, PermissionError):
            # Gone, or its number is another user's process by this time.
            os._exit(1)
        if os.getppid() != launcher:
            os._exit(1)
        time.sleep(_LOOK_S)


def _divided(model: Any, device: torch.device) -> Any:
    """Divide the frozen base over the processes, in place; the factors stay whole everywhere."""
    factors = set(trainable_parameters(model).values())
    for tensor in itertools.chain(factors, model.buffers()):
        tensor.data = tensor.data.to(device)
    layers = _decoder_layers(model)
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=factors)
    fully_shard(model, mesh=mesh, ignored_params=factors)
    return model


def _decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The units of which one at a time is whole: the classes the model says not to split."""
    names = set(getattr(model.get_base_model(), "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise EvolverSetupError("this model does not say what its layers are: set sharding to ddp")
    return layers


if __name__ == "__main__":
    # A worker that is ended, or ends itself in torch's own code, says in which lines it was.
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)
    try:
        main(sys.argv[1:])
    except Exception as failure:
        # torchrun tells of an exit code alone; this is what the daemon's error begins with.
        write_failure(Path(sys.argv[1]), failure, process=int(os.environ["RANK"]))
        raise

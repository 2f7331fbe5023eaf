"""What this silo has: its machine, its base model, and what the guardian may see of them.

Covered: processors and memory of this process, within its container; GPUs as torch sees them; dense
decoders of the Llama and Qwen families by their own ``config.json``. Not covered: memory that
others take later; GPUs of other makers than those torch was built for.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from federation.adapter.shapes import MAX_CONFIG_BYTES, ModelShape, shape_from_config, shape_of
from federation.errors import ModelShapeError
from silo_agent.config import SiloConfig
from silo_agent.policy.rule import Site

__all__ = ["Gpu", "Machine", "in_gib", "look", "own_parts_of", "shape_in", "site_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One that this process may use."""

    name: str
    memory_bytes: int
    """Free when it was looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What there is."""

    cpus: int
    """That this process may use."""
    memory_bytes: int
    """Of the machine, or of the container it is."""
    gpus: tuple[Gpu, ...] = ()

    @property
    def line(self) -> str:
        """For people."""
        shown = ", ".join(f"{gpu.name} with {in_gib(gpu.memory_bytes)} free" for gpu in self.gpus)
        return f"{self.cpus} CPUs, {in_gib(self.memory_bytes)} of memory, {shown or 'no GPU'}"


def look(config: SiloConfig) -> Machine:
    """What this process may use; GPUs as torch sees them, where the configuration may use one.

    Loads torch where a GPU might matter: a base model is configured, and not everything is set to
    the CPU.
    """
    wants_gpu = config.base_model is not None and (
        config.training.device != "cpu"
        or (config.rollout.kind == "hf" and config.rollout.device != "cpu")
    )
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=_memory_bytes(),
        gpus=_gpus() if wants_gpu else (),
    )


def site_of(config: SiloConfig) -> Site:
    """What the guardian may compare a plan with.

    Raises:
        ConfigError: The base model's directory is none.
    """
    return Site(
        base_sha256=config.base_sha256(),
        environments={entry.environment: entry.declared_tasks for entry in config.environments},
        shape=shape_in(config.base_model, ""),
        own_parts=own_parts_of(config),
        guarded=config.guard is not None,
    )


def own_parts_of(config: SiloConfig) -> tuple[str, ...]:
    """The play and the gate that a silo chose by itself, as far as it did."""
    chosen = (config.evolve.get(kind) for kind in ("play", "gate"))
    return tuple(str(name) for name in chosen if name is not None)


def shape_in(directory: Path | None, name: str) -> ModelShape | None:
    """The shape of a base model, by its own ``config.json``, else by the name a plan gives it."""
    if directory is not None:
        with (
            contextlib.suppress(OSError, ModelShapeError),
            (directory / "config.json").open("rb") as file,
        ):
            return shape_from_config(file.read(MAX_CONFIG_BYTES + 1))
    return shape_of(name)


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _gpus() -> tuple[Gpu, ...]:
    if find_spec("torch") is None:
        return ()
    # At the leaf: a silo whose method needs no model never loads it.
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(
        Gpu(
            name=torch.cuda.get_device_name(index),
            memory_bytes=torch.cuda.mem_get_info(index)[0],
        )
        for index in range(torch.cuda.device_count())
    )


def in_gib(size_bytes: int) -> str:
    """For people."""
    return f"{size_bytes / 2**30:.1f} GiB"

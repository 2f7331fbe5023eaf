"""How local work is fitted to the machine.

What may be fitted, in this order, until the estimate of ``federation/adapter/memory.py`` leaves a
fifth of the device's memory free::

    training   whole batches → micro-batches → gradient checkpointing → both
               → a shorter context: longer trajectories are left out, which is said loudly
    rollouts   how many episodes are played at once

Invariants:

1. The choice is a function of machine, plan and configuration alone. It never touches the rank, a
   clip, noise, the plan's batch, epochs or steps: micro-batches and checkpointing change nothing
   but rounding (``evolution/train/loop.py``).
2. What ``silo.toml`` sets under ``[training]`` is not touched, nor what ``[rollout]`` leaves to a
   server. A choice that was not needed is not made: where everything fits nothing changes.
3. Every choice comes with a sentence that says what and why.
4. A base that cannot be held at all makes the plan unfit, which the guardian's rule ``hardware``
   says before anything is trained or charged.
5. The machine is looked at once, before anything is loaded on it. A plan gets the same choice as
   long as the process runs, and it is said once.

Covered: dense decoders of the Llama and Qwen families, on the CPU or on one GPU. Not covered: other
models, whose settings stay as they are; the gradients of single units of the record-level modes,
which are computed on the CPU one group at a time; memory that others take while work runs.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from dp.config import DEFAULT_BACKEND, RECORD_MODES, Mode
from evolution.methods.evolver import EvolverSetup, EvolveSettings, Work
from evolution.train.trainer import TrainerSpec
from federation.adapter.memory import rollout_memory, training_memory
from federation.adapter.shapes import ModelShape
from federation.errors import TargetError, TomlError
from federation.plan.plan import Plan
from federation.plan.toml import parse_toml
from ops.logs.logger import get_logger
from silo_agent.config import CONFIG_FILE, ENVIRONMENT_PREFIX, SiloConfig
from silo_agent.machine.machine import Machine, in_gib, look, shape_in

__all__ = ["Choice", "Fitting", "choose", "fit", "fixed_keys"]

USABLE: Final = 0.8
"""Of a device's memory; ``federation/adapter/memory.py`` says what the rest is for."""
LEAST_CONTEXT_TOKENS: Final = 16
"""As a plan's own."""
_WITHOUT_MODEL: Final = frozenset({"constant"})

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """How this silo does a plan's local work."""

    trainer: TrainerSpec
    """With what was chosen."""
    rollout_batch: int
    """Episodes played at once."""
    max_sequence_tokens: int
    """Longest trajectory that is trained on; the plan's, unless it does not fit."""
    notes: tuple[str, ...]
    """What was chosen and why."""
    unfit: str = ""
    """Why the plan's work cannot be done here; empty where it can."""

    def settings(self, plans: EvolveSettings) -> EvolveSettings:
        """The plan's settings, fitted."""
        return replace(
            plans,
            rollout_batch=self.rollout_batch,
            max_sequence_tokens=self.max_sequence_tokens,
        )


class Fitting:
    """One daemon's; safe to call from several threads."""

    def __init__(self, config: SiloConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._choice: tuple[Plan, Choice] | None = None

    def choice(self, plan: Plan) -> Choice:
        """How a plan's local work is done here."""
        with self._lock:
            if self._machine is None:
                self._machine = look(self._config)
            if self._choice is None or self._choice[0] != plan:
                chosen = fit(self._machine, plan, self._config)
                if chosen.notes:
                    log.info(
                        "hardware", plan=plan.name, machine=self._machine.line, chose=chosen.notes
                    )
                self._choice = (plan, chosen)
            return self._choice[1]

    def setup(self, plan: Plan, setup: EvolverSetup) -> EvolverSetup:
        """The same set-up with the trainer that fits."""
        return replace(setup, trainer=self.choice(plan).trainer)

    def work(self, plan: Plan, work: Work) -> Work:
        """The same work with the settings that fit."""
        return replace(work, settings=self.choice(plan).settings(work.settings))


def fit(machine: Machine, plan: Plan, config: SiloConfig) -> Choice:
    """How the local work of a plan is done on a machine by a silo of this configuration."""
    return choose(
        machine,
        plan,
        config,
        shape=shape_in(config.base_model, plan.model.base),
        fixed=fixed_keys(config),
    )


def choose(
    machine: Machine,
    plan: Plan,
    config: SiloConfig,
    *,
    shape: ModelShape | None,
    fixed: frozenset[str] = frozenset(),
) -> Choice:
    """Fit a plan's local work to a machine.

    A ``shape`` of None is one that is not known. ``fixed`` are the keys of ``[training]`` that
    ``silo.toml`` sets.
    """
    asked, at_once = config.training, config.rollout.episodes_at_once
    choice = Choice(
        trainer=asked,
        rollout_batch=at_once,
        max_sequence_tokens=plan.evolve.max_sequence_tokens,
        notes=(),
    )
    if config.base_model is None or plan.evolve.method in _WITHOUT_MODEL:
        return choice
    if shape is None:
        return replace(choice, notes=("the base model's shape is not known: nothing was fitted",))
    site = _Site(machine=machine, plan=plan, config=config, shape=shape)
    if (problem := site.unfit()) is not None:
        return replace(choice, notes=(problem,), unfit=problem)
    notes = []
    batch = site.rollout_batch()
    if batch < at_once:
        notes.append(
            f"{batch} instead of {at_once} episodes are played at once, so that their keys "
            f"and values fit into {site.where(site.plays_on_gpu)}"
        )
    if Mode(plan.privacy.mode) in RECORD_MODES:
        backend = config.options(plan.recipe).get("gradient_backend", DEFAULT_BACKEND)
        notes.append(
            f"gradients of single units are computed on the CPU (gradient_backend {backend}): "
            "nothing was fitted there"
        )
        return replace(choice, rollout_batch=batch, notes=tuple(notes))
    trainer, context, said = site.training(fixed)
    notes += said
    if context < LEAST_CONTEXT_TOKENS:
        return replace(choice, notes=(*notes, said[-1]), unfit=said[-1])
    if context < plan.evolve.max_sequence_tokens:
        notes.append(
            f"WARNING: trajectories of more than {context} tokens are left out of training here, "
            f"the plan allows {plan.evolve.max_sequence_tokens}: a larger device would keep them"
        )
    if not notes:
        notes.append(f"everything fits into {site.where(site.trains_on_gpu)}: nothing was changed")
    return Choice(
        trainer=trainer,
        rollout_batch=batch,
        max_sequence_tokens=context,
        notes=tuple(notes),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Site:
    """One plan on one machine, in bytes."""

    machine: Machine
    plan: Plan
    config: SiloConfig
    shape: ModelShape

    @property
    def trains_on_gpu(self) -> bool:
        record = Mode(self.plan.privacy.mode) in RECORD_MODES
        return bool(self.machine.gpus) and self.config.training.device != "cpu" and not record

    @property
    def plays_here(self) -> bool:
        return self.config.rollout.kind == "hf"

    @property
    def plays_on_gpu(self) -> bool:
        return bool(self.machine.gpus) and self.config.rollout.device != "cpu" and self.plays_here

    def memory_bytes(self, *, gpu: bool) -> int:
        # Whoever asks for a GPU gets the first one that is visible.
        return self.machine.gpus[0].memory_bytes if gpu else self.machine.memory_bytes

    def where(self, gpu: bool) -> str:  # noqa: FBT001 - the device's kind is the question
        name = self.machine.gpus[0].name if gpu else "the CPU's memory"
        return f"{name} ({in_gib(self.memory_bytes(gpu=gpu))})"

    def engine_bytes(self, *, gpu: bool) -> int:
        """Weights of whatever plays on that device."""
        if not self.plays_here or gpu != self.plays_on_gpu:
            return 0
        model = self.plan.model
        one = rollout_memory(
            self.shape, target=model.target, conversations=1, tokens=1, dtype=model.dtype
        )
        return one.weights_bytes * self.config.rollout.workers

    def training_bytes(self, tokens: int, *, checkpointing: bool) -> int:
        """Everything on the device that trains, with the weights of what plays there."""
        spec = self.config.training
        trained = training_memory(
            self.shape,
            rank=self.plan.model.lora_rank,
            target=self.plan.model.target,
            tokens=tokens,
            dtype=self.plan.model.dtype,
            gradient_checkpointing=checkpointing,
            processes=spec.processes,
            sharding=spec.sharding,
        )
        return trained.total_bytes + self.engine_bytes(gpu=self.trains_on_gpu)

    def unfit(self) -> str | None:
        """Why the target's layers are not there, or the weights alone more than a device holds."""
        try:
            self.shape.adapted(self.plan.model.target)
        except TargetError as error:
            return str(error)
        for gpu in (self.trains_on_gpu, self.plays_on_gpu):
            held = self.memory_bytes(gpu=gpu)
            needed = self.engine_bytes(gpu=gpu)
            if gpu == self.trains_on_gpu:
                needed = self.training_bytes(1, checkpointing=True)
            if needed > held:
                return (
                    f"{self.plan.model.base} needs at least {in_gib(needed)}, "
                    f"{self.where(gpu)} is all there is"
                )
        return None

    def rollout_batch(self) -> int:
        """Episodes at once whose keys and values fit beside all weights."""
        at_once = self.config.rollout.episodes_at_once
        if not self.plays_here:
            return at_once
        gpu = self.plays_on_gpu
        weights = self.engine_bytes(gpu=gpu)
        if gpu == self.trains_on_gpu:
            weights = self.training_bytes(1, checkpointing=True)
        left = int(self.memory_bytes(gpu=gpu) * USABLE) - weights
        fitting = partial(self._playing_bytes, workers=self.config.rollout.workers)
        return max(1, _most(fitting, within=left, most=at_once))

    def _playing_bytes(self, conversations: int, *, workers: int) -> int:
        """What so many episodes take beside all weights, dealt out to the workers."""
        evolve = self.plan.evolve
        # As long as ``run_episodes`` lets one become.
        each = rollout_memory(
            self.shape,
            conversations=-(-conversations // workers),
            tokens=evolve.max_sequence_tokens + evolve.max_new_tokens,
            dtype=self.plan.model.dtype,
        )
        return workers * (each.cache_bytes + each.pass_bytes)

    def training(self, fixed: frozenset[str]) -> tuple[TrainerSpec, int, list[str]]:
        """The trainer, the longest trajectory, and what to say about them."""
        spec, longest = self.config.training, self.plan.evolve.max_sequence_tokens
        rows = -(-self.plan.evolve.batch_size // spec.processes)
        batch_tokens = rows * longest
        place = self.where(self.trains_on_gpu)
        options = (
            (spec.gradient_checkpointing,) if "gradient_checkpointing" in fixed else (False, True)
        )
        reach = {
            on: _most(
                partial(self.training_bytes, checkpointing=on),
                within=int(self.memory_bytes(gpu=self.trains_on_gpu) * USABLE),
                most=batch_tokens,
            )
            for on in options
        }
        micro_fixed = "micro_batch_tokens" in fixed
        if micro_fixed:
            # A trajectory that is longer than a micro-batch goes alone.
            wanted = max(longest, min(spec.micro_batch_tokens or batch_tokens, batch_tokens))
            fits = [on for on in options if reach[on] >= wanted]
            on = fits[0] if fits else options[-1]
            said = [] if fits else [f"micro_batch_tokens of silo.toml may not fit into {place}"]
            if on and "gradient_checkpointing" not in fixed:
                said.append(f"gradient checkpointing is on, so that training fits into {place}")
            return replace(spec, gradient_checkpointing=on), longest, said
        fits = [on for on in options if reach[on] >= longest]
        on = fits[0] if fits else options[-1]
        tokens = reach[on]
        said = []
        if on and "gradient_checkpointing" not in fixed:
            said.append(f"gradient checkpointing is on, so that training fits into {place}")
        if tokens < batch_tokens:
            said.append(
                f"micro-batches of {tokens} tokens instead of {batch_tokens}, so that training "
                f"fits into {place}"
            )
        micro = tokens if tokens < batch_tokens else 0
        chosen = replace(spec, gradient_checkpointing=on, micro_batch_tokens=micro)
        return chosen, min(longest, tokens), said


def fixed_keys(config: SiloConfig) -> frozenset[str]:
    """Keys of ``[training]`` that the operator set, whatever to."""
    defaults = TrainerSpec()
    names = ("micro_batch_tokens", "gradient_checkpointing")
    fixed = {name for name in names if getattr(config.training, name) != getattr(defaults, name)}
    for said in (_table(config.data_dir / CONFIG_FILE), _environment()):
        # The configuration was read from the same places; what is none was an error there.
        fixed |= {name for name in names if isinstance(said, dict) and name in said}
    return frozenset(fixed)


def _most(bytes_of: Callable[[int], int], *, within: int, most: int) -> int:
    """The most tokens, or episodes, whose bytes stay within; 0 where not even one does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bytes_of(middle) <= within else (low, middle - 1)
    return low


def _table(path: Path) -> Any:
    try:
        return parse_toml(path.read_bytes()).get("training")
    except (OSError, TomlError):
        return None


def _environment() -> Any:
    try:
        return json.loads(os.environ.get(f"{ENVIRONMENT_PREFIX}TRAINING", "null"))
    except ValueError:
        return None

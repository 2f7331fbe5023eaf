"""The doctor's dry round: a round of local work that nobody hears of.

The model, the environments and the trainer, once, and what was played in numbers
(``evolution/rollout/trial.py``). Invariants:

1. Nothing is asked of the coordinator, charged to the ledger, or written to the silo's buffer or
   state: the method works in a directory of its own, which is deleted, without the silo's
   demonstrations and without privacy, because nothing leaves.
2. It trains on whatever was played, solved or not: a dry round proves that training works. What a
   method that looks at success would have made of the same tries is said beside it.
3. What is reported are durations, sizes and counts, never what was played.

Covered: the methods of the registry; why training changed nothing. Not covered: the plan's sizes: a
few episodes fit where a round of hundreds may not, and how often a task is solved is not measured
by a few.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from evolution.errors import EvolverSetupError
from evolution.methods.evolver import EvolverSetup, EvolveSettings, Work
from evolution.methods.population import open_run_memory
from evolution.methods.registry import make_evolver
from evolution.parts.credits.group_relative import advantages, reinforced, worth
from evolution.rollout.conversation import ChatFormat
from evolution.rollout.trial import Trial, trial_of, troubles
from evolution.trajectory import Group
from federation.adapter.encoding import encode_adapter
from federation.plan.part_options import GroupRelativeOptions
from federation.plan.plan import Plan
from federation.plan.recipe import FED_SE, PartChoice, PartsSection, recipe_of
from ops.doctor.checkup import Verdict, ok, warning
from silo_agent.config import SiloConfig

__all__ = ["DryRound", "dry_round", "judge_dry_round", "nothing_to_learn"]

_RANK: Final = 8
_ALPHA: Final = 16.0
_EPISODES: Final = 4
_SYNTHETIC: Final = (4, 32)
"""Rank and width of the one pair of factors of a silo without a base model."""
_COMPARED: Final = GroupRelativeOptions()


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRound:
    """What was tried."""

    method: str
    """Of the registry."""
    dimension: int
    """Entries of the adapter."""
    episodes: int
    """Finished."""
    duration_s: float
    """Of everything, loading the model included."""
    max_new_tokens: int
    """Longest answer in one turn."""
    trials: Mapping[str, Trial]
    """What was played, by environment; empty where the method plays nothing."""
    idle: tuple[str, ...]
    """Why methods that look at success would learn nothing from the same tries."""


def judge_dry_round(config: SiloConfig, plan: Plan | None) -> Verdict:
    """Play a few episodes and train one step on them, and say what was found.

    Raises:
        EvolverSetupError: As ``dry_round``.
    """
    done = dry_round(config, plan)
    trained = (
        f"{done.method}: {done.episodes} episodes, {done.dimension} entries trained in "
        f"{done.duration_s:.1f} s; nothing was charged, kept or sent"
    )
    said = [
        trained,
        *(f"{name}: {trial.line}" for name, trial in done.trials.items()),
        *done.idle,
    ]
    found = {
        name: troubles(trial, max_new_tokens=done.max_new_tokens)
        for name, trial in done.trials.items()
    }
    wrong = {name: several for name, several in found.items() if several}
    if not wrong:
        return ok("; ".join(said))
    said += [f"{name}: {one.text}" for name, several in wrong.items() for one in several]
    shown = " and ".join(f"`chorale-silo env try {name} --show`" for name in wrong)
    fixes = dict.fromkeys(one.fix for several in wrong.values() for one in several)
    return warning("; ".join(said), f"{shown} shows it; {'; '.join(fixes)}")


def dry_round(config: SiloConfig, plan: Plan | None = None) -> DryRound:
    """Play a few episodes and train one step on them.

    Of a plan its temperature, longest answer and longest row are taken.

    Raises:
        EvolverSetupError: The method cannot run with this configuration, or learned nothing; the
            text says why.
    """
    parts = PartsSection(credit=PartChoice(name="all-tries"))
    recipe = (
        recipe_of("constant", PartsSection())
        if config.base_model is None
        else recipe_of(FED_SE, parts)
    )
    options = {
        name: value
        for name, value in config.options(recipe).items()
        if not name.startswith("personal") and name != "gate"
    }
    started_s = time.monotonic()
    adapter = _initial(config)
    settings = _settings(config, plan)
    with tempfile.TemporaryDirectory(prefix="chorale-dry-round-") as directory:
        evolver = make_evolver(
            EvolverSetup(
                assignments=config.assignments(),
                base_dir=config.base_model,
                state_dir=Path(directory),
                expert_file=None,
                rank=_RANK,
                alpha=_ALPHA,
                threads=config.threads,
                catalogue=config.catalogue(),
                engine=config.rollout,
                trainer=config.training,
                privacy=None,
                recipe=recipe,
                options=options,
            )
        )
        try:
            evolution = evolver.evolve(
                Work(
                    round=0,
                    adapter=adapter,
                    adapter_sha256=hashlib.sha256(encode_adapter(adapter)).hexdigest(),
                    trainable=frozenset(adapter),
                    settings=settings,
                    seed=config.seed,
                )
            )
        finally:
            evolver.close()
        groups = _played(Path(directory)) if recipe.parts else []
    idle = nothing_to_learn(groups, max_tokens=settings.max_sequence_tokens) if recipe.parts else ()
    if not all(np.isfinite(tensor).all() for tensor in evolution.delta.values()):
        raise EvolverSetupError("the trained adapter is not finite")
    episodes = sum(evolution.episodes.values())
    if recipe.parts and not any(tensor.any() for tensor in evolution.delta.values()):
        why = "; ".join(idle) or "no gradient reached the adapter"
        raise EvolverSetupError(f"training changed nothing: {why}")
    explored_s = evolution.duration_s.get("explore", 0.0)
    return DryRound(
        method=recipe.method.name,
        dimension=sum(tensor.size for tensor in adapter.values()),
        episodes=episodes,
        duration_s=time.monotonic() - started_s,
        max_new_tokens=settings.max_new_tokens,
        trials=_trials(config, groups, explored_s=explored_s),
        idle=idle,
    )


def nothing_to_learn(groups: Sequence[Group], *, max_tokens: int) -> tuple[str, ...]:
    """Why methods would learn nothing from these tries; empty where each could learn something.

    ``max_tokens`` is the longest row that is trained on.
    """
    tries = [one for group in groups for one in group.trajectories]
    if not tries:
        return ("no episode was finished: the environments dropped all of them",)
    if all(one.token_count > max_tokens for one in tries):
        return (f"every try is longer than the {max_tokens} tokens of max_sequence_tokens",)
    found = []
    if not any(one.success for one in tries):
        found.append("no episode was solved: a method that imitates successes learns nothing here")
    worths = [[worth(one, _COMPARED) for one in group.trajectories] for group in groups]
    taught = [
        (one, advantage)
        for group, own in zip(groups, worths, strict=True)
        for one, advantage in zip(group.trajectories, advantages(own, _COMPARED), strict=True)
        if advantage
    ]
    if not taught:
        found.append(
            "the tries at each task came to the same: a method that compares tries learns nothing "
            "here"
        )
    elif not any(reinforced(one, advantage) for one, advantage in taught):
        found.append(
            "every answer was cut off: a method that compares tries leaves such answers out"
        )
    return tuple(found)


def _settings(config: SiloConfig, plan: Plan | None) -> EvolveSettings:
    small = EvolveSettings(
        episodes=_EPISODES * max(1, len(config.environments)),
        tries_per_task=2,
        epochs=1,
        batch_size=2,
    )
    if plan is None:
        return small
    return replace(
        small,
        temperature=plan.evolve.temperature,
        max_new_tokens=plan.evolve.max_new_tokens,
        max_sequence_tokens=plan.evolve.max_sequence_tokens,
    )


def _played(state_dir: Path) -> list[Group]:
    """The tries that were trained on, out of the method's own memory."""
    with open_run_memory(
        state_dir, expert_file=None, capacity=None, capacity_per_task=None, environments=()
    ) as memory:
        return memory.groups(round_index=0)


def _trials(config: SiloConfig, groups: Sequence[Group], *, explored_s: float) -> dict[str, Trial]:
    """What was played, by environment; the time of all is shared out by episodes."""
    if config.base_model is None or not groups:
        return {}
    # Safety: whoever has a base model and played has what this imports.
    from evolution.model.causal_lm import load_tokenizer

    chat = ChatFormat.from_tokenizer(load_tokenizer(config.base_model))
    begun = sum(len(group.trajectories) + group.dropped for group in groups)
    trials = {}
    for name in sorted({group.task.environment for group in groups}):
        own = [group for group in groups if group.task.environment == name]
        tries = [one for group in own for one in group.trajectories]
        dropped = sum(group.dropped for group in own)
        share = (len(tries) + dropped) / begun if begun else 0.0
        trials[name] = trial_of(chat, tries, dropped=dropped, duration_s=explored_s * share)
    return trials


def _initial(config: SiloConfig) -> dict[str, np.ndarray]:
    if config.base_model is not None:
        from evolution.model.lora import initial_adapter

        return initial_adapter(config.base_model, _RANK, _ALPHA, seed=0)
    rank, width = _SYNTHETIC
    prefix = "base_model.model.layers.0.proj"
    return {
        f"{prefix}.lora_A.weight": np.ones((rank, width), np.float32),
        f"{prefix}.lora_B.weight": np.zeros((width, rank), np.float32),
    }

"""One silo's own part of a diagnosis: its environments beside the public reference.

The reference is the environment as everybody has it and is judged in it, or another one of this
silo's catalogue that the operator names. A few steps of GRPO in both, from the same θ_0 that every
silo can make, then T1, T2 and T3 of the two (``evolution/diagnose``). What other silos have is not
at hand, so there is no federated probe; ``evolution/diagnose/masks.py`` says what the sum tells of
each test, and what nobody can know.

Invariants:

1. Nothing is sent, asked of the coordinator or charged; no store, memory or state of the silo is
   read or written. The daemon may run.
2. Reports are files of mode 0600 in ``diagnosis`` of the data directory, which only the silo's user
   can enter; ``chorale-silo leave --wipe`` removes it. What is explored on the way is below it and
   removed at the end; adapters that were trained are kept nowhere.
3. Reports quote actions and words of observations. Probe tasks are public ones where the
   environment has such, else the silo's own, so ``chorale-silo buffer delete`` removes all reports.

Covered: every environment of the silo that can be replayed. Not covered: harnesses, which play by
themselves; one whose reference nobody named and which is the reference itself, where there is
nothing to compare.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evolution.diagnose.diagnosis import Budget, Diagnosis, Kept, Say, as_data, diagnose
from evolution.diagnose.improve import Improver
from evolution.diagnose.policies import Policies
from evolution.diagnose.report import report_text
from evolution.diagnose.worlds import World, kind_of, probe_tasks
from evolution.envs.foreign.spec import HARNESS
from evolution.methods.evolver import Assignment, EvolverSetup, EvolveSettings
from evolution.methods.machines import make_machines
from evolution.model.lora import initial_adapter
from federation.plan.recipe import PartsSection, recipe_of
from ops.files import private_directory, replace_file
from silo_agent.config import EnvironmentEntry, SiloConfig
from silo_agent.errors import ConfigError

__all__ = ["DIRECTORY", "Asked", "Own", "delete_reports", "diagnose_silo"]

DIRECTORY: Final = "diagnosis"
_RANK: Final = 8
_ALPHA: Final = 16.0
_OWN, _REFERENCE = "this silo", "the reference"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the operator may decide."""

    budget: Budget
    reference: str = ""
    """An environment of the catalogue to compare with; if empty the same as everybody has it."""
    max_new_tokens: int = 16
    """Longest answer in one turn."""
    explored: int = 64
    """Episodes of one GRPO step."""
    tries: int = 8
    """At each task."""
    learning_rate: float = 1e-3
    """Of GRPO."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """What was found of one environment."""

    environment: str
    found: Diagnosis | None
    """None where there is nothing to compare."""
    why_not: str
    """Why there is not; empty where there is."""
    report: Path | None
    """The page; its figures lie beside it."""


def diagnose_silo(config: SiloConfig, asked: Asked, *, say: Say) -> list[Own]:
    """Compare each environment of the silo with its reference, and write the reports.

    Raises:
        ConfigError: There is no base model, no environment, or no such reference.
        EvolverSetupError: The recipe cannot run here.
        RolloutError: The engine cannot be made, or cannot play.
    """
    if config.base_model is None:
        raise ConfigError("a diagnosis plays and trains: set base_model in silo.toml")
    if not config.environments:
        raise ConfigError("this silo explores nothing: name environments in silo.toml")
    if asked.reference and asked.reference not in config.catalogue():
        known = ", ".join(config.catalogue().names)
        raise ConfigError(f"there is no environment {asked.reference!r}; known: {known}")
    pairs = [(entry, _pair(config, entry, asked)) for entry in config.environments]
    if all(isinstance(pair, str) for _, pair in pairs):
        return [_nothing(entry.environment, str(pair)) for entry, pair in pairs]
    directory = private_directory(config.data_dir / DIRECTORY)
    setup = EvolverSetup(
        base_dir=config.base_model,
        state_dir=directory,
        rank=_RANK,
        alpha=_ALPHA,
        threads=config.threads,
        engine=config.rollout,
        trainer=config.training,
        recipe=recipe_of("grpo", PartsSection()),
    )
    start = initial_adapter(config.base_model, _RANK, _ALPHA, seed=0)
    machines = make_machines(setup)
    made = []
    try:
        improver = Improver(
            setup=dataclasses.replace(setup, machines=machines), settings=_settings(config, asked)
        )
        policies = Policies(
            machines.engine,
            temperature=1.0,
            max_new_tokens=asked.max_new_tokens,
            batch_size=config.rollout.episodes_at_once,
            seed=asked.budget.seed,
        )
        for entry, pair in pairs:
            if isinstance(pair, str):
                made.append(_nothing(entry.environment, pair))
                continue
            say(f"{entry.environment}: comparing this silo's with the reference")
            found = diagnose(
                pair,
                policies,
                improver,
                start=start,
                locus="environments",
                budget=asked.budget,
                kept=Kept(None, ""),
                say=say,
                federate=False,
                scratch=directory,
            )
            report = _write(directory, entry.environment, found)
            made.append(Own(environment=entry.environment, found=found, why_not="", report=report))
    finally:
        machines.close()
    return made


def delete_reports(data_dir: Path) -> int:
    """Remove every report of a data directory; how many pages there were."""
    directory = data_dir / DIRECTORY
    if not directory.is_dir() or directory.is_symlink():
        return 0
    pages = len(list(directory.glob("*.md")))
    shutil.rmtree(directory)
    return pages


def _pair(config: SiloConfig, entry: EnvironmentEntry, asked: Asked) -> tuple[World, World] | str:
    """The silo's world and the reference; why there is nothing to compare."""
    name = asked.reference or entry.environment
    if any(one.startswith(HARNESS) for one in (entry.environment, name)):
        return "a harness plays by itself: nobody can replay its actions"
    own, reference = kind_of(entry.environment, entry.variant), kind_of(name, None)
    if own == reference:
        return (
            "it is the public reference itself: silos with it differ in tasks alone, unless the "
            "others' differ; --reference names another one to compare with"
        )
    catalogue, count = config.catalogue(), asked.budget.tasks
    mine, theirs = entry.assignment(), Assignment(environment=name)
    public = catalogue.unperturbed()
    return (
        World(
            name=_OWN,
            assignment=mine,
            catalogue=catalogue,
            kind=own,
            tasks=probe_tasks(catalogue, mine, count),
        ),
        World(
            name=_REFERENCE,
            assignment=theirs,
            catalogue=public,
            kind=reference,
            tasks=probe_tasks(public, theirs, count),
        ),
    )


def _settings(config: SiloConfig, asked: Asked) -> EvolveSettings:
    recipe = recipe_of("grpo", PartsSection())
    episodes = max(asked.tries, asked.explored - asked.explored % asked.tries)
    return EvolveSettings(
        episodes=episodes,
        tries_per_task=asked.tries,
        temperature=1.0,
        max_new_tokens=asked.max_new_tokens,
        rollout_batch=config.rollout.episodes_at_once,
        epochs=1,
        batch_size=episodes,
        learning_rate=asked.learning_rate,
        use_expert=False,
        normaliser=recipe.normaliser,
        nominal_tokens=asked.max_new_tokens,
        seed=asked.budget.seed,
    )


def _write(directory: Path, environment: str, found: Diagnosis) -> Path:
    # A name may hold what no file name should; two names that come to one are told apart by it.
    name = re.sub(r"[^A-Za-z0-9._-]", "-", environment)
    if name != environment:
        name += f"-{hashlib.sha256(environment.encode()).hexdigest()[:8]}"
    text = report_text(found, title=f"Diagnosis of {environment} at this silo")
    text += (
        "\nOnly this silo and the public reference were compared. The prediction is that of a "
        "federation of which some silos have the one and some the other.\n"
    )
    data = json.dumps(as_data(found), indent=1, sort_keys=True, allow_nan=False) + "\n"
    replace_file(directory / f"{name}.json", (data.encode(),))
    replace_file(directory / f"{name}.md", (text.encode(),))
    return directory / f"{name}.md"


def _nothing(environment: str, why: str) -> Own:
    return Own(environment=environment, found=None, why_not=why, report=None)

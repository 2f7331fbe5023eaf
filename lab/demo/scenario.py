"""What the demo runs: a plan, and a configuration for each silo.

Three scenarios. ``shards``: four silos of one family, each with its own quarter of the crafting
goals, all judged on all goals; this is what federation is for. ``environments``: one environment
each, the hard case, in which four unrelated skills share one small adapter. ``words``: shards
again, of questions in plain English, for a pretrained model. The first protects every task unless
something else is asked for, the others protect by masks, because no settings are known that learn
four environments at record level, or with as many numbers as a large model's adapter has.

Covered: the demo's settings, as files an operator could have written. Not covered: the numbers
(``lab.demo.recipe``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lab.demo.choices import Control, Privacy, Scenario
from lab.demo.recipe import PRETRAINED, RECIPES, Recipe

__all__ = ["FAMILIES", "SILOS", "DemoSettings", "plan_toml", "recipes_of", "silo_toml"]

SILOS: Final = ("silo-a", "silo-b", "silo-c", "silo-d")
FAMILIES: Final = ("craft", "maze", "wordle", "babyai")
_FAMILIES_OF: Final = {
    Scenario.SHARDS: ("craft",),
    Scenario.ENVIRONMENTS: FAMILIES,
    Scenario.WORDS: ("words",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """What was asked for; the recipe answers the rest."""

    scenario: Scenario = Scenario.SHARDS
    control: Control = Control.NONE
    privacy: Privacy = Privacy.RECORD_LOCAL
    rounds: int | None = None
    episodes: int | None = None
    """Per silo and round."""
    seed: int = 0
    held_out: int = 0
    """Held-out tasks per silo and environment, a slice of each silo's own; 0 for as many as it
    takes to tell the scenario's results apart."""

    def __post_init__(self) -> None:
        """A pretrained model takes longer to judge."""
        if not self.held_out:
            usual = 64 if self.scenario == Scenario.WORDS else 208
            object.__setattr__(self, "held_out", usual)

    @property
    def environments(self) -> tuple[str, ...]:
        """What the silos explore."""
        return _FAMILIES_OF[Scenario(self.scenario)]

    @property
    def recipe(self) -> Recipe:
        """The mode's recipe with what was asked for."""
        recipe = recipes_of(Scenario(self.scenario))[Privacy(self.privacy)]
        return replace(
            recipe,
            rounds=recipe.rounds if self.rounds is None else self.rounds,
            episodes=recipe.episodes if self.episodes is None else self.episodes,
            dtype=_held_in(recipe.dtype),
            server_step=2.0
            if self.scenario == Scenario.ENVIRONMENTS and not recipe.at_record_level
            else recipe.server_step,
        )


def recipes_of(scenario: Scenario) -> Mapping[Privacy, Recipe]:
    """What is known to learn, by what it protects."""
    return PRETRAINED if scenario.pretrained else RECIPES


def _held_in(dtype: str) -> str:
    """Of the base: without AVX-512 a CPU is six times as fast in float32 as in 16 bits."""
    from evolution.model.speed import fast_in_16_bits

    return dtype if fast_in_16_bits() else "float32"


def plan_toml(settings: DemoSettings, *, base: str, base_sha256: str) -> str:
    """The run plan."""
    return settings.recipe.toml(
        name=f"demo-{settings.scenario}-{settings.privacy}",
        base=base,
        base_sha256=base_sha256,
        environments=settings.environments,
        seed=settings.seed,
        held_out=settings.held_out,
        explore=settings.control != Control.NO_EXPLORATION,
        learn=settings.control != Control.NO_LEARNING,
    )


def silo_toml(settings: DemoSettings, index: int, *, base_model: str) -> str:
    """One silo's daemon configuration."""
    if settings.scenario == Scenario.ENVIRONMENTS:
        entry = f'{{ environment = "{FAMILIES[index]}" }}'
    else:
        (family,) = settings.environments
        entry = f'{{ environment = "{family}", shard_index = {index}, shard_count = {len(SILOS)} }}'
    return f"""\
base_model = "{base_model}"
environments = [{entry}]
threads = 1
seed = {index + 1}
# Each silo judges adopted adapters on a slice of the held-out tasks of its own.
held_out_offset = {index * settings.held_out}
probes_listen = "127.0.0.1:0"
{_OF_A_LARGE_MODEL if Scenario(settings.scenario).pretrained else ""}"""


_OF_A_LARGE_MODEL: Final = """
# Four silos work at once on this machine. In playing and in judging each keeps the keys and values
# of so many episodes:
[rollout]
rollout_batch = 32

# In training a few tries at a time, and what their prompts open with alike is read once.
[training]
micro_batch_tokens = 1280
"""

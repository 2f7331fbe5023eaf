"""What the demo runs: a plan, and a configuration for each silo.

Two scenarios. ``shards``: four silos of one family, each with its own quarter of the crafting
goals, all judged on all goals; this is what federation is for. ``environments``: one environment
each, the hard case, in which four unrelated skills share one small adapter.

Covered: the demo's settings, as files an operator could have written. Not covered: tuning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["FAMILIES", "SILOS", "Control", "DemoSettings", "Scenario", "plan_toml", "silo_toml"]

SILOS: Final = ("silo-a", "silo-b", "silo-c", "silo-d")
FAMILIES: Final = ("craft", "maze", "wordle", "babyai")


class Scenario(StrEnum):
    """How the tasks are dealt out."""

    SHARDS = "shards"
    ENVIRONMENTS = "environments"


class Control(StrEnum):
    """A control run in which nothing can be learned."""

    NONE = "none"
    NO_LEARNING = "no-learning"
    NO_EXPLORATION = "no-exploration"


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """Sizes of the demo."""

    scenario: Scenario = Scenario.SHARDS
    control: Control = Control.NONE
    rounds: int = 8
    episodes: int = 128
    """Per silo and round."""
    held_out: int = 208
    """Held-out tasks per silo and environment; each silo judges a slice of its own."""
    clip_l2: float = 2.5
    noise_multiplier: float = 0.004
    seed: int = 0

    @property
    def environments(self) -> tuple[str, ...]:
        """What the silos explore."""
        return ("craft",) if self.scenario is Scenario.SHARDS else FAMILIES


def plan_toml(settings: DemoSettings, *, base: str, base_sha256: str) -> str:
    """The run plan."""
    environments = ", ".join(f'"{name}"' for name in settings.environments)
    explore = str(settings.control is not Control.NO_EXPLORATION).lower()
    learn = str(settings.control is not Control.NO_LEARNING).lower()
    return f"""\
# The plan of `chorale demo`. Everything a silo does in a round follows from this file.
name = "demo-{settings.scenario.value}"

[model]
base = "{base}"
base_sha256 = "{base_sha256}"
dtype = "float32"
lora_rank = 8
lora_alpha = 16.0

[evolve]
method = "fed-se"
environments = [{environments}]
episodes_per_round = {settings.episodes}
tries_per_task = 4
window = 1
epochs = 2
batch_size = 8
learning_rate = 3e-3
temperature = 1.0
seed = {settings.seed}
explore = {explore}
learn = {learn}

[aggregation]
method = "fedavg"
server_step = {1.0 if settings.scenario is Scenario.SHARDS else 2.0}

# At four silos there is no noise that protects and lets anything be learned. The noise here is
# real and accounted for, and its epsilon says plainly that masking is what protects.
[privacy]
mode = "silo"
clip_l2 = {settings.clip_l2}
noise_multiplier = {settings.noise_multiplier}
metrics_noise_multiplier = {settings.noise_multiplier}
delta = 1e-5
epsilon_cap = 1e9
min_cosine = 0.5
accept_low_cosine = true

[secure_aggregation]
n_min = 3

[rounds]
count = {settings.rounds}
ready_deadline_s = 300
phase_deadline_s = 8
quorum = 3

[evaluate]
held_out = {settings.held_out}
every_rounds = {settings.rounds}
temperatures = [1.0, 0.0]
"""


def silo_toml(settings: DemoSettings, index: int, *, base_model: str) -> str:
    """One silo's daemon configuration."""
    if settings.scenario is Scenario.SHARDS:
        entry = f'{{ environment = "craft", shard_index = {index}, shard_count = {len(SILOS)} }}'
    else:
        entry = f'{{ environment = "{FAMILIES[index]}" }}'
    return f"""\
base_model = "{base_model}"
environments = [{entry}]
threads = 1
seed = {index + 1}
# Each silo judges adopted adapters on a slice of the held-out tasks of its own.
held_out_offset = {index * settings.held_out}
probes_listen = "127.0.0.1:0"
"""

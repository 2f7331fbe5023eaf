"""Settings that learn, one recipe for each privacy mode: the only place of these numbers.

At record level the noise is not written down but computed: z is the least multiplier, rounded up,
at which all attempts of the run, the spare ones included, stay within ``EPSILON_CAP``. More rounds
or steps therefore mean more noise, never more ε. In mode ``silo`` nothing of the kind is possible
with a handful of silos: its recipe has a little noise and an honest ε of about a million.

Why the record-level recipes look as they do: noise counts against the number of units, so a round
explores many tasks and takes few steps, each on all of them (q = 1, where sampling amplifies
nothing and costs nothing); it grows with the root of the number of trained coordinates, so one
factor of rank 1 is trained; and Adam needs no step size that fits a noisy gradient's length.

Of a pretrained model few layers are trained for that, as a plan's ``target`` names them.

Covered: craft on the shipped base model, four or five silos; words on SmolLM2-135M-Instruct, four
silos. Not covered: other tasks and models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from dp.accounting.rdp import charged_attempts
from dp.config import RECORD_MODES, Mode, PrivacySpec, RecordSpec
from federation.plan.charges import epsilon_of_releases, units_of
from lab.demo.choices import Privacy

__all__ = ["DELTA", "EPSILON_CAP", "IMITATION", "PRETRAINED", "RECIPES", "REINFORCEMENT", "Recipe"]

EPSILON_CAP: Final = 8.0
"""Of a task, for a whole run at record level."""
DELTA: Final = 1e-5
_DECIMALS: Final = 1000.0
_MOST_NOISE: Final = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything about a run that decides whether it learns."""

    privacy: Privacy
    rounds: int
    episodes: int
    """Per silo and round, tries included."""
    method: str = "fed-se"
    nominal_tokens: int | None = None
    """Of a method that divides by a public constant."""
    objective: str = ""
    """Options of the method's objective, as in a plan: ``name = "clipped", kl_beta = 0.1``."""
    tries_per_task: int = 4
    window: int = 1
    steps: int = 0
    """S: noisy steps of a round; 0 where units inside a silo are not protected."""
    epochs: int = 2
    batch_size: int = 8
    """Epochs and batch size of training without noise, also of a silo alone."""
    learning_rate: float = 3e-3
    lora_rank: int = 8
    lora_alpha: float = 16.0
    aggregation: str = "fedavg"
    server_optimiser: str = "fedavg"
    server_step: float = 1.0
    clip_l2: float = 2.5
    grid: int = 2**20
    given_noise: float = 0.0
    """z where it is not computed."""
    metrics_noise: float = 0.0
    epsilon_cap: float = EPSILON_CAP
    spare_attempts: int | None = None
    """Attempts that the budget pays for beyond the releases; the plan's default when None."""
    delta_clip_l2: float | None = None
    """Of the protected delta, in ``record-local``."""
    dtype: str = "float32"
    """Of the base weights."""
    target: tuple[str, ...] = ()
    """The layers that carry the adapter; all linear ones when empty."""
    work_s: int = 300
    """The most that a round's local work may take."""
    tries_per_s: float = 8.0
    """What a silo gets through at least, a third of what a laptop plays and trains."""
    units_per_s: float = 12.0
    """The same of the units of one summed step."""

    @property
    def mode(self) -> Mode:
        """The plan's word for the privacy."""
        return Mode(self.privacy.value.replace("-", "_"))

    @property
    def at_record_level(self) -> bool:
        """Whether units inside a silo are protected."""
        return self.mode in RECORD_MODES

    @property
    def expected_units(self) -> int:
        """B̄: all tasks that a silo can have, as every one is in every step."""
        kept = min(self.window or self.rounds, self.rounds)
        return max(1, self.episodes // self.tries_per_task) * kept

    @property
    def ready_after_s(self) -> int:
        """When a silo says ready, however short its work was: some three times what a laptop needs.

        That is less than a dry round proposes for the worst case; these tasks are known.
        """
        return 15 + int(self.episodes / self.tries_per_s) if self.at_record_level else 0

    @property
    def step_answer_after_s(self) -> int:
        """The same for the sum of a step."""
        distributed = self.mode is Mode.RECORD_DISTRIBUTED
        return 5 + int(self.expected_units / self.units_per_s) if distributed else 0

    @property
    def round_s(self) -> float:
        """What a round may take, until one has been measured.

        Four silos on two slow cores need the time that a plan waits for, and somewhat more for
        setting up and for the sums.
        """
        work_s = 15 + self.episodes / self.tries_per_s + self.steps * self.step_answer_after_s
        return 1.15 * work_s

    @property
    def noise_multiplier(self) -> float:
        """z: as given, or the least that stays within the cap."""
        return self._least_noise() if self.at_record_level else self.given_noise

    def spec(self, noise_multiplier: float) -> PrivacySpec:
        """The privacy part with a noise multiplier, as a plan would state it."""
        return PrivacySpec(
            mode=self.mode,
            unit="task",
            clip_l2=self.clip_l2,
            noise_multiplier=noise_multiplier,
            metrics_noise_multiplier=self.metrics_noise,
            delta=DELTA,
            epsilon_cap=self.epsilon_cap,
            grid=self.grid,
            record=RecordSpec(
                sampling_rate=1.0,
                expected_units=self.expected_units,
                steps_per_round=self.steps,
                delta_clip_l2=self.delta_clip_l2,
            )
            if self.at_record_level
            else None,
        )

    def _least_noise(self) -> float:
        """The least z, in thousandths, at which the whole run stays within the cap."""

        def fits(thousandths: int) -> bool:
            spec = self.spec(thousandths / _DECIMALS)
            releases = charged_attempts(self.rounds * spec.sums_per_round, self.spare_attempts)
            spent = epsilon_of_releases(
                spec,
                releases=releases,
                first_steps=min(releases, charged_attempts(self.rounds, self.spare_attempts)),
            )
            return max(spent[unit].epsilon for unit in units_of(spec)) <= self.epsilon_cap

        low, high = 0, 1024
        while not fits(high):
            if high > _MOST_NOISE:
                return math.inf  # The figures alone pass the cap: the plan will say so.
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high / _DECIMALS

    def toml(
        self,
        *,
        name: str,
        base: str,
        base_sha256: str,
        environments: tuple[str, ...],
        seed: int,
        held_out: int,
        explore: bool = True,
        learn: bool = True,
    ) -> str:
        """The plan, as an operator could have written it."""
        named = ", ".join(f'"{environment}"' for environment in environments)
        spare = "" if self.spare_attempts is None else f"spare_attempts = {self.spare_attempts}\n"
        return f"""\
# Everything a silo does in a round follows from this file.
name = "{name}"

[model]
base = "{base}"
base_sha256 = "{base_sha256}"
dtype = "{self.dtype}"
lora_rank = {self.lora_rank}
lora_alpha = {self.lora_alpha}
{self._target_toml()}
[evolve]
method = "{self.method}"
{self._objective_toml()}environments = [{named}]
episodes_per_round = {self.episodes}
tries_per_task = {self.tries_per_task}
window = {self.window}
epochs = {self.epochs}
batch_size = {self.batch_size}
learning_rate = {self.learning_rate}
temperature = 1.0
seed = {seed}
explore = {str(explore).lower()}
learn = {str(learn).lower()}

[aggregation]
method = "{self.aggregation}"
server_optimiser = "{self.server_optimiser}"
server_step = {self.server_step}

{self._privacy_toml()}
[secure_aggregation]
n_min = 3

[rounds]
count = {self.rounds}
ready_deadline_s = {self.work_s + self.ready_after_s}
phase_deadline_s = {8 + 2 * self.step_answer_after_s}
quorum = 3
{spare}{self._times_toml()}
[evaluate]
held_out = {held_out}
every_rounds = {self.rounds}
temperatures = [1.0, 0.0]
"""

    def _objective_toml(self) -> str:
        nominal = "" if self.nominal_tokens is None else f"nominal_tokens = {self.nominal_tokens}\n"
        return nominal + (
            f"parts = {{ objective = {{ {self.objective} }} }}\n" * bool(self.objective)
        )

    def _target_toml(self) -> str:
        named = ", ".join(f'"{layer}"' for layer in self.target)
        return f"target = [{named}]\n" if named else ""

    def _times_toml(self) -> str:
        times = {
            "ready_after_s": self.ready_after_s,
            "step_answer_after_s": self.step_answer_after_s,
        }
        return "".join(f"{key} = {value}\n" for key, value in times.items() if value)

    def _privacy_toml(self) -> str:
        record = ""
        if self.at_record_level:
            clip = "" if self.delta_clip_l2 is None else f"delta_clip_l2 = {self.delta_clip_l2}\n"
            record = f"""
[privacy.record]
sampling_rate = 1.0
expected_units = {self.expected_units}
steps_per_round = {self.steps}
{clip}"""
        return f"""\
# {_MEANING[self.privacy]}
[privacy]
mode = "{self.mode.value}"
unit = "task"
clip_l2 = {self.clip_l2}
noise_multiplier = {self.noise_multiplier}
metrics_noise_multiplier = {self.metrics_noise}
delta = {DELTA}
epsilon_cap = {self.epsilon_cap}
grid = {self.grid}
min_cosine = 0.5
accept_low_cosine = {str(not self.at_record_level).lower()}
{record}"""


_MEANING: Final = {
    Privacy.RECORD_LOCAL: "Every task is protected by its own silo, whoever else works together.",
    Privacy.RECORD_DISTRIBUTED: (
        "Every task is protected while no more silos collude than the roster allows for."
    ),
    Privacy.SILO: (
        "So few silos cannot be protected as wholes and learn anything: masking is what protects."
    ),
    Privacy.NONE: "Masks, and no noise: nothing is claimed.",
}

IMITATION: Final = Recipe(
    privacy=Privacy.RECORD_LOCAL,
    rounds=3,
    episodes=600,
    window=2,
    steps=2,
    # Without noise: one pass in two or three steps, as a private round has; larger batches would
    # take memory.
    epochs=1,
    batch_size=96,
    learning_rate=0.012,
    lora_rank=1,
    aggregation="ffa",
    clip_l2=0.5,
    metrics_noise=10.0,
    spare_attempts=1,
    delta_clip_l2=2.5,
)
"""What succeeded is imitated, under ``record-local``: what the modes are compared with."""
REINFORCEMENT: Final = replace(
    IMITATION,
    method="grpo",
    nominal_tokens=4,
    objective='name = "clipped", kl_to = "base", kl_beta = 0.1',
    learning_rate=0.006,
    # Every try is a row, successful or not: alone takes five steps where together takes six.
    batch_size=600,
    tries_per_s=4.0,
    units_per_s=5.0,
)
"""Tries of a task are compared with each other, and a pull to the base keeps what it could do."""
_SILO: Final = Recipe(
    privacy=Privacy.SILO,
    rounds=8,
    episodes=128,
    given_noise=0.004,
    metrics_noise=0.004,
    epsilon_cap=1e9,
)

RECIPES: Final[Mapping[Privacy, Recipe]] = MappingProxyType(
    {
        Privacy.RECORD_LOCAL: REINFORCEMENT,
        Privacy.RECORD_DISTRIBUTED: replace(
            IMITATION,
            privacy=Privacy.RECORD_DISTRIBUTED,
            # The optimiser's state is common to all, so its step is that of a silo whose moves
            # nobody averages.
            learning_rate=0.004,
            server_optimiser="adam",
            server_step=0.004,
            # 2^31 over five silos' sums of all units.
            grid=2**16,
            spare_attempts=2,
            delta_clip_l2=None,
        ),
        Privacy.SILO: _SILO,
        Privacy.NONE: replace(_SILO, privacy=Privacy.NONE, given_noise=0.0, metrics_noise=0.0),
    }
)
"""Of the small base model."""

# Rank 8 of a model of 135 million parameters is 2.4 million numbers: noise that does not drown a
# step is far below anything that protects, and the clip stands above the steps' lengths of 2 to 5.
_PRETRAINED: Final = Recipe(
    privacy=Privacy.SILO,
    rounds=3,
    episodes=192,
    tries_per_task=8,
    learning_rate=1e-3,
    clip_l2=12.0,
    given_noise=1e-4,
    metrics_noise=0.004,
    epsilon_cap=1e9,
    dtype="bfloat16",
    work_s=1200,
    tries_per_s=1.0,
)
PRETRAINED: Final[Mapping[Privacy, Recipe]] = MappingProxyType(
    {
        # Rank 1 of the value projections is 5,760 numbers in the factor that is trained. A round's
        # gradients, one by one and each through all example turns, take as long as its exploring.
        Privacy.RECORD_LOCAL: replace(
            IMITATION,
            rounds=2,
            episodes=768,
            tries_per_task=8,
            window=1,
            steps=1,
            learning_rate=0.04,
            # Adam's first step is as long as the rate times the root of the coordinates: 3.04.
            delta_clip_l2=4.0,
            dtype="bfloat16",
            target=("v_proj",),
            work_s=1200,
            tries_per_s=2.0,
        ),
        Privacy.SILO: _PRETRAINED,
        Privacy.NONE: replace(
            _PRETRAINED, privacy=Privacy.NONE, given_noise=0.0, metrics_noise=0.0
        ),
    }
)
"""Of a pretrained model."""

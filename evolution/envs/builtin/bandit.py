"""Bandit: two environments that look alike and reward opposite moves, the witness of a theorem.

FedAgent, theorems 3 and 4: where the kernels of environments differ by δ in total variation and
observations reveal nothing of which it is, no single policy serves all ::

    Δ_pol = (1/N) Σ sup_θ J_i(θ) − sup_θ J_fed(θ) ≥ Rmax · H · δ / 2

Its witness has two actions, and the other environment swaps what they lead to. Here an episode has
H = 4 turns; ``move left`` leads to the good state in ``bandit`` and ``move right`` in
``bandit-swapped``, each with probability (1 + δ)/2, and the good state is worth Rmax = ¼ at once.
Every observation is the same in both, and says no reward. So J_fed = Rmax·H/2 for every policy that
moves, and no way to average policies helps; what helps is to be told which it is (corollary 1), for
which both can say a line: ``descriptor`` of a variant of kind ``none``.

Whether an episode is a success is decided by one of its turns that nobody is told, which the task
draws: it is if that turn led to the good state. So the success rate is J / (Rmax·H), exactly where
the task ids are as many of each turn, and what holds of J holds of success.

Covered: δ from 0 to 1; the built-in two have 1. Not covered: anything to learn; it is not in
demonstrations of the base model, whose words it uses.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from evolution.envs.environment import Info, ScriptedEnvironment
from evolution.envs.tasks import label_index, task_rng
from evolution.errors import EpisodeStateError

__all__ = ["ACTIONS", "HORIZON", "MOST_REWARD", "Bandit", "SwappedBandit"]

HORIZON: Final = 4
"""H."""
MOST_REWARD: Final = 1 / HORIZON
"""Rmax, of one turn."""
ACTIONS: Final = ("move left", "move right")
_OBSERVATION: Final = "goal not known ."
_NEVER: Final = "not possible ."
_WORDS: Final = "goal not known possible actions : move left right ."


class Bandit(ScriptedEnvironment):
    """See the module."""

    name = "bandit"
    family = "bandit"
    max_steps = HORIZON
    labels = ("all",)
    vocabulary = frozenset(_WORDS.split())
    good: ClassVar[str] = ACTIONS[0]
    """The action that leads to the good state."""

    def __init__(self, *, delta: float = 1.0) -> None:
        self._certainty = (1 + delta) / 2
        self._fair: tuple[bool, ...] = ()
        self._decisive = 0
        self._solved = False
        self._step = HORIZON

    @property
    def instruction(self) -> str:
        """What the agent has to do."""
        return "goal not known . actions : move left . move right ."

    def describe(self) -> str:
        """The line that says which of the two it is."""
        return f"goal {self.good.removeprefix('move ')} ."

    def reset(self, task_id: int) -> tuple[str, Info]:
        """Start the episode of a task."""
        label_index(task_id, labels=len(self.labels))
        # The same chance in both environments, which only swap what the actions lead to.
        drawn = task_rng("bandit", task_id).random(HORIZON)
        self._fair = tuple(bool(one < self._certainty) for one in drawn)
        self._decisive = task_id % HORIZON
        self._solved = False
        self._step = 0
        return _OBSERVATION, {"solved": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Play one of the two moves; anything else leads to the bad state.

        Raises:
            EpisodeStateError: The episode has not begun or is over.
        """
        if self._step >= HORIZON:
            raise EpisodeStateError("the episode is over; reset first")
        valid = action in ACTIONS
        reached = valid and (action == self.good) == self._fair[self._step]
        if self._step == self._decisive:
            self._solved = reached
        self._step += 1
        info = {"solved": self._solved, "valid": valid}
        observation = _OBSERVATION if valid else _NEVER
        reward = MOST_REWARD if reached else 0.0
        return observation, reward, False, self._step >= HORIZON, info

    def success(self, info: Info) -> bool:
        """Whether the turn that decides led to the good state."""
        return bool(info["solved"])

    def admissible(self) -> tuple[str, ...]:
        """Both moves, always."""
        return ACTIONS

    def variants(self, task_id: int) -> tuple[str, ...]:  # noqa: ARG002  # of no task
        """None: after the turn that decides there would be nothing left to solve."""
        return ()

    def expert_action(self, rng: np.random.Generator) -> str:
        """The better move, by whoever knows which environment this is."""
        del rng
        return self.good

    def random_action(self, rng: np.random.Generator) -> str:
        """Either move."""
        return ACTIONS[int(rng.integers(len(ACTIONS)))]


class SwappedBandit(Bandit):
    """The other of the two."""

    name = "bandit-swapped"
    family = "bandit-swapped"
    good = ACTIONS[1]

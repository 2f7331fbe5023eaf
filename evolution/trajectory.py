"""What an agent did: ``Task`` → ``Step`` → ``Trajectory`` → ``Group``.

Invariants:

1. A trajectory carries the exact tokens the rollout engine saw and produced. Training never
   tokenises text again, so what is trained is what was played.
2. ``token_ids``, ``agent_mask`` and ``logprobs`` run in parallel. A position is the agent's if and
   only if the agent sampled it; log-probabilities of all other positions are zero.
3. Log-probabilities are those of the behaviour policy: of the distribution that a token was really
   drawn from, at the sampling temperature. At temperature 0 that policy is deterministic, and the
   value is 0.
4. A reward is a finite number of at most ``MAX_REWARD`` (``evolution/envs/outcome.py``); whoever
   makes a step from what an environment said has checked it there.
5. The texts are for the silo's own operator. Nothing in this module ever leaves the silo.

Covered: single-agent episodes with text turns. Not covered: several agents in one episode.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "EXPERT_ROUND",
    "MOST_SAID_TOKENS",
    "Ask",
    "Group",
    "Scaffold",
    "Step",
    "Task",
    "Trajectory",
]

EXPERT_ROUND: Final = -1
"""The round of every demonstration: before the first."""
MOST_SAID_TOKENS: Final = 512
"""Of one answer to an ``Ask``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaffold:
    """Text that helps a try and is no part of its task: a hint, what was tried before.

    It stands before the first observation while the try is played, and training takes it away.
    """

    text: str
    """What the agent reads; as bounded and cleaned as an observation."""
    made_of: tuple[str, ...] = ()
    """``conversation_sha256`` of the tries that it was made of."""
    stays: bool = False
    """It is left where it was when the try is trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One question to the model beside any try, under the adapter that plays."""

    instruction: str
    """What it is to do."""
    text: str
    """What with."""
    max_new_tokens: int = 64
    """Longest answer, of at most ``MOST_SAID_TOKENS``; a longer one is cut off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One thing to solve: an environment's name and one of its task ids."""

    environment: str
    """A name of the silo's catalogue."""
    task_id: int
    """Seeds everything random about the episode."""
    subject: str = ""
    """Whose data the task is made of, so that it can be deleted on request; empty if nobody's."""
    prefix: tuple[str, ...] = ()
    """Actions that are replayed after the reset: what the agent sees first is what follows them.
    They are not the agent's steps, and their rewards are not its own."""
    variant: str = ""
    """The task as somebody wrote it, for an environment that takes such; empty for the task that
    the id alone stands for."""
    scaffold: Scaffold | None = field(default=None, compare=False)
    """What helps this try at it; the task is the same with any, and with none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One turn: what the agent saw and what it answered."""

    observation: str
    """The environment's text."""
    action: str
    """The action read out of the agent's tokens."""
    context_ids: tuple[int, ...]
    """Tokens fed before the answer: the opening, or the turn that holds the observation."""
    action_ids: tuple[int, ...]
    """Tokens the agent sampled, with the end token unless it was cut off."""
    action_logprobs: tuple[float, ...]
    """Natural-log probability of each sampled token under the behaviour policy: at the sampling
    temperature; 0 where that was 0, and in demonstrations, whose tokens nobody sampled."""
    reward: float = 0.0
    """What the environment gave for the action."""
    invalid: bool = False
    """The environment could not read the action."""
    cut_off: bool = False
    """The answer reached the longest allowed length before its end token."""
    bare_ids: tuple[int, ...] | None = None
    """Of a first step: what ``context_ids`` would be without the try's scaffold, which is what
    training puts in their place. None where there was no scaffold, and where it stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One finished episode."""

    task: Task
    """What was played."""
    steps: tuple[Step, ...]
    """The turns, in order; at least one."""
    final_observation: str
    """What the environment said last; the agent never answered it."""
    success: bool
    """The environment's own verdict."""
    adapter_sha256: str
    """Identity of the adapter that played."""
    round: int
    """The round it was played in."""
    truncated: bool = False
    """A limit ended it (of steps, of the context, or the environment's own) and not the
    environment's verdict. Such a try is a failure like any other, unless the environment calls it a
    success, and stays one of its group."""
    helped_by: tuple[str, ...] = ()
    """``conversation_sha256`` of the tries that its scaffold was made of."""
    violated: bool = False
    """One of its steps broke a rule that the environment states (``SaysViolations``), whether or
    not that paid."""

    @property
    def reward(self) -> float:
        """The sum of its steps' rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def demonstrated(self) -> bool:
        """Whether the operator gave it: no agent of this silo played it."""
        return self.round == EXPERT_ROUND

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens, in order."""
        return tuple(t for s in self.steps for t in (*s.context_ids, *s.action_ids))

    @property
    def agent_mask(self) -> tuple[bool, ...]:
        """True where the agent sampled the token."""
        return tuple(
            own
            for s in self.steps
            for own in (*(False,) * len(s.context_ids), *(True,) * len(s.action_ids))
        )

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Log-probability of each token the agent sampled, zero elsewhere."""
        return tuple(
            p for s in self.steps for p in (*(0.0,) * len(s.context_ids), *s.action_logprobs)
        )

    @property
    def token_count(self) -> int:
        """How many tokens the episode has."""
        return sum(len(s.context_ids) + len(s.action_ids) for s in self.steps)

    @property
    def conversation_sha256(self) -> str:
        """Identity of what was said; with the task, the key under which duplicates collapse.

        What was said before the agent's first word is a part of it: prefix and variant of the task.
        """
        task = self.task
        if task.prefix or task.variant:
            digest = hashlib.sha256(b"chorale/conversation/v2\0")
            digest.update(len(task.prefix).to_bytes(8, "little"))
            for text in (*task.prefix, task.variant):
                content = text.encode("utf-8", "surrogatepass")
                digest.update(len(content).to_bytes(8, "little") + content)
        else:
            digest = hashlib.sha256(b"chorale/conversation/v1\0")
        for step in self.steps:
            for tokens in (step.context_ids, step.action_ids):
                digest.update(len(tokens).to_bytes(8, "little"))
                digest.update(b"".join(t.to_bytes(8, "little") for t in tokens))
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The tries at one task in one round, by one adapter.

    A try that did not finish (``dropped``) is no member: nobody knows what it would have come to,
    and a made-up reward would pull every other try's advantage. Statistics, means and deviations,
    are over the tries that remain. A group of fewer than two has no advantage, because there is
    nothing to compare a lone try with (``comparable``).
    """

    task: Task
    """What was tried."""
    round: int
    """When."""
    trajectories: tuple[Trajectory, ...]
    """The tries that finished, identical ones as often as they were played; may be empty."""
    dropped: int = 0
    """How many more were begun and are not here."""

    @property
    def comparable(self) -> bool:
        """Whether its tries can be measured against each other."""
        return len(self.trajectories) > 1

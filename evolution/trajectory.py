"""What an agent did: ``Task`` → ``Step`` → ``Trajectory``.

Invariants:

1. A trajectory carries the exact tokens the rollout engine saw and produced. Training never
   tokenises text again, so what is trained is what was played.
2. ``token_ids``, ``agent_mask`` and ``logprobs`` run in parallel. A position is the agent's if and
   only if the agent sampled it; log-probabilities of all other positions are zero.
3. The texts are for the silo's own operator. Nothing in this module ever leaves the silo.

Covered: single-agent episodes with text turns. Not covered: several agents in one episode.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["Step", "Task", "Trajectory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One thing to solve: an environment's name and one of its task ids."""

    environment: str
    """A name of the silo's catalogue."""
    task_id: int
    """Seeds everything random about the episode."""
    subject: str = ""
    """Whose data the task is made of, so that it can be deleted on request; empty if nobody's."""


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
    """Natural-log probability of each sampled token under the model (before temperature)."""


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
        """Identity of what was said; with the task, the key under which duplicates collapse."""
        digest = hashlib.sha256(b"chorale/conversation/v1\0")
        for step in self.steps:
            for tokens in (step.context_ids, step.action_ids):
                digest.update(len(tokens).to_bytes(8, "little"))
                digest.update(b"".join(t.to_bytes(8, "little") for t in tokens))
        return digest.hexdigest()

"""What a few episodes say of an environment and a base model that meet for the first time.

``Trial`` counts what was played. ``troubles`` names what keeps a model from learning there, however
long it is trained: it does not know the words, it is cut off in the middle of its answers, or the
environment cannot read them.

A word is unknown where the vocabulary has no token for it. The tokenizer then writes one and the
same token for all such words, so the model cannot tell two of them apart and never says one.
``MAX_UNKNOWN`` was measured with the small base model on its own five environments, some of whose
words were made unknown to it (docs/environments.md, "How many unknown words are too many").

Covered: any environment, also a harness, for tokens are counted and not texts. Not covered: words
that a byte-level vocabulary can write and its model has never seen: there no word is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from evolution.rollout.conversation import ChatFormat
from evolution.trajectory import Trajectory

__all__ = ["MAX_UNKNOWN", "Trial", "Trouble", "trial_of", "troubles"]

MAX_UNKNOWN: Final = 0.05
"""The share of unknown words from which on a base model is warned of."""
_MOST: Final = 0.5
"""From this share of answers on, being cut off or not being read is the rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What was played in one environment, in numbers."""

    episodes: int
    """Finished."""
    dropped: int
    """Not finished: the environment or the engine failed."""
    solved: int
    """By the environment's verdict."""
    truncated: int
    """Ended by a limit of steps or tokens, or by the environment's own."""
    turns: int
    """Answers of the model, all episodes together."""
    cut_off: int
    """Answers that reached the longest allowed length."""
    not_read: int
    """Answers that the environment could not read as an action."""
    words: int
    """Tokens of text that the model read; those it read in two episodes count twice."""
    unknown: int
    """Those of them that stand for a word which the vocabulary does not have."""
    duration_s: float
    """Of playing."""

    @property
    def unknown_share(self) -> float:
        """Of the words that the model read; 0 where it read none."""
        return self.unknown / self.words if self.words else 0.0

    @property
    def turns_per_episode(self) -> float:
        """Over the finished ones; 0 where none is."""
        return self.turns / self.episodes if self.episodes else 0.0

    @property
    def seconds_per_episode(self) -> float:
        """Over all that were begun."""
        begun = self.episodes + self.dropped
        return self.duration_s / begun if begun else 0.0

    @property
    def line(self) -> str:
        """For people, without the environment's name."""
        dropped = f", {self.dropped} dropped" if self.dropped else ""
        return (
            f"{self.solved} of {self.episodes} episodes solved{dropped}, "
            f"{100 * self.unknown_share:.1f} % of {self.words} words unknown, "
            f"{self.cut_off} of {self.turns} answers cut off, "
            f"{self.turns_per_episode:.1f} turns and {self.seconds_per_episode:.2f} s an episode"
        )

    def as_data(self) -> dict[str, Any]:
        """For an envelope; no text of any episode."""
        return {
            "episodes": self.episodes,
            "dropped": self.dropped,
            "solved": self.solved,
            "truncated": self.truncated,
            "turns": self.turns,
            "turns_per_episode": self.turns_per_episode,
            "cut_off": self.cut_off,
            "not_read": self.not_read,
            "words": self.words,
            "unknown_words": self.unknown,
            "unknown_share": self.unknown_share,
            "seconds_per_episode": self.seconds_per_episode,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Something that training does not mend."""

    code: str
    """For scripts."""
    text: str
    """What was found."""
    fix: str
    """What to do about it."""


def trial_of(
    chat: ChatFormat, trajectories: Sequence[Trajectory], *, dropped: int, duration_s: float
) -> Trial:
    """Count what was played; the tokens are those of this tokenizer."""
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    read = [chat.words_read(step.context_ids) for step in steps]
    return Trial(
        episodes=len(trajectories),
        dropped=dropped,
        solved=sum(trajectory.success for trajectory in trajectories),
        truncated=sum(trajectory.truncated for trajectory in trajectories),
        turns=len(steps),
        cut_off=sum(step.cut_off for step in steps),
        not_read=sum(step.invalid for step in steps),
        words=sum(words for words, _ in read),
        unknown=sum(unknown for _, unknown in read),
        duration_s=duration_s,
    )


def troubles(trial: Trial, *, max_new_tokens: int) -> tuple[Trouble, ...]:
    """What keeps the model from learning there; ``max_new_tokens`` was the longest answer."""
    found = []
    if trial.unknown_share > MAX_UNKNOWN:
        found.append(
            Trouble(
                code="unknown_words",
                text=f"the base model does not know {100 * trial.unknown_share:.0f} % of the words "
                "that it reads: it cannot tell them apart, and never says one",
                fix="another base model, or texts in words that this one knows "
                "(docs/environments.md)",
            )
        )
    if trial.turns and trial.cut_off >= _MOST * trial.turns:
        found.append(
            Trouble(
                code="cut_off",
                text=f"{trial.cut_off} of {trial.turns} answers did not end within "
                f"{max_new_tokens} tokens",
                fix="a larger evolve.max_new_tokens in the plan, or an instruction and examples "
                "with short answers",
            )
        )
    if trial.turns and trial.not_read >= _MOST * trial.turns:
        found.append(
            Trouble(
                code="not_read",
                text=f"the environment could not read {trial.not_read} of {trial.turns} answers",
                fix="an instruction and examples that show the form of an action",
            )
        )
    return tuple(found)

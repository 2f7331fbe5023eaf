"""Everything that was played, solved or not: the training set without the success filter.

For the ablation of Fed-SE (arXiv 2512.08870, §5.3): the success buffer takes successes only, so
what this holds is in memory and gone with the process. It follows the window of the plan; every
try is in it, because the shortest of a task's tries would be a filter of its own.

Invariant: a round that is played again replaces what was held of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from evolution.memory.buffer import SuccessBuffer
from evolution.methods.evolver import Work
from evolution.trajectory import Trajectory

__all__ = ["Unfiltered", "training_set"]


class Unfiltered:
    """Episodes by round."""

    def __init__(self) -> None:
        self._rounds: dict[int, list[Trajectory]] = {}

    def hold(self, trajectories: Iterable[Trajectory], work: Work) -> None:
        """Take a round's episodes and let go of what has left the window.

        Args:
            trajectories: What was played; episodes without a step teach nothing and are left out.
            work: The round, and the window of its settings.
        """
        self._rounds[work.round] = [t for t in trajectories if t.steps]
        if work.settings.window:
            for gone in [r for r in self._rounds if r <= work.round - work.settings.window]:
                del self._rounds[gone]

    def select(self, *, round_index: int, window: int) -> list[Trajectory]:
        """The training set of a round.

        Args:
            round_index: The current round; later ones are left out.
            window: How many rounds count, the current one included; 0 means all.

        Returns:
            Trajectories without duplicates, ordered by environment, task and conversation.
        """
        first = round_index - window + 1 if window else 0
        found = {
            (t.task.environment, t.task.task_id, t.conversation_sha256): t
            for number, played in sorted(self._rounds.items())
            if first <= number <= round_index
            for t in played
        }
        return [found[key] for key in sorted(found)]


def training_set(
    buffer: SuccessBuffer, unfiltered: Unfiltered | None, work: Work
) -> list[Trajectory]:
    """What a round imitates.

    Args:
        buffer: The silo's successes and demonstrations.
        unfiltered: Everything that was played, where there is no filter.
        work: The round.

    Returns:
        Trajectories; with ``use_expert`` every demonstration is one of them.

    Raises:
        BufferCorruptError: The buffer cannot be read.
    """
    settings = work.settings
    if unfiltered is None:
        return buffer.select(
            round_index=work.round,
            window=settings.window,
            best_per_task=settings.best_per_task,
            use_expert=settings.use_expert,
        )
    played = unfiltered.select(round_index=work.round, window=settings.window)
    return played + (buffer.experts() if settings.use_expert else [])

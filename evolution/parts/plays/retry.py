"""A failed try is told to the agent, with what it says of it, and the task is tried again.

Half of a task's tries, and at least as many as are told, come first. Where one of them failed, the
others are made with the last ``attempts`` failed ones before the first observation; with
``critique`` the model is first asked, once a task, what went wrong, and its answer stands below
them. Where none failed the others are made plainly, so a task has as many tries as without.

    attempts 1, critique      SELF (row 22): critique, retry, keep what is verified
    attempts 2                SE-Agent's form in one context (row 47): two attempts, then another

What is kept is what the environment calls a success; the text is taken away before training, so
that the agent learns to do without.

Covered: one round's tries. Not covered: several rounds of critique; a base that reads no English
gains nothing from a critique.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from evolution.part import BasePart
from evolution.parts.plays.waves import Line, lines_of
from evolution.parts.seam import MemoryView, PartWork, Playing
from evolution.parts.telling import told
from evolution.trajectory import Ask, Scaffold, Task, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import RetryOptions

__all__ = ["Retry"]

_QUESTION: Final = (
    "You see a try at a task that failed. Say in one sentence what went wrong and what to do "
    "instead."
)


class Retry(BasePart):
    """See the module."""

    couples: ClassVar = Couples.TASK
    reads: ClassVar = Reads.UNIT
    options: RetryOptions

    def play(self, tasks: Sequence[Task], past: MemoryView, work: PartWork) -> Playing:  # noqa: ARG002  # the seam
        """First tries, perhaps words about them, then the others."""
        attempts = self.options.attempts
        lines = lines_of(tasks)
        early = [
            (line, line.task)
            for line in lines
            for _ in range(min(line.left, max(attempts, line.left // 2)))
        ]
        yield from _tried(early)
        failed = {
            line.task: [one for one in line.played if not one.success][-attempts:]
            for line in lines
            if line.left
        }
        said = yield from self._said({task: tries for task, tries in failed.items() if tries})
        late = [
            (line, _helped(line.task, failed[line.task], said.get(line.task, "")))
            for line in lines
            for _ in range(line.left)
        ]
        if late:
            yield from _tried(late)
        return [one for line in lines for one in line.played]

    def _said(
        self, failed: dict[Task, list[Trajectory]]
    ) -> Generator[list[Ask], Sequence[Any], dict[Task, str]]:
        if not self.options.critique or not failed:
            return {}
        words = yield [
            Ask(
                instruction=_QUESTION,
                text="\n\n".join(map(told, tries)),
                max_new_tokens=self.options.critique_tokens,
            )
            for tries in failed.values()
        ]
        return dict(zip(failed, words, strict=True))


def _tried(wave: Sequence[tuple[Line, Task]]) -> Generator[list[Task], Sequence[Any], None]:
    became = yield [wish for _, wish in wave]
    for (line, _), one in zip(wave, became, strict=True):
        line.left -= 1
        line.tries.append(one)


def _helped(task: Task, failed: Sequence[Trajectory], said: str) -> Task:
    if not failed:
        return task
    text = "\n\n".join([*map(told, failed), *([said] if said else [])])
    return replace(
        task,
        scaffold=Scaffold(text=text, made_of=tuple(one.conversation_sha256 for one in failed)),
    )

"""Principles: what the model says of its own tries is read before later ones, by how it helped.

EvolveR (row 4 of the page of methods), with the constants of its released code. At a task, with G
tries::

    ⌊G/2⌋ tries, at least one     plain
    the others                    with the ``count`` principles of the highest score, of the task's
                                  environment and subject, before the first observation
    after them                    the model is asked for a principle of the task's shortest success,
                                  and for one of its last failure

    score = (successes + 1) / (uses + 2)      of equal scores the older one is read
    a use       each try that read it and ended
    a success   each of them that succeeded

Of ``questions`` tries at most the model is asked in a round, task by task. What it writes is cut at
300 characters. Where the likeness (``parts/telling.py``) to one of the same environment and subject
is at least ``alike`` it is that one again, which keeps its text; where that is one that the
operator wrote, nothing is kept. Training takes the text away.

What is written and counted is kept when all tries are at their end
(``evolution/memory/principles.py``), so none reads what was written of another beside it.

Covered: likeness by words; principles that the operator edits or deletes. Not covered: embeddings;
choosing by likeness to the task, for every principle of an environment and subject may be read at
each of their tasks; trying new principles while old ones score higher; a base that writes no
sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from evolution.part import BasePart
from evolution.parts.plays.waves import Line, in_waves, lines_of
from evolution.parts.seam import MemoryView, PartWork, Playing
from evolution.parts.telling import likeness, told
from evolution.principle import Again, Learned, Principle, Used, one_line
from evolution.trajectory import Ask, Scaffold, Task, Trajectory
from federation.plan.methods import Couples, Reads
from federation.plan.part_options import PrinciplesOptions

__all__ = ["Principles"]

_QUESTIONS: Final = {
    True: "You see a try at a task that succeeded. Say in one sentence what to do at such tasks.",
    False: "You see a try at a task that failed. Say in one sentence what to avoid at such tasks.",
}
_OPENING: Final = "Keep in mind:"


@dataclass(kw_only=True, slots=True)
class _Known:
    """A principle that there is, or one of this round with the tries that it is of."""

    text: str
    stored: Principle | None = None
    sources: list[Trajectory] = field(default_factory=list)


class Principles(BasePart):
    """See the module."""

    couples: ClassVar = Couples.USER
    reads: ClassVar = Reads.UNIT
    keeps_principles: ClassVar = True
    options: PrinciplesOptions

    def play(self, tasks: Sequence[Task], past: MemoryView, work: PartWork) -> Playing:  # noqa: ARG002  # the seam
        """Two waves, then questions."""
        stored = list(past.principles())
        lines = lines_of(tasks)
        plain = {line.task: max(1, line.left // 2) for line in lines}
        read = {line.task: _of(line.task, stored)[: self.options.count] for line in lines}

        def following(line: Line) -> list[Task]:
            if not line.tries:
                return [line.task] * plain[line.task]
            return [_helped(line.task, read[line.task])] * line.left

        played = yield from in_waves(lines, following)
        for line in lines:
            ended = [one for one in line.tries[plain[line.task] :] if one is not None]
            for principle in read[line.task]:
                for one in ended:
                    past.note(Used(principle=principle.id, success=one.success))
        sources = [one for line in lines for one in _told_of(line)][: self.options.questions]
        if sources:
            said = yield [
                Ask(
                    instruction=_QUESTIONS[one.success],
                    text=told(one),
                    max_new_tokens=self.options.tokens,
                )
                for one in sources
            ]
            self._write(sources, said, stored, past)
        return played

    def _write(
        self,
        sources: Sequence[Trajectory],
        said: Sequence[str],
        stored: Sequence[Principle],
        past: MemoryView,
    ) -> None:
        known: dict[tuple[str, str], list[_Known]] = {}
        for one in stored:
            place = (one.environment, one.subject)
            known.setdefault(place, []).append(_Known(text=one.text, stored=one))
        for source, answer in zip(sources, said, strict=True):
            text = one_line(answer)
            if not text:
                continue
            others = known.setdefault((source.task.environment, source.task.subject), [])
            # The first of equals: the best one that is stored.
            same = max(others, key=lambda other: likeness(text, other.text), default=None)
            if same is None or likeness(text, same.text) < self.options.alike:
                others.append(_Known(text=text, sources=[source]))
            elif same.stored is None:
                same.sources.append(source)
            elif not same.stored.edited:
                past.note(Again(principle=same.stored.id, source=source))
        for others in known.values():
            for other in others:
                if other.stored is None:
                    past.note(Learned(text=other.text, sources=tuple(other.sources)))


def _of(task: Task, stored: Sequence[Principle]) -> list[Principle]:
    """Those that its tries may read, the one to be read first before."""
    own = [p for p in stored if (p.environment, p.subject) == (task.environment, task.subject)]
    return sorted(own, key=lambda one: (-one.score, one.round, one.id))


def _helped(task: Task, read: Sequence[Principle]) -> Task:
    if not read:
        return task
    text = "\n".join([_OPENING, *(f"- {one.text}" for one in read)])
    made_of = tuple(dict.fromkeys(source for one in read for source in one.made_of))
    return replace(task, scaffold=Scaffold(text=text, made_of=made_of))


def _told_of(line: Line) -> Iterator[Trajectory]:
    solved = [one for one in line.played if one.success]
    if solved:
        yield min(solved, key=lambda one: (len(one.steps), one.conversation_sha256))
    yield from [one for one in line.played if not one.success][-1:]

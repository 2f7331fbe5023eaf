"""Which adapter a silo should serve, from its own files: the shared one, its own, between, or none.

Where the silo chooses by tasks of its own (``personal_choice``), this reads the newest choice of a
run (``evolution/methods/personal/compared.py`` has the candidates and the rule), family by family
and for all together. Where it does not and keeps an adapter of its own that was judged, that one is
set beside the shared one by the judged counts alone, of which nobody knows any more which task was
solved by whom: the standard error is then that of two independent samples, which is too large for
adapters that solve much the same tasks, so the shared one is kept too often rather than too seldom.

Invariants:

1. Nothing is played or computed by a model: it is a function of counts in the silo's files.
2. What is not told apart by more than one standard error keeps the shared adapter, and says so.
3. Figures of the chosen adapter on judged tasks are of tasks that had no part in the choice.

Covered: rows of an older round, damaged rows. Not covered: whether an own adapter passes the site's
guard, which judges what is published; exporting what is recommended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evolution.methods.personal.compared import SHARED, Candidate, CandidateKind, Choice, Choices
from silo_agent.errors import LocalStoreError
from silo_agent.views.judgement import Judgement

__all__ = ["Recommendation", "recommendations"]

_OWN = Candidate(kind="own", weight=1.0)
_PAIRED = "chosen by tasks of its own"
_UNPAIRED = "by the judged counts alone"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """Which adapter to serve, for one family or for all."""

    round: int
    """The round that the shared adapter is of."""
    family: str | None
    """None is for a site that serves one adapter for all it has."""
    adapter: CandidateKind
    """``shared``, ``interpolated``, ``own`` or ``base``."""
    weight: float
    """Of the silo's own adapter in it."""
    paired: bool
    """Whether the candidates were compared task by task, on tasks that are not judged."""
    tasks: int
    """Of the comparison."""
    compared_adapter: CandidateKind
    """What ``difference`` is of: the adapter that is recommended or, where that is the shared one,
    the one that came nearest to taking its place."""
    compared_weight: float
    """Of the silo's own adapter in that one."""
    difference: float | None
    """Of the shares of solved tasks, that adapter's less the shared one's; None without a task."""
    standard_error: float | None
    """Of the difference; None where the tasks do not say."""

    @property
    def told_apart(self) -> bool:
        """Whether something is better than the shared adapter by more than one standard error."""
        return self.adapter != SHARED.kind

    @property
    def line(self) -> str:
        """For people."""
        where = "all it has" if self.family is None else f"family {self.family}"
        if self.difference is None:
            return f"serve for {where}: no task is left to choose by: keep the shared adapter"
        shown = f"{100 * self.difference:+.1f}"
        if self.standard_error is not None:
            shown += f" ± {100 * self.standard_error:.1f}"
        basis = _PAIRED if self.paired else _UNPAIRED
        figures = f"{shown} points to the shared one on {self.tasks} tasks, round {self.round}"
        other = Candidate(kind=self.compared_adapter, weight=self.compared_weight).words
        if self.told_apart:
            return f"serve for {where}: {other} ({figures}, {basis})"
        return (
            f"serve for {where}: not told apart: keep the shared adapter "
            f"({other}: {figures}, {basis})"
        )


def recommendations(
    choices: Sequence[Mapping[str, Any]], judged: Sequence[Judgement], run_id: str
) -> tuple[Recommendation, ...]:
    """What a run's newest choice recommends, family by family and then for all together.

    ``choices`` are rows of the silo's file, oldest first, and ``judged`` the run's newest figures,
    which speak where nothing was chosen. There is none where there is nothing to choose from.

    Raises:
        LocalStoreError: A row of a choice is none.
    """
    try:
        mine = [row for row in choices if row["run"] == run_id]
        if mine:
            newest = mine[-1]
            return _of_choices(Choices.of(newest), int(newest["round"]))
    except (KeyError, TypeError, ValueError) as error:
        raise LocalStoreError(f"the choice of run {run_id} is damaged: {error!r}") from error
    found = _of_counts(judged)
    return () if found is None else (found,)


def _of_choices(found: Choices, round_number: int) -> tuple[Recommendation, ...]:
    named: list[tuple[str | None, Choice]] = sorted(found.families.items())
    if len(named) != 1:
        named.append((None, found.overall))
    return tuple(_of_choice(family, choice, round_number) for family, choice in named)


def _of_choice(family: str | None, choice: Choice, round_number: int) -> Recommendation:
    shown = choice.best or choice.nearest
    error = shown.standard_error
    return Recommendation(
        round=round_number,
        family=family,
        adapter=choice.chosen.kind,
        weight=choice.chosen.weight,
        paired=True,
        tasks=shown.tasks,
        compared_adapter=shown.candidate.kind,
        compared_weight=shown.candidate.weight,
        difference=shown.difference if shown.tasks else None,
        standard_error=error if math.isfinite(error) else None,
    )


def _of_counts(judged: Sequence[Judgement]) -> Recommendation | None:
    """The silo's own adapter beside the shared one, where both were judged."""
    own = {(row.environment, row.temperature): row for row in judged if row.scope == "personal"}
    shared = {(row.environment, row.temperature): row for row in judged if row.scope == "global"}
    both = [key for key in own if key in shared]
    # At one temperature: a task that is played at two is no two tasks.
    highest = max((temperature for _, temperature in both), default=0.0)
    pairs = [(own[key], shared[key]) for key in both if key[1] == highest]
    pairs = [(one, two) for one, two in pairs if one.episodes and one.episodes == two.episodes]
    if not pairs:
        return None
    tasks = sum(one.episodes for one, _ in pairs)
    rates = [sum(pair[side].successes for pair in pairs) / tasks for side in (0, 1)]
    difference = rates[0] - rates[1]
    error = math.sqrt(sum(rate * (1 - rate) for rate in rates) / tasks)
    chosen = _OWN if difference > error else SHARED
    return Recommendation(
        round=pairs[0][0].round,
        family=None,
        adapter=chosen.kind,
        weight=chosen.weight,
        paired=False,
        tasks=tasks,
        compared_adapter=_OWN.kind,
        compared_weight=_OWN.weight,
        difference=difference,
        standard_error=error,
    )

"""What a silo's evaluation file says of the newest adapters, all labels together.

Invariant: figures of the global adapter and of what is the silo's own are never added up together.

Covered: sums over labels, rows of an older version, damaged rows. Not covered: intervals; whoever
reports the counts computes them. Judging itself is ``silo_agent/local_work/judge.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from silo_agent.errors import LocalStoreError

__all__ = ["Judgement", "newest_judgements"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """How one adapter did in one environment at one temperature, all labels together."""

    round: int
    """The round that the global adapter is of."""
    personal: bool
    """Whether the silo's own adapter, or its own factors in the global one, were judged."""
    chosen: bool = False
    """Whether it is what the silo chose from both, where that is neither: it is personal then."""
    environment: str
    """Its name."""
    temperature: float
    """0 is greedy."""
    episodes: int
    """Episodes finished."""
    successes: int
    """Those that were solved."""

    @property
    def scope(self) -> str:
        """``chosen``, ``personal`` or ``global``."""
        if self.chosen:
            return "chosen"
        return "personal" if self.personal else "global"

    @property
    def line(self) -> str:
        """For people, one row."""
        share = f"{100 * self.successes / self.episodes:.1f} %" if self.episodes else "nothing"
        return (
            f"{self.scope}, round {self.round}, {self.environment} at temperature "
            f"{self.temperature:g}: {share} of {self.episodes} held-out episodes solved"
        )


def newest_judgements(rows: Sequence[Mapping[str, Any]], run_id: str) -> tuple[Judgement, ...]:
    """The figures of the newest round of a run that was judged, the global adapter's first.

    ``rows`` are oldest first, and of equal rows the newest counts. There is one judgement per
    adapter, environment and temperature; none if nothing was judged.

    Raises:
        LocalStoreError: A row is none.
    """
    newest: dict[tuple[bool, bool, str, float, str], tuple[int, int]] = {}
    try:
        mine = [row for row in rows if row["run"] == run_id]
        last = max((int(row["round"]) for row in mine), default=0)
        for row in mine:
            if int(row["round"]) == last:
                whose = bool(row["personal"]), bool(row.get("chosen", False))
                place = (*whose, str(row["environment"]), float(row["temperature"]))
                counts = int(row["episodes"]), int(row["successes"])
                newest[*place, str(row["label"])] = counts
    except (KeyError, TypeError, ValueError) as error:
        raise LocalStoreError(f"the evaluation of run {run_id} is damaged: {error!r}") from error
    sums: dict[tuple[bool, bool, str, float], tuple[int, int]] = {}
    for (personal, chosen, environment, temperature, _), (episodes, successes) in newest.items():
        of = (personal, chosen, environment, temperature)
        before = sums.get(of, (0, 0))
        sums[of] = (before[0] + episodes, before[1] + successes)
    return tuple(
        Judgement(
            round=last,
            personal=personal,
            chosen=chosen,
            environment=environment,
            temperature=temperature,
            episodes=episodes,
            successes=successes,
        )
        for (personal, chosen, environment, temperature), (episodes, successes) in sorted(
            sums.items()
        )
    )

"""One site's judging of a run's adapters: what it found so far, and the next verdict.

Ordered invariants:

1. The base plays once in a run, an adapter once for its bytes: figures are read again, not played.
   So whoever goes on from the rows that were kept comes to the same verdicts.
2. A row of the base is kept as soon as it is played; a verdict when its caller keeps it, which may
   have something to write before.
3. An adapter that could not be judged is no reason for a veto, and neither is one that was not
   judged, such as a run's initial one.

Covered: several runs, rollbacks, figures from rows. Not covered: where rows are kept, what is
served (``silo_agent/guard/guard.py``), what becomes of a veto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evolution.errors import PanelError
from evolution.guard.options import GuardSection, Outcome
from evolution.guard.panel import BASE, Plays, played
from evolution.guard.rule import judged, outcome_of
from evolution.guard.verdict import Base, Figures, Verdict, read_rows
from evolution.methods.evolver import Evolver

__all__ = ["Adopted", "Judging"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """The adapter that a round of a run ended with."""

    run: str
    round: int
    adapter_sha256: str
    """Hex, of the published bytes."""
    restored_round: int | None = None
    """Of a rollback: the round whose adapter it is."""
    tensors: Mapping[str, np.ndarray]
    """All factors."""


class Judging:
    """See the module."""

    def __init__(
        self, *, rows: Iterable[Mapping[str, Any]], keep: Callable[[dict[str, Any]], None]
    ) -> None:
        """Go on from rows that were kept; ``keep`` is given each new one.

        Raises:
            VerdictError: A row is none of a guard's.
        """
        self._bases, self.verdicts = read_rows(rows)
        """Verdicts, oldest first."""
        self._keep = keep

    def failed(self, adopted: Adopted, plays: Plays) -> Verdict:
        """What an adapter comes to that could not be judged."""
        return Verdict(
            run=adopted.run,
            round=adopted.round,
            adapter_sha256=adopted.adapter_sha256,
            restored_round=adopted.restored_round,
            settings=plays.settings,
            outcome=Outcome.FAILED,
        )

    def verdict(self, method: Callable[[], Evolver], adopted: Adopted, plays: Plays) -> Verdict:
        """Judge an adapter on every panel; it raises what playing, and keeping a row, raises."""
        section, found = plays.section, self.failed(adopted, plays)
        mine = [v for v in self.verdicts if (v.run, v.settings) == (found.run, found.settings)]
        base = self._base(method, found, plays)
        adapter = _known(mine, found.adapter_sha256) or {
            panel.environment: played(
                method(),
                panel,
                plays=plays,
                round_number=adopted.round,
                adapter=adopted.tensors,
                identity=found.adapter_sha256,
            )
            for panel in section.panels
        }
        _require_whole(adapter, base, section)
        panels = judged(
            section,
            earlier=[v for v in mine if v.round < adopted.round],
            adapter_sha256=found.adapter_sha256,
            restored=adopted.restored_round is not None,
            adapter=adapter,
            base=base,
        )
        return replace(found, outcome=outcome_of(section, panels), panels=panels)

    def keep(self, verdict: Verdict) -> bool:
        """Keep a verdict, unless it is the newest of its round as it stands; whether it was new."""
        same = [v for v in self.verdicts if (v.run, v.round) == (verdict.run, verdict.round)]
        if same and same[-1] == verdict:
            return False
        self._keep(verdict.row())
        self.verdicts.append(verdict)
        return True

    def refuses(self, run: str, adapter_sha256: str) -> bool:
        """Whether the newest verdict of a run is against this adapter: a veto, where one counts."""
        newest = next((v for v in reversed(self.verdicts) if v.run == run), None)
        return (
            newest is not None
            and newest.adapter_sha256 == adapter_sha256
            and newest.outcome not in {Outcome.PASSED, Outcome.FAILED}
        )

    def _base(
        self, method: Callable[[], Evolver], asked: Verdict, plays: Plays
    ) -> dict[str, Figures]:
        """The base's figures on each panel, played if this run has none yet."""
        found = {
            base.environment: base.figures
            for base in self._bases
            if (base.run, base.settings) == (asked.run, asked.settings)
        }
        for panel in plays.section.panels:
            if panel.environment in found:
                continue
            figures = found[panel.environment] = played(
                method(),
                panel,
                plays=plays,
                round_number=asked.round,
                adapter={},
                identity=BASE,
                tries=plays.section.base_tries,
            )
            base = Base(
                run=asked.run,
                settings=asked.settings,
                environment=panel.environment,
                figures=figures,
            )
            self._keep(base.row())
            self._bases.append(base)
        return found


def _known(verdicts: list[Verdict], adapter_sha256: str) -> dict[str, Figures]:
    """The figures of an adapter that has played already in this run."""
    for verdict in reversed(verdicts):
        if verdict.adapter_sha256 == adapter_sha256 and verdict.panels:
            return {panel.environment: panel.adapter for panel in verdict.panels}
    return {}


def _require_whole(
    adapter: dict[str, Figures], base: dict[str, Figures], section: GuardSection
) -> None:
    """Refuse figures of fewer tasks than the base finished in each of its tries.

    Raises:
        PanelError: Some tasks were dropped.
    """
    for environment, own in adapter.items():
        if own.tries * section.base_tries < base[environment].tries:
            raise PanelError(
                f"{own.tries} tries of {environment} came to an end, and more of the base's did"
            )

"""Principles of a run: the file that a play's are kept in, and what plays note about them.

Invariants:

1. There is a file only where the recipe's play keeps principles.
2. Where units are protected a play is shown the principles of its own unit, which is a user; where
   a unit is a task it is shown none and nothing of it is kept, for tasks share principles.
3. What a play notes is written when every play is at its end, and only if it did not fail itself
   and the notes are about its own tries and about principles that it was shown. Where units are
   apart, notes that are not cost that unit its notes and nobody else.

Covered: one exploring. Not covered: what is kept (``evolution/memory/principles.py``), what a play
makes of it (``evolution/parts/plays/principles.py``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dp.config import PrivacySpec
from dp.steps.units import UnitId
from evolution.errors import MemoryStoreError, PartError
from evolution.memory.principles import PRINCIPLES_FILE, Principles
from evolution.methods.playing import Player
from evolution.part import Part
from evolution.principle import Again, Learned, Note, Principle, Used
from ops.logs.logger import get_logger

__all__ = ["Noted", "open_run_principles"]

_log = get_logger(__name__)


def open_run_principles(
    state_dir: Path, play: Part, *, capacity: int | None, max_age_days: int | None
) -> Principles | None:
    """The principles of a run; None where its play keeps none.

    Raises:
        MemoryStoreError: The file is damaged or not ours.
    """
    if not play.load().keeps_principles:
        return None
    state_dir.mkdir(parents=True, exist_ok=True)
    return Principles(state_dir / PRINCIPLES_FILE, most=capacity, max_age_days=max_age_days)


class Noted:
    """The principles of one exploring; without a file there are none."""

    def __init__(self, kept: Principles | None, spec: PrivacySpec | None) -> None:
        """The spec protects units; None where none is protected."""
        self._kept = None if spec is not None and spec.unit != "user" else kept
        self._apart = spec is not None

    def begin(self, round_index: int, *, epoch: int) -> None:
        """An epoch of a round begins; with the first everything that the round noted is undone."""
        if self._kept is not None and epoch == 0:
            self._kept.begin(round_index, apart=self._apart)

    def of(self, unit: UnitId | None) -> Callable[[], Sequence[Principle]]:
        """What reads a unit's principles, or without a unit the whole silo's."""
        kept = self._kept
        if kept is None:
            return tuple
        if unit is None:
            return kept.listed
        # Of a user the unit's name is the subject.
        return lambda: kept.listed(subject=unit[1], rows_apart=True)

    def keep(self, players: Mapping[UnitId | None, Player], *, round_index: int) -> None:
        """Write down what each unit's play noted, or what the one play of no unit did.

        Raises:
            PartError: A play noted what is not its own, and units are not apart.
        """
        if self._kept is None:
            return
        for unit, player in players.items():
            notes = player.view.noted
            if player.failed or not notes:
                continue
            try:
                shown = {one.id for one in self.of(unit)()}
                _require_own(notes, player, shown)
                self._kept.note(notes, round_index=round_index)
            except PartError:
                if not self._apart:
                    raise
                _log.warning("principles_not_kept", error=PartError.__name__)
            except (MemoryStoreError, sqlite3.DatabaseError) as error:
                # As with a try that cannot be stored: the round goes on without.
                _log.warning("principles_not_kept", error=type(error).__name__)


def _require_own(notes: Sequence[Note], player: Player, shown: set[str]) -> None:
    sent = {id(one) for one in player.sent}
    for one in notes:
        known = not isinstance(one, Again | Used) or one.principle in shown
        sources = one.sources if isinstance(one, Learned) else ()
        sources = (one.source,) if isinstance(one, Again) else sources
        if not known or any(id(source) not in sent for source in sources):
            raise PartError(
                "a play noted something about tries that it was not sent, or principles that it "
                "was not shown"
            )

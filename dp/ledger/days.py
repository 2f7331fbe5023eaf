"""How many debits the UTC day that runs now holds, and whether it may hold another.

    day     whole days since 1970-01-01 00:00 UTC, but never before the newest day that was debited

Invariants: days never go back, so a clock that is set back neither empties the count of the day
that it left nor begins another count. A clock that stood ahead for a while keeps its day until the
right time has reached it: that errs on the side of fewer debits.

Covered: counting, and the ceiling that the caller gives. Not covered: what a debit costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dp.errors import SpecError, TooManyDebitsError

DAY_S: Final = 86_400
_MAX_DAY: Final = (1 << 32) - 1


class DayCount:
    """Debits of the newest day."""

    __slots__ = ("_clock", "_count", "_most", "_newest")

    def __init__(self, clock: Callable[[], float], *, most: int | None = None) -> None:
        """Begin with no debit; ``clock`` gives Unix seconds, ``most`` is a day's ceiling."""
        self._clock = clock
        self._most = most
        self._newest = 0
        self._count = 0

    def today(self) -> int:
        """The day that a debit of now belongs to."""
        return max(self._newest, int(self._clock() // DAY_S))

    def next_day(self) -> int:
        """The day of a debit that is made now.

        Raises:
            TooManyDebitsError: If it holds as many as it may.
        """
        if self._most is not None and self.debits() >= self._most:
            raise TooManyDebitsError(
                f"this day already holds {self.debits()} debits, limits.max_attempts_per_day "
                f"{self._most} allows no more (days are UTC; setting the clock back begins none)",
                of_run=False,
            )
        return self.today()

    def add(self, day: int) -> None:
        """Count one debit.

        Raises:
            SpecError: If the day lies before one that was counted, or is none.
        """
        if not self._newest <= day <= _MAX_DAY:
            raise SpecError(f"a debit of day {day} follows one of day {self._newest}")
        self._count = self._count + 1 if day == self._newest else 1
        self._newest = day

    def debits(self) -> int:
        """How many debits today holds."""
        return self._count if self.today() == self._newest else 0

"""What local work yields for one attempt at a sum.

Invariants:

1. A delta is there when the attempt begins. A sum of unit gradients may still be under way on the
   worker's thread: whoever needs it waits a short while and is then told to come again, so that
   the daemon's thread never stands still.
2. A sum is computed for one attempt and given out once. When the attempt is over before it began,
   it is not computed at all.
3. Nothing here is printed.

Covered: both kinds of vector. Not covered: what a failed computation contributes instead
(``silo_agent/local_work/work.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final

import numpy as np

from dp.noise.unit_sum import UnitSum
from silo_agent.errors import NotReadyError, SessionError

__all__ = ["Contribution"]

WAIT_S: Final = 1.0
"""How long the daemon's thread waits for a sum before it looks after the coordinator again.

A sum that is done ends the wait at once; each poll in between carries all boxes once more.
"""


class Contribution:
    """A vector, ready or under way, and the figures that go with it."""

    __slots__ = ("_metrics", "_vector")

    def __init__(
        self, *, delta: np.ndarray | Future[UnitSum], metrics: Mapping[str, float]
    ) -> None:
        """Hold both.

        Args:
            delta: Flat float32 vector over the shared layout, not yet clipped; or the sum of
                clipped unit gradients that is being computed.
            metrics: Value of each coordinate of the metrics block.
        """
        self._vector: np.ndarray | Future[UnitSum] | None = delta
        self._metrics = dict(metrics)

    @property
    def metrics(self) -> dict[str, float]:
        """Value of each coordinate of the metrics block."""
        return dict(self._metrics)

    def require_ready(self) -> None:
        """Wait a short while for the vector.

        Raises:
            NotReadyError: It is still being computed.
            PrivacyError: There is none to release: more units were sampled than may be.
        """
        vector = self._vector
        if isinstance(vector, Future):
            _result(vector)

    def take(self) -> np.ndarray | UnitSum:
        """The vector, once; nothing here holds it any more.

        Raises:
            NotReadyError: It is still being computed, and may be asked for again.
            SessionError: It was taken or dropped before.
            PrivacyError: There is none to release.
        """
        vector = self._vector
        if vector is None:
            raise SessionError("this contribution was already used")
        taken = _result(vector) if isinstance(vector, Future) else vector
        self._vector = None
        return taken

    def drop(self) -> None:
        """Forget the vector; a computation that has not begun does not begin."""
        vector, self._vector = self._vector, None
        if isinstance(vector, Future):
            vector.cancel()

    def __repr__(self) -> str:
        """Redacted: these numbers must not reach a log."""
        return "Contribution(values redacted)"


def _result(future: Future[UnitSum]) -> UnitSum:
    try:
        return future.result(timeout=WAIT_S)
    except TimeoutError as error:
        raise NotReadyError("the sum of unit gradients is still being computed") from error

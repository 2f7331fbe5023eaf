"""Which version each silo runs, as it last said, and what this coordinator may ask of it.

Invariants:

1. A silo that speaks no protocol of ours is refused at its first call and at every other one.
2. A silo of an older protocol is never shown what that protocol does not know: it is told which
   version it needs, and the round does without it.
3. The log has one line for each version that a silo comes to run, however often it calls, and at
   most one a minute, whatever it says.

Covered: both verdicts. Not covered: silos that have not called since this process started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from dp.config import Mode
from federation.errors import VersionMismatchError
from federation.plan.plan import Plan
from federation.version import (
    EXACT_FIGURES,
    LEARNING_RATE_SCHEDULE,
    OFFERS,
    ROUNDS_GO_WRONG,
    STEP_ANSWERS,
    Version,
    read_version,
    require_compatible,
    this_version,
)
from ops.logs.logger import get_logger

__all__ = ["TOO_OLD", "SiloVersions", "plan_protocol", "require_protocol"]

log = get_logger(__name__)

US: Final = "the coordinator"
LEAST_APART_S: Final = 60.0
TOO_OLD: Final = "this silo's version of chorale is too old for the run"
"""What the round is told of such a silo, in its place."""


class SiloVersions:
    """What was last said in the log of each silo that called."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, tuple[Version, float]] = {}

    def admit(self, silo_id: str, words: Iterable[tuple[Any, Any]] | None) -> Version:
        """Judge the version in the metadata of one call.

        ``silo_id`` is authenticated; it is empty for somebody who joins.

        Raises:
            VersionError: It is malformed.
            VersionMismatchError: There is no protocol that both speak.
        """
        ours, theirs = this_version(), read_version(words)
        new = self._is_new(silo_id, theirs)
        try:
            require_compatible(ours, theirs, us=US, them=silo_id or "this silo")
        except VersionMismatchError as error:
            if new:
                log.warning("silo_version_refused", silo=silo_id, detail=error)
            raise
        if new and theirs.newest < ours.newest:
            log.warning(
                "silo_is_older", silo=silo_id, version=str(theirs), advice=f"upgrade {silo_id}"
            )
        elif new:
            log.info("silo_version", silo=silo_id, version=str(theirs))
        return theirs

    def _is_new(self, silo_id: str, theirs: Version) -> bool:
        """Whether the log is to say it; nobody is noted who only wants to join."""
        now = self._clock()
        known, said_s = self._said.get(silo_id, (None, -LEAST_APART_S))
        if not silo_id or theirs == known or now - said_s < LEAST_APART_S:
            return False
        self._said[silo_id] = theirs, now
        return True


_LATER_KEYS: Final = {
    ("evolve", "learning_rate_schedule"): LEARNING_RATE_SCHEDULE,
    ("privacy", "exact_figures"): EXACT_FIGURES,
    ("rounds", "max_quarantined"): ROUNDS_GO_WRONG,
    ("rounds", "sit_out_after"): ROUNDS_GO_WRONG,
    ("rounds", "sit_out_rounds"): ROUNDS_GO_WRONG,
    ("rounds", "start_after_unix_s"): OFFERS,
    ("rounds", "step_answer_after_s"): STEP_ANSWERS,
}
"""Keys of a plan's tables that protocol 1 does not know."""


def plan_protocol(plan: Plan) -> int:
    """Return the protocol that a silo must speak to read a plan and take part in it.

    What the plan leaves out counts as not there.
    """
    asked = (
        protocol
        for (table, key), protocol in _LATER_KEYS.items()
        if key in getattr(plan, table).model_fields_set
    )
    noiseless = plan.spec.mode is Mode.NONE
    offers = 1 if plan.negotiation is None else OFFERS
    return max((EXACT_FIGURES if noiseless else 1, offers, *asked))


def require_protocol(needed: int, theirs: Version, *, silo_id: str, what: str) -> None:
    """Go on only if a silo knows something; it is known from the protocol ``needed`` on.

    ``theirs`` is what the silo runs, ``what`` the thing to be known, for people.

    Raises:
        VersionMismatchError: It is too old; the text names both versions.
    """
    if theirs.newest < needed:
        raise VersionMismatchError(
            f"upgrade {silo_id}: it runs chorale {theirs}, {US} runs {this_version()}, and {what} "
            f"needs protocol {needed}"
        )

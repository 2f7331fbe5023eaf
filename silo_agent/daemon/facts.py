"""Publishes this silo's facts: those that its policy lists, and nothing where it lists none.

Ordered invariants:

1. It happens between two polls and never while an attempt is open. It is one call with a short
   deadline; whatever goes wrong is counted and logged, and no round fails by it.
2. Facts are published after the start, when one of them changed, and every ``EVERY_S``; two
   publications are at least ``APART_S`` apart, and tries after a failure ``AGAIN_S``.
3. What is left of the budget is taken from the ledger when the daemon starts and when it adopts a
   record, whose signature and place in the chain it has verified: no word of the coordinator that
   binds it to nothing has it looked at. In between it stays what it was, for when a training is
   charged tells how long exploring took, which is data.

Covered: a coordinator that is away, slow, of an earlier version or refuses; a damaged file of the
operator's words. Not covered: what each fact is made of (``silo_agent/books/facts.py``); one bit
that a coordinator which publishes a record in the middle of the work may see, and that the next key
bundle says as well (``silo_agent/local_work/reservation.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from dp.ledger.ledger import Ledger
from federation.membership.facts import BudgetLeft, SignedFacts, SiloFacts
from ops.logs.logger import get_logger
from silo_agent.books.departure import Departure
from silo_agent.books.facts import OperatorsWord, budget_left_of, facts_now, published_facts
from silo_agent.daemon.polling import EXPECTED
from silo_agent.errors import NotServedError
from silo_agent.identity.identity import Identity
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import Policy

__all__ = ["AGAIN_S", "APART_S", "EVERY_S", "FactsDesk", "Publishes"]

EVERY_S: Final = 300.0
"""The coordinator forgets after three of them."""
APART_S: Final = 15.0
"""More than the ten seconds before which the coordinator takes none."""
AGAIN_S: Final = 60.0
"""After a failure."""

log = get_logger(__name__)


class Publishes(Protocol):
    """What the desk needs of the coordinator."""

    def publish_facts(self, signed: SignedFacts) -> None:
        """Leave this silo's facts; one attempt."""


class FactsDesk:
    """One daemon's; for one thread."""

    def __init__(
        self,
        *,
        data_dir: Path,
        identity: Identity,
        policy: Policy,
        ledger_of: Callable[[], Ledger],
        coordinator: Publishes,
        metrics: SiloMetrics,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ledger_of`` gives the ledger, which may be opened anew; ``clock`` Unix seconds."""
        self._departure = Departure(data_dir)
        self._word = OperatorsWord(data_dir)
        self._identity = identity
        self._policy = policy
        self._ledger_of = ledger_of
        self._coordinator = coordinator
        self._metrics = metrics
        self._clock = clock
        self._monotonic = monotonic
        self._budget_left: BudgetLeft | None = None
        self._said: SiloFacts | None = None
        self._due_s = self._not_before_s = float("-inf")
        self._unserved = False

    def take_budget(self) -> None:
        """Look at the ledger: at the start, or where a record is adopted."""
        if "budget_left" not in self._policy.facts.publish:
            return
        try:
            ledger = self._ledger_of()
            self._budget_left = budget_left_of(ledger.spent_epsilons(), ledger.caps)
        except Exception as error:  # noqa: BLE001 - nor may this
            self._budget_left = None
            self._failed(error)

    def publish(self, *, attempt_open: bool) -> None:
        """Publish if it is time to; called after each poll."""
        now_s = self._monotonic()
        if not self._policy.facts.publish or attempt_open or now_s < self._not_before_s:
            return
        try:
            facts = self._facts()
            if facts == self._said and now_s < self._due_s:
                return
            self._coordinator.publish_facts(self._signed(facts))
        except Exception as error:  # noqa: BLE001 - nothing of it may fail a round
            self._not_before_s = now_s + AGAIN_S
            self._failed(error)
        else:
            self._said, self._unserved = facts, False
            self._due_s, self._not_before_s = now_s + EVERY_S, now_s + APART_S

    def _facts(self) -> SiloFacts:
        now_unix_s = self._clock()
        facts = facts_now(
            self._policy,
            leaving=self._departure.mark() is not None,
            budget_left=self._budget_left,
            word=self._word.read(now_unix_s),
            now_unix_s=now_unix_s,
        )
        return published_facts(self._policy, facts)

    def _signed(self, facts: SiloFacts) -> SignedFacts:
        return SignedFacts(
            silo_id=self._identity.silo_id,
            federation=self._identity.federation,
            issued_unix_s=int(self._clock()),
            facts=facts,
        ).sign(self._identity.signing_key)

    def _failed(self, error: Exception) -> None:
        # It may have arrived: what was said is not known, and it is said anew.
        self._said = None
        self._metrics.count_error(type(error).__name__)
        unserved, before = isinstance(error, NotServedError), self._unserved
        self._unserved = unserved
        # An earlier version's coordinator is asked again, and spoken of once.
        if not (unserved and before):
            log.warning(
                "facts_not_published",
                kind=type(error).__name__,
                detail=error,
                exc_info=None if isinstance(error, EXPECTED) else error,
            )

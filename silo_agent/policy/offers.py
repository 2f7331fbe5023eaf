"""Counter-offers: under which terms this site would take part in a plan that it refuses.

Which rule refuses decides what is offered::

    local_epochs                                fewer local epochs: limits.max_local_epochs
    schedule                                    a later start: when schedule.hours_utc begins next
    noise_multiplier, epsilon_per_run,          a lower ε of the run: the most, in quarters, that
    run_above_cap, epsilon_cap                  none of these four refuses

Ordered invariants:

1. Nothing is offered that ``[offers]`` does not let be offered, or that the plan's
   ``[negotiation]`` does not ask for.
2. An offer lies inside the plan's ranges.
3. Everything is refused that no offer helps: the plan with the offer's terms has passed every rule
   that refused it, or only the operator's word is missing.

An offer follows from plan, policy, schedule, ledger and clock, as the refusal does; no model has
any part in it.

Covered: which terms. Not covered: the rules (``policy.py``), what becomes of an offer
(``federation/plan/negotiation.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from federation.errors import PlanError
from federation.plan.negotiation import MAX_QUARTERS, QUARTERS, Offer, plan_with, run_epsilon
from federation.plan.plan import Plan
from federation.plan.tables import NegotiationSection
from silo_agent.policy.document import Policy
from silo_agent.policy.limits import LOCAL_EPOCHS_RULE
from silo_agent.policy.plan import NOISE_RULE, RUN_CAP_RULE, RUN_EPSILON_RULE, SCHEDULE_RULE
from silo_agent.policy.policy import ACCEPTED, APPROVAL_RULE
from silo_agent.policy.refusal import EPSILON_CAP

__all__ = ["offer_of"]

_EPSILON_RULES: Final = frozenset({NOISE_RULE, RUN_EPSILON_RULE, RUN_CAP_RULE, EPSILON_CAP})
_MOST_TERMS: Final = 4
"""Each of the three once, and ε again where the budget's rule comes after that of the hours."""


def offer_of(
    policy: Policy, plan: Plan, *, now_unix_s: int, verdict: Callable[[Plan], str]
) -> Offer | None:
    """What to offer instead of refusing a plan; None where there is nothing.

    ``verdict`` names the rule by which a plan is refused here now, or that it is accepted.
    """
    if plan.negotiation is None:
        return None
    terms = _Terms(
        policy=policy,
        plan=plan,
        ranges=plan.negotiation,
        now_unix_s=now_unix_s,
        verdict=verdict,
    )
    offer: Offer | None = None
    moved = plan
    try:
        for _ in range(_MOST_TERMS):
            rule = verdict(moved)
            if rule in {ACCEPTED, APPROVAL_RULE}:
                return offer
            found = terms.against(rule, offer)
            if found is None or found == offer:
                return None
            offer, moved = found, plan_with(plan, found)
        return offer if verdict(moved) in {ACCEPTED, APPROVAL_RULE} else None
    except PlanError:
        # With these terms it would be no plan: there is nothing to offer.
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Terms:
    """What one plan lets this site ask for."""

    policy: Policy
    plan: Plan
    ranges: NegotiationSection
    now_unix_s: int
    verdict: Callable[[Plan], str]

    def against(self, rule: str, offer: Offer | None) -> Offer | None:
        """The offer with the term that a rule asks for; None where nothing helps."""
        allowed = self.policy.offers
        epochs, start, quarters = (0, 0, 0) if offer is None else offer.fields()
        if rule == LOCAL_EPOCHS_RULE and allowed.local_epochs:
            epochs = self._epochs()
        elif rule == SCHEDULE_RULE and allowed.start:
            start = self._start()
        elif rule in _EPSILON_RULES and allowed.epsilon:
            quarters = self._quarters(epochs, start, quarters)
        else:
            return None
        return Offer.of((epochs, start, quarters)) if epochs or start or quarters else None

    def _epochs(self) -> int:
        most, least = self.policy.limits.max_local_epochs, self.ranges.least_local_epochs
        return 0 if most is None or least is None or most < least else most

    def _start(self) -> int:
        hours, within_s = self.policy.schedule.hours, self.ranges.start_within_s
        if hours is None or within_s is None:
            return 0
        earliest_s = max(self.now_unix_s, self.plan.rounds.start_after_unix_s or 0)
        earliest = datetime.fromtimestamp(earliest_s, tz=UTC)
        begins = datetime.combine(earliest.date(), hours.begin, tzinfo=UTC)
        if begins <= earliest:
            begins += timedelta(days=1)
        start_s = int(begins.timestamp())
        return start_s if start_s <= earliest_s + within_s else 0

    def _quarters(self, epochs: int, start: int, before: int) -> int:
        """The most ε that no rule about ε refuses; ``before`` was too much."""
        if self.ranges.least_epsilon is None:
            return 0
        least = math.ceil(self.ranges.least_epsilon * QUARTERS)
        most = before - 1 if before else _below(run_epsilon(self.plan))

        def passes(quarters: int) -> bool:
            offer = Offer.of((epochs, start, quarters))
            return self.verdict(plan_with(self.plan, offer)) not in _EPSILON_RULES

        if least > most or not passes(least):
            return 0
        # Less ε passes wherever more does.
        low, high = least, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if passes(middle) else (low, middle)
        return low


def _below(epsilon: float) -> int:
    """The most quarters that are less than an ε, as far as any are offered."""
    if epsilon * QUARTERS > MAX_QUARTERS:
        return MAX_QUARTERS
    return math.ceil(epsilon * QUARTERS) - 1

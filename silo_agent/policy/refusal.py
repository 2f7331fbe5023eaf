"""The refusals that need the ledger, which the guardian's rules do not read.

Invariants: what leaves the silo is one of seven fixed texts. Each refusal is a function of plan,
policy, clock and ledger, and the ledger is one of configurations and the clock alone: nothing
depends on data.

Covered: rules, public reasons, texts. Not covered: who decides (``silo_agent/books/ledger.py``,
``silo_agent/local_work/work.py``), what follows (``silo_agent/daemon/gate.py``).
"""

from __future__ import annotations

from typing import Final

from dp.errors import BudgetExceededError, TooManyDebitsError
from federation.chain.task import ATTEMPTS_USED_UP, SURVIVORS_ALREADY_SIGNED
from ops.logs.errors import told
from silo_agent.errors import PolicyRefusalError
from silo_agent.policy.rule import POLICY_DOES_NOT_ALLOW

__all__ = [
    "AFTER_NONE",
    "ATTEMPTS_PER_DAY",
    "COHORT_GREW",
    "CONFIGURATION",
    "DAEMON_RULES",
    "EPSILON_CAP",
    "LEDGER_ROLLED_BACK",
    "LEDGER_UNUSABLE",
    "RUN_ATTEMPTS",
    "after_none",
    "agreed_before",
    "cannot_run",
    "cohort_grew",
    "ledger_rolled_back",
    "over_budget",
    "refused_charge",
    "run_used_up",
    "too_many_today",
]

AFTER_NONE: Final = "after_none"
COHORT_GREW: Final = "cohort_grew"
ATTEMPTS_PER_DAY: Final = "attempts_per_day"
CONFIGURATION: Final = "configuration"
EPSILON_CAP: Final = "epsilon_cap"
LEDGER_ROLLED_BACK: Final = "ledger_rolled_back"
LEDGER_UNUSABLE: Final = "ledger_unusable"
RUN_ATTEMPTS: Final = "run_attempts"
DAEMON_RULES: Final = (
    AFTER_NONE,
    COHORT_GREW,
    EPSILON_CAP,
    ATTEMPTS_PER_DAY,
    RUN_ATTEMPTS,
    SURVIVORS_ALREADY_SIGNED,
    LEDGER_ROLLED_BACK,
    LEDGER_UNUSABLE,
    CONFIGURATION,
)
"""What these refusals are counted under."""
_BUDGET: Final = "budget"
_LEDGER: Final = "ledger"
_AFTER_NONE: Final = f"{POLICY_DOES_NOT_ALLOW} noise after an upload without any"
_COHORT: Final = "without noise this silo takes part with those of the sum before alone"
_RUN: Final = "the run's attempts are used up"


def after_none(detail: str) -> PolicyRefusalError:
    """Noise would come after an upload without any, and the site's policy does not allow that."""
    return PolicyRefusalError(rule=AFTER_NONE, public_reason=_AFTER_NONE, detail=detail)


def cohort_grew(detail: str) -> PolicyRefusalError:
    """Without noise a sum would be of silos that were not in the one before."""
    return PolicyRefusalError(rule=COHORT_GREW, public_reason=_COHORT, detail=detail)


def over_budget(error: BudgetExceededError) -> PolicyRefusalError:
    """This round would raise epsilon past the cap of the silo's own policy."""
    return PolicyRefusalError(rule=EPSILON_CAP, public_reason=_BUDGET, detail=told(error))


def too_many_today(detail: str) -> PolicyRefusalError:
    """The day's attempts are used up; it passes by itself."""
    return PolicyRefusalError(rule=ATTEMPTS_PER_DAY, public_reason=ATTEMPTS_USED_UP, detail=detail)


def run_used_up(detail: str) -> PolicyRefusalError:
    """The run was charged for as many attempts or trainings as its plan states epsilon for."""
    return PolicyRefusalError(rule=RUN_ATTEMPTS, public_reason=_RUN, detail=detail)


def agreed_before() -> PolicyRefusalError:
    """Survivors of an attempt of this step were signed; whoever signs others may show two sums."""
    return PolicyRefusalError(
        rule=SURVIVORS_ALREADY_SIGNED,
        public_reason=SURVIVORS_ALREADY_SIGNED,
        detail="this silo signed survivors of an earlier attempt of this step",
    )


def ledger_rolled_back(detail: str) -> PolicyRefusalError:
    """The ledger lacks what this silo is known to have signed."""
    return PolicyRefusalError(rule=LEDGER_ROLLED_BACK, public_reason=_LEDGER, detail=detail)


def cannot_run(error: Exception) -> PolicyRefusalError:
    """This site's configuration does not allow the plan's work; found before any data is read."""
    return PolicyRefusalError(rule=CONFIGURATION, public_reason=CONFIGURATION, detail=told(error))


def refused_charge(error: Exception) -> PolicyRefusalError:
    """The ledger did not take a charge, so nothing was trained and nothing may be released.

    The operator's refusal, which comes before the ledger's, is its own.
    """
    if isinstance(error, PolicyRefusalError):
        return error
    if isinstance(error, BudgetExceededError):
        return over_budget(error)
    if isinstance(error, TooManyDebitsError):
        return run_used_up(told(error)) if error.of_run else too_many_today(told(error))
    return PolicyRefusalError(
        rule=LEDGER_UNUSABLE,
        public_reason=_LEDGER,
        detail=(
            "the ledger or the silo's memory cannot be used "
            f"({type(error).__name__}: {told(error)})"
        ),
    )

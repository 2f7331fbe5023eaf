"""The rules about what the operator said: that the silo leaves, that a run may not, or may, begin.

Invariants:

1. A refusal by hand and a departure come before every other rule, also under ``approval = "auto"``.
2. ``approval_pending`` comes after every other rule: nobody is asked about what the file refuses.
3. The public reasons say that somebody has to decide or has decided, and nothing of why.

Covered: tasks, descriptors and closed rounds. Not covered: who said it, and how it is kept
(``silo_agent/policy/approvals.py``, ``silo_agent/books/departure.py``).
"""

from __future__ import annotations

from typing import Final

from federation.chain.task import APPROVAL_PENDING
from silo_agent.policy.approvals import Standing
from silo_agent.policy.rule import PlanCase, Rule

__all__ = ["APPROVAL_RULE", "FIRST_WORD", "LAST_WORD"]

APPROVAL_RULE: Final = "approval_pending"


def _leaving(case: PlanCase) -> str | None:
    return "`chorale-silo leave` was called here" if case.standing is Standing.LEAVING else None


def _refused(case: PlanCase) -> str | None:
    return "`chorale-silo refuse` was called here" if case.standing is Standing.REFUSED else None


def _pending(case: PlanCase) -> str | None:
    if case.standing is Standing.PENDING:
        return "policy.approval is manual and nobody approved this plan: `chorale-silo runs`"
    return None


FIRST_WORD: tuple[Rule[PlanCase], ...] = (
    Rule(name="leaving", public_reason="this silo leaves the federation", fires=_leaving),
    Rule(
        name="refused_by_operator",
        public_reason="this silo's operator refused the run",
        fires=_refused,
    ),
)
LAST_WORD: tuple[Rule[PlanCase], ...] = (
    Rule(name=APPROVAL_RULE, public_reason=APPROVAL_PENDING, fires=_pending),
)

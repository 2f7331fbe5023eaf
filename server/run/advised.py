"""Rounds of a plan with ``policy = "advised"``: a model proposes, the plan decides what it may.

Ordered invariants:

1. What the model is asked, each of its answers and what it came to are in the store before the
   choice is made, and the choice's line in the audit log has their digests. A coordinator that
   restarts goes on with the same question, and with the answers that it has.
2. An answer counts only if its limits allow it (``federation/advice/proposal.py``), which come from
   the plan and from who is there: K is at least the quorum of every sum and n_min, leaves t(K, c)
   below K, and is at most who is there.
3. A round waits for the advisor for the plan's ``seconds`` and no longer, whatever it answers or
   does not, and then goes by the policy ``then``. A model that is not configured is one that
   cannot be reached.

Covered: endpoints that hang, lie, die or flood; restarts at any point. Not covered: advice that is
allowed and bad, against which the ranges of the plan are all there is.
"""

from __future__ import annotations

import hashlib

from federation.advice.conversation import TOOL_CALLS, Budget
from federation.advice.proposal import Proposal
from federation.advice.record import AdviceRecord, replay
from federation.errors import PlanError
from federation.plan.plan import Plan
from federation.plan.tables import SelectionAdviceSection
from federation.selection.advised import limits_of, state_of
from federation.selection.decide import Inputs, decide
from federation.selection.decided import NO_ADVISOR, why_none
from federation.selection.policies import Choice
from ops.logs.logger import get_logger
from secagg.parameters import threshold
from server.context import RunContext
from server.metrics import AdviceOutcome
from server.store.runs import RunRow

__all__ = ["Advised"]

log = get_logger(__name__)


class Advised:
    """The advice of one run."""

    def __init__(self, *, row: RunRow, plan: Plan, colluding: int, context: RunContext) -> None:
        self._run_id = row.run_id
        self._plan = plan
        self._colluding = colluding
        self._context = context
        self._section = plan.selection.advice or SelectionAdviceSection()

    @property
    def longest_s(self) -> float:
        """How long a round waits for it at most."""
        return float(self._section.seconds)

    async def choose(self, inputs: Inputs) -> Choice:
        """Ask, and decide with what was answered.

        Raises:
            StoreError: The database failed; what is in it stays.
        """
        advisor = self._context.advisor
        number = inputs.past.number
        if advisor is None:
            return await decide(inputs, without=NO_ADVISOR)
        record = self._begun(number)
        if record is None:
            limits = limits_of(inputs, self._least(inputs))
            record = AdviceRecord(
                state=state_of(inputs, limits),
                budget=self._budget(takes_tools=advisor.takes_tools),
                model=advisor.model,
            )
            self._keep(number, record)
        # Its packages are there where an advisor is.
        from server.advisor.consult import consult

        record = await consult(
            record.state,
            record.budget,
            advisor,
            record.model,
            on_turn=lambda grown: self._keep(number, grown),
            so_far=record,
        )
        outcome = replay(record)
        advised = isinstance(outcome, Proposal)
        kind = AdviceOutcome.PROPOSAL if advised else AdviceOutcome.FALLBACK
        self._context.metrics.advice.labels(outcome=kind.value).inc()
        why = "" if isinstance(outcome, Proposal) else why_none(outcome)
        log.info("advised", run=self._run_id, round=number, outcome=kind.value, why=why)
        if isinstance(outcome, Proposal):
            return await decide(inputs, outcome)
        return await decide(inputs, without=why)

    def digests(self, number: int) -> dict[str, str]:
        """What the audit log says of a round's advice, in hexadecimal; nothing where there is none.

        Each request and answer has its digest inside the record.
        """
        row = self._context.store.decisions.of_round(self._run_id, number)
        if row is None or not row.advice:
            return {}
        return {
            "inputs_sha256": hashlib.sha256(row.inputs).hexdigest(),
            "advice_sha256": hashlib.sha256(row.advice).hexdigest(),
        }

    def _budget(self, *, takes_tools: bool) -> Budget:
        section = self._section
        return Budget(
            calls=section.calls,
            tokens=section.tokens,
            tool_calls=TOOL_CALLS if takes_tools else 0,
            seconds=section.seconds,
        )

    def _begun(self, number: int) -> AdviceRecord | None:
        row = self._context.store.decisions.of_round(self._run_id, number)
        return None if row is None or not row.advice else AdviceRecord.decode(row.advice)

    def _keep(self, number: int, record: AdviceRecord) -> None:
        self._context.store.decisions.advise(self._run_id, number, record.encode())

    def _least(self, inputs: Inputs) -> int:
        """The fewest silos that can have the round's sums, of those who are there."""
        groups = self._plan.groups
        for count in range(inputs.at_least, len(inputs.live)):
            each = count // groups
            try:
                self._plan.require_sum(each, self._colluding)
            except PlanError:
                continue
            if each - threshold(each, self._colluding) >= 1:
                return count
        return len(inputs.live)

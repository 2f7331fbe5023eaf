"""The guardian: whether this silo takes part, decided by its own file and public facts alone.

A verdict goes through an ordered tuple of small rules; the first one that fires names itself. Tasks
and descriptors are both checked against the plan they name, so that a descriptor cannot bring in
another plan than the one that was trained under.

Invariants:

1. Rules read the policy, ``silo.toml``, the plan, signed documents, the clock, the machine and what
   the operator said. None of them can see data, so a refusal tells nothing about data, but for
   ``time_passed``, which says what a silence has told.
2. Public reasons are fixed texts. What was compared goes into ``detail``, which stays here.
3. A rule that cannot be evaluated refuses.
4. A departure and a refusal by hand come first, also under ``approval = "auto"``; that somebody has
   to approve comes last, so nobody is asked about what the file refuses anyway. The public reasons
   say that somebody has to decide or has decided, and nothing of why.

Covered: verdicts on plans, tasks, descriptors and rollbacks. Not covered: the budget, which the
ledger enforces before every upload (``silo_agent/books/ledger.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from federation.chain.record import AdapterRecord
from federation.chain.task import APPROVAL_PENDING, RoundTask
from federation.plan.negotiation import Offer
from federation.plan.plan import Plan
from secagg.descriptor import Descriptor
from silo_agent.policy.approvals import Standing
from silo_agent.policy.descriptor import DESCRIPTOR_RULES, DescriptorCase, SharedLayout
from silo_agent.policy.document import Policy
from silo_agent.policy.limits import TIME_RULES
from silo_agent.policy.passed_time import NEVER_LATE, Passed
from silo_agent.policy.plan import PLAN_RULES, TASK_RULES, TaskCase
from silo_agent.policy.rule import POLICY_DOES_NOT_ALLOW, CaseT_contra, PlanCase, Rule, Site

__all__ = [
    "ACCEPTED",
    "APPROVAL_RULE",
    "FIRST_WORD",
    "LAST_WORD",
    "RULE_NAMES",
    "Decision",
    "check_descriptor",
    "check_followed",
    "check_plan",
    "check_rollback",
    "check_standing",
    "check_task",
]

ACCEPTED = "accepted"
"""What a verdict names when no rule fired."""

APPROVAL_RULE: Final = "approval_pending"
"""What waits for the operator's word is refused by."""

ROLLBACK_RULE = "rollback_allowed"
"""What a rollback is refused by."""


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

RULE_NAMES: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *(rule.name for rule in FIRST_WORD),
            *(rule.name for rule in PLAN_RULES),
            *(rule.name for rule in TASK_RULES),
            *(rule.name for rule in DESCRIPTOR_RULES),
            ROLLBACK_RULE,
            *(rule.name for rule in LAST_WORD),
        )
    )
)
"""Every rule that can refuse, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A verdict."""

    accepted: bool
    """Whether the silo takes part."""
    rule: str
    """The rule that fired; ``accepted`` when none did."""
    public_reason: str
    """A fixed text for the coordinator; empty when accepted."""
    detail: str
    """What was compared, for the silo's own log."""
    offer: Offer | None = None
    """Under which terms it would take part; of a pre-flight alone."""


def check_plan(
    policy: Policy,
    *,
    plan: Plan,
    site: Site,
    standing: Standing = Standing.OPEN,
    unfit: str = "",
    passed: Passed = NEVER_LATE,
    cohort_may_vary: bool = False,
) -> Decision:
    """The verdict on a plan alone, before anything was signed.

    ``unfit`` says why this machine cannot hold the plan's work; it is empty where it can.
    ``passed`` are the times of plans that work here took longer than. ``cohort_may_vary`` is this
    site's word, or its operator's about the run.
    """
    return _decide(
        PLAN_RULES,
        PlanCase(
            policy=policy,
            plan=plan,
            site=site,
            standing=standing,
            unfit=unfit,
            passed=passed,
            cohort_may_vary=cohort_may_vary,
        ),
    )


def check_followed(
    policy: Policy, *, plan: Plan, site: Site, standing: Standing, cohort_may_vary: bool = False
) -> Decision:
    """The verdict on a plan whose run this silo follows without working for it.

    Nothing is worked on, so how long work may take decides nothing: a run that began before plans
    said so is followed to its end.
    """
    rules = tuple(rule for rule in PLAN_RULES if rule.name not in TIME_RULES)
    return _decide(
        rules,
        PlanCase(
            policy=policy,
            plan=plan,
            site=site,
            standing=standing,
            cohort_may_vary=cohort_may_vary,
        ),
    )


def check_task(
    policy: Policy,
    *,
    task: RoundTask,
    plan: Plan,
    site: Site,
    now_unix_s: int,
    standing: Standing = Standing.OPEN,
    unfit: str = "",
    passed: Passed = NEVER_LATE,
    cohort_may_vary: bool = False,
) -> Decision:
    """The verdict on a round task.

    The coordinator's signature was verified, and the plan is the one that the task names by digest;
    the rest as ``check_plan``.
    """
    return _decide(
        TASK_RULES,
        TaskCase(
            policy=policy,
            task=task,
            plan=plan,
            site=site,
            now_unix_s=now_unix_s,
            standing=standing,
            unfit=unfit,
            passed=passed,
            cohort_may_vary=cohort_may_vary,
        ),
    )


def check_descriptor(
    policy: Policy,
    *,
    descriptor: Descriptor,
    silo_id: str,
    plan: Plan,
    site: Site,
    layout: SharedLayout,
    now_unix_s: int,
    task: RoundTask | None = None,
    cohort_may_vary: bool = False,
    standing: Standing = Standing.OPEN,
    passed: Passed = NEVER_LATE,
) -> Decision:
    """The verdict on a descriptor.

    It was verified against the roster, and the plan is the one that it names by digest; the layout
    is that of the vector that this silo trained, and the task the one of its round that this silo
    verified, if it knows one. ``cohort_may_vary`` is this site's word, or its operator's.
    """
    return _decide(
        DESCRIPTOR_RULES,
        DescriptorCase(
            policy=policy,
            plan=plan,
            site=site,
            descriptor=descriptor,
            silo_id=silo_id,
            layout=layout,
            now_unix_s=now_unix_s,
            task=task,
            cohort_may_vary=cohort_may_vary,
            standing=standing,
            passed=passed,
        ),
    )


def check_rollback(policy: Policy, record: AdapterRecord) -> Decision:
    """The verdict on a record of kind rollback, verified against the chain."""
    if policy.methods.allow_rollback:
        return Decision(accepted=True, rule=ACCEPTED, public_reason="", detail="")
    return Decision(
        accepted=False,
        rule=ROLLBACK_RULE,
        public_reason=f"{POLICY_DOES_NOT_ALLOW} a rollback",
        detail=(
            f"run {record.run_id} goes back to round {record.restored_round} in round "
            f"{record.round}, and methods.allow_rollback is false: this silo stays where it is and "
            "takes no further part in the run; set it to true and restart to follow"
        ),
    )


def check_standing(policy: Policy, *, task: RoundTask, plan: Plan, standing: Standing) -> Decision:
    """The operator's verdict alone, on a task that every rule accepted and that has not begun."""
    # Neither rule looks at what this silo has.
    site = Site(base_sha256=task.base_model_sha256, environments={})
    return _decide((), PlanCase(policy=policy, plan=plan, site=site, standing=standing))


def _decide(rules: tuple[Rule[CaseT_contra], ...], case: CaseT_contra) -> Decision:
    # A rule about any plan is one about every case of a plan.
    ordered: tuple[Rule[CaseT_contra], ...] = (*FIRST_WORD, *rules, *LAST_WORD)
    for rule in ordered:
        detail = rule.fires(case)
        if detail is not None:
            return Decision(
                accepted=False, rule=rule.name, public_reason=rule.public_reason, detail=detail
            )
    return Decision(accepted=True, rule=ACCEPTED, public_reason="", detail="")

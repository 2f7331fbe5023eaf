"""The guardian: whether this silo takes part, decided by its own file and public facts alone.

A verdict goes through an ordered tuple of small rules; the first one that fires names itself. Tasks
and descriptors are both checked against the plan they name, so that a descriptor cannot bring in
another plan than the one that was trained under.

Invariants:

1. Rules read the policy, ``silo.toml``, the plan, signed documents, the clock, the machine and what
   the operator said. None of them can see data, so a refusal tells nothing about data.
2. Public reasons are fixed texts. What was compared goes into ``detail``, which stays here.
3. A rule that cannot be evaluated refuses.
4. A departure and a refusal by hand come first; that somebody has to approve comes last, so nobody
   is asked about what the file refuses anyway.

Covered: verdicts on plans, tasks, descriptors and rollbacks. Not covered: the budget, which the
ledger enforces before every upload (``silo_agent/books/ledger.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from federation.chain.record import AdapterRecord
from federation.chain.task import RoundTask
from federation.plan.plan import Plan
from secagg.descriptor import Descriptor
from silo_agent.policy.approvals import Standing
from silo_agent.policy.descriptor import DESCRIPTOR_RULES, DescriptorCase, SharedLayout
from silo_agent.policy.document import Policy
from silo_agent.policy.operator import APPROVAL_RULE, FIRST_WORD, LAST_WORD
from silo_agent.policy.plan import PLAN_RULES, TASK_RULES, TaskCase
from silo_agent.policy.proposal import write_default, write_for_plan
from silo_agent.policy.rule import POLICY_DOES_NOT_ALLOW, CaseT_contra, PlanCase, Rule, Site

__all__ = [
    "ACCEPTED",
    "APPROVAL_RULE",
    "RULE_NAMES",
    "Decision",
    "Policy",
    "Site",
    "check_descriptor",
    "check_plan",
    "check_rollback",
    "check_standing",
    "check_task",
    "write_default",
    "write_for_plan",
]

ACCEPTED = "accepted"
"""What a verdict names when no rule fired."""

ROLLBACK_RULE = "rollback_allowed"
"""What a rollback is refused by."""

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


def check_plan(
    policy: Policy,
    *,
    plan: Plan,
    site: Site,
    standing: Standing = Standing.OPEN,
    unfit: str = "",
) -> Decision:
    """The verdict on a plan alone, before anything was signed.

    Args:
        policy: The site's.
        plan: What is asked for.
        site: What this silo has.
        standing: What the operator said about the run.
        unfit: Why this machine cannot hold the plan's work; empty where it can.
    """
    return _decide(
        PLAN_RULES,
        PlanCase(policy=policy, plan=plan, site=site, standing=standing, unfit=unfit),
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
) -> Decision:
    """The verdict on a round task.

    Args:
        policy: The site's.
        task: Verified: the coordinator signed it.
        plan: The plan that the task names by digest.
        site: What this silo has.
        now_unix_s: This silo's clock.
        standing: What the operator said about the run.
        unfit: Why this machine cannot hold the plan's work; empty where it can.
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
    standing: Standing = Standing.OPEN,
) -> Decision:
    """The verdict on a descriptor.

    Args:
        policy: The site's.
        descriptor: Verified against the roster.
        silo_id: This silo.
        plan: The plan that the descriptor names by digest.
        site: What this silo has.
        layout: Of the vector that this silo trained.
        now_unix_s: This silo's clock.
        standing: What the operator said about the run.
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
            standing=standing,
        ),
    )


def check_rollback(policy: Policy, record: AdapterRecord) -> Decision:
    """The verdict on a record that takes a run back.

    Args:
        policy: The site's.
        record: Of kind rollback, verified against the chain.
    """
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
    """The operator's verdict alone, on a task that every rule accepted and that has not begun.

    Args:
        policy: The site's.
        task: Accepted earlier.
        plan: The plan that the task names by digest.
        standing: What the operator has said about the run by now.
    """
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

"""How many groups a roster allows, and what they cost in noise.

A group of n_k silos is a sum of its own with t from n_k and the roster's c, so the noise that hides
it is shared by k = max(t, n_min) − c silos instead of those of one sum of all n. With V the
variance of the rule over g means of variance 1 (``federation.aggregate.groups``), a coordinate of
the combined mean has the noise variance

    V·(z·C)²/(n_k·k_k)        against (z·C)²/(n·k) with one sum

in which z may be that of a step; n_k is the least group's. Where each silo adds the whole noise
(``record_local``) both k are 1. Most of the cost is in k: half a group is far less than half of
all silos.

Covered: the most groups, the silos that share a group's noise, the deviation against one sum's.
Not covered: the bias of a median of means of different silos where nobody attacks; drop-outs that
leave a group too small for its sum, whose round then has one group less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp.accounting.snr import threshold_divisor
from dp.config import Mode
from federation.aggregate.groups import MAX_GROUPS, GroupRule, variance_of_rule
from federation.errors import PlanError
from federation.plan.plan import Plan
from federation.plan.tables import AggregationSection, GroupsSection

LEAST_GROUPS = 3
"""Two cannot outvote one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCost:
    """A number of groups over a roster."""

    count: int
    """g."""
    least: int
    """Silos of the least group."""
    most: int
    """Silos of the largest one."""
    byzantine: int
    """f: groups that may say anything."""
    rule: GroupRule
    """How the groups' means become one."""
    divisor: int
    """k = max(t, n_min) − c of the least group: silos that share the noise of its sum."""
    noise: float
    """Deviation of the combined mean's noise in multiples of that of one sum of all; 0 where no
    noise is."""


def most_groups(plan: Plan, *, silos: int, colluding: int) -> GroupCost | None:
    """The largest number of groups that a roster allows the plan; None if it allows none.

    The rule is the plan's, the median if it has none; f is the plan's where it is still outvoted,
    and (g − 1)/2 otherwise.
    """
    asked = plan.aggregation.groups
    rule: GroupRule = "median" if asked is None else asked.rule
    for count in range(MAX_GROUPS, LEAST_GROUPS - 1, -1):
        most = (count - 1) // 2
        byzantine = most if asked is None else min(asked.byzantine, most)
        section = GroupsSection(count=count, byzantine=byzantine, rule=rule)
        try:
            _with_groups(plan, section).require_cohort(silos, colluding)
        except PlanError:
            continue
        return _cost(plan, section, silos, colluding)
    return None


def cost_of_groups(plan: Plan, *, silos: int, colluding: int) -> GroupCost | None:
    """What the plan's own groups cost; None without groups, or with more groups than silos."""
    section = plan.aggregation.groups
    if section is None or silos < section.count:
        return None
    return _cost(plan, section, silos, colluding)


def _with_groups(plan: Plan, section: GroupsSection) -> Plan:
    aggregation: AggregationSection = plan.aggregation.model_copy(update={"groups": section})
    return plan.model_copy(update={"aggregation": aggregation})


def _cost(plan: Plan, section: GroupsSection, silos: int, colluding: int) -> GroupCost:
    least = silos // section.count
    n_min = plan.secure_aggregation.n_min

    def shared(size: int) -> int:
        return max(threshold_divisor(size, colluding=colluding), n_min - colluding)

    mode = Mode(plan.privacy.mode)
    whole = mode is Mode.RECORD_LOCAL and plan.spec.release.noise_multiplier == 0.0
    each, one = (1, 1) if whole else (shared(least), shared(silos))
    variance = variance_of_rule(section.count, section.rule, section.byzantine)
    noise = math.sqrt(variance * silos * one / (least * each))
    return GroupCost(
        count=section.count,
        least=least,
        most=-(-silos // section.count),
        byzantine=section.byzantine,
        rule=section.rule,
        divisor=each,
        noise=0.0 if mode is Mode.NONE else noise,
    )

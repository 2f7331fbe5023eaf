"""What a rule of the guardian is, and what it may look at.

Invariants: a rule reads the policy, ``silo.toml``, public documents, the clock, the machine and
what the operator said, and nothing else, so that it cannot say anything about data. What a silo
has is what its operator wrote down; no rule opens a store or counts a task. The one exception says
once what a silence has told already: that work took longer than a plan gave it. Its public reason
is a fixed text; what was compared is its detail, which stays here.

Covered: the form. Not covered: the rules (``plan.py``, ``limits.py``,
``descriptor.py``), their order and the operator's word (``policy.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from federation.adapter.shapes import ModelShape
from federation.plan.plan import Plan
from silo_agent.policy.approvals import Standing
from silo_agent.policy.document import Policy
from silo_agent.policy.passed_time import NEVER_LATE, Passed

__all__ = ["POLICY_DOES_NOT_ALLOW", "CaseT_contra", "PlanCase", "Rule", "Site"]

POLICY_DOES_NOT_ALLOW: Final = "the site's policy does not allow"


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What this silo has, as its operator wrote it down."""

    base_sha256: bytes
    """Digest of the base model."""
    environments: Mapping[str, int | None]
    """What is explored here, each with its ``declared_tasks``; None where nothing is declared."""
    shape: ModelShape | None = None
    """Of the base model, as its own ``config.json`` says; None where it says none that is known."""
    own_parts: tuple[str, ...] = ()
    """The play and the gate that it chose by itself."""
    guarded: bool = False
    """Whether it has a guard, which may veto."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCase:
    """A plan before the site's policy."""

    policy: Policy
    """The site's."""
    plan: Plan
    """What is asked for."""
    site: Site
    """What this silo has."""
    standing: Standing = Standing.OPEN
    """What the operator said about the run, beside the file."""
    unfit: str = ""
    """Why this machine cannot hold the plan's work; empty where it can, or nobody looked."""
    passed: Passed = NEVER_LATE
    """The times of plans that work here took longer than."""
    cohort_may_vary: bool = False
    """Whether this site, or whoever approved the run, lets cohorts without noise vary."""


CaseT_contra = TypeVar("CaseT_contra", bound=PlanCase, contravariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Generic[CaseT_contra]):
    """One reason to refuse."""

    name: str
    """What logs and metrics call it."""
    public_reason: str
    """A fixed text: all that a refusal says outside."""
    fires: Callable[[CaseT_contra], str | None]
    """What is wrong, for the silo's own log, or None."""

"""What a plan may well say, and was hardly meant to: it can start, and would disappoint.

A refusal is for what cannot work (``federation.forecast.forecast``); a doubt names the line, what
comes of it, and what to write instead.

Covered: a divisor larger than what is sampled, a base model's digest, environments that nobody
declared. Not covered: figures, which the forecast shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from federation.plan.families import family_of_name
from federation.plan.plan import Plan

__all__ = ["doubts"]


def doubts(
    plan: Plan,
    *,
    declared: Mapping[str, tuple[str, ...]] | None = None,
    base_sha256: str | None = None,
    base_place: str = "",
) -> tuple[str, ...]:
    """Every doubt, one line each, beginning with its key.

    Args:
        plan: One that was read.
        declared: Of each silo that may take part, the environment families with which it last said
            that it was ready; empty where it never did. None where no silo is known.
        base_sha256: Of the base model's files in ``base_place``; None where they are not here.
        base_place: For people.
    """
    if not plan.needs_tasks:
        return ()
    found = (
        _sampling(plan),
        _base(plan, base_sha256, base_place),
        *_environments(plan, {} if declared is None else declared),
    )
    return tuple(doubt for doubt in found if doubt)


def _sampling(plan: Plan) -> str:
    record = plan.privacy.record
    if record is None:
        return ""
    # The rate as it is written, as in ``federation.plan.rules``.
    sampled = math.ceil(Fraction(repr(record.sampling_rate)) * plan.population_cap)
    if record.expected_units <= sampled:
        return ""
    return (
        f"privacy.record.expected_units: sampling_rate {record.sampling_rate:g} of the "
        f"{plan.population_cap} tasks that a silo can have is {sampled} a step, and every step is "
        f"divided by {record.expected_units}: it is {sampled / record.expected_units:.2g} times as "
        "long as planned beside the same noise, and the cosine is lower than shown: set it to "
        f"{sampled}, sample more, or explore more"
    )


def _base(plan: Plan, base_sha256: str | None, place: str) -> str:
    stated = plan.model.base_sha256
    if base_sha256 is not None and base_sha256 != stated:
        return (
            f"model.base_sha256: it is {_short(stated)}, and that of {place} is {base_sha256}: a "
            "silo whose base model has another digest than the plan's refuses the run"
        )
    if not stated.strip("0"):
        return (
            "model.base_sha256: zeros are no model's digest, so every silo refuses the run: write "
            "what `chorale-silo status` shows as base model"
        )
    return ""


def _environments(plan: Plan, declared: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if not declared or not all(declared.values()):
        # Whoever was never ready may have any.
        return ()
    known = sorted({family for families in declared.values() for family in families})
    return tuple(
        f"evolve.environments: no silo of the roster had {name!r} when it was last ready (they had "
        f"{', '.join(known)}), and a silo that has none of the plan's environments refuses the "
        "run: correct the name, or ask them with --live"
        for name in plan.evolve.environments
        if family_of_name(name) not in known
    )


def _short(digest: str) -> str:
    return "all zeros" if not digest.strip("0") else f"{digest[:12]}…"

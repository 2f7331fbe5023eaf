"""The facts of this site as its operator sees them: ``chorale-silo facts`` and ``preview``.

Covered: every fact with its value now, what it comes from, whether the policy publishes it. Not
covered: what the coordinator holds; a daemon shows what is left of the budget as it was when it
started or adopted the last record.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from federation.membership.facts import FACTS, SiloFacts
from silo_agent.books.budget import read_budget
from silo_agent.books.departure import Departure
from silo_agent.books.facts import (
    SOURCES,
    OperatorsWord,
    Word,
    budget_left_of,
    facts_now,
    published_facts,
)
from silo_agent.config import SiloConfig
from silo_agent.policy.document import Policy

__all__ = ["Fact", "FactsView", "read_facts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One of them."""

    fact: str
    """Its name, as the policy lists it."""
    value: str | int | None
    """Now; None where there is nothing to say."""
    published: bool
    """Whether the policy lists it."""
    source: str
    """What it comes from."""
    until_unix_s: int | None
    """When the operator's word ends; None of any other fact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FactsView:
    """All of them."""

    facts: tuple[Fact, ...]
    """In the order of ``FACTS``."""
    published: SiloFacts | None
    """What a daemon publishes; None where the policy lists nothing."""

    def as_data(self) -> dict[str, Any]:
        """For the envelope."""
        return {
            "facts": [asdict(fact) for fact in self.facts],
            "publishes": [fact.fact for fact in self.facts if fact.published],
        }


def read_facts(config: SiloConfig) -> FactsView:
    """Look at a data directory, also beside a daemon.

    Raises:
        SiloError: The policy, the ledger or the operator's words cannot be read.
        PrivacyError: The ledger is damaged, of another format, or older than this silo remembers.
    """
    policy, now_unix_s = Policy.load(config.policy_file), time.time()
    caps = policy.privacy.caps()
    budget = read_budget(config.data_dir, delta=policy.privacy.delta, caps=caps)
    spent = {found.unit: found.epsilon_spent.epsilon for found in budget.units}
    word = OperatorsWord(config.data_dir).read(now_unix_s)
    facts = facts_now(
        policy,
        leaving=Departure(config.data_dir).mark() is not None,
        budget_left=budget_left_of(spent, caps),
        word=word,
        now_unix_s=now_unix_s,
    )
    return FactsView(
        facts=tuple(_fact(name, facts, word, policy) for name in FACTS),
        published=published_facts(policy, facts) if policy.facts.publish else None,
    )


def _fact(name: str, facts: SiloFacts, word: Word, policy: Policy) -> Fact:
    ends = {"queue": word.queue_until_unix_s, "free_gpu": word.free_gpu_until_unix_s}
    return Fact(
        fact=name,
        value=getattr(facts, name),
        published=name in policy.facts.publish,
        source=SOURCES[name],
        until_unix_s=ends.get(name) or None,
    )

"""The pre-flight: before a run starts, the coordinator asks each silo whether it would take part.

A question names one plan, one roster and the name of one asking, signed by the coordinator. The
answer is a verdict, signed by the silo: ``accept``, ``waits_for_approval``, or ``refuse`` with the
name of the rule that fired; ``offer`` is a refusal with the terms under which that rule and every
other would let the run begin, where the plan says what may be moved. It opens nothing, charges
nothing and binds nobody: a task is judged again in full.

Invariants:

1. An answer says one verdict and at most one word of ``REASONS``. There is a place for figures in
   an offer alone, which is typed and bounded (``federation/plan/negotiation.py``).
2. An answer is about one question, whose digest the silo signs together with its own id: it is no
   answer to another plan, another roster or another asking.
3. A silo answers ``ANSWER_AFTER_S`` after the question came, whatever it answers.

Covered: bounds, the signed bytes, signing and verifying, the closed list of reasons. Not covered:
how a silo decides (``silo_agent/daemon/gate.py``), how often it may be asked
(``silo_agent/books/preflights.py``), whether an offer is one to the plan that was asked about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.chain.task import ATTEMPTS_USED_UP, CLOCKS_DISAGREE, OUTSIDE_HOURS
from federation.errors import ChainError
from federation.plan.negotiation import Offer
from secagg import bounds, canonical, suite
from secagg.errors import MalformedMessageError

__all__ = [
    "ANSWER_AFTER_S",
    "ASKED_TOO_OFTEN",
    "REASONS",
    "SUBMIT_TOKEN",
    "Preflight",
    "PreflightAnswer",
    "Verdict",
]

ANSWER_AFTER_S: Final = 1.0
"""From the moment a question came to the moment its answer leaves, on the silo's monotonic clock.
A judgement takes some milliseconds; what is left of the second waits."""

ASKED_TOO_OFTEN: Final = "preflights_per_day"
"""What every question is refused by once a site's questions of the day are used up."""

SUBMIT_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")
"""What a submit token may be: the name of one asking, or of one start."""

_QUESTION_DOMAIN: Final = "chorale/v1/preflight"
_ANSWER_DOMAIN: Final = "chorale/v1/preflight-answer"
_OFFER_DOMAIN: Final = "chorale/v1/preflight-offer"
_NOT_ALLOWED: Final = "the site's policy does not allow"
_NOT_AGREED: Final = "this site's configuration and its policy do not agree"

REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ASKED_TOO_OFTEN: "this silo was asked too often today",
        "leaving": "this silo leaves the federation",
        "refused_by_operator": "this silo's operator refused the run",
        "suite": f"{_NOT_ALLOWED} this suite of secure aggregation",
        "base_model_match": "this silo holds another base model",
        "base_model_allowed": f"{_NOT_ALLOWED} this base model",
        "target": "the plan's target names layers that the base model does not have",
        "environments_allowed": f"{_NOT_ALLOWED} an environment of the plan",
        "environments_served": "this silo has none of the plan's environments",
        "evolver_allowed": f"{_NOT_ALLOWED} this evolution method",
        "part_packages": f"{_NOT_ALLOWED} a package of the plan's parts",
        "own_parts": _NOT_AGREED,
        "aggregation_allowed": f"{_NOT_ALLOWED} this aggregation method",
        "privacy_mode_allowed": f"{_NOT_ALLOWED} this privacy mode",
        "no_privacy_accepted": f"{_NOT_ALLOWED} a run without noise",
        "exact_figures": f"{_NOT_ALLOWED} figures without noise",
        "vetoes": _NOT_AGREED,
        "selection": f"{_NOT_ALLOWED} other silos in each round without noise",
        "evolver_dp_compat": "this evolution method does not run under this privacy mode",
        "record_units": f"{_NOT_ALLOWED} this unit of privacy",
        "noise_multiplier": f"{_NOT_ALLOWED} so little noise",
        "clip": f"{_NOT_ALLOWED} so large a clip",
        "sampling_rate": f"{_NOT_ALLOWED} so large a sampling rate",
        "steps": f"{_NOT_ALLOWED} so many noisy steps",
        "epsilon_per_run": f"{_NOT_ALLOWED} so large an epsilon for one run",
        "run_above_cap": f"{_NOT_ALLOWED} an epsilon that this run alone would pass",
        "survivors": f"{_NOT_ALLOWED} so small a sum",
        "rounds": f"{_NOT_ALLOWED} so many rounds",
        "local_epochs": f"{_NOT_ALLOWED} so many local epochs",
        "episodes": f"{_NOT_ALLOWED} so many episodes",
        "thin_round": f"{_NOT_ALLOWED} so few episodes or tasks",
        "declared_tasks": "this silo does not declare so many tasks",
        "ready_after": f"{_NOT_ALLOWED} so early a ready report",
        "step_answer_after": f"{_NOT_ALLOWED} so early an answer to a step",
        "local_time": f"{_NOT_ALLOWED} so long a time for local work",
        "disk": f"{_NOT_ALLOWED} so much space on disk",
        "task_base_model": "the task names another base model than its plan",
        "task_round": "the task is for a round or step that its plan does not have",
        "task_epochs": "the task moves local epochs out of its plan's range",
        "schedule": OUTSIDE_HOURS,
        "task_deadline": CLOCKS_DISAGREE,
        "after_none": f"{_NOT_ALLOWED} noise after an upload without any",
        "epsilon_cap": "budget",
        "attempts_per_day": ATTEMPTS_USED_UP,
        "run_attempts": "the run's attempts are used up",
    }
)
"""Every rule that an answer may name, with its public text: those of refused tasks but for the
machine, which nobody looks at before a task, and for work that was late, which is data."""


class Verdict(StrEnum):
    """What a silo says."""

    ACCEPT = "accept"
    WAITS_FOR_APPROVAL = "waits_for_approval"
    REFUSE = "refuse"
    OFFER = "offer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """One question."""

    plan_sha256: bytes
    """Of the plan's TOML bytes."""
    roster_sha256: bytes
    """Of the roster in force, which names the coordinator's key."""
    submit_token: str
    """The name of this asking; a start with the same token asks the same question."""
    signature: bytes = b""
    """Of the coordinator; empty until signed."""

    def __post_init__(self) -> None:
        """Refuse what is out of bounds, whoever made it."""
        _require_digests(self, "plan_sha256", "roster_sha256")
        if type(self.submit_token) is not str or SUBMIT_TOKEN.fullmatch(self.submit_token) is None:
            raise ChainError("the pre-flight's submit_token is none")
        _require_signature(self.signature)

    def signed_bytes(self) -> bytes:
        """What the coordinator signs."""
        return canonical.encode(_QUESTION_DOMAIN, *self._fields())

    @property
    def sha256(self) -> bytes:
        """The question's digest, which an answer names."""
        return canonical.digest(_QUESTION_DOMAIN, *self._fields())

    def _fields(self) -> tuple[bytes, bytes, str]:
        return self.plan_sha256, self.roster_sha256, self.submit_token

    def sign(self, coordinator_key: Ed25519PrivateKey) -> Preflight:
        """The same question with the coordinator's signature."""
        return replace(self, signature=suite.sign(coordinator_key, self.signed_bytes()))

    def verify(self, coordinator_public_key: bytes) -> None:
        """Check the signature.

        Raises:
            ChainError: It is missing or not the coordinator's.
        """
        if not suite.verify(coordinator_public_key, self.signature, self.signed_bytes()):
            raise ChainError("the pre-flight is not signed by the roster's coordinator")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreflightAnswer:
    """One silo's answer to one question."""

    preflight_sha256: bytes
    """The question's digest."""
    silo_id: str
    """Who answers."""
    verdict: Verdict
    """What it says."""
    rule: str = ""
    """The rule that a refusal or an offer names; empty otherwise."""
    offer: Offer | None = None
    """Terms that would not be refused; of an offer alone."""
    signature: bytes = b""
    """Of the silo; empty until signed."""

    def __post_init__(self) -> None:
        """Refuse what is out of bounds, whoever made it."""
        _require_digests(self, "preflight_sha256")
        try:
            bounds.require_silo_id(self.silo_id, "pre-flight silo_id")
        except MalformedMessageError as error:
            raise ChainError(str(error)) from error
        refused = self.verdict in {Verdict.REFUSE, Verdict.OFFER}
        if not (self.rule in REASONS if refused else not self.rule):
            raise ChainError("the pre-flight's rule is none that this verdict may name")
        if (self.verdict is Verdict.OFFER) != (self.offer is not None):
            raise ChainError("the pre-flight's terms and its verdict do not belong together")
        _require_signature(self.signature)

    @property
    def reason(self) -> str:
        """The rule's public text; empty where nothing is refused."""
        return REASONS.get(self.rule, "")

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        if self.offer is not None:
            return canonical.encode(
                _OFFER_DOMAIN,
                self.preflight_sha256,
                self.silo_id,
                self.rule,
                *self.offer.fields(),
            )
        return canonical.encode(
            _ANSWER_DOMAIN, self.preflight_sha256, self.silo_id, self.verdict.value, self.rule
        )

    def sign(self, silo_key: Ed25519PrivateKey) -> PreflightAnswer:
        """The same answer with the silo's signature."""
        return replace(self, signature=suite.sign(silo_key, self.signed_bytes()))

    def verify(self, silo_public_key: bytes) -> None:
        """Check the signature.

        Raises:
            ChainError: It is missing or not the silo's.
        """
        if not suite.verify(silo_public_key, self.signature, self.signed_bytes()):
            raise ChainError(f"the answer to the pre-flight is not signed by {self.silo_id}")


def _require_digests(document: Preflight | PreflightAnswer, *names: str) -> None:
    try:
        for name in names:
            bounds.require_bytes(getattr(document, name), bounds.DIGEST_BYTES, f"pre-flight {name}")
    except MalformedMessageError as error:
        raise ChainError(str(error)) from error


def _require_signature(signature: bytes) -> None:
    if not signature:
        return
    try:
        bounds.require_bytes(signature, bounds.SIGNATURE_BYTES, "pre-flight signature")
    except MalformedMessageError as error:
        raise ChainError(str(error)) from error

"""Typed errors of secure aggregation, each naming the check that failed.

The tree::

    SecAggError                  .check, .silo
    ├── MalformedMessageError    a field is out of bounds, before any protocol rule is looked at
    ├── UnexpectedMessageError   the message does not belong to the present state; nothing changes
    ├── VerificationError        a protocol check failed; a client state has dropped its secrets
    └── ParameterError           the caller of this package made a mistake

Error texts name silos and checks, never a key, a seed or a share.
"""

from enum import StrEnum
from typing import Final

__all__ = [
    "Check",
    "MalformedMessageError",
    "ParameterError",
    "SecAggError",
    "UnexpectedMessageError",
    "VerificationError",
]


class Check(StrEnum):
    """The named checks. Logs, metrics and refusals carry these words."""

    MALFORMED = "malformed"
    UNEXPECTED_MESSAGE = "unexpected_message"
    PARAMETER = "parameter"
    # Roster.
    ROSTER_SIGNATURE = "roster_signature"
    ROSTER_EPOCH = "roster_epoch"
    ROSTER_APPROVALS = "roster_approvals"
    # Descriptor, before R0.
    DESCRIPTOR_SIGNATURE = "descriptor_signature"
    DESCRIPTOR_VERSION = "descriptor_version"
    SUITE = "suite"
    TASK = "task"
    DESCRIPTOR_ROSTER = "descriptor_roster"
    COHORT = "cohort"
    COHORT_SIZE = "cohort_size"
    POLICY_THRESHOLD = "policy_threshold"
    NO_WRAP = "no_wrap"
    NOISE = "noise"
    RING = "ring"
    DEADLINES = "deadlines"
    MEMBERSHIP = "membership"
    IDENTITY = "identity"
    MODEL = "model"
    # R0 key bundles.
    BUNDLE_SET = "bundle_set"
    BUNDLE_SIGNATURE = "bundle_signature"
    BUNDLES_SIZE = "bundles_size"
    OWN_BUNDLE = "own_bundle"
    KEY_DISTINCT = "key_distinct"
    LOW_ORDER_KEY = "low_order_key"
    METRICS_FAMILIES = "metrics_families"
    LEDGER_HEAD = "ledger_head"
    DEBIT_HEAD = "debit_head"
    KEM_KEY = "kem_key"
    CONTRIBUTORS = "contributors"
    # R1 share boxes.
    SHARE_SET = "share_set"
    SHARE_SIGNATURE = "share_signature"
    SHARE_RECIPIENTS = "share_recipients"
    SHARES_SIZE = "shares_size"
    OWN_SHARES = "own_shares"
    BOX_SET = "box_set"
    BOX_DIGEST = "box_digest"
    BOX_OPEN = "box_open"
    SHARE_HASH = "share_hash"
    SHARE_RANGE = "share_range"
    LEAF_COUNT = "leaf_count"
    LEAF = "leaf"
    PAIR_SECRET = "pair_secret"  # noqa: S105 - the name of a check
    # R2 masked inputs.
    UPLOAD_SIGNATURE = "upload_signature"
    MASKED_LENGTH = "masked_length"
    MASKED_DIGEST = "masked_digest"
    OWN_UPLOAD = "own_upload"
    DIGEST_LEAF = "digest_leaf"
    REJECTED_PAIR = "rejected_pair"
    # R3 survivors.
    SURVIVORS_ORDER = "survivors_order"
    SURVIVORS_SUBSET = "survivors_subset"
    SURVIVORS_SELF = "survivors_self"
    SURVIVORS_SIZE = "survivors_size"
    COHORT_GREW = "cohort_grew"
    # R4 unmasking.
    AGREEMENT_SET = "agreement_set"
    AGREEMENT_SIGNATURES = "agreement_signatures"
    AGREEMENT_SIZE = "agreement_size"
    UNMASK_SIGNATURE = "unmask_signature"
    UNMASK_KIND = "unmask_kind"
    SHARE_COUNT = "share_count"
    COMMITMENT = "commitment"
    MASK_KEY = "mask_key"
    # Any message at the coordinator.
    SENDER = "sender"
    DUPLICATE = "duplicate"


class SecAggError(Exception):
    """Base of every error of this package."""

    def __init__(self, check: Check, text: str, *, silo: str | None = None) -> None:
        self.check: Final = check
        # The silo the check points at, where it points at one.
        self.silo: Final = silo
        named = f" [{silo}]" if silo is not None else ""
        super().__init__(f"{check.value}{named}: {text}")


class MalformedMessageError(SecAggError):
    """A message or document has a field outside its bounds."""

    def __init__(self, text: str) -> None:
        super().__init__(Check.MALFORMED, text)


class UnexpectedMessageError(SecAggError):
    """A message that the present state does not take. The state is as it was."""

    def __init__(self, text: str, *, silo: str | None = None) -> None:
        super().__init__(Check.UNEXPECTED_MESSAGE, text, silo=silo)


class VerificationError(SecAggError):
    """A check of the protocol failed."""


class ParameterError(SecAggError):
    """The caller passed something this package cannot work with."""

    def __init__(self, text: str) -> None:
        super().__init__(Check.PARAMETER, text)

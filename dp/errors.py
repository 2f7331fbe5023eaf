"""Typed refusals of the privacy core.

    PrivacyError
    ├── SpecError               a configuration that cannot be private, exact, or is not available
    ├── NonFiniteError          a NaN or an infinity in private data (the caller uploads zeros)
    ├── NormExceededError       an encoded vector is longer than its clip
    ├── RingOverflowError       the masked sum could wrap
    ├── NoiseSourceError        a noise key reused, forked, or not of the production kind
    ├── ReceiptError            a receipt used twice or for something else than was debited
    ├── BudgetExceededError     the debit would pass the cap
    ├── IdentityError           an aggregation identity that is not new, or already agreed on
    ├── LedgerLockedError       another process holds the ledger
    ├── LedgerCorruptError      the ledger's bytes or chain are not what was written
    └── LedgerRolledBackError   the ledger is behind a head that somebody has already seen

Every error carries a ``reason`` that is safe to export as a metric label: it never depends on
private values. Messages of errors about data name no data.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why the privacy core refused, as a closed set of labels."""

    UNSPECIFIED = "unspecified"
    SPEC = "spec"
    NON_FINITE = "non_finite"
    NORM_EXCEEDED = "norm_exceeded"
    RING_OVERFLOW = "ring_overflow"
    NOISE_SOURCE = "noise_source"
    RECEIPT = "receipt"
    BUDGET_EXCEEDED = "budget_exceeded"
    IDENTITY = "identity"
    LEDGER_LOCKED = "ledger_locked"
    LEDGER_CORRUPT = "ledger_corrupt"
    LEDGER_ROLLED_BACK = "ledger_rolled_back"


class PrivacyError(Exception):
    """Base of every refusal of this package."""

    reason: Reason = Reason.UNSPECIFIED


class SpecError(PrivacyError):
    """The configuration is not one this package can honour."""

    reason = Reason.SPEC


class NonFiniteError(PrivacyError):
    """Private data hold a NaN or an infinity."""

    reason = Reason.NON_FINITE


class NormExceededError(PrivacyError):
    """The exact integer norm of an encoded vector is above the sensitivity."""

    reason = Reason.NORM_EXCEEDED


class RingOverflowError(PrivacyError):
    """The sum over all silos may leave the ring's signed range."""

    reason = Reason.RING_OVERFLOW


class NoiseSourceError(PrivacyError):
    """The source of randomness may not be used for this release."""

    reason = Reason.NOISE_SOURCE


class ReceiptError(PrivacyError):
    """The ledger receipt does not cover this use."""

    reason = Reason.RECEIPT


class BudgetExceededError(PrivacyError):
    """The projected ε is above the cap.

    Attributes:
        projected_epsilon: ε if the refused entry had been charged.
        epsilon_cap: The cap it would have passed.
    """

    reason = Reason.BUDGET_EXCEEDED

    def __init__(self, *, projected_epsilon: float, epsilon_cap: float) -> None:
        super().__init__(
            f"projected epsilon {projected_epsilon:.6g} is above the cap {epsilon_cap:.6g}: "
            "raise the cap in the silo's own policy, add noise, or stop the run"
        )
        self.projected_epsilon = projected_epsilon
        self.epsilon_cap = epsilon_cap


class IdentityError(PrivacyError):
    """The aggregation identity was used before, is older than a used one, or is agreed on."""

    reason = Reason.IDENTITY


class LedgerLockedError(PrivacyError):
    """A second process tried to open the ledger."""

    reason = Reason.LEDGER_LOCKED


class LedgerCorruptError(PrivacyError):
    """The ledger cannot be trusted; nothing may be released against it."""

    reason = Reason.LEDGER_CORRUPT


class LedgerRolledBackError(PrivacyError):
    """The ledger lacks records that were durable before."""

    reason = Reason.LEDGER_ROLLED_BACK

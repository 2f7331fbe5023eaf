"""Typed refusals of the privacy core.

    PrivacyError
    ├── SpecError               a configuration that cannot be private, exact, or is not available
    ├── NonFiniteError          a NaN or an infinity in private data (the caller uploads zeros)
    ├── NormExceededError       an encoded vector is longer than its clip
    ├── TooManyUnitsError       a step sampled more units than its sum may hold
    ├── RingOverflowError       the masked sum could wrap
    ├── CouplingError           a model or loss in which one unit's gradient depends on another unit
    ├── NoiseSourceError        a noise key reused, forked, or not of the production kind
    ├── ReceiptError            a receipt used twice or for something else than was debited
    ├── BudgetExceededError     the debit would pass the cap
    ├── TooManyDebitsError      the day or the run has no debit left
    ├── IdentityError           an aggregation identity that is not new, or already agreed on
    ├── LedgerLockedError       another process holds the ledger
    ├── LedgerCorruptError      the ledger's bytes or chain are not what was written
    ├── LedgerFormatError       the ledger was written by a release with another format
    ├── OpeningError            the ledger did not begin with what was spent before
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
    TOO_MANY_UNITS = "too_many_units"
    RING_OVERFLOW = "ring_overflow"
    COUPLING = "coupling"
    NOISE_SOURCE = "noise_source"
    RECEIPT = "receipt"
    BUDGET_EXCEEDED = "budget_exceeded"
    TOO_MANY_DEBITS = "too_many_debits"
    IDENTITY = "identity"
    LEDGER_LOCKED = "ledger_locked"
    LEDGER_CORRUPT = "ledger_corrupt"
    LEDGER_FORMAT = "ledger_format"
    LEDGER_OPENING = "ledger_opening"
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


class TooManyUnitsError(PrivacyError):
    """A Poisson sample holds more units than one sum may; its probability is part of δ."""

    reason = Reason.TOO_MANY_UNITS


class RingOverflowError(PrivacyError):
    """The sum over all silos may leave the ring's signed range."""

    reason = Reason.RING_OVERFLOW


class CouplingError(PrivacyError):
    """One unit's gradient depends on which other units are computed beside it."""

    reason = Reason.COUPLING


class NoiseSourceError(PrivacyError):
    """The source of randomness may not be used for this release."""

    reason = Reason.NOISE_SOURCE


class ReceiptError(PrivacyError):
    """The ledger receipt does not cover this use."""

    reason = Reason.RECEIPT


class BudgetExceededError(PrivacyError):
    """The projected ε is above the cap.

    Attributes:
        unit: The unit kind whose budget it is: ``silo``, ``task`` or ``user``.
        projected_epsilon: ε of that kind if the refused charges had been made.
        epsilon_cap: The cap it would have passed; 0 where the silo's policy allows none.
    """

    reason = Reason.BUDGET_EXCEEDED

    def __init__(self, *, unit: str, projected_epsilon: float, epsilon_cap: float) -> None:
        super().__init__(
            f"projected {unit}-level epsilon {projected_epsilon:.6g} is above the cap "
            f"{epsilon_cap:.6g}: raise the cap in the silo's own policy, add noise, or stop the run"
        )
        self.unit = unit
        self.projected_epsilon = projected_epsilon
        self.epsilon_cap = epsilon_cap


class TooManyDebitsError(PrivacyError):
    """So many debits are not allowed, whatever they cost.

    Attributes:
        of_run: True if the run's are used up, False if the day's are.
    """

    reason = Reason.TOO_MANY_DEBITS

    def __init__(self, text: str, *, of_run: bool) -> None:
        super().__init__(text)
        self.of_run = of_run


class IdentityError(PrivacyError):
    """The aggregation identity was used before, is older than a used one, or is agreed on."""

    reason = Reason.IDENTITY


class LedgerLockedError(PrivacyError):
    """A second process tried to open the ledger."""

    reason = Reason.LEDGER_LOCKED


class LedgerCorruptError(PrivacyError):
    """The ledger cannot be trusted; nothing may be released against it."""

    reason = Reason.LEDGER_CORRUPT


class LedgerFormatError(PrivacyError):
    """The ledger is whole, but of a format that this release does not charge in."""

    reason = Reason.LEDGER_FORMAT


class OpeningError(PrivacyError):
    """The ledger did not begin with what its caller says was spent before."""

    reason = Reason.LEDGER_OPENING


class LedgerRolledBackError(PrivacyError):
    """The ledger lacks records that were durable before."""

    reason = Reason.LEDGER_ROLLED_BACK

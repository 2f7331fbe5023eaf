"""Typed failures of the silo daemon.

::

    SiloError
    ├── ConfigError            silo.toml, or what it points at, cannot be used
    │   ├── NoSiloError        the data directory is no silo's
    │   └── PolicyFileError    policy.toml cannot be used
    ├── PolicyRefusalError     the guardian said no; carries the rule and a public reason
    ├── WorkCalledOffError     nobody asks for a round's local work any more
    ├── LateWorkError          local work took longer than a plan gives it in a record mode
    ├── IdentityError          keys, certificate, pinned root or invite cannot be used
    ├── SessionError           a message that does not fit what this silo is doing
    ├── PreflightLateError     a pre-flight was judged later than its answer has to leave
    ├── NotReadyError          what an instruction asks for is still being computed
    ├── TransportError         the coordinator cannot be reached, or answered with a refusal
    │   ├── NotServedError         it is of an earlier version, without this call
    │   └── CoordinatorVersionError  its version and ours cannot work together
    ├── ChainMismatchError     the published chain contradicts what this silo adopted
    ├── SpoolError             a masked upload cannot be kept, or is not what was written
    ├── LocalStoreError        the silo's own state on disk cannot be used
    │   └── AuditLogError      its audit log cannot be read or written
    ├── GuardError             an adapter cannot be judged, or not be put where it is served from
    ├── NothingChosenError     no adapter was chosen that could be exported
    ├── SpentFileError         a file that says what was spent before cannot be used
    └── DiskLimitError         the data directory holds more than the site allows

Texts may name local facts; only ``PolicyRefusalError.public_reason`` is ever sent anywhere.
"""

from __future__ import annotations

from secagg.errors import Check

__all__ = [
    "AuditLogError",
    "ChainMismatchError",
    "ConfigError",
    "CoordinatorVersionError",
    "DiskLimitError",
    "GuardError",
    "IdentityError",
    "LateWorkError",
    "LocalStoreError",
    "NoSiloError",
    "NotReadyError",
    "NotServedError",
    "NothingChosenError",
    "PolicyFileError",
    "PolicyRefusalError",
    "PreflightLateError",
    "SessionError",
    "SiloError",
    "SpentFileError",
    "SpoolError",
    "TransportError",
    "WorkCalledOffError",
]


class SiloError(Exception):
    """Base of every failure of the silo daemon."""


class ConfigError(SiloError):
    """The configuration, or a file it names, cannot be used."""


class NoSiloError(ConfigError):
    """The data directory holds no silo."""


class PolicyFileError(ConfigError):
    """The site's policy cannot be used; nothing is accepted without one."""


class WorkCalledOffError(SiloError):
    """A round's local work is wanted no longer: its run is over, or the silo is being stopped."""


class LateWorkError(SiloError):
    """Local work took longer than the plan gives it; nothing of it leaves."""


class PolicyRefusalError(SiloError):
    """The guardian refused.

    Attributes:
        rule: The rule that fired.
        public_reason: A fixed text that holds no private fact; this alone leaves the silo.
        detail: For the silo's own log.
    """

    def __init__(self, *, rule: str, public_reason: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.public_reason = public_reason
        self.detail = detail


class IdentityError(SiloError):
    """Keys, certificate, pinned root or invite cannot be used."""


class SessionError(SiloError):
    """A message does not fit what this silo is doing.

    Attributes:
        check: The named check that it fails, where it is one of the protocol's.
    """

    def __init__(self, message: str, *, check: Check | None = None) -> None:
        super().__init__(message)
        self.check = check


class NotReadyError(SiloError):
    """An instruction cannot be answered yet; nothing changed, and it is to be asked for again."""


class PreflightLateError(SiloError):
    """A pre-flight was judged later than its answer has to leave; it is given when asked again."""


class TransportError(SiloError):
    """The coordinator cannot be reached, or answered with a refusal.

    Attributes:
        reason: The coordinator's stable reason code; empty where there was no answer.
        late: Whether it was reached, as far as is known, and did not answer in time.
        refused: Whether it called the message wrong or late. Otherwise the very same message may
            still be taken: the coordinator was away, failing or full.
    """

    def __init__(
        self, message: str, *, reason: str = "", refused: bool = False, late: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.refused = refused
        self.late = late


class NotServedError(TransportError):
    """The coordinator does not know this call: it is of an earlier version."""


class CoordinatorVersionError(TransportError):
    """The coordinator's version and this one cannot work together; the text says which to upgrade.

    Either side finds out: ``reason`` is the coordinator's word, or the same word of our own.
    """


class ChainMismatchError(SiloError):
    """The published chain contradicts what this silo adopted."""


class SpoolError(SiloError):
    """A masked upload cannot be kept, or is not what was written."""


class LocalStoreError(SiloError):
    """The silo's own state on disk cannot be used."""


class AuditLogError(LocalStoreError):
    """The audit log cannot be read or written."""


class GuardError(SiloError):
    """An adapter cannot be judged, or not be put where the site serves it from."""


class NothingChosenError(SiloError):
    """This silo has not chosen, of the adapters it may use, one that could be exported."""


class SpentFileError(SiloError):
    """A file that says what was spent before is not whole, not signed, or not one for here."""


class DiskLimitError(SiloError):
    """The data directory holds more than the site allows."""

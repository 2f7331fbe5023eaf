"""Typed refusals of the coordinator, and the stable reasons that a caller is told.

::

    CoordinatorError
    ├── ConfigurationError         coordinator.toml or the data directory cannot be used
    │   ├── NoCoordinatorError         the data directory is no coordinator's
    │   ├── FoundingError              what a new coordinator is to be made of cannot be used
    │   ├── ListenError                an address cannot be listened on
    │   └── ServedDatabaseError        another database is named than the one that is served
    ├── PkiError                   a certificate or key cannot be made, read or trusted
    ├── CaRotationError            the overlap is out of bounds, or another rotation is not over
    ├── AccessError                who calls, and whether they may
    │   ├── UnauthenticatedError       no usable client certificate
    │   ├── ExpiredCertificateError    it was valid when the connection was made, and is no longer
    │   ├── RevokedCertificateError    revoked, replaced, or never issued to this silo
    │   ├── SuspendedSiloError         its silo is suspended
    │   ├── ForeignFederationError     of another federation
    │   └── RoleDeniedError            this role may not call this method
    ├── EnrolmentError
    │   ├── UnknownInviteError         no such invite, or another silo's or federation's
    │   ├── ExpiredInviteError
    │   ├── SpentInviteError
    │   ├── CertificateRequestError    the CSR is malformed, unsigned, or not for a P-256 key
    │   └── PossessionProofError       the Ed25519 signature does not verify
    ├── FederationTermsError       a roster or a run passes the terms of the federation
    │   ├── TermValueError             a term has a value that it cannot have
    │   ├── NoFederationError          none was created yet, or another one is named
    │   └── FederationExistsError      a coordinator has one
    ├── StandingError              a silo's standing does not allow the change
    │   └── UnknownSiloError           no silo of this id has joined
    ├── RosterError                nobody to propose, or a published roster that is refused
    ├── RootKeyError               the consortium root's directory or confirmation
    ├── BlobError                  a blob is absent, or its bytes are not those of its digest
    │   └── BlobUnavailableError       the storage of blobs cannot be reached, or refuses us
    ├── StoreError                 the database is unusable or refuses a change
    │   └── StoreUnavailableError      it cannot be reached, or is failing
    │       └── StoreUnwritableError       its disk is full, fails or is read-only
    ├── StorageFullError           the disk for uploads and sums is full
    ├── BackupError                a backup cannot be taken, or a file is refused at restoring
    ├── UnknownRunError            no such run
    ├── RunError                   a run cannot be started or cannot go on
    │   ├── SubmitTokenError           the token is malformed, or named another request
    │   ├── RollbackError              a rollback that has no place; says what to do instead
    │   └── BisectionError             a bisection that has no place; says what to do instead
    ├── NotPublishedError          asked for something that is not published
    ├── QuarantinedSumError        a sum that honest silos cannot have made; it is not applied
    ├── StaleFactsError            a silo's facts of another time, or not newer than its last
    ├── FactsTooOftenError         a silo's facts too soon after its last
    └── RoundError                 a message that does not fit the round
        ├── LedgerBehindError          the silo's ledger head is behind the newest it signed
        ├── LedgerForkedError          it has that one's height and is another
        ├── WrongRoundError            another run, round, step or attempt
        ├── WrongPhaseError            another phase
        ├── PreflightAnswerError       no answer to the pre-flight that is out
        ├── ForeignMessageError        sent with another silo's certificate
        ├── UploadError                truncated, extended or altered bytes
        ├── LostAttemptError           an open attempt cannot be continued after a restart
        └── TooFewSilosError           fewer than max(t, n_min) answered

A servicer raises; ``server/rpc/answers.py`` answers with the gRPC code, and puts the stable reason
and a public hint into the trailing metadata ``chorale-reason`` and ``chorale-hint``. The error's
own text is public only where ``server/rpc/catalogue.py`` says so. What that does not know is
INTERNAL, says nothing, and goes to the log with its traceback.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "AccessError",
    "BackupError",
    "BisectionError",
    "BlobError",
    "BlobUnavailableError",
    "CaRotationError",
    "CertificateRequestError",
    "ConfigurationError",
    "CoordinatorError",
    "EnrolmentError",
    "ExpiredCertificateError",
    "ExpiredInviteError",
    "FactsTooOftenError",
    "FederationExistsError",
    "FederationTermsError",
    "ForeignFederationError",
    "ForeignMessageError",
    "FoundingError",
    "LedgerBehindError",
    "LedgerForkedError",
    "ListenError",
    "LostAttemptError",
    "NoCoordinatorError",
    "NoFederationError",
    "NotPublishedError",
    "PkiError",
    "PossessionProofError",
    "PreflightAnswerError",
    "QuarantinedSumError",
    "Reason",
    "RevokedCertificateError",
    "RoleDeniedError",
    "RollbackError",
    "RootKeyError",
    "RosterError",
    "RoundError",
    "RunError",
    "ServedDatabaseError",
    "SpentInviteError",
    "StaleFactsError",
    "StandingError",
    "StorageFullError",
    "StoreError",
    "StoreUnavailableError",
    "StoreUnwritableError",
    "SubmitTokenError",
    "SuspendedSiloError",
    "TermValueError",
    "TooFewSilosError",
    "UnauthenticatedError",
    "UnknownInviteError",
    "UnknownRunError",
    "UnknownSiloError",
    "UploadError",
    "WrongPhaseError",
    "WrongRoundError",
]


class Reason(StrEnum):
    """Stable reason codes: trailing metadata ``chorale-reason`` and a metric label."""

    INTERNAL = "internal"
    CONFIGURATION = "configuration"
    ALREADY_SERVED = "already_served"
    PKI = "pki"
    ACCESS_DENIED = "access_denied"
    UNAUTHENTICATED = "unauthenticated"
    CERTIFICATE_EXPIRED = "certificate_expired"
    CERTIFICATE_REVOKED = "certificate_revoked"
    SILO_SUSPENDED = "silo_suspended"
    SILO_STANDING = "silo_standing"
    SILO_UNKNOWN = "silo_unknown"
    CA_ROTATION = "ca_rotation"
    FOREIGN_FEDERATION = "foreign_federation"
    ROLE_DENIED = "role_denied"
    ENROLMENT_REFUSED = "enrolment_refused"
    INVITE_UNKNOWN = "invite_unknown"
    INVITE_EXPIRED = "invite_expired"
    INVITE_SPENT = "invite_spent"
    CSR_REFUSED = "csr_refused"
    POSSESSION_UNPROVEN = "possession_unproven"
    FEDERATION_TERMS = "federation_terms"
    FEDERATION_UNKNOWN = "federation_unknown"
    FEDERATION_EXISTS = "federation_exists"
    ROSTER_REFUSED = "roster_refused"
    ROOT_KEY = "root_key"
    BLOB_UNAVAILABLE = "blob_unavailable"
    BLOB_STORAGE_AWAY = "blob_storage_away"
    AUDIT_BROKEN = "audit_broken"
    AUDIT_HEAD_REFUSED = "audit_head_refused"
    AUDIT_HEAD_CONFLICT = "audit_head_conflict"
    FACTS_REFUSED = "facts_refused"
    FACTS_STALE = "facts_stale"
    FACTS_TOO_OFTEN = "facts_too_often"
    STORE_AWAY = "store_away"
    STORE_REFUSED = "store_refused"
    STORAGE_FULL = "storage_full"
    BACKUP_REFUSED = "backup_refused"
    RUN_UNKNOWN = "run_unknown"
    RUN_REFUSED = "run_refused"
    ROLLBACK_REFUSED = "rollback_refused"
    BISECTION_REFUSED = "bisection_refused"
    SUBMIT_TOKEN = "submit_token"  # noqa: S105 - the name of a reason
    NOT_PUBLISHED = "not_published"
    ROUND_REFUSED = "round_refused"
    WRONG_ROUND = "wrong_round"
    WRONG_PHASE = "wrong_phase"
    FOREIGN_MESSAGE = "foreign_message"
    PREFLIGHT_ANSWER = "preflight_answer"
    UPLOAD_REFUSED = "upload_refused"
    TOO_FEW_SILOS = "too_few_silos"
    SUM_QUARANTINED = "sum_quarantined"
    LEDGER_ROLLED_BACK = "ledger_rolled_back"
    MALFORMED_MESSAGE = "malformed_message"
    UNEXPECTED_MESSAGE = "unexpected_message"
    CHECK_FAILED = "check_failed"
    PLAN_REFUSED = "plan_refused"
    FEDERATION_REFUSED = "federation_refused"
    PRIVACY_REFUSED = "privacy_refused"
    VERSION_MALFORMED = "version_malformed"
    VERSION_MISMATCH = "version_mismatch"


class CoordinatorError(Exception):
    """Base of every refusal of this package."""


class ConfigurationError(CoordinatorError):
    """The configuration or the data directory cannot be used."""


class NoCoordinatorError(ConfigurationError):
    """The data directory holds no coordinator."""


class FoundingError(ConfigurationError):
    """What a new coordinator is to be made of cannot be used; nothing was made."""


class ListenError(ConfigurationError):
    """An address cannot be listened on."""


class ServedDatabaseError(ConfigurationError):
    """Another database is named than the one this data directory is served from."""


class AlreadyServedError(ConfigurationError):
    """Another coordinator serves this data directory or this database."""


class PkiError(CoordinatorError):
    """A certificate or key cannot be made, read or trusted."""


class CaRotationError(CoordinatorError):
    """The overlap is out of bounds, or another rotation is not over."""


class AccessError(CoordinatorError):
    """The caller may not do this."""


class UnauthenticatedError(AccessError):
    """There is no usable client certificate."""


class ExpiredCertificateError(AccessError):
    """The client certificate is outside its validity now."""


class RevokedCertificateError(AccessError):
    """The certificate is revoked, replaced, or was never issued to this silo."""


class SuspendedSiloError(AccessError):
    """The silo is suspended until the admin reinstates it."""


class ForeignFederationError(AccessError):
    """The certificate is of another federation."""


class RoleDeniedError(AccessError):
    """This role may not call this method."""


class EnrolmentError(CoordinatorError):
    """A silo cannot join."""


class UnknownInviteError(EnrolmentError):
    """The secret matches no invite for this silo and federation."""


class ExpiredInviteError(EnrolmentError):
    """The invite's time is over."""


class SpentInviteError(EnrolmentError):
    """The invite was used before."""


class CertificateRequestError(EnrolmentError):
    """The certificate request is malformed, unsigned, or not for a P-256 key."""


class PossessionProofError(EnrolmentError):
    """The join request is not signed by the verification key it names."""


class FederationTermsError(CoordinatorError):
    """A roster or a run passes the terms of the federation."""


class TermValueError(FederationTermsError):
    """A term of a new federation has a value that it cannot have."""


class NoFederationError(FederationTermsError):
    """No federation was created yet, or another one is named than this coordinator's."""


class FederationExistsError(FederationTermsError):
    """This coordinator has a federation already."""


class StandingError(CoordinatorError):
    """A silo's standing does not allow the change."""


class UnknownSiloError(StandingError):
    """No silo of this id has joined."""


class RosterError(CoordinatorError):
    """There is nobody to propose, or the published roster is refused."""


class RootKeyError(CoordinatorError):
    """The consortium root's directory cannot be used, or the signature was declined."""


class BlobError(CoordinatorError):
    """A blob is absent, or its bytes are not those of its digest."""


class BlobUnavailableError(BlobError):
    """The storage of blobs cannot be reached or refuses the coordinator; it may be tried again."""


class StoreError(CoordinatorError):
    """The database is unusable or refuses a change."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached or is failing; the very same call may be repeated."""


class StoreBusyError(StoreUnavailableError):
    """Another transaction holds the database for longer than the caller waits; it can be read."""


class StoreUnwritableError(StoreUnavailableError):
    """The database takes no write: its disk is full, fails or is read-only."""


class StorageFullError(CoordinatorError):
    """The disk for uploads and sums is full."""


class BackupError(CoordinatorError):
    """A backup cannot be taken, or what is to be restored is refused."""


class UnknownRunError(CoordinatorError):
    """There is no such run."""


class RunError(CoordinatorError):
    """A run cannot be started or cannot go on."""


class SubmitTokenError(RunError):
    """The submit token is malformed, or named another request."""


class RollbackError(RunError):
    """A rollback has no place in the run; the text says what to do instead."""


class BisectionError(RunError):
    """A bisection has no place in the run; the text says what to do instead."""


class NotPublishedError(CoordinatorError):
    """The caller asked for something that is not published."""


class QuarantinedSumError(CoordinatorError):
    """Honest silos cannot have made this sum; nothing of it is applied or shown."""


class StaleFactsError(CoordinatorError):
    """A silo's facts are of another time than now, or not newer than those it published before."""


class FactsTooOftenError(CoordinatorError):
    """A silo published facts again so soon that they are not taken."""


class RoundError(CoordinatorError):
    """A message does not fit the round."""


class WrongRoundError(RoundError):
    """The message is for another run, round, step or attempt."""


class PreflightAnswerError(RoundError):
    """It is no answer to the pre-flight that is out, or not its silo's."""


class LedgerBehindError(RoundError):
    """A silo's ledger head is behind the newest one that it signed."""


class LedgerForkedError(RoundError):
    """A silo's ledger head has the height of the newest one that it signed and is another."""


class WrongPhaseError(RoundError):
    """The message is for another phase."""


class ForeignMessageError(RoundError):
    """The message names another silo than the client certificate."""


class UploadError(RoundError):
    """The upload's bytes are truncated, extended or altered."""


class LostAttemptError(RoundError):
    """An open attempt cannot be continued after a restart."""


class TooFewSilosError(RoundError):
    """Fewer than max(t, n_min) silos answered."""

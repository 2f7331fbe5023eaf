"""The one table from error types to what a caller is told.

Invariants:

1. Every error type of the coordinator, and the bases of the cores, has an entry of its own or
   inherits its nearest base's; anything else is ``internal``.
2. Reasons are stable words, a closed set, and the label values of
   ``chorale_rejected_messages_total``.
3. Hints are ASCII, public, and say what to do.

Covered: everything a servicer raises. Not covered: failures before a servicer runs (TLS, an
unknown method), which gRPC answers itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from grpc import StatusCode

from dp.errors import PrivacyError
from federation.errors import (
    AuditChainError,
    AuditHeadConflictError,
    AuditHeadError,
    FactsError,
    FederationError,
    PlanError,
    VersionError,
    VersionMismatchError,
)
from secagg.errors import MalformedMessageError, SecAggError, UnexpectedMessageError
from server import errors
from server.errors import Reason

__all__ = ["CATALOGUE", "Answer", "describe"]

MAX_TEXT_CHARS: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What the catalogue holds for one error type."""

    code: StatusCode
    reason: Reason
    hint: str
    public_text: bool
    """Whether the error's own message may leave the process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the caller is told."""

    code: StatusCode
    reason: Reason
    hint: str
    text: str
    public: bool
    """False: the text says nothing, and the error belongs in the log."""


def _entry(code: StatusCode, reason: Reason, hint: str, *, public_text: bool = True) -> Entry:
    return Entry(code=code, reason=reason, hint=hint, public_text=public_text)


_INTERNAL: Final = _entry(
    StatusCode.INTERNAL,
    Reason.INTERNAL,
    "the coordinator's log has the detail",
    public_text=False,
)
_LOG: Final = "the coordinator's log has the detail"
_NEW_INVITE: Final = "ask the admin for a new invite: chorale invite FEDERATION SILO"
_RESUME: Final = "poll for the current instruction"
_LEDGER: Final = "restore the newer ledger, or remove the silo: chorale budget shows the heads"

CATALOGUE: Final = MappingProxyType(
    {
        errors.CoordinatorError: _INTERNAL,
        errors.ConfigurationError: _entry(
            StatusCode.FAILED_PRECONDITION, Reason.CONFIGURATION, "correct coordinator.toml"
        ),
        errors.NoCoordinatorError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.CONFIGURATION,
            "--data or CHORALE_DATA names the directory that chorale init made",
        ),
        errors.FoundingError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.CONFIGURATION,
            "nothing was made; chorale init --help says what each option takes",
        ),
        errors.ListenError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.CONFIGURATION,
            "ss -ltnp shows who holds a port: stop that program, or choose another address in "
            "coordinator.toml",
        ),
        errors.ServedDatabaseError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.CONFIGURATION,
            "give the command the database URL that the service has",
        ),
        errors.AlreadyServedError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.ALREADY_SERVED,
            "one process serves at a time; --standby waits for its turn",
        ),
        errors.PkiError: _entry(StatusCode.INTERNAL, Reason.PKI, _LOG, public_text=False),
        errors.AccessError: _entry(
            StatusCode.PERMISSION_DENIED, Reason.ACCESS_DENIED, "use another certificate"
        ),
        errors.UnauthenticatedError: _entry(
            StatusCode.UNAUTHENTICATED,
            Reason.UNAUTHENTICATED,
            "connect with the client certificate from chorale-silo join or chorale init",
        ),
        errors.ExpiredCertificateError: _entry(
            StatusCode.UNAUTHENTICATED,
            Reason.CERTIFICATE_EXPIRED,
            "silo: join with a new invite; admin: chorale admin renew",
        ),
        errors.RevokedCertificateError: _entry(
            StatusCode.PERMISSION_DENIED, Reason.CERTIFICATE_REVOKED, _NEW_INVITE
        ),
        errors.SuspendedSiloError: _entry(
            StatusCode.PERMISSION_DENIED,
            Reason.SILO_SUSPENDED,
            "ask the admin: chorale silo reinstate SILO ends it",
        ),
        errors.StandingError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.SILO_STANDING,
            "chorale silo show SILO says how it stands",
        ),
        errors.UnknownSiloError: _entry(
            StatusCode.NOT_FOUND, Reason.SILO_UNKNOWN, "chorale silo list shows who joined"
        ),
        errors.CaRotationError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.CA_ROTATION,
            "chorale ca show says which CAs are trusted, and until when",
        ),
        errors.ForeignFederationError: _entry(
            StatusCode.PERMISSION_DENIED,
            Reason.FOREIGN_FEDERATION,
            "silo: check which federation this data directory joined; admin: chorale admin renew",
        ),
        errors.RoleDeniedError: _entry(
            StatusCode.PERMISSION_DENIED,
            Reason.ROLE_DENIED,
            "this method needs another role's certificate",
        ),
        errors.EnrolmentError: _entry(
            StatusCode.PERMISSION_DENIED, Reason.ENROLMENT_REFUSED, _NEW_INVITE
        ),
        errors.UnknownInviteError: _entry(
            StatusCode.PERMISSION_DENIED, Reason.INVITE_UNKNOWN, _NEW_INVITE
        ),
        errors.ExpiredInviteError: _entry(
            StatusCode.PERMISSION_DENIED, Reason.INVITE_EXPIRED, _NEW_INVITE
        ),
        errors.SpentInviteError: _entry(
            StatusCode.PERMISSION_DENIED, Reason.INVITE_SPENT, _NEW_INVITE
        ),
        errors.CertificateRequestError: _entry(
            StatusCode.INVALID_ARGUMENT, Reason.CSR_REFUSED, "send a signed CSR with a P-256 key"
        ),
        errors.PossessionProofError: _entry(
            StatusCode.INVALID_ARGUMENT,
            Reason.POSSESSION_UNPROVEN,
            "sign the statement with the silo's own Ed25519 key",
        ),
        errors.FederationTermsError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.FEDERATION_TERMS,
            "chorale federation show prints the terms",
        ),
        errors.TermValueError: _entry(
            StatusCode.INVALID_ARGUMENT,
            Reason.FEDERATION_TERMS,
            "nothing was created; chorale federation create --help says what each option takes",
        ),
        errors.NoFederationError: _entry(
            StatusCode.NOT_FOUND,
            Reason.FEDERATION_UNKNOWN,
            "chorale federation show; chorale federation create NAME if there is none",
        ),
        errors.FederationExistsError: _entry(
            StatusCode.ALREADY_EXISTS,
            Reason.FEDERATION_EXISTS,
            "chorale federation show prints its terms",
        ),
        errors.RosterError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.ROSTER_REFUSED,
            "propose the roster again and have the root sign it",
        ),
        errors.RootKeyError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.ROOT_KEY,
            "check --dir; compare the fingerprints with the silos, then answer y",
        ),
        errors.BlobError: _entry(
            StatusCode.NOT_FOUND, Reason.BLOB_UNAVAILABLE, "ask for a published digest"
        ),
        errors.BlobUnavailableError: _entry(
            StatusCode.UNAVAILABLE,
            Reason.BLOB_STORAGE_AWAY,
            "try again; the coordinator's log says what its object storage answered",
            public_text=False,
        ),
        errors.StoreUnavailableError: _entry(
            StatusCode.UNAVAILABLE,
            Reason.STORE_AWAY,
            "try again; the coordinator's log says what its database answered",
            public_text=False,
        ),
        errors.StoreBusyError: _entry(
            StatusCode.UNAVAILABLE,
            Reason.STORE_AWAY,
            "try again; somebody else holds the coordinator's database",
            public_text=False,
        ),
        errors.StoreUnwritableError: _entry(
            StatusCode.RESOURCE_EXHAUSTED, Reason.STORAGE_FULL, _LOG, public_text=False
        ),
        errors.StoreError: _entry(
            StatusCode.INTERNAL, Reason.STORE_REFUSED, _LOG, public_text=False
        ),
        errors.StorageFullError: _entry(
            StatusCode.RESOURCE_EXHAUSTED, Reason.STORAGE_FULL, _LOG, public_text=False
        ),
        errors.BackupError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.BACKUP_REFUSED,
            "chorale backup --help, chorale restore --help",
        ),
        errors.UnknownRunError: _entry(
            StatusCode.NOT_FOUND, Reason.RUN_UNKNOWN, "chorale run list shows the runs"
        ),
        errors.RunError: _entry(
            StatusCode.FAILED_PRECONDITION, Reason.RUN_REFUSED, "chorale run list shows the runs"
        ),
        errors.SubmitTokenError: _entry(
            StatusCode.INVALID_ARGUMENT,
            Reason.SUBMIT_TOKEN,
            "one token stands for one request: use a new one",
        ),
        errors.RollbackError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.ROLLBACK_REFUSED,
            "chorale adapter list RUN shows the rounds, chorale run list the state of each run",
        ),
        errors.BisectionError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.BISECTION_REFUSED,
            "chorale run show RUN tells what the halves so far were",
        ),
        errors.NotPublishedError: _entry(
            StatusCode.NOT_FOUND,
            Reason.NOT_PUBLISHED,
            "what is not there yet waits for the admin",
        ),
        errors.StaleFactsError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.FACTS_STALE,
            "facts are signed anew each time; set the silo's clock: timedatectl set-ntp true",
        ),
        errors.FactsTooOftenError: _entry(
            StatusCode.RESOURCE_EXHAUSTED,
            Reason.FACTS_TOO_OFTEN,
            "publish again in ten seconds; the facts before stay for 15 minutes",
        ),
        errors.RoundError: _entry(StatusCode.FAILED_PRECONDITION, Reason.ROUND_REFUSED, _RESUME),
        errors.WrongRoundError: _entry(StatusCode.FAILED_PRECONDITION, Reason.WRONG_ROUND, _RESUME),
        errors.WrongPhaseError: _entry(StatusCode.FAILED_PRECONDITION, Reason.WRONG_PHASE, _RESUME),
        errors.LedgerBehindError: _entry(
            StatusCode.FAILED_PRECONDITION, Reason.LEDGER_ROLLED_BACK, _LEDGER
        ),
        errors.LedgerForkedError: _entry(
            StatusCode.FAILED_PRECONDITION, Reason.LEDGER_ROLLED_BACK, _LEDGER
        ),
        errors.ForeignMessageError: _entry(
            StatusCode.PERMISSION_DENIED,
            Reason.FOREIGN_MESSAGE,
            "a silo speaks for itself only",
        ),
        errors.PreflightAnswerError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.PREFLIGHT_ANSWER,
            "answer the pre-flight that came with the newest poll, once",
        ),
        errors.UploadError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.UPLOAD_REFUSED,
            "ask GetUploadOffset and resume there",
        ),
        errors.LostAttemptError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.ROUND_REFUSED,
            "the attempt is over; poll for the next one",
        ),
        errors.TooFewSilosError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.TOO_FEW_SILOS,
            "the attempt is over; poll for the next one",
        ),
        errors.QuarantinedSumError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.SUM_QUARANTINED,
            "the round is skipped; the adapter stays as it was",
        ),
        SecAggError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.CHECK_FAILED,
            "the message failed the named check of secure aggregation",
        ),
        MalformedMessageError: _entry(
            StatusCode.INVALID_ARGUMENT, Reason.MALFORMED_MESSAGE, "a field is out of bounds"
        ),
        UnexpectedMessageError: _entry(
            StatusCode.FAILED_PRECONDITION, Reason.UNEXPECTED_MESSAGE, _RESUME
        ),
        FederationError: _entry(
            StatusCode.INVALID_ARGUMENT, Reason.FEDERATION_REFUSED, "correct the document"
        ),
        AuditChainError: _entry(StatusCode.DATA_LOSS, Reason.AUDIT_BROKEN, "chorale audit verify"),
        AuditHeadError: _entry(
            StatusCode.INVALID_ARGUMENT,
            Reason.AUDIT_HEAD_REFUSED,
            "a head is signed by the silo that sends it",
        ),
        AuditHeadConflictError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.AUDIT_HEAD_CONFLICT,
            "at the silo: chorale-silo audit verify",
        ),
        FactsError: _entry(
            StatusCode.INVALID_ARGUMENT,
            Reason.FACTS_REFUSED,
            "facts are those of federation/membership/facts.py, signed by the silo that sends them",
        ),
        VersionError: _entry(
            StatusCode.INVALID_ARGUMENT,
            Reason.VERSION_MALFORMED,
            "send chorale-version and chorale-protocol once each, or neither",
        ),
        VersionMismatchError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.VERSION_MISMATCH,
            "upgrade the side that the text names",
        ),
        PlanError: _entry(
            StatusCode.INVALID_ARGUMENT, Reason.PLAN_REFUSED, "chorale run plan lists the problems"
        ),
        PrivacyError: _entry(
            StatusCode.FAILED_PRECONDITION,
            Reason.PRIVACY_REFUSED,
            "check the plan's privacy section",
        ),
    }
)


def describe(error: BaseException) -> Answer:
    """Look an error up, by its nearest catalogued type."""
    entry = next((CATALOGUE[kind] for kind in type(error).__mro__ if kind in CATALOGUE), _INTERNAL)
    text = str(error)[:MAX_TEXT_CHARS] if entry.public_text else "internal error"
    return Answer(
        code=entry.code,
        reason=entry.reason,
        # Version 0.1.0 shows the hint alone, and this one is worth nothing without both versions.
        hint=text if entry.reason is Reason.VERSION_MISMATCH else entry.hint,
        text=text,
        public=entry.public_text,
    )

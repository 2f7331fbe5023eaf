"""Typed refusals of what every party computes identically.

    FederationError
    ├── PlanError       a run plan that cannot be honoured; ``problems`` lists all of them
    ├── UnknownPartError  a method or a part of one that is not there, or whose card is none
    ├── LayoutError     tensors or vectors that do not fit the agreed layout
    ├── AdapterError    published adapter bytes that are not a well-formed adapter
    ├── ModelShapeError a base model's config.json whose adapter's shapes are not known from it
    ├── BaseFilesError  a directory whose files are no base model that is accepted
    ├── TargetError     a target that names layers which a base model does not have
    ├── ChainError      a task, record or chain of records that does not verify
    ├── UpdateError     a published update that does not follow from the published sum
    │   └── OptimiserStateError  the optimiser has not seen the release before this one
    ├── TranscriptError a transcript of an aggregation that does not verify; names the check
    ├── AuditChainError an audit log that is not as it was written; names the first bad record
    │   └── TornRecordError  its last record was never written to its end, as a power cut leaves it
    ├── AuditHeadError  a signed head of an audit log that is malformed or not its writer's
    │   └── AuditHeadConflictError  a log that went back, or was written anew, under its own head
    ├── ProbeError      the port of probes and metrics cannot be served
    │   └── ProbePortError  its address cannot be bound
    ├── DeploymentError files to deploy with that cannot be found, filled in or written
    ├── TomlError       a document that is too long, too deep, or no TOML
    ├── LogSettingError a variable that says how to log has a value that it cannot have
    ├── TracingError    tracing is asked for and cannot be had; says what to install or unset
    ├── AdviceError     what a model would be told of a round is out of bounds
    │   ├── AdviceRecordError  bytes are not the record of a consultation
    │   └── AdviceReplayError  a record's answers do not lead to what it says
    └── VersionError    what a peer says of its version is malformed
        └── VersionMismatchError  two versions that cannot work together; says which to upgrade

Messages name public facts only (names, shapes, rounds, digests), never a private value.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class FederationError(Exception):
    """Base of every refusal of this package."""


class PlanError(FederationError):
    """The plan cannot be honoured.

    Attributes:
        problems: Every problem found, each with its key path and what to do about it.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the plan is refused: " + "; ".join(self.problems))


class UnknownPartError(FederationError):
    """A method or a part is not there, or its card is none; says what is known or to install."""


class LayoutError(FederationError):
    """Tensors or a vector do not match the layout."""


class AdapterError(FederationError):
    """Bytes are not an adapter of the published form."""


class ModelShapeError(FederationError):
    """A base model's ``config.json`` does not say which adapter fits it."""


class BaseFilesError(FederationError):
    """A directory's files are no base model that is accepted, or cannot be read."""


class TargetError(FederationError):
    """A target names a layer that the base model does not have; says what it has."""


class ChainError(FederationError):
    """A signed document or a link of the provenance chain does not verify."""


class UpdateError(FederationError):
    """The published adapter does not follow from the previous one and the sum."""


class OptimiserStateError(UpdateError):
    """The optimiser's state is not that of the release before: replay the round's earlier sums."""


class ProbeError(FederationError):
    """The port of probes and metrics cannot be served."""


class ProbePortError(ProbeError):
    """The address of probes and metrics cannot be bound."""


class DeploymentError(FederationError):
    """Files to deploy with cannot be found, filled in or written."""


class TomlError(FederationError):
    """A document is too long, too deep, too full, or no TOML."""


class LogSettingError(FederationError):
    """A variable that says how to log has a value that it cannot have."""


class TracingError(FederationError):
    """Tracing is asked for and cannot be had; the text says what to install or to unset."""


class TranscriptCheck(StrEnum):
    """The checks of a transcript, in the order in which they are made."""

    FORMAT = "format"
    ROSTER = "roster"
    DESCRIPTOR = "descriptor"
    BUNDLES = "bundles"
    CTX = "ctx"
    SHARE_HEADERS = "share_headers"
    MEMBERS = "members"
    SURVIVORS = "survivors"
    UPLOAD_HEADERS = "upload_headers"
    AGREEMENTS = "agreements"
    RECORD = "record"
    RECORD_SURVIVORS = "record_survivors"
    RECORD_DESCRIPTOR = "record_descriptor"
    PARENT = "parent"
    SUM = "sum"


class TranscriptError(FederationError):
    """A transcript does not verify.

    Attributes:
        check: The first check that failed.
    """

    def __init__(self, check: TranscriptCheck, text: str) -> None:
        self.check = check
        super().__init__(f"{check.value}: {text}")


class AuditChainError(FederationError):
    """An audit log is not as it was written.

    Attributes:
        index: The first bad record.
    """

    def __init__(self, index: int, text: str) -> None:
        self.index = index
        super().__init__(f"audit {text}")


class TornRecordError(AuditChainError):
    """The last record was never written to its end; every one before it is in place."""


class AuditHeadError(FederationError):
    """A head of an audit log is malformed, or not signed by its writer."""


class AuditHeadConflictError(AuditHeadError):
    """Two heads that one log, only ever appended to, cannot both have had."""


class AdviceError(FederationError):
    """What a model would be told, or may propose, is out of bounds."""


class AdviceRecordError(AdviceError):
    """Bytes are not the record of a consultation."""


class AdviceReplayError(AdviceError):
    """A record's answers do not lead to its requests, or to its result; says which turn."""


class VersionError(FederationError):
    """What a peer says of its version is malformed."""


class VersionMismatchError(VersionError):
    """Two versions cannot work together, or not on this; the text says which to upgrade."""

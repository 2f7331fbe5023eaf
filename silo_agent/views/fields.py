"""Of every field that a silo sends: who can read it, and what it says.

Keys are the fields' full names in ``proto/chorale/v1``. A field that is not listed is shown as
readable, with the words "not described": nothing that is sent is ever left out, and a test walks
every request so that nothing stays undescribed.

Covered: the requests of the round and membership services. Not covered: this silo's version, which
stands beside every call (``federation/version.py``); what the coordinator sends on; key bundles,
box headers and upload headers reach every silo of the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["CLEAR", "FIELDS", "MASKED", "NEVER", "SEALED", "SHARE", "UNKNOWN", "Meaning"]

CLEAR: Final = "in clear"
SEALED: Final = "sealed to one silo"
MASKED: Final = "masked and noised"
SHARE: Final = "a share of a mask's seed"

NEVER: Final = (
    "prompts, trajectories, tasks, tools, memories, principles, demonstrations and all other text",
    "the update of this silo alone, its norm, its loss, its rewards",
    "an adapter of this silo's own, and which adapter it chose to use",
    "how many episodes this silo played or solved, but in the masked and noised block",
    "how long local work took, as far as the plan's ready_after_s keeps the report back",
    "private keys; logs, metrics, reports, the ledger's and the audit log's records",
)
"""What no message has a place for."""


class Meaning(NamedTuple):
    """One field."""

    seen: str
    """``CLEAR``, ``SEALED``, ``MASKED`` or ``SHARE``."""
    about: str
    """What it says."""


UNKNOWN: Final = Meaning(CLEAR, "not described")
_SIGNED: Final = Meaning(CLEAR, "this silo's Ed25519 signature")
_ME: Final = Meaning(CLEAR, "this silo's name")
_RUN: Final = Meaning(CLEAR, "the run's name, from the coordinator")
_ROUND: Final = Meaning(CLEAR, "the round, from the coordinator")
_STEP: Final = Meaning(CLEAR, "the step of the round, from the coordinator")
_HASH: Final = Meaning(CLEAR, "hash of a random share, so that a corrupt one is found")
_ASKED: Final = Meaning(CLEAR, "digest of something published that this silo fetches")

FIELDS: Final[Mapping[str, Meaning]] = MappingProxyType(
    {
        f"chorale.v1.{name}": meaning
        for name, meaning in {
            "AggregationId.run_id": _RUN,
            "AggregationId.round": _ROUND,
            "AggregationId.step": _STEP,
            "AggregationId.part": Meaning(CLEAR, "the part of a sum, from the coordinator"),
            "AggregationId.attempt": Meaning(CLEAR, "the attempt, from the coordinator"),
            "ReportReadyRequest.run_id": _RUN,
            "ReportReadyRequest.round": _ROUND,
            "ReportReadyRequest.step": _STEP,
            "ReportReadyRequest.adapter_sha256": Meaning(
                CLEAR, "digest of the published adapter that local work began with"
            ),
            "ReportReadyRequest.families": Meaning(
                CLEAR, "environment families that silo.toml names"
            ),
            "RefuseRequest.run_id": _RUN,
            "RefuseRequest.round": _ROUND,
            "RefuseRequest.step": _STEP,
            "RefuseRequest.reason": Meaning(CLEAR, "one of a few fixed texts, only if it refuses"),
            "KeyBundle.silo_id": _ME,
            "KeyBundle.cipher_key": Meaning(CLEAR, "public key made for this attempt alone"),
            "KeyBundle.mask_key": Meaning(CLEAR, "public key made for this attempt alone"),
            "KeyBundle.ledger_seq": Meaning(
                CLEAR, "how many records this silo's privacy ledger has"
            ),
            "KeyBundle.ledger_sha256": Meaning(CLEAR, "digest of the ledger's newest record"),
            "KeyBundle.signature": _SIGNED,
            "KeyBundle.families": Meaning(CLEAR, "environment families that silo.toml names"),
            "KemKeys.cipher_key": Meaning(CLEAR, "public ML-KEM key made for this attempt alone"),
            "KemKeys.mask_key": Meaning(CLEAR, "public ML-KEM key made for this attempt alone"),
            "DebitHead.seq": Meaning(
                CLEAR, "which record of this silo's privacy ledger charged something last"
            ),
            "DebitHead.sha256": Meaning(CLEAR, "that record's digest"),
            "KeyBundle.cohort_may_vary": Meaning(
                CLEAR, "whether the site lets the cohorts of a run without noise vary"
            ),
            "ShareRoot.sender": _ME,
            "ShareRoot.leaf_count": Meaning(CLEAR, "how many silos it deals to"),
            "ShareRoot.root": Meaning(CLEAR, "digest of all that it deals"),
            "ShareRoot.self_seed_commitment": Meaning(CLEAR, "hash of a random seed"),
            "ShareRoot.own_self_seed_share_sha256": _HASH,
            "ShareRoot.signature": _SIGNED,
            "ShareLeaf.recipient": Meaning(CLEAR, "another silo of the cohort"),
            "ShareLeaf.box_kem": Meaning(CLEAR, "an encapsulated random key, for that silo alone"),
            "ShareLeaf.ciphertext": Meaning(
                SEALED, "shares of two secrets made for this attempt alone"
            ),
            "ShareLeaf.self_seed_share_sha256": _HASH,
            "ShareLeaf.mask_key_share_sha256": _HASH,
            "ShareLeaf.mask_kem": Meaning(CLEAR, "an encapsulated random key, for that silo alone"),
            "ShareLeaf.sealed": Meaning(SEALED, "a random secret of the two for this attempt"),
            "ShareLeaf.pair_secret_sha256": _HASH,
            "MaskedInputHeader.rejected": Meaning(
                CLEAR, "silos whose part of a mask could not be used"
            ),
            "UploadOpening.leaves": Meaning(CLEAR, "digests of the masked upload's chunks"),
            "PairSecret.silo_id": Meaning(CLEAR, "a silo that was lost"),
            "PairSecret.secret": Meaning(
                CLEAR, "the secret of this silo's mask with a lost one, so that it can be taken off"
            ),
            "ShareBoxes.sender": _ME,
            "ShareBox.recipient": Meaning(CLEAR, "another silo of the cohort"),
            "ShareBox.ciphertext": Meaning(
                SEALED, "shares of two secrets made for this attempt alone"
            ),
            "ShareBox.self_seed_share_sha256": _HASH,
            "ShareBox.mask_key_share_sha256": _HASH,
            "ShareBoxes.self_seed_commitment": Meaning(CLEAR, "hash of a random seed"),
            "ShareBoxes.own_self_seed_share_sha256": _HASH,
            "ShareBoxes.signature": _SIGNED,
            "UploadOpening.offset_bytes": Meaning(CLEAR, "where the upload goes on"),
            "MaskedInputHeader.silo_id": _ME,
            "MaskedInputHeader.length_bytes": Meaning(CLEAR, "length of the upload, from the plan"),
            "MaskedInputHeader.masked_sha256": Meaning(CLEAR, "digest of the masked upload"),
            "MaskedInputHeader.signature": _SIGNED,
            "UploadChunk.content": Meaning(
                MASKED, "update and metrics block; alone it is noise to everybody"
            ),
            "ConsistencySignature.silo_id": _ME,
            "ConsistencySignature.signature": Meaning(
                CLEAR, "this silo's signature on whose uploads are summed"
            ),
            "UnmaskingShares.silo_id": _ME,
            "UnmaskingShare.owner": Meaning(CLEAR, "a silo of the cohort"),
            "UnmaskingShare.share": Meaning(
                SHARE, "t of them open the masks of the sum, for each silo one kind only"
            ),
            "UnmaskingShares.signature": _SIGNED,
            "PollRequest.last_instruction_id": Meaning(
                CLEAR, "the coordinator's newest instruction"
            ),
            "PollRequest.wait_s": Meaning(CLEAR, "how long it may wait with its answer"),
            "GetRosterRequest.from_epoch": Meaning(
                CLEAR, "the newest roster that this silo has accepted"
            ),
            "GetPlanRequest.plan_sha256": _ASKED,
            "FetchBlobRequest.sha256": _ASKED,
            "FetchBlobRequest.offset_bytes": Meaning(CLEAR, "where the download goes on"),
            "ListRecordsRequest.run_id": _RUN,
            "ListRecordsRequest.from_position": Meaning(
                CLEAR, "up to where this silo has followed the published chain"
            ),
            "PreflightAnswer.preflight_sha256": Meaning(
                CLEAR, "digest of the coordinator's question"
            ),
            "PreflightAnswer.silo_id": _ME,
            "PreflightAnswer.verdict": Meaning(
                CLEAR, "whether its policy would let a run with this plan begin"
            ),
            "PreflightAnswer.rule": Meaning(
                CLEAR, "the name of the rule that refuses, only if one does"
            ),
            "Offer.local_epochs": Meaning(
                CLEAR, "how many local epochs policy.toml allows, only if [offers] says so"
            ),
            "Offer.start_after_unix_s": Meaning(
                CLEAR, "when the hours of policy.toml begin next, only if [offers] says so"
            ),
            "Offer.epsilon_quarters": Meaning(
                CLEAR,
                "what epsilon of the run policy.toml and budget allow, only if [offers] says so",
            ),
            "PreflightAnswer.signature": _SIGNED,
            "AuditHead.index": Meaning(CLEAR, "how many records this silo's audit log has"),
            "AuditHead.sha256": Meaning(CLEAR, "digest of its newest record"),
            "AuditHead.at_unix_s": Meaning(CLEAR, "this silo's clock"),
            "AuditHead.signature": _SIGNED,
            "SiloFacts.availability": Meaning(
                CLEAR, "whether a round may begin here now: 1 up, 2 down; if the policy lists it"
            ),
            "SiloFacts.queue": Meaning(
                CLEAR, "jobs before this federation's, as an operator said; if the policy lists it"
            ),
            "SiloFacts.free_gpu": Meaning(
                CLEAR,
                "what is free on the GPUs, as an operator said: 1 none, 2 some, 3 most, 4 all; if "
                "the policy lists it",
            ),
            "SiloFacts.budget_left": Meaning(
                CLEAR,
                "what is left of the policy's caps: 1 under a quarter, 2 under a half, 3 under "
                "three quarters, 4 more; if the policy lists it",
            ),
            "SiloFacts.earliest_start_unix_s": Meaning(
                CLEAR, "when the policy's hours begin; if the policy lists it"
            ),
            "PublishFactsRequest.issued_unix_s": Meaning(CLEAR, "this silo's clock"),
            "PublishFactsRequest.signature": _SIGNED,
            "RenewCertificateRequest.csr": Meaning(
                CLEAR, "public key and name, for the next certificate"
            ),
            "RenewCertificateRequest.signature": _SIGNED,
            "ApproveRosterRequest.epoch": Meaning(CLEAR, "of the roster that an operator approves"),
            "ApproveRosterRequest.roster_sha256": Meaning(CLEAR, "its digest"),
            "ApproveRosterRequest.signature": _SIGNED,
            "LeaveRequest.revoke": Meaning(CLEAR, "whether the certificate ends now"),
        }.items()
    }
)

"""Every statement that is signed or hashed, made once by the code, with what must stand in it.

`STATEMENTS` has one of each domain, and one of each form where a domain has several. The values are
by the names that docs/protocol-encodings.md gives the fields; a shape inside is a dict again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dp.accounting.charge import UNIT_KINDS
from dp.accounting.rdp import ORDERS
from dp.ledger.opening import carried_fields, read_carried
from federation.adapter.layout import Layout, TensorSpec
from federation.audit.head import AuditHead
from federation.chain import groups, preflight, record, task, verify
from federation.membership.facts import Availability, FreeGpu, SignedFacts, SiloFacts
from federation.membership.invite import join_statement
from federation.membership.renewal import renew_statement, trust_sha256
from federation.plan.negotiation import Offer
from federation.selection.decide import SELECTION_DOMAIN
from secagg import canonical, messages, suite, transcript
from secagg.descriptor import Descriptor
from secagg.messages import DebitHead, KemKeys, KeyBundle, MaskedInputHeader
from secagg.roster import approval_statement
from secagg.transcript import ShareKind
from silo_agent.books.spent import SpentDocument
from tests.kit.secagg.secagg_samples import make_descriptor, make_roster, signing_key

CTX, HD, U2, U3 = (bytes([value]) * 32 for value in (0xC1, 0xD1, 0xA2, 0xA3))
ROSTER = make_roster()
DEBIT = DebitHead(seq=17, sha256=bytes([0xDE]) * 32)
SIGNATURE = bytes(64)


def digest_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


BUNDLE = KeyBundle(
    silo_id="silo-000",
    cipher_key=digest_of("cipher"),
    mask_key=digest_of("mask"),
    ledger_seq=9,
    ledger_sha256=digest_of("ledger"),
    families=("craft", "shop"),
    signature=SIGNATURE,
)
HYBRID_BUNDLE = replace(
    BUNDLE,
    kem_keys=KemKeys(cipher_key=bytes([1]) * 1184, mask_key=bytes([2]) * 1184),
    debit=DEBIT,
)
UPLOAD = MaskedInputHeader(
    silo_id="silo-001", length_bytes=4008, masked_sha256=digest_of("y"), signature=SIGNATURE
)
HYBRID_UPLOAD = replace(UPLOAD, debit=DEBIT, rejected=("silo-000", "silo-003"))
D1 = make_descriptor(ROSTER)
D2 = replace(
    D1, version=2, suite=2, families=("craft",), task_sha256=digest_of("task"), digest_id=1
)
LEAF = messages.ShareLeaf(
    recipient="silo-002",
    box_kem=bytes([3]) * 1088,
    ciphertext=bytes([4]) * 82,
    self_seed_share_sha256=digest_of("share of b"),
    mask_key_share_sha256=digest_of("share of m"),
    mask_kem=bytes([5]) * 1088,
    sealed=bytes([6]) * 48,
    pair_secret_sha256=digest_of("s"),
)
HEADER = messages.ShareBoxHeader(
    sender="silo-000",
    boxes=(
        messages.ShareBoxDigest(
            recipient="silo-001",
            ciphertext_sha256=digest_of("box"),
            self_seed_share_sha256=digest_of("share of b"),
            mask_key_share_sha256=digest_of("share of m"),
        ),
    ),
    self_seed_commitment=digest_of("commitment"),
    own_self_seed_share_sha256=digest_of("own share"),
    signature=SIGNATURE,
)
SHARE_ROOT = messages.ShareRoot(
    sender="silo-000",
    leaf_count=4,
    root=digest_of("root"),
    self_seed_commitment=digest_of("commitment"),
    own_self_seed_share_sha256=digest_of("own share"),
    signature=SIGNATURE,
)
SHARES = messages.UnmaskingShares(
    silo_id="silo-000",
    self_seed_shares=(messages.UnmaskingShare(owner="silo-001", share=bytes([7]) * 33),),
    mask_key_shares=(messages.UnmaskingShare(owner="silo-002", share=bytes([8]) * 33),),
    signature=SIGNATURE,
)
HYBRID_SHARES = replace(
    SHARES, pair_secrets=(messages.PairSecret(silo_id="silo-002", secret=bytes([9]) * 32),)
)
TASK = task.RoundTask(
    run_id="run-1",
    round=2,
    step=1,
    plan_sha256=digest_of("plan"),
    roster_sha256=digest_of("roster"),
    roster_epoch=3,
    base_model_sha256=digest_of("base"),
    adapter_sha256=digest_of("adapter"),
    ready_deadline_unix_s=1000,
)
INVITING_TASK = replace(TASK, invited=("silo-000", "silo-001"))
MOVED_TASK = replace(INVITING_TASK, local_epochs=2)
PART = record.RecordPart(
    descriptor_sha256=digest_of("descriptor"),
    sum_sha256=digest_of("sum"),
    survivors=("silo-000", "silo-001"),
)
RECORD = record.AdapterRecord(
    run_id="run-1",
    round=3,
    step=2,
    kind="aggregated",
    adapter_sha256=digest_of("adapter"),
    plan_sha256=digest_of("plan"),
    base_model_sha256=digest_of("base"),
    parent_sha256=digest_of("parent"),
    record_parent_sha256=digest_of("record"),
    parts=(PART,),
)
ROLLBACK = replace(RECORD, kind="rollback", step=0, parts=(), restored_round=1)
GROUPS = replace(RECORD, suite=2, parts=(PART, replace(PART, part=1, survivors=("silo-004",))))
HYBRID_ROLLBACK = replace(ROLLBACK, suite=2)
QUESTION = preflight.Preflight(
    plan_sha256=digest_of("plan"), roster_sha256=digest_of("roster"), submit_token="start-1"
)
ANSWER = preflight.PreflightAnswer(
    preflight_sha256=QUESTION.sha256,
    silo_id="silo-000",
    verdict=preflight.Verdict.REFUSE,
    rule="clip",
)
FACTS = SignedFacts(
    silo_id="silo-000",
    federation="example",
    issued_unix_s=1_800_000_000,
    facts=SiloFacts(availability=Availability.UP, queue=3, free_gpu=FreeGpu.MOST),
)
OFFERED = replace(
    ANSWER,
    verdict=preflight.Verdict.OFFER,
    offer=Offer(local_epochs=2, start_after_unix_s=1_800_000_000, epsilon_quarters=9),
)
AUDIT_HEAD = AuditHead(
    federation="example",
    writer="silo/silo-000",
    index=5,
    sha256=digest_of("record 5"),
    at_unix_s=77,
    signature=SIGNATURE,
)
CARRIED = read_carried(
    {
        "kinds": {kind: {"rdp": [0.0] * len(ORDERS), "failure": 0.0} for kind in UNIT_KINDS},
        "unprotected": 0,
        "partial": dict.fromkeys(UNIT_KINDS, 0),
    }
)
SPENT = SpentDocument(
    federation="example",
    silo_id="silo-000",
    verification_key=suite.verification_key(signing_key("silo-000")),
    ledger_id=digest_of("genesis"),
    seq=12,
    sha256=digest_of("record 12"),
    at_unix_s=99,
    carried=CARRIED,
)
KNOWN_COHORT = replace(SPENT, carried=replace(CARRIED, cohort=("silo-000", "silo-001")))
NEXT_ROSTER = make_roster(n=6, epoch=4)


@dataclass(frozen=True)
class Statement:
    """The encoding that the code made, or its digest, and its fields by name."""

    domain: str
    made: bytes
    values: Mapping[str, Any]

    @property
    def version(self) -> int:
        forms = {"v2": 2, "v3": 3}
        return forms.get(self.domain.split("/")[1], 1)


def of(document: Any, *left_out: str, **other: Any) -> dict[str, Any]:
    """The attributes of a document but for its signature, and what else stands beside them."""
    kept = {
        each.name: getattr(document, each.name)
        for each in fields(document)
        if each.name not in {"signature", *left_out}
    }
    return {**other, **kept, **{name: other[name] for name in other.keys() & kept.keys()}}


def of_bundle(bundle: KeyBundle) -> dict[str, Any]:
    values = of(bundle, "kem_keys", "debit", "cohort_may_vary")
    if bundle.kem_keys is not None and bundle.debit is not None:
        values |= {
            "kem_cipher_key": bundle.kem_keys.cipher_key,
            "kem_mask_key": bundle.kem_keys.mask_key,
            "debit_seq": bundle.debit.seq,
            "debit_sha256": bundle.debit.sha256,
            "cohort_may_vary": bundle.cohort_may_vary,
        }
    return values


def of_upload(upload: MaskedInputHeader) -> dict[str, Any]:
    values = of(upload, "debit", "rejected")
    if upload.debit is not None:
        values |= {
            "debit_seq": upload.debit.seq,
            "debit_sha256": upload.debit.sha256,
            "rejected": upload.rejected,
        }
    return values


def of_shares(shares: messages.UnmaskingShares) -> dict[str, Any]:
    values = of(
        shares,
        "pair_secrets",
        ctx=CTX,
        survivors_sha256=U3,
        self_seed_shares=tuple(of(share) for share in shares.self_seed_shares),
        mask_key_shares=tuple(of(share) for share in shares.mask_key_shares),
    )
    if shares.pair_secrets is not None:
        values["pair_secrets"] = tuple(of(secret) for secret in shares.pair_secrets)
    return values


def of_descriptor(descriptor: Descriptor) -> Statement:
    later = () if descriptor.version == 2 else ("families", "task_sha256", "digest_id")
    return Statement(
        f"chorale/v{descriptor.version}/descriptor",
        descriptor.signed_bytes(),
        of(descriptor, *later, identity=of(descriptor.identity), metrics=of(descriptor.metrics)),
    )


def of_aggregations() -> list[Statement]:
    """What D and R0 to R4 sign, in both versions."""
    header_sha256 = hashlib.sha256(HEADER.signed_bytes(CTX)).digest()
    boxes = tuple(of(box) for box in HEADER.boxes)
    found = [of_descriptor(D1), of_descriptor(D2)]
    for version, bundle, upload, shares in (
        (1, BUNDLE, UPLOAD, SHARES),
        (2, HYBRID_BUNDLE, HYBRID_UPLOAD, HYBRID_SHARES),
    ):
        domain = f"chorale/v{version}/"
        found += [
            Statement(
                domain + "key-bundle",
                bundle.signed_bytes(HD),
                {"descriptor_sha256": HD, **of_bundle(bundle)},
            ),
            Statement(
                domain + "masked-input",
                upload.signed_bytes(CTX, U2),
                {"ctx": CTX, "members_sha256": U2, **of_upload(upload)},
            ),
            Statement(domain + "unmasking-shares", shares.signed_bytes(CTX, U3), of_shares(shares)),
        ]
    return [
        *found,
        Statement(
            "chorale/v1/ctx",
            transcript.context(D1, [BUNDLE]),
            {"descriptor_sha256": D1.sha256, "bundles": (of_bundle(BUNDLE),)},
        ),
        Statement(
            "chorale/v1/share-boxes", HEADER.signed_bytes(CTX), of(HEADER, ctx=CTX, boxes=boxes)
        ),
        Statement(
            "chorale/v2/r1",
            LEAF.signed_bytes(CTX, "silo-000"),
            of(LEAF, ctx=CTX, sender="silo-000"),
        ),
        Statement("chorale/v2/share-root", SHARE_ROOT.signed_bytes(CTX), of(SHARE_ROOT, ctx=CTX)),
        Statement(
            "chorale/v1/members",
            transcript.members(CTX, [HEADER]).sha256,
            {"ctx": CTX, "members": ({"sender": "silo-000", "header_sha256": header_sha256},)},
        ),
        Statement(
            "chorale/v1/survivors",
            transcript.survivors_sha256(CTX, [UPLOAD]),
            {"ctx": CTX, "headers": (of_upload(UPLOAD),)},
        ),
        Statement(
            "chorale/v1/consistency",
            messages.agreement_bytes(CTX, U2, U3),
            {"ctx": CTX, "members_sha256": U2, "survivors_sha256": U3},
        ),
    ]


def of_hashes() -> list[Statement]:
    """What is hashed or authenticated beside the messages."""
    pair = {"ctx": CTX, "low": "i", "high": "j"}
    return [
        Statement(
            "chorale/v1/share",
            transcript.share_sha256(CTX, "i", "j", ShareKind.MASK_KEY, bytes([7]) * 33),
            {
                "ctx": CTX,
                "sender": "i",
                "recipient": "j",
                "kind": "mask_key",
                "share": bytes([7]) * 33,
            },
        ),
        Statement(
            "chorale/v1/self-seed",
            transcript.self_seed_commitment(CTX, "i", HD),
            {"ctx": CTX, "silo_id": "i", "self_seed": HD},
        ),
        Statement(
            "chorale/v2/pair-secret",
            transcript.pair_secret_sha256(CTX, "i", "j", HD),
            {**pair, "secret": HD},
        ),
        Statement(
            "chorale/v1/box",
            transcript.box_associated_data(CTX, "j", "i"),
            {"ctx": CTX, "sender": "j", "recipient": "i"},
        ),
        Statement("chorale/v2/seal", transcript.seal_associated_data(CTX, "i", "j"), pair),
    ]


def of_a_federation() -> list[Statement]:
    """Rosters, tasks, records and what else is signed outside an aggregation."""
    layout = Layout((TensorSpec(name="x.lora_A.weight", shape=(2, 3)),))
    probe = canonical.digest(verify.PROBE_DOMAIN, RECORD.descriptor_sha256, RECORD.adapter_sha256)
    carried, with_cohort = (
        json.dumps(carried_fields(each.carried), separators=(",", ":"), sort_keys=True)
        for each in (SPENT, KNOWN_COHORT)
    )
    return [
        Statement(
            "chorale/v1/roster",
            ROSTER.signed_bytes(),
            of(ROSTER, entries=tuple(of(entry) for entry in ROSTER.entries)),
        ),
        Statement(
            "chorale/v1/roster-approval",
            approval_statement(ROSTER, NEXT_ROSTER),
            {
                "federation": "example",
                "epoch": NEXT_ROSTER.epoch,
                "previous_sha256": ROSTER.sha256,
                "sha256": NEXT_ROSTER.sha256,
            },
        ),
        Statement(
            "chorale/v1/round-task", TASK.signed_bytes(), of(TASK, "invited", "local_epochs")
        ),
        Statement(
            "chorale/v2/round-task",
            INVITING_TASK.signed_bytes(),
            of(INVITING_TASK, "local_epochs"),
        ),
        Statement("chorale/v3/round-task", MOVED_TASK.signed_bytes(), of(MOVED_TASK)),
        *map(of_record, (RECORD, ROLLBACK, GROUPS, HYBRID_ROLLBACK)),
        Statement(
            "chorale/v1/adapter-record-link",
            RECORD.sha256,
            {"signed_bytes": RECORD.signed_bytes()},
        ),
        Statement("chorale/v1/preflight", QUESTION.signed_bytes(), of(QUESTION)),
        Statement(
            "chorale/v1/preflight-answer",
            ANSWER.signed_bytes(),
            of(ANSWER, "offer", verdict="refuse"),
        ),
        Statement(
            "chorale/v1/preflight-offer",
            OFFERED.signed_bytes(),
            of(OFFERED, "verdict", "offer", **OFFERED.offer.named()),
        ),
        Statement(
            "chorale/v1/join",
            join_statement("example", "silo-000", b"request"),
            {
                "federation": "example",
                "silo_id": "silo-000",
                "csr_sha256": digest_of("request"),
            },
        ),
        Statement(
            "chorale/v1/renew",
            renew_statement(
                "example", "silo-000", certificate_sha256=digest_of("old"), csr_der=b"request"
            ),
            {
                "federation": "example",
                "silo_id": "silo-000",
                "certificate_sha256": digest_of("old"),
                "csr_sha256": digest_of("request"),
            },
        ),
        Statement(
            "chorale/v1/trust",
            trust_sha256([b"ca", b"old"]),
            {"issuing_sha256": digest_of("ca"), "other_sha256": digest_of("old")},
        ),
        Statement("chorale/v1/audit-head", AUDIT_HEAD.signed_bytes(), of(AUDIT_HEAD)),
        Statement(
            "chorale/v1/silo-facts",
            FACTS.signed_bytes(),
            {
                "federation": "example",
                "silo_id": "silo-000",
                "issued_unix_s": 1_800_000_000,
                "availability": ("up",),
                "free_gpu": ("most",),
                "budget_left": (),
                "queue": (3,),
                "earliest_start_unix_s": (),
            },
        ),
        Statement("chorale/v1/spent", SPENT.signed_bytes(), of(SPENT, carried=carried)),
        Statement(
            "chorale/v2/spent", KNOWN_COHORT.signed_bytes(), of(KNOWN_COHORT, carried=with_cohort)
        ),
        Statement(
            "chorale/v1/layout",
            layout.sha256,
            {"specs": ({"name": "x.lora_A.weight", "shape": (2, 3), "dtype": "float32"},)},
        ),
        Statement(
            "chorale/v2/groups",
            canonical.digest(groups.GROUPS_DOMAIN, "run-1", 3, digest_of("roster"), "silo-000"),
            {
                "run_id": "run-1",
                "round": 3,
                "roster_sha256": digest_of("roster"),
                "silo_id": "silo-000",
            },
        ),
        Statement(
            "chorale/v2/halves",
            canonical.digest(groups.HALVES_DOMAIN, "run-1", 3, digest_of("roster"), "silo-000"),
            {
                "run_id": "run-1",
                "round": 3,
                "roster_sha256": digest_of("roster"),
                "silo_id": "silo-000",
            },
        ),
        Statement(
            "chorale/v2/selection",
            canonical.digest(SELECTION_DOMAIN, "run-1", 3, digest_of("plan")),
            {"run_id": "run-1", "round": 3, "plan_sha256": digest_of("plan")},
        ),
        Statement(
            "chorale/v1/update-probe",
            probe,
            {
                "descriptor_sha256": RECORD.descriptor_sha256,
                "adapter_sha256": RECORD.adapter_sha256,
            },
        ),
    ]


def of_record(made: record.AdapterRecord) -> Statement:
    absent = ("restored_round",) if made.restored_round is None else ()
    values = of(made, "parts", *absent)
    if made.suite == 2:
        values["parts"] = tuple(of(part) for part in made.parts)
    else:
        del values["suite"]
        values |= {
            "descriptor_sha256": made.descriptor_sha256,
            "sum_sha256": made.sum_sha256,
            "survivors": made.survivors,
        }
    return Statement(f"chorale/v{made.suite}/adapter-record", made.signed_bytes(), values)


STATEMENTS = (*of_aggregations(), *of_hashes(), *of_a_federation())

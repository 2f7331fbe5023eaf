"""The documents of suite v2's vectors as protocol objects (`secagg_documents` has the others)."""

from federation.chain.task import RoundTask
from secagg.messages import (
    ConsistencySignature,
    ConsistencySignatures,
    DebitHead,
    DeliveredLeaf,
    KemKeys,
    KeyBundle,
    KeyBundles,
    LeafDelivery,
    MaskedInputHeader,
    PairSecret,
    ShareLeaf,
    ShareLeaves,
    ShareRoot,
    Survivors,
    UnmaskingShare,
    UnmaskingShares,
)
from tests.adversary.vectors.secagg_documents import descriptor, made


def round_task(document):
    body = document["round_task"] | {"signature": document["signature"]}
    return made(RoundTask, body)


def bundle(item):
    """One of version 1 where it has no ML-KEM keys."""
    later = {}
    if "kem_keys" in item:
        later = {
            "kem_keys": made(KemKeys, item["kem_keys"]),
            "debit": made(DebitHead, item["debit"]),
        }
    return made(KeyBundle, item | later)


def leaf(item):
    return made(ShareLeaf, item)


def root(item):
    return made(ShareRoot, item)


def share_leaves(item):
    return ShareLeaves(root=root(item), leaves=tuple(leaf(part) for part in item["leaves"]))


def delivery(document):
    return LeafDelivery(
        roots=tuple(root(item) for item in document["roots"]),
        leaves={
            sender: DeliveredLeaf(
                leaf=leaf(entry["leaf"]),
                path=tuple(bytes.fromhex(step) for step in entry["path"]),
            )
            for sender, entry in document["leaves"].items()
        },
    )


def header(item):
    """One of version 1 where it has no debit head."""
    later = {"debit": made(DebitHead, item["debit"])} if "debit" in item else {}
    return made(MaskedInputHeader, item | later)


def unmasking_shares(item):
    return made(
        UnmaskingShares,
        item
        | {
            kind: [made(UnmaskingShare, share) for share in item[kind]]
            for kind in ("self_seed_shares", "mask_key_shares")
        }
        | {"pair_secrets": [made(PairSecret, secret) for secret in item["pair_secrets"]]},
    )


def message(step, document):
    """What the coordinator sends to open a step."""
    if step == "advertise_keys":
        return descriptor(document)
    if step == "share_keys":
        return KeyBundles(bundles=tuple(bundle(item) for item in document["bundles"]))
    if step == "masked_input":
        return delivery(document)
    if step == "consistency_check":
        return Survivors(headers=tuple(header(item) for item in document["headers"]))
    return ConsistencySignatures(
        signatures=tuple(made(ConsistencySignature, item) for item in document["signatures"])
    )

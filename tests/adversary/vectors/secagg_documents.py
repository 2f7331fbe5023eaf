"""Protocol objects as plain JSON values and back: bytes are lower-case hex, tuples are lists."""

from dataclasses import fields, is_dataclass

import numpy as np

from secagg.descriptor import AggregationId, Descriptor, MetricsLayout, SignedDescriptor
from secagg.messages import (
    BoxDelivery,
    ConsistencySignature,
    ConsistencySignatures,
    KeyBundle,
    KeyBundles,
    MaskedInputHeader,
    ShareBoxDigest,
    ShareBoxHeader,
    Survivors,
)
from secagg.roster import Roster, RosterEntry, SignedRoster

# What only messages of suite v2 have, and what it is in the others.
LATER = {
    "families": (),
    "task_sha256": b"",
    "digest_id": 0,
    "kem_keys": None,
    "debit": None,
    "cohort_may_vary": False,
    "rejected": (),
    "pair_secrets": None,
}


def plain(value):
    if is_dataclass(value):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        return {
            name: plain(item)
            for name, item in found.items()
            if name not in LATER or item != LATER[name]
        }
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def made(kind, document):
    """An object of a class whose fields are all scalars, or lists of strings or numbers."""
    return kind(
        **{
            field.name: (
                bytes.fromhex(document[field.name])
                if field.type in (bytes, "bytes")
                else tuple(document[field.name])
                if isinstance(document[field.name], list)
                else document[field.name]
            )
            for field in fields(kind)
            if field.name in document
        }
    )


def roster(document):
    entries = tuple(made(RosterEntry, entry) for entry in document["roster"]["entries"])
    return SignedRoster(
        roster=made(Roster, document["roster"] | {"entries": entries}),
        signature=bytes.fromhex(document["signature"]),
    )


def descriptor(document):
    body = document["descriptor"]
    return SignedDescriptor(
        descriptor=made(
            Descriptor,
            body
            | {
                "identity": made(AggregationId, body["identity"]),
                "metrics": made(MetricsLayout, body["metrics"]),
            },
        ),
        signature=bytes.fromhex(document["signature"]),
    )


def share_header(document):
    boxes = tuple(made(ShareBoxDigest, box) for box in document["boxes"])
    return made(ShareBoxHeader, document | {"boxes": boxes})


def message(step, document):
    """What the coordinator sends to open a step."""
    if step == "advertise_keys":
        return descriptor(document)
    if step == "share_keys":
        return KeyBundles(bundles=tuple(made(KeyBundle, item) for item in document["bundles"]))
    if step == "masked_input":
        return BoxDelivery(
            headers=tuple(share_header(item) for item in document["headers"]),
            ciphertexts={
                sender: bytes.fromhex(content)
                for sender, content in document["ciphertexts"].items()
            },
        )
    if step == "consistency_check":
        return Survivors(
            headers=tuple(made(MaskedInputHeader, item) for item in document["headers"])
        )
    return ConsistencySignatures(
        signatures=tuple(made(ConsistencySignature, item) for item in document["signatures"])
    )


def words(content):
    """A vector of the ring over memory that can be written."""
    return np.frombuffer(content, dtype="<u4")

"""Accepted messages as rows: what is public stays, what is secret is kept apart and deleted.

| message | public body | sealed |
|---|---|---|
| KeyBundle | KeyBundle | |
| ShareBoxes | ShareBoxHeader | the ciphertexts, in the header's order |
| MaskedInputHeader | MaskedInputHeader | |
| ConsistencySignature | ConsistencySignature | |
| UnmaskingShares | | UnmaskingShares |

Covered: ``decode(encode(message))`` equals the message. Not covered: checks of the protocol, which
a coordinator that continues makes again.
"""

from __future__ import annotations

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2 as pb
from secagg.errors import MalformedMessageError
from secagg.messages import (
    BOX_BYTES,
    BoxDelivery,
    ConsistencySignature,
    KeyBundle,
    MaskedInputHeader,
    ShareBox,
    ShareBoxes,
    ShareBoxHeader,
    UnmaskingShares,
)
from server.attempt.history import SiloMessage
from server.phase import Phase
from server.store.messages import StoredMessage

__all__ = ["decode", "decode_public", "encode"]

PublicMessage = KeyBundle | ShareBoxHeader | MaskedInputHeader | ConsistencySignature


def encode(message: SiloMessage) -> StoredMessage:
    """Make the row of a message.

    Args:
        message: As accepted.

    Returns:
        The row.
    """
    sealed = None
    match message:
        case KeyBundle():
            phase, sender = Phase.ADVERTISE_KEYS, message.silo_id
            body = secagg_wire.key_bundle_to_proto(message).SerializeToString()
        case ShareBoxes():
            phase, sender = Phase.SHARE_KEYS, message.sender
            header = BoxDelivery(headers=(message.header(),), ciphertexts={})
            body = secagg_wire.box_delivery_to_proto(header).headers[0].SerializeToString()
            sealed = b"".join(box.ciphertext for box in message.boxes)
        case MaskedInputHeader():
            phase, sender = Phase.MASKED_INPUT, message.silo_id
            body = secagg_wire.masked_input_header_to_proto(message).SerializeToString()
        case ConsistencySignature():
            phase, sender = Phase.CONSISTENCY_CHECK, message.silo_id
            body = secagg_wire.consistency_signature_to_proto(message).SerializeToString()
        case UnmaskingShares():
            phase, sender, body = Phase.UNMASK, message.silo_id, b""
            sealed = secagg_wire.unmasking_shares_to_proto(message).SerializeToString()
    return StoredMessage(phase=phase.value, silo_id=sender, body=body, sealed=sealed)


def decode_public(row: StoredMessage) -> PublicMessage:
    """Read the public part of a row.

    Args:
        row: A row of R0 to R3.

    Returns:
        The message; of R1 the signed header without the boxes.

    Raises:
        MalformedMessageError: It is none, or of R4, which has no public part.
    """
    match row.phase:
        case Phase.ADVERTISE_KEYS:
            return secagg_wire.key_bundle_from_proto(pb.KeyBundle.FromString(row.body))
        case Phase.SHARE_KEYS:
            delivery = pb.BoxDelivery(headers=[pb.ShareBoxHeader.FromString(row.body)])
            return secagg_wire.box_delivery_from_proto(delivery).headers[0]
        case Phase.MASKED_INPUT:
            return secagg_wire.masked_input_header_from_proto(
                pb.MaskedInputHeader.FromString(row.body)
            )
        case Phase.CONSISTENCY_CHECK:
            return secagg_wire.consistency_signature_from_proto(
                pb.ConsistencySignature.FromString(row.body)
            )
        case _:
            raise MalformedMessageError(f"a message of {row.phase} has no public part")


def decode(row: StoredMessage) -> SiloMessage:
    """Read a whole row of an open aggregation.

    Args:
        row: With its sealed part.

    Returns:
        The message as it was accepted.

    Raises:
        MalformedMessageError: The row is damaged, or its secrets are deleted.
    """
    if row.phase == Phase.UNMASK and row.sealed is not None:
        return secagg_wire.unmasking_shares_from_proto(pb.UnmaskingShares.FromString(row.sealed))
    message = decode_public(row)
    if not isinstance(message, ShareBoxHeader):
        return message
    sealed = row.sealed or b""
    if len(sealed) != BOX_BYTES * len(message.boxes):
        raise MalformedMessageError(f"the boxes of {row.silo_id} are not what was stored")
    return ShareBoxes(
        sender=message.sender,
        boxes=tuple(
            ShareBox(
                recipient=box.recipient,
                ciphertext=sealed[BOX_BYTES * k : BOX_BYTES * (k + 1)],
                self_seed_share_sha256=box.self_seed_share_sha256,
                mask_key_share_sha256=box.mask_key_share_sha256,
            )
            for k, box in enumerate(message.boxes)
        ),
        self_seed_commitment=message.self_seed_commitment,
        own_self_seed_share_sha256=message.own_self_seed_share_sha256,
        signature=message.signature,
    )

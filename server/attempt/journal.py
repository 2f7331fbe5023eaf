"""The log of an attempt: what happens to it, the rows that say so, and how it is read back.

An attempt (``server/attempt/attempt.py``) tells its :class:`Journal` of every event before anybody
else learns of it, and after a restart is made again from the :class:`History` that the journal
holds. Of an accepted message what is public stays for audit, and what is secret is kept apart and
deleted when the attempt ends:

| message | public body | sealed |
|---|---|---|
| KeyBundle | KeyBundle | |
| ShareBoxes | ShareBoxHeader | the ciphertexts, in the header's order |
| ShareLeaves | ShareRoot | the leaves |
| MaskedInputHeader | MaskedInputHeader | |
| ConsistencySignature | ConsistencySignature | |
| UnmaskingShares | | UnmaskingShares |

Invariants:

1. Every method is one durable transaction that is over when it returns; writing the same again
   changes nothing, so that a step whose transaction failed may be tried again.
2. ``decode(encode(message))`` equals the message; of which suite a row of R1 is, the aggregation
   says.

Covered: messages, folds, closed phases. Not covered: opening and ending an aggregation, which
``server/run/attempts.py`` does together with other changes; the checks of the protocol, which a
coordinator that continues makes again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import secagg.wire as secagg_wire
from chorale.v1 import secagg_pb2 as pb
from secagg.descriptor import AggregationId
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
    ShareLeaves,
    ShareRoot,
    UnmaskingShares,
)
from secagg.transcript import Members
from server.errors import StoreError
from server.figures import STEPS, Phase
from server.store import Store
from server.store.aggregations import AggregationRow
from server.store.heads import DebitRow, HeadRow
from server.store.messages import StoredMessage

__all__ = [
    "History",
    "Journal",
    "SiloMessage",
    "StoreJournal",
    "decode",
    "decode_public",
    "encode",
    "read_history",
]

SiloMessage = (
    KeyBundle
    | ShareBoxes
    | ShareLeaves
    | MaskedInputHeader
    | ConsistencySignature
    | UnmaskingShares
)
"""R0 to R4, as a silo sends them."""
PublicMessage = KeyBundle | ShareBoxHeader | ShareRoot | MaskedInputHeader | ConsistencySignature
"""What is left of R0 to R3 when the secrets are deleted."""


class Journal(Protocol):
    """Where an attempt writes down what happened; each method returns when that is durable."""

    def charged(self, header: MaskedInputHeader, members: Members) -> None:
        """An upload whose header names its charge is about to be accepted."""

    def accepted(self, message: SiloMessage) -> None:
        """A silo's message was accepted."""

    def folded(self, silo_id: str, generation: int) -> None:
        """A silo's upload is in this generation of the sum."""

    def closed(self, phase: Phase, members: tuple[str, ...]) -> None:
        """A phase is closed, and these silos answered in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """What the journal of an open attempt holds."""

    messages: tuple[SiloMessage, ...] = field(repr=False)
    """In the order in which they were accepted."""
    folded: tuple[str, ...]
    """In the order of the folds."""
    members: tuple[tuple[str, ...], ...]
    """Who answered, in ascending order, of each phase that is closed."""

    @property
    def phases_closed(self) -> int:
        """How many of R0 to R4 are closed."""
        return len(self.members)


class StoreJournal:
    """The journal of one aggregation, in the coordinator's database."""

    def __init__(self, store: Store, identity: AggregationId, descriptor_sha256: bytes) -> None:
        self._store = store
        self._identity = identity
        self._descriptor_sha256 = descriptor_sha256

    def charged(self, header: MaskedInputHeader, members: Members) -> None:
        """Keep a silo's newest charge, with what the header's signature covers."""
        self._store.debit_heads.put(
            DebitRow(header=header, ctx=members.ctx, members_sha256=members.sha256)
        )

    def accepted(self, message: SiloMessage) -> None:
        """Keep a message before it is acknowledged, and with a bundle its silo's ledger head."""
        with self._store.transaction():
            self._store.messages.put(self._identity, encode(message))
            if isinstance(message, KeyBundle):
                self._store.heads.put(
                    HeadRow(
                        identity=self._identity,
                        bundle=message,
                        descriptor_sha256=self._descriptor_sha256,
                    )
                )

    def folded(self, silo_id: str, generation: int) -> None:
        """Make a generation of the sum the current one."""
        self._store.aggregations.fold(self._identity, silo_id, generation)

    def closed(self, phase: Phase, members: tuple[str, ...]) -> None:
        """Fix who answered in a phase.

        Raises:
            StoreError: a member's message is not here, so that a restart would make another phase.
        """
        store, identity = self._store, self._identity
        with store.transaction():
            if phase is Phase.MASKED_INPUT:
                known = store.aggregations.folded(identity)
            else:
                known = store.messages.senders(identity, phase.value)
            if tuple(sorted(known)) != members:
                raise StoreError(f"{phase}: the journal holds other members than the attempt")
            store.aggregations.close_phase(identity, STEPS.index(phase) + 1, members)


def read_history(store: Store, row: AggregationRow) -> History:
    """Read what an open aggregation wrote down.

    Raises:
        MalformedMessageError: A row is damaged.
    """
    return History(
        messages=tuple(
            decode(message, hybrid=row.descriptor.descriptor.is_hybrid)
            for message in store.messages.with_secrets(row.identity)
        ),
        folded=row.folded,
        members=row.members,
    )


def encode(message: SiloMessage) -> StoredMessage:
    """Make the row of an accepted message."""
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
        case ShareLeaves():
            phase, sender = Phase.SHARE_KEYS, message.sender
            body = secagg_wire.share_root_to_proto(message.root).SerializeToString()
            leaves = secagg_wire.share_leaves_to_proto(message)
            leaves.ClearField("root")
            sealed = leaves.SerializeToString()
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


def decode(row: StoredMessage, *, hybrid: bool) -> SiloMessage:
    """Read a whole row of an open aggregation, of suite v2 or not: the message as it was accepted.

    Raises:
        MalformedMessageError: The row is damaged, or its secrets are deleted.
    """
    if row.phase == Phase.UNMASK and row.sealed is not None:
        return secagg_wire.unmasking_shares_from_proto(pb.UnmaskingShares.FromString(row.sealed))
    message, sealed = decode_public(row, hybrid=hybrid), row.sealed or b""
    if isinstance(message, ShareRoot):
        leaves = pb.ShareLeaves(root=secagg_wire.share_root_to_proto(message))
        leaves.MergeFromString(sealed)
        return secagg_wire.share_leaves_from_proto(leaves)
    if not isinstance(message, ShareBoxHeader):
        return message
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


def decode_public(row: StoredMessage, *, hybrid: bool) -> PublicMessage:
    """Read the public part of a row of R0 to R3; of R1 it is what is signed, without the boxes.

    Raises:
        MalformedMessageError: It is none, or of R4, which has no public part.
    """
    match row.phase:
        case Phase.ADVERTISE_KEYS:
            return secagg_wire.key_bundle_from_proto(pb.KeyBundle.FromString(row.body))
        case Phase.SHARE_KEYS if hybrid:
            return secagg_wire.share_root_from_proto(pb.ShareRoot.FromString(row.body))
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

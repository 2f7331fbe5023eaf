"""What this silo would send, said by the code that sends it, to nobody.

A ``Rehearsal`` is the silo's line to the coordinator with its channel taken out: every method
builds its request as ever, and the request is noted instead of sent. Keys, signatures and shares
that only exist in a real attempt are stood in for by as many zero bytes, so that sizes are real and
nothing here can be used for anything.

Invariants: no connection is made, no key is read, no private file is opened but a masked upload.

Covered: every message of a round, of the daemon's polling and of membership. Not covered: TLS's own
bytes, gRPC's frames, and names and addresses that the network sees.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from federation.audit.head import AuditHead, silo_writer
from federation.chain.preflight import ASKED_TOO_OFTEN, PreflightAnswer, Verdict
from federation.membership.facts import SignedFacts, SiloFacts
from federation.plan.negotiation import Offer
from secagg import hybrid, suite
from secagg.bounds import DIGEST_BYTES, KEY_BYTES, SIGNATURE_BYTES
from secagg.descriptor import AggregationId
from secagg.digest_tree import CHUNK_BYTES
from secagg.messages import (
    BOX_BYTES,
    ConsistencySignature,
    DebitHead,
    KemKeys,
    KeyBundle,
    MaskedInputHeader,
    ShareBox,
    ShareBoxes,
    ShareLeaf,
    ShareLeaves,
    ShareRoot,
    UnmaskingShare,
    UnmaskingShares,
)
from secagg.shamir import SHARE_BYTES
from silo_agent.line.download import DownloadStream
from silo_agent.line.transport import Coordinator
from silo_agent.line.upload import Chunks, UploadStream

if TYPE_CHECKING:
    from secagg.roster import Roster, RosterApproval

__all__ = ["Attempt", "Part", "Rehearsal", "Request", "Zeros"]

_DIGEST: Final = bytes(DIGEST_BYTES)
_KEY: Final = bytes(KEY_BYTES)
_SIGNATURE: Final = bytes(SIGNATURE_BYTES)
_KEM_KEYS: Final = KemKeys(
    cipher_key=bytes(hybrid.KEM_KEY_BYTES), mask_key=bytes(hybrid.KEM_KEY_BYTES)
)
_ROSTER: Final = cast("Roster", SimpleNamespace(epoch=1, sha256=_DIGEST))
"""Of a roster that is approved only its epoch and its digest are said."""
_APPROVAL: Final = cast("RosterApproval", SimpleNamespace(signature=_SIGNATURE))


class _NotSentError(Exception):
    """The request was noted; there is no answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One field of a request, and of every repetition of it."""

    path: str
    """From the request down, for example ``bundle.ledger_seq``."""
    name: str
    """The field as the protocol's definition calls it."""
    count: int
    """How many there are."""
    size_bytes: int
    """Of all of them; a number counts as the bytes it takes on the wire, without its tag."""
    value: str
    """The newest one in words, where it is a text or a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One call, with every message of it if it is a stream."""

    method: str
    """Of the service."""
    messages: int
    """1, or as many as the stream has."""
    size_bytes: int
    """Serialised, all messages together."""
    parts: tuple[Part, ...]
    """Every field that is set."""
    payload_sha256: str = ""
    """Of the upload's content, where it is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What an attempt's messages are made from; all of it public."""

    identity: AggregationId
    silo_id: str
    cohort: tuple[str, ...]
    families: tuple[str, ...]
    adapter_sha256: bytes
    ledger_seq: int
    ledger_sha256: bytes
    length_bytes: int
    """Of the upload."""
    debit_seq: int = 0
    """Of the ledger's newest record that charged something."""
    suite: int = suite.SUITE
    """Of its masks."""
    cohort_may_vary: bool = False
    """What this site says of sums without noise."""
    public_reason: str = "budget"
    """Of a refusal, if there is one."""


class Zeros:
    """An upload of that many zero bytes, never held as a whole."""

    def __init__(self, length_bytes: int, *, leaves: bytes = b"") -> None:
        self._length_bytes = length_bytes
        self.leaves = leaves

    def chunks(self, offset_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
        """The bytes from an offset on."""
        left = self._length_bytes - offset_bytes
        while left > 0:
            yield bytes(min(left, chunk_bytes))
            left -= chunk_bytes


class _Service(Protocol):
    def __call__(self, request: Any, *, timeout: float) -> Any: ...


class Rehearsal(Coordinator):
    """The line to the coordinator, without the line."""

    def __init__(self) -> None:
        # Not the base's own: that opens a channel. Every request goes through these two names.
        self.requests: list[Request] = []
        self._stub = self._membership = _Notes(self.requests)
        self.watch_sent(lambda _bytes: None)

    def _retry(
        self, attempt: Callable[[], Any], *, stream: UploadStream | DownloadStream | None = None
    ) -> Any:
        """Once: nobody answers."""
        del stream
        return attempt()

    def attempt(
        self, attempt: Attempt, *, header: MaskedInputHeader | None, spool: Chunks | None
    ) -> None:
        """Say everything that one attempt takes, and what surrounds it.

        Header and spool are the real upload's, where it was made.
        """
        identity, me = attempt.identity, attempt.silo_id
        later = attempt.suite == hybrid.SUITE
        peers = tuple(silo for silo in attempt.cohort if silo != me)
        with suppress(_NotSentError):
            self.report_ready(
                run_id=identity.run_id,
                round_number=identity.round,
                step=identity.step,
                adapter_sha256=attempt.adapter_sha256,
                families=attempt.families,
            )
        with suppress(_NotSentError):
            self.advertise_keys(
                identity,
                KeyBundle(
                    silo_id=me,
                    cipher_key=_KEY,
                    mask_key=_KEY,
                    ledger_seq=attempt.ledger_seq,
                    ledger_sha256=attempt.ledger_sha256,
                    families=attempt.families,
                    signature=_SIGNATURE,
                    kem_keys=_KEM_KEYS if later else None,
                    debit=DebitHead(seq=attempt.debit_seq, sha256=_DIGEST) if later else None,
                    cohort_may_vary=later and attempt.cohort_may_vary,
                ),
            )
        with suppress(_NotSentError):
            self.share_keys(identity, _leaves_of(me, peers) if later else _boxes(me, peers))
        if attempt.length_bytes:
            made = header or MaskedInputHeader(
                silo_id=me,
                length_bytes=attempt.length_bytes,
                masked_sha256=_DIGEST,
                signature=_SIGNATURE,
                # The upload is charged after the identity was joined.
                debit=DebitHead(seq=attempt.ledger_seq + 1, sha256=_DIGEST) if later else None,
            )
            chunks = -(-attempt.length_bytes // CHUNK_BYTES) if later else 0
            stand_in = Zeros(attempt.length_bytes, leaves=_DIGEST * chunks)
            self.upload(identity, made, spool or stand_in)
        with suppress(_NotSentError):
            self.check_consistency(identity, ConsistencySignature(silo_id=me, signature=_SIGNATURE))
        with suppress(_NotSentError):
            self.unmask(
                identity,
                UnmaskingShares(
                    silo_id=me,
                    self_seed_shares=tuple(
                        UnmaskingShare(owner=silo, share=bytes(SHARE_BYTES))
                        for silo in attempt.cohort
                    ),
                    mask_key_shares=(),
                    signature=_SIGNATURE,
                    # Nobody is lost here, so no secret of a pair is given up.
                    pair_secrets=() if later else None,
                ),
            )
        with suppress(_NotSentError):
            self.refuse(
                run_id=identity.run_id,
                round_number=identity.round,
                step=identity.step,
                reason=attempt.public_reason,
            )

    def surroundings(
        self, *, federation: str, silo_id: str, run_id: str, facts: SiloFacts | None
    ) -> None:
        """Say what a daemon says beside any attempt: what it asks for, and about itself.

        ``facts`` are those that it publishes; None where it publishes none.
        """
        if facts is not None:
            with suppress(_NotSentError):
                self.publish_facts(
                    SignedFacts(
                        silo_id=silo_id,
                        federation=federation,
                        issued_unix_s=facts.earliest_start_unix_s or 1,
                        facts=facts,
                        signature=_SIGNATURE,
                    )
                )
        for ask in (
            lambda: self.poll("", wait_s=8),
            self.ping,
            self.roster,
            lambda: self.rosters(1),
            self.roster_proposal,
            lambda: self.approve_roster(_ROSTER, _APPROVAL),
            lambda: self.plan(_DIGEST),
            lambda: self.records(run_id, 0),
            lambda: self.blob(_DIGEST, io.BytesIO(), max_bytes=1),
            lambda: self.answer_preflight(
                PreflightAnswer(
                    preflight_sha256=_DIGEST,
                    silo_id=silo_id,
                    verdict=Verdict.OFFER,
                    rule=ASKED_TOO_OFTEN,
                    offer=Offer(local_epochs=1, start_after_unix_s=60, epsilon_quarters=1),
                    signature=_SIGNATURE,
                )
            ),
            lambda: self.exchange_audit_heads(
                AuditHead(
                    federation=federation,
                    writer=silo_writer(silo_id),
                    index=0,
                    sha256=_DIGEST,
                    at_unix_s=1,
                    signature=_SIGNATURE,
                )
            ),
            lambda: self.renew(bytes(256), _SIGNATURE),
        ):
            with suppress(_NotSentError):
                ask()


class _Notes:
    """Methods of a service that note their requests."""

    def __init__(self, requests: list[Request]) -> None:
        self._requests = requests

    def __getattr__(self, method: str) -> _Service:
        def call(request: Any, *, timeout: float) -> Any:
            del timeout
            if isinstance(request, Message):
                noted = _noted(method, (request,))
            else:
                noted = _noted(method, request)
            self._requests.append(noted)
            if method in {"GetUploadOffset", "UploadMaskedInput"}:
                # An upload begins at the start and arrives as a whole.
                content = [part for part in noted.parts if part.path == "chunk.content"]
                return SimpleNamespace(
                    offset_bytes=0, received_bytes=sum(part.size_bytes for part in content)
                )
            raise _NotSentError

        return call


def _noted(method: str, messages: Iterable[Message]) -> Request:
    parts: dict[str, Part] = {}
    count = size_bytes = 0
    payload = None
    for message in messages:
        count += 1
        size_bytes += message.ByteSize()
        chunk = getattr(message, "chunk", None)
        if chunk is not None and chunk.content:
            payload = payload or hashlib.sha256()
            payload.update(chunk.content)
        for path, field, value in _leaves(message, ""):
            known = parts.get(path)
            parts[path] = Part(
                path=path,
                name=str(field.full_name),
                count=1 + (known.count if known else 0),
                size_bytes=_size(value) + (known.size_bytes if known else 0),
                value="" if isinstance(value, bytes) else str(value),
            )
    return Request(
        method=method,
        messages=count,
        size_bytes=size_bytes,
        parts=tuple(parts.values()),
        payload_sha256="" if payload is None else payload.hexdigest(),
    )


def _leaves(message: Message, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Every scalar of a message that is there, down to the last."""
    fields: Any = message.DESCRIPTOR.fields
    for field in fields:
        value = getattr(message, field.name)
        path = f"{prefix}{field.name}"
        nested = field.message_type is not None
        if field.label == FieldDescriptor.LABEL_REPEATED:
            items = list(value)
        elif nested:
            items = [value] if message.HasField(field.name) else []
        else:
            # A number that is zero is not on the wire, and is said all the same.
            one_of = field.containing_oneof is not None and not message.HasField(field.name)
            items = [] if one_of else [value]
        for item in items:
            if nested:
                yield from _leaves(item, f"{path}.")
            else:
                yield path, field, item


def _size(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, float):
        return 8
    return max(1, -(-int(value).bit_length() // 7))


def _leaves_of(me: str, peers: tuple[str, ...]) -> ShareLeaves:
    deals = {
        "mask_kem": bytes(hybrid.KEM_CIPHERTEXT_BYTES),
        "sealed": bytes(hybrid.SEALED_BYTES),
        "pair_secret_sha256": _DIGEST,
    }
    return ShareLeaves(
        root=ShareRoot(
            sender=me,
            leaf_count=len(peers),
            root=_DIGEST,
            self_seed_commitment=_DIGEST,
            own_self_seed_share_sha256=_DIGEST,
            signature=_SIGNATURE,
        ),
        leaves=tuple(
            ShareLeaf(
                recipient=peer,
                box_kem=bytes(hybrid.KEM_CIPHERTEXT_BYTES),
                ciphertext=bytes(BOX_BYTES),
                self_seed_share_sha256=_DIGEST,
                mask_key_share_sha256=_DIGEST,
                **(deals if me < peer else {}),
            )
            for peer in peers
        ),
    )


def _boxes(me: str, peers: tuple[str, ...]) -> ShareBoxes:
    return ShareBoxes(
        sender=me,
        boxes=tuple(
            ShareBox(
                recipient=peer,
                ciphertext=bytes(BOX_BYTES),
                self_seed_share_sha256=_DIGEST,
                mask_key_share_sha256=_DIGEST,
            )
            for peer in peers
        ),
        self_seed_commitment=_DIGEST,
        own_self_seed_share_sha256=_DIGEST,
        signature=_SIGNATURE,
    )

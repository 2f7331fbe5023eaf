"""One attempt of one secure aggregation, as the coordinator relays it.

A visible state machine around the pure protocol states of ``secagg.server``: it decides who is
waited for, when a phase closes, and what each silo is told. It knows no gRPC, no database and no
clock; ``server/conductor.py`` gives it time and writes its phases down.

Invariants:

1. A phase closes when nobody is waited for any more, or at its deadline; it closes with at least
   ``max(t, n_min)`` silos or the attempt is aborted.
2. A message of another identity, phase or sender is a typed error and changes nothing.
3. A silo that misses a phase is dropped: it is told ``Aborted`` and is not waited for again.
4. After the survivors were declared the attempt can only be finished or skipped, never retried.

Covered: drop-outs at every step up to n - t, late and repeated messages. Not covered here: what a
malicious coordinator does, which the silos check (``secagg/client``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from secagg import server as protocol
from secagg.descriptor import AggregationId, SignedDescriptor
from secagg.messages import (
    BoxDelivery,
    ConsistencySignature,
    ConsistencySignatures,
    KeyBundle,
    KeyBundles,
    MaskedInputHeader,
    ShareBoxes,
    Survivors,
    UnmaskingShares,
)
from secagg.roster import SignedRoster
from secagg.server import (
    CollectBundles,
    CollectConsistency,
    CollectMaskedInputs,
    CollectShares,
    CollectUnmasking,
)
from server.accumulator import Accumulator, Upload
from server.errors import TooFewSilosError, WrongPhaseError, WrongRoundError

__all__ = ["STEPS", "Attempt", "Instruction", "Phase"]

StateT = TypeVar("StateT")
CollectorT = TypeVar(
    "CollectorT", CollectBundles, CollectShares, CollectConsistency, CollectUnmasking
)


class Phase(StrEnum):
    """Where a round is; the names are the protocol's own."""

    TRAINING = "training"
    ADVERTISE_KEYS = "advertise_keys"
    SHARE_KEYS = "share_keys"
    MASKED_INPUT = "masked_input"
    CONSISTENCY_CHECK = "consistency_check"
    UNMASK = "unmask"
    AGGREGATE = "aggregate"
    FINISHED = "finished"


STEPS = (
    Phase.ADVERTISE_KEYS,
    Phase.SHARE_KEYS,
    Phase.MASKED_INPUT,
    Phase.CONSISTENCY_CHECK,
    Phase.UNMASK,
)

Message = SignedDescriptor | KeyBundles | BoxDelivery | Survivors | ConsistencySignatures
State = CollectBundles | CollectShares | CollectMaskedInputs | CollectConsistency | CollectUnmasking


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """What one silo is to do now."""

    phase: Phase
    message: Message | None
    """None: this silo is out of the attempt."""


@dataclass(kw_only=True, slots=True)
class _Inbox:
    """Uploads in flight, by silo."""

    uploads: dict[str, Upload] = field(default_factory=dict)
    headers: dict[str, MaskedInputHeader] = field(default_factory=dict)


class Attempt:
    """The coordinator's side of one identity (run, round, step, part, attempt)."""

    def __init__(
        self,
        *,
        descriptor: SignedDescriptor,
        roster: SignedRoster,
        accumulator: Accumulator,
    ) -> None:
        self.descriptor = descriptor
        self.identity: AggregationId = descriptor.descriptor.identity
        self.cohort = frozenset(descriptor.descriptor.cohort)
        self.phase = Phase.ADVERTISE_KEYS
        self.active = self.cohort
        self.dropped: dict[str, Phase] = {}
        self.survivors: tuple[str, ...] = ()
        self.received_bytes = 0
        self.lock = asyncio.Lock()
        self._accumulator = accumulator
        self._inbox = _Inbox()
        self._taken: dict[tuple[type[State], str], Any] = {}
        self._state: State = protocol.open(descriptor, roster)
        self._messages: Mapping[str, Message] = dict.fromkeys(self.cohort, descriptor)

    # What the silos are told -------------------------------------------------------------------

    @property
    def waiting_for(self) -> frozenset[str]:
        """Silos whose message would let this phase close early."""
        return self._state.pending & self.active

    def deadline_unix_s(self) -> int:
        """When the current phase closes at the latest."""
        return self.descriptor.descriptor.deadlines_unix_s[STEPS.index(self.phase)]

    def instruction(self, silo_id: str) -> Instruction:
        """What this silo is to do now."""
        return Instruction(phase=self.phase, message=self._messages.get(silo_id))

    # What the silos say ------------------------------------------------------------------------

    def receive_bundle(self, identity: AggregationId, bundle: KeyBundle) -> None:
        """R0."""
        self._take(identity, CollectBundles, bundle.silo_id, bundle)

    def receive_boxes(self, identity: AggregationId, boxes: ShareBoxes) -> None:
        """R1."""
        self._take(identity, CollectShares, boxes.sender, boxes)

    def open_upload(self, identity: AggregationId, header: MaskedInputHeader) -> Upload:
        """R2, opening: the signed header is checked before the first byte is stored."""
        state = self._expect(identity, CollectMaskedInputs)
        state.expect(header)
        known = self._inbox.headers.get(header.silo_id)
        if known == header and header.silo_id in self._inbox.uploads:
            return self._inbox.uploads[header.silo_id]
        if known == header:
            raise WrongPhaseError("this upload is already complete")
        if known is not None:
            raise WrongPhaseError("a second, different upload for one aggregation is refused")
        upload = self._accumulator.open_upload(
            header.silo_id, length_bytes=header.length_bytes, sha256=header.masked_sha256
        )
        self._inbox.headers[header.silo_id] = header
        self._inbox.uploads[header.silo_id] = upload
        return upload

    def upload_offset(self, identity: AggregationId, silo_id: str) -> int:
        """How many bytes of this silo's upload are here; the full length once it is folded."""
        header = self._inbox.headers.get(silo_id)
        if identity == self.identity and header is not None:
            upload = self._inbox.uploads.get(silo_id)
            if upload is None:
                # Folded: true in whatever phase the silo asks again.
                return header.length_bytes
        self._expect(identity, CollectMaskedInputs)
        if header is None:
            return 0
        upload = self._inbox.uploads.get(silo_id)
        return header.length_bytes if upload is None else upload.received_bytes

    def fold_upload(self, identity: AggregationId, silo_id: str) -> None:
        """R2, end: fold the finished upload; a repeat changes nothing.

        The caller holds ``lock``: a phase that closed between the fold and the note that it
        happened would leave a dropped silo's vector in the sum.
        """
        state = self._expect(identity, CollectMaskedInputs)
        upload = self._inbox.uploads.get(silo_id)
        if upload is None:
            return
        self._accumulator.fold(upload)
        del self._inbox.uploads[silo_id]
        self.received_bytes += upload.length_bytes
        state.completed(silo_id, self._inbox.headers[silo_id].masked_sha256)

    def receive_consistency(self, identity: AggregationId, message: ConsistencySignature) -> None:
        """R3."""
        self._take(identity, CollectConsistency, message.silo_id, message)

    def receive_unmasking(self, identity: AggregationId, message: UnmaskingShares) -> None:
        """R4."""
        self._take(identity, CollectUnmasking, message.silo_id, message)

    # Closing a phase -----------------------------------------------------------------------------

    @property
    def may_retry(self) -> bool:
        """Whether no silo can have signed survivors yet, so that a new attempt is allowed."""
        return self.phase in STEPS[:3]

    def close_phase(self) -> None:
        """Go on with whoever answered.

        Raises:
            TooFewSilosError: fewer than max(t, n_min) did; the attempt is over.
        """
        state = self._state
        if not state.ready:
            raise TooFewSilosError(
                f"{self.phase}: {len(self.active - self.waiting_for)} of {len(self.cohort)} silos "
                "answered in time, which is too few to go on"
            )
        # R3 and R4 losses are drop-outs of the protocol, not of the sum: U3 stays what it is.
        self._drop_waited_for()
        match state:
            case CollectBundles():
                self._state, bundles = state.close()
                self._messages = dict.fromkeys(self.active, bundles)
            case CollectShares():
                self._state, deliveries = state.close()
                self._messages = deliveries
            case CollectMaskedInputs():
                self._state, survivors = state.close()
                self.survivors = tuple(sorted(header.silo_id for header in survivors.headers))
                self._messages = dict.fromkeys(self.active, survivors)
            case CollectConsistency():
                self._state, signatures = state.close()
                self._messages = dict.fromkeys(self.active, signatures)
            case CollectUnmasking():
                raise WrongPhaseError("the last phase ends with unmask(), not with close_phase()")
        self.phase = STEPS[STEPS.index(self.phase) + 1]

    def unmask(self) -> np.ndarray:
        """Remove the masks; return the sum modulo 2^32 as uint32, in memory of its own.

        Raises:
            TooFewSilosError: fewer than t silos sent their shares.
        """
        state = self._state
        if not isinstance(state, CollectUnmasking):
            raise WrongPhaseError(f"nothing to unmask in phase {self.phase}")
        if not state.ready:
            raise TooFewSilosError(f"{self.phase}: too few shares to unmask")
        self._drop_waited_for()
        state.finish().apply(self._accumulator.vector)
        return np.array(self._accumulator.vector, dtype=np.uint32)

    def close(self) -> None:
        """Delete spools and accumulator."""
        self._accumulator.close()

    def _drop_waited_for(self) -> None:
        missing = self.waiting_for
        self.dropped.update(dict.fromkeys(sorted(missing), self.phase))
        self.active -= missing

    def _take(
        self, identity: AggregationId, kind: type[CollectorT], silo_id: str, message: Any
    ) -> None:
        """Receive a message; the same one again is fine even after its phase closed.

        A silo repeats itself when the answer was lost on the way; refusing that would cost a
        healthy silo its place.
        """
        if identity == self.identity and self._taken.get((kind, silo_id)) == message:
            return
        self._expect(identity, kind).receive(message)
        self._taken[kind, silo_id] = message

    def _expect(self, identity: AggregationId, kind: type[StateT]) -> StateT:
        if identity != self.identity:
            raise WrongRoundError(f"this is {self.identity}, the message is for {identity}")
        if not isinstance(self._state, kind):
            raise WrongPhaseError(f"the round is in phase {self.phase}")
        return self._state

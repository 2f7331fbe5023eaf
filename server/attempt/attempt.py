"""One attempt of one secure aggregation, as the coordinator relays it.

A visible state machine around the pure protocol states of ``secagg.server``: it decides who is
waited for, when a phase closes, and what each silo is told. It knows no gRPC, no database and no
clock; ``server/run/attempts.py`` gives it time, and a journal writes down what happens.

Invariants:

1. A phase closes when nobody is waited for any more, or at its deadline; it closes with at least
   ``max(t, n_min)`` silos or the attempt is aborted. So it is where uploads cannot be summed
   because a silo rejected another's pair secret: the next attempt leaves out as few as it takes.
2. A message of another identity, phase or sender is a typed error and changes nothing.
3. A silo that misses a phase is dropped: it is told ``Aborted`` and is not waited for again.
4. After the survivors were declared the attempt can only be finished or skipped, never retried.
5. What was accepted is in the journal before the caller may acknowledge it, and a phase is closed
   there, with its members, before anybody sees what follows. The same messages and closed phases
   make the same attempt again (``replay``): same U1, U2, U3, same drop-outs, same answers to the
   silos. A journal that makes another one is refused.
6. Closing a phase is computed once and takes effect later, when the journal has it; the state that
   was closed takes no message meanwhile.
7. A bundle declares the families that its silo reported ready with: D's figures were laid out for
   those, and a silo that signs others would make every silo abort.

Covered: drop-outs at every step up to n - t, late and repeated messages, a coordinator that stops
at any instant. Not covered here: what a malicious coordinator does, which the silos check
(``secagg/client``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from secagg import server as protocol
from secagg.descriptor import AggregationId, SignedDescriptor
from secagg.errors import Check, VerificationError
from secagg.messages import (
    BoxDelivery,
    ConsistencySignature,
    ConsistencySignatures,
    KeyBundle,
    KeyBundles,
    LeafDelivery,
    MaskedInputHeader,
    ShareBoxes,
    ShareLeaves,
    Survivors,
    UnmaskingShares,
)
from secagg.prg import DEFAULT_THREADS, MaskStreams
from secagg.roster import SignedRoster
from secagg.server import (
    CollectBundles,
    CollectConsistency,
    CollectMaskedInputs,
    CollectShares,
    CollectUnmasking,
)
from secagg.server.unmasking import Unmasking
from server.attempt.accumulator import Accumulator, Upload
from server.attempt.inbox import Inbox
from server.attempt.journal import History, Journal, SiloMessage
from server.errors import (
    LostAttemptError,
    TooFewSilosError,
    WrongPhaseError,
    WrongRoundError,
)
from server.figures import STEPS, Phase

__all__ = ["Attempt", "Instruction", "Message"]

Message = (
    SignedDescriptor | KeyBundles | BoxDelivery | LeafDelivery | Survivors | ConsistencySignatures
)
State = CollectBundles | CollectShares | CollectMaskedInputs | CollectConsistency | CollectUnmasking

StateT = TypeVar("StateT")
CollectorT = TypeVar(
    "CollectorT", CollectBundles, CollectShares, CollectConsistency, CollectUnmasking
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """What one silo is to do now."""

    phase: Phase
    message: Message | None
    """None: this silo is out of the attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Closing:
    """What follows a phase; nobody sees it before the journal has it."""

    members: tuple[str, ...]
    """Who answered, in ascending order."""
    missing: frozenset[str]
    """Who is dropped."""
    following: State
    messages: Mapping[str, Message]
    """What each silo that is left is told next."""
    survivors: tuple[str, ...]
    """U3; empty before it is declared."""


class Attempt:
    """The coordinator's side of one identity (run, round, step, part, attempt)."""

    def __init__(
        self,
        *,
        descriptor: SignedDescriptor,
        roster: SignedRoster,
        families: Mapping[str, tuple[str, ...]],
        accumulator: Accumulator,
        journal: Journal,
    ) -> None:
        self.descriptor = descriptor
        self.identity: AggregationId = descriptor.descriptor.identity
        self.cohort = frozenset(descriptor.descriptor.cohort)
        self.phase = Phase.ADVERTISE_KEYS
        self.active = self.cohort
        self.dropped: dict[str, Phase] = {}
        self.lost: dict[str, Phase] = {}
        """Silo to the phase that waited for it in vain, the one that ends the attempt included.

        Of ``dropped`` those are missing who could not have answered (``server/run/attempts.py``).
        """
        self.rejected_pairs: tuple[tuple[str, str], ...] = ()
        """Each (accused, accuser) that ended this attempt: the two cannot be in one sum."""
        self.survivors: tuple[str, ...] = ()
        self.received_bytes = 0
        self.lock = asyncio.Lock()
        self._accumulator = accumulator
        self._journal = journal
        self._collected = False
        self._closing: _Closing | None = None
        self._unmasking: Unmasking | None = None
        self._families = families
        self._inbox = Inbox(journal, accumulator, digest_id=descriptor.descriptor.digest_id)
        self._state: State = protocol.open(descriptor, roster)
        self._messages: Mapping[str, Message] = dict.fromkeys(self.cohort, descriptor)

    def replay(self, history: History) -> None:
        """Take in what was accepted before a restart; nothing is written down again.

        Raises:
            SecAggError: the journal does not fit the descriptor.
            UploadError: the accumulator does not.
            LostAttemptError: a closed phase is not made of what the journal holds.
        """
        by_state: dict[type[State], list[SiloMessage]] = {}
        for message in history.messages:
            by_state.setdefault(_STATE_OF[type(message)], []).append(message)
        for number in range(len(STEPS)):
            kind = type(self._state)
            for message in by_state.get(kind, ()):
                self._remember(message)
            closed = number < history.phases_closed
            if kind is CollectMaskedInputs:
                self._replay_uploads(history.folded, closed=closed)
            if not closed:
                return
            if self._answered() != history.members[number]:
                raise LostAttemptError(f"{STEPS[number]} was closed with other members")
            self._go_on()
            self.lost = dict(self.dropped)

    def _remember(self, message: SiloMessage) -> None:
        state: Any = self._state
        if isinstance(message, MaskedInputHeader):
            state.expect(message)
        else:
            state.receive(message)
        self._inbox.recall(message)

    def _replay_uploads(self, folded: tuple[str, ...], *, closed: bool) -> None:
        state = self._expect(self.identity, CollectMaskedInputs)
        for silo_id in folded:
            header = self._inbox.headers[silo_id]
            state.completed(silo_id, header.masked_sha256)
            self.received_bytes += header.length_bytes
        unfolded = frozenset(self._inbox.headers) - frozenset(folded)
        self._accumulator.keep_spools(frozenset() if closed else unfolded)
        for silo_id in sorted(unfolded):
            if closed:
                # Too late: no upload of it may look as if it were in the sum.
                del self._inbox.headers[silo_id]
            else:
                self._inbox.open_spool(self._inbox.headers[silo_id])

    @property
    def bundles(self) -> tuple[KeyBundle, ...]:
        """R0 so far, in ascending order of silo id."""
        return self._inbox.bundles

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
        declared = sorted(self._families.get(bundle.silo_id, bundle.families))
        if identity == self.identity and declared != sorted(bundle.families):
            raise VerificationError(
                Check.METRICS_FAMILIES,
                "the bundle declares other families than the silo was ready with",
                silo=bundle.silo_id,
            )
        self._take(identity, CollectBundles, bundle)

    def receive_boxes(self, identity: AggregationId, boxes: ShareBoxes | ShareLeaves) -> None:
        """R1."""
        self._take(identity, CollectShares, boxes)

    def open_upload(
        self, identity: AggregationId, header: MaskedInputHeader, leaves: bytes = b""
    ) -> Upload:
        """R2, opening: header and leaf list are checked before the first byte is stored.

        ``leaves`` is empty in suite v1.
        """
        state = self._expect(identity, CollectMaskedInputs)
        state.expect(header)
        known = self._inbox.headers.get(header.silo_id)
        if known is not None and known != header:
            raise WrongPhaseError("a second, different upload for one aggregation is refused")
        if known is not None and header.silo_id not in self._inbox.uploads:
            raise WrongPhaseError("this upload is already complete")
        if known is None:
            if header.debit is not None:
                self._journal.charged(header, state.members)
            self._inbox.keep(header)
            self._inbox.open_spool(header)
            self._inbox.headers[header.silo_id] = header
        upload = self._inbox.uploads[header.silo_id]
        upload.take_leaves(leaves)
        return upload

    def fold_queued(self, silo_id: str) -> bool:
        """Whether a fold of this silo's upload is running or waits for ``lock``."""
        upload = self._inbox.uploads.get(silo_id)
        return upload is not None and upload.queued

    def whole_uploads(self) -> Mapping[str, Upload]:
        """What is all here and not in the sum, by silo: a restart interrupted its fold."""
        return self._inbox.whole_uploads()

    def upload_offset(self, identity: AggregationId, silo_id: str) -> int:
        """How many bytes of this silo's upload are here; the full length once it is folded.

        Of bytes that are all here but not in the sum, the last chunk is forgotten, so that the
        silo's next stream ends with the fold.
        """
        header = self._inbox.headers.get(silo_id)
        if identity == self.identity and header is not None:
            upload = self._inbox.uploads.get(silo_id)
            if upload is None:
                # Folded: true in whatever phase the silo asks again.
                return header.length_bytes
        self._expect(identity, CollectMaskedInputs)
        if header is None:
            return 0
        upload = self._inbox.uploads[silo_id]
        if upload.complete and not upload.queued:
            upload.rewind()
        return upload.received_bytes

    def fold_upload(self, identity: AggregationId, silo_id: str) -> None:
        """R2, end: fold the finished upload; a repeat changes nothing.

        The caller holds ``lock``: a phase that closed between the fold and the note that it
        happened would leave a dropped silo's vector in the sum.
        """
        state = self._expect(identity, CollectMaskedInputs)
        upload = self._inbox.uploads.get(silo_id)
        if upload is None:
            return
        self._accumulator.fold(upload, lambda generation: self._journal.folded(silo_id, generation))
        del self._inbox.uploads[silo_id]
        self.received_bytes += upload.length_bytes
        state.completed(silo_id, self._inbox.headers[silo_id].masked_sha256)

    def receive_consistency(self, identity: AggregationId, message: ConsistencySignature) -> None:
        """R3."""
        self._take(identity, CollectConsistency, message)

    def receive_unmasking(self, identity: AggregationId, message: UnmaskingShares) -> None:
        """R4."""
        self._take(identity, CollectUnmasking, message)

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
        if self._closing is None and not state.ready:
            raise TooFewSilosError(
                f"{self.phase}: {len(self.active - self.waiting_for)} of {len(self.cohort)} silos "
                "answered in time, which is too few to go on"
            )
        if isinstance(state, CollectUnmasking):
            raise WrongPhaseError("the last phase ends with unmask(), not with close_phase()")
        self._inbox.write_rest()
        self._go_on(self._journal)

    def stop_collecting(self) -> None:
        """Close the last phase: what is here now is what the sum is unmasked with.

        Raises:
            TooFewSilosError: fewer than t silos sent their shares.
        """
        state = self._state
        if not isinstance(state, CollectUnmasking):
            raise WrongPhaseError(f"nothing to unmask in phase {self.phase}")
        if not state.ready:
            raise TooFewSilosError(f"{self.phase}: too few shares to unmask")
        if not self._collected:
            self._inbox.write_rest()
            self._go_on(self._journal)

    def _go_on(self, journal: Journal | None = None) -> None:
        """Move to what follows the current phase, once the journal says that it is closed."""
        if self._closing is None:
            self._closing = self._follow()
        closing, phase = self._closing, self.phase
        if journal is not None:
            # If this fails the phase stays closed to messages, and this step is repeated.
            journal.closed(phase, closing.members)
        self._closing = None
        self._state, self._messages = closing.following, closing.messages
        self.survivors, self.active = closing.survivors, self.active - closing.missing
        self.dropped.update(dict.fromkeys(sorted(closing.missing), phase))
        if phase is STEPS[-1]:
            self._collected = True
        else:
            self.phase = STEPS[STEPS.index(phase) + 1]

    def _answered(self) -> tuple[str, ...]:
        """Who answered, in ascending order; in R3 and R4 also a silo of U3 that is dropped."""
        return tuple(sorted((frozenset(self.survivors) or self.active) - self._state.pending))

    def _follow(self) -> _Closing:
        """Close the phase's protocol state; of the last phase it stays, and waits to be opened.

        Raises:
            VerificationError: what follows would be refused by every silo.
        """
        state = self._state
        following: State = state
        messages, survivors = self._messages, self.survivors
        members = self._answered()
        # R3 and R4 losses are drop-outs of the protocol, not of the sum: U3 stays what it is.
        missing = state.pending & self.active
        left = self.active - missing
        match state:
            case CollectBundles():
                following, bundles = state.close()
                messages = dict.fromkeys(left, bundles)
            case CollectShares():
                following, messages = state.close()
            case CollectMaskedInputs():
                self._require_no_rejected_pair(state)
                following, declared = state.close()
                survivors = tuple(sorted(header.silo_id for header in declared.headers))
                messages = dict.fromkeys(left, declared)
            case CollectConsistency():
                following, signatures = state.close()
                messages = dict.fromkeys(left, signatures)
        return _Closing(
            members=members,
            missing=missing,
            following=following,
            messages=messages,
            survivors=survivors,
        )

    def _require_no_rejected_pair(self, state: CollectMaskedInputs) -> None:
        """Give up before a pair is in the sum of which one silo's mask alone is there.

        Their uploads are in the sum already, so whom U3 has to leave out is left out of the next
        attempt. Nobody is lost for it: no phase waited, and an accusation may be false.

        Raises:
            VerificationError: rejected_pair.
        """
        self.rejected_pairs = state.rejected_pairs
        if left_out := state.left_out:
            accused, accuser = self.rejected_pairs[0]
            more = len(self.rejected_pairs) - 1
            raise VerificationError(
                Check.REJECTED_PAIR,
                f"{accuser} rejects a pair secret of {accused}"
                + (f", and so do {more} more pairs" if more else ""),
                silo=left_out[0],
            )

    def unmask(self) -> np.ndarray:
        """Remove the masks; the committed sum stays, so that a restart can do it again.

        The sum modulo 2^32 is a read-only map of uint32, valid also after :meth:`close`.

        Raises:
            TooFewSilosError: fewer than t silos sent their shares.
        """
        self.stop_collecting()
        state = self._state
        if not isinstance(state, CollectUnmasking):
            raise WrongPhaseError(f"nothing to unmask in phase {self.phase}")
        if self._unmasking is None:
            self._unmasking = state.finish()
        unmasking = self._unmasking
        # Tile by tile from file to file: a map of both would count as memory.
        with MaskStreams(
            unmasking.masks, words=unmasking.words, threads=DEFAULT_THREADS
        ) as streams:
            return self._accumulator.release(streams.apply)

    @property
    def at_fault(self) -> Mapping[str, tuple[str, ...]]:
        """Whom unmasking caught though the sum is there, by what it found; empty before it.

        Names only, never a share or a secret.
        """
        found = self._unmasking
        if found is None:
            return {}
        caught = {
            "bad_pair_dealers": found.bad_pair_dealers,
            "inconsistent_dealers": found.inconsistent_dealers,
            "rejected_senders": found.rejected_senders,
        }
        return {check: silos for check, silos in caught.items() if silos}

    def close(self) -> None:
        """Delete spools and accumulator."""
        self._accumulator.close()

    def _take(self, identity: AggregationId, kind: type[CollectorT], message: Any) -> None:
        """Receive a message; the same one again is fine even after its phase closed.

        A silo repeats itself when the answer was lost on the way; refusing that would cost a
        healthy silo its place.
        """
        if identity == self.identity and self._inbox.knows(message):
            return
        self._expect(identity, kind).receive(message)
        self._inbox.keep(message)

    def _expect(self, identity: AggregationId, kind: type[StateT]) -> StateT:
        if identity != self.identity:
            raise WrongRoundError(f"this is {self.identity}, the message is for {identity}")
        if not isinstance(self._state, kind) or self._collected or self._closing is not None:
            raise WrongPhaseError(f"the round is in phase {self.phase}")
        return self._state


_STATE_OF: dict[type[SiloMessage], type[State]] = {
    KeyBundle: CollectBundles,
    ShareBoxes: CollectShares,
    ShareLeaves: CollectShares,
    MaskedInputHeader: CollectMaskedInputs,
    ConsistencySignature: CollectConsistency,
    UnmaskingShares: CollectUnmasking,
}

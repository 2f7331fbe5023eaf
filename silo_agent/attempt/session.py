"""One attempt of one secure aggregation, from the silo's side.

Ordered invariants:

1. Nothing is sent before the descriptor passed roster, chain, policy and ledger, and its identity
   is newer than every one this silo ever joined or charged.
2. R0: one durable ledger record ("joined", with the descriptor's digest), then the bundle. So no
   restart and no second descriptor makes this silo show other keys under the same identity. The
   bundle carries the ledger's head with that record in it.
   R1: no share leaves before every peer's ledger head was compared with those seen before, and
   remembered durably.
3. R2: one durable ledger record (debit and "spent" mark) and one in the audit log, then noise,
   data and masks in memory, then the spool, then the first byte. A delta that is not finite, or
   none at all, goes up as zeros with full noise; nobody outside can tell. A sum of unit gradients
   may still be under way when the boxes arrive: nothing is changed then, and the boxes are to be
   shown again. A sample of more units than may be summed ends the session before anything is
   charged or sent.
4. R3: the mark "survivors signed" is durable, and audited, before the signature leaves, and so are
   the debits that the survivors' uploads were charged with. After it every later attempt of the
   same step is refused, of any part. Without noise the mark names the survivors, and none is signed
   under others than those of the mark before, in whatever run, unless every bundle of U1 lets
   cohorts vary: sums of cohorts that vary can be subtracted from one another.
5. Each step is answered once. The very same message again gets the byte-identical answer and
   changes nothing, so a coordinator that restarts may repeat itself; a different message of an
   answered step, or one out of order, closes the session.
6. Any failed check, and any failed write, wipes the protocol state; no share is released by an
   aborted session. Only a lost connection leaves the session as it is: its answer can be repeated,
   also one that never arrived, and that of R0 too if the caller holds the session by then.

Memory: at most two full vectors, the delta (or the sum of unit gradients) and the buffer that
becomes the upload. The session drops the delta once it is encoded and the buffer once it is
spooled. R4's answer is kept until the session is closed; the secrets it came from are not.

Covered: the honest silo's side of R0 to R4. Not covered here: finishing the upload of a spool after
a restart (``silo_agent/attempt/unfinished.py``); such a silo counts as dropped in R3 and R4.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import secagg.client as protocol
from dp.config import Mode, PrivacySpec
from dp.errors import NonFiniteError
from dp.ledger.ledger import Head, Ledger
from dp.noise.grid import Grid
from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import NoiseShare, RingVector
from dp.noise.source import NoiseSource
from ops.logs.logger import get_logger
from ops.tracing.spans import spanned
from secagg.client.setup import check_setup
from secagg.descriptor import AggregationId, SignedDescriptor
from secagg.errors import Check, SecAggError, VerificationError
from secagg.messages import (
    NO_DEBIT,
    BoxDelivery,
    ConsistencySignatures,
    DebitHead,
    KeyBundle,
    KeyBundles,
    LeafDelivery,
    Survivors,
)
from secagg.roster import SignedRoster
from silo_agent.attempt.spool import Spool
from silo_agent.books.audit import AuditLog, SiloEvent, place
from silo_agent.books.ledger import (
    grown_cohort,
    identity_name,
    ledger_identity,
    newest_identity,
    round_entry,
)
from silo_agent.books.peer_heads import PeerHeads
from silo_agent.errors import NotReadyError, SessionError, TransportError
from silo_agent.line.transport import Coordinator
from silo_agent.local_work.result import Result
from silo_agent.metrics import SiloMetrics

__all__ = ["Message", "Session"]

log = get_logger(__name__)

State = (
    protocol.AdvertiseKeys
    | protocol.ShareKeys
    | protocol.MaskedInput
    | protocol.ConsistencyCheck
    | protocol.Unmask
    | protocol.Finished
    | protocol.Aborted
)

Message = (
    SignedDescriptor | KeyBundles | BoxDelivery | LeafDelivery | Survivors | ConsistencySignatures
)
"""What the coordinator says in an attempt, one kind a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What one message was answered with."""

    message: Message
    send: Callable[[], None]
    """Sends the same bytes whenever it is called."""

    def repeat(self, message: Message) -> None:
        """Answer the very same message again; a SessionError if it is another one."""
        if message != self.message:
            # A second descriptor under one identity would lead to other keys under that name.
            second = isinstance(message, SignedDescriptor)
            raise SessionError(
                f"a second, different {type(message).__name__} for one attempt: "
                "this silo leaves it",
                check=Check.IDENTITY if second else Check.UNEXPECTED_MESSAGE,
            )
        self.send()


class Session:
    """The daemon's hands on the protocol states of ``secagg.client``."""

    def __init__(
        self,
        *,
        silo_id: str,
        signing_key: Ed25519PrivateKey,
        roster: SignedRoster,
        descriptor: SignedDescriptor,
        base_model_sha256: bytes,
        adapter_sha256: bytes,
        families: tuple[str, ...],
        spec: PrivacySpec,
        contribution: Result,
        ledger: Ledger,
        peers: PeerHeads,
        spool_directory: Path,
        coordinator: Coordinator,
        metrics: SiloMetrics,
        audit: AuditLog,
        suites: frozenset[int],
        plan_families: tuple[str, ...],
        task_sha256: bytes = b"",
        cohort_may_vary: bool = False,
        advertise: bool = True,
    ) -> None:
        """Join the attempt that the descriptor opens, and send the keys of R0.

        ``suites`` are those that the site accepts, ``plan_families`` follow from the plan, and
        ``task_sha256`` names the round's task as this silo verified it, where there is one.
        ``cohort_may_vary`` is this site's word on sums without noise.
        Without ``advertise`` the first ``handle`` of the descriptor sends them: then the caller
        holds the session if that fails, and no other keys may ever follow these.
        """
        self.descriptor = descriptor.descriptor
        self.identity: AggregationId = self.descriptor.identity
        self._hybrid = self.descriptor.is_hybrid
        self._silo_id = silo_id
        self._spec = spec
        self._contribution: Result | None = contribution
        self._ledger = ledger
        self._peers = peers
        # Whether every silo of U1 has said that cohorts may vary; nobody has before R0 is over.
        self._all_may_vary = False
        self._roster = roster.roster
        self._spool_directory = spool_directory
        self._spool: Spool | None = None
        self._coordinator = coordinator
        self._metrics = metrics
        self._audit = audit
        self._uploaded = False
        self._answers: dict[type[Message], _Answer] = {}
        self._noise: NoiseShare | None = None
        self._refuse_if_agreed()
        setup = protocol.ClientSetup(
            silo_id=silo_id,
            signing_key=signing_key,
            roster=roster,
            descriptor=descriptor,
            ledger_head=_head_of(ledger),
            newest_identity=newest_identity(ledger, self.identity.run_id),
            base_model_sha256=base_model_sha256,
            adapter_sha256=adapter_sha256,
            families=families,
            entropy=os.urandom,
            suites=suites,
            debit_head=_newest_debit_of(ledger),
            cohort_may_vary=cohort_may_vary and self._hybrid,
            task_sha256=task_sha256 if self._hybrid else b"",
            families_of_plan=plan_families if self._hybrid else (),
        )
        # A descriptor that is refused burns no identity.
        check_setup(setup)
        # Durable before the keys leave: no other keys may ever follow under this identity.
        ledger.mark_joined(ledger_identity(self.identity), self.descriptor.sha256)
        self._state: State
        # The bundle's head holds that record, so a ledger that loses it is behind its own bundle.
        self._state, bundle = protocol.begin(replace(setup, ledger_head=_head_of(ledger)))
        try:
            self._answers[SignedDescriptor] = _Answer(
                message=descriptor, send=lambda: self._advertise(bundle)
            )
            if advertise:
                self._advertise(bundle)
        except Exception:
            # Nobody else holds this object yet, so nobody else could wipe its keys.
            self.close()
            raise

    @property
    def finished(self) -> bool:
        """Whether this silo released its shares."""
        return isinstance(self._state, protocol.Finished)

    def handle(self, message: Message) -> None:
        """Answer one message of the coordinator, or repeat the answer it got before.

        Raises:
            SecAggError: a check failed; the state is wiped.
            SessionError: the message does not fit; the state is wiped.
            PrivacyError: the ledger refused; nothing left the silo, and the state is wiped.
            TransportError: the answer could not be delivered; the same message may come again.
            NotReadyError: the vector is still being computed; nothing changed.
        """
        try:
            answered = self._answers.get(type(message))
            if answered is None:
                self._act(message)
            else:
                answered.repeat(message)
        except (TransportError, NotReadyError):
            raise
        except Exception as error:
            self.close(check=error.check if isinstance(error, SecAggError) else None)
            raise

    def close(self, *, keep_spool: bool = False, check: Check | None = None) -> None:
        """Wipe secrets and what was answered; idempotent.

        ``keep_spool`` leaves the masked vector on disk for the next process to finish sending.
        ``check`` is the one that failed, if one did.
        """
        self._state.wipe(check)
        self._answers.clear()
        if self._contribution is not None:
            self._contribution.drop()
        self._contribution = self._noise = None
        if self._spool is not None and not keep_spool:
            self._spool.delete()
        self._spool = None

    def _act(self, message: Message) -> None:
        """Take a message of a step that was not answered yet."""
        state, wire, identity = self._state, self._coordinator, self.identity
        match state, message:
            case protocol.AdvertiseKeys(), KeyBundles():
                self._state, dealt = state.handle(message)
                # The bundles are verified by now, and what is dealt has not left.
                self._peers.admit(message, self._roster, identity)
                self._all_may_vary = all(one.cohort_may_vary for one in message.bundles)
                self._answer(message, lambda: wire.share_keys(identity, dealt))
            case protocol.ShareKeys(), BoxDelivery() | LeafDelivery():
                if self._contribution is not None:
                    self._contribution.require_ready()
                masked_input, _ = state.handle(message)
                self._state = masked_input
                self._name_corrupt(masked_input)
                spool = self._spool = self._masked_spool(masked_input)
                self._answer(message, lambda: self._upload(spool))
            case protocol.ConsistencyCheck(), Survivors():
                if state.aborted is None:
                    self._require_shrinking(message)
                self._state, signature = state.handle(message)
                # The headers are verified by now.
                self._peers.remember(message, self._roster, identity)
                # Durable before the signature leaves: from here on no later attempt can be joined.
                self._ledger.mark_agreed(ledger_identity(identity), cohort=self._noiseless(message))
                self._audit.append(SiloEvent.SURVIVORS_SIGNED, **place(identity))
                self._answer(message, lambda: wire.check_consistency(identity, signature))
            case protocol.Unmask(), ConsistencySignatures():
                self._state, shares = state.handle(message)
                self._answer(message, lambda: wire.unmask(identity, shares))
            case _:
                raise SessionError(
                    f"{type(message).__name__} does not fit {type(state).__name__}: "
                    "this silo leaves the attempt",
                    check=Check.UNEXPECTED_MESSAGE,
                )

    def _answer(self, message: Message, send: Callable[[], None]) -> None:
        # Noted first: if the sending fails, the same message gets the same answer again.
        self._answers[type(message)] = _Answer(message=message, send=send)
        send()

    @spanned("upload")
    def _upload(self, spool: Spool) -> None:
        self._coordinator.upload(self.identity, spool.header, spool)
        if not self._uploaded:
            self._uploaded = True
            self._audit.note(SiloEvent.ATTEMPT_UPLOADED, **place(self.identity))

    def _advertise(self, bundle: KeyBundle) -> None:
        self._coordinator.advertise_keys(self.identity, bundle)
        if self._noise is None and self._contribution is not None:
            # Drawn while the peers exchange keys, before any data is touched.
            self._noise = self._draw_noise()

    def _name_corrupt(self, state: protocol.MaskedInput) -> None:
        """Show whose signed boxes were corrupt; the attempt goes on without their shares."""
        if not state.rejected:
            return
        for rejected in state.rejected:
            self._metrics.count_check(rejected.check)
        log.warning(
            "corrupt_shares",
            identity=identity_name(self.identity),
            senders={rejected.silo_id: rejected.check.value for rejected in state.rejected},
        )

    @spanned("mask")
    def _masked_spool(self, state: protocol.MaskedInput) -> Spool:
        # The vector lives in this call alone, so its memory is free before the upload begins.
        vector, record = self._encoded()
        # The header names the very record that paid for it, which is on disk.
        debit = DebitHead(seq=record.seq, sha256=record.sha256) if self._hybrid else None
        masked, header = state.mask(vector, debit)
        self._state = masked
        return Spool.write(
            self._spool_directory,
            self.identity,
            vector,
            header=header,
            descriptor_sha256=self.descriptor.sha256,
            digest_id=self.descriptor.digest_id,
            leaves=masked.leaves,
        )

    def _encoded(self) -> tuple[RingVector, Head]:
        """Charge the ledger, then put the data into the noise; both are gone from here after.

        Gives the vector, and the record of the charge.
        """
        contribution = self._contribution
        if contribution is None:
            raise SessionError("this session has already uploaded")
        vector, figures = contribution.take(), contribution.figures
        # The keys may have arrived although this silo was told that they had not.
        noise = self._draw_noise() if self._noise is None else self._noise
        self._contribution = self._noise = None
        digest = self.descriptor.sha256
        receipt = self._ledger.reserve(
            round_entry(
                self._spec,
                identity=self.identity,
                dimension=self.descriptor.dimension,
                descriptor_sha256=digest,
            )
        )
        self._audit.append(SiloEvent.ATTEMPT_CHARGED, **place(self.identity))
        try:
            encoded = noise.encode(
                delta=vector,
                metrics=figures,
                receipt=receipt,
                descriptor_sha256=digest,
            )
        except NonFiniteError:
            self._metrics.nonfinite_deltas.inc()
            # One line and no traceback: what was not finite must not end up in a log.
            log.error("delta_not_finite", round=self.identity.round, uploads="zeros")  # noqa: TRY400
            encoded = noise.encode(
                delta=None, metrics=None, receipt=receipt, descriptor_sha256=digest
            )
        return encoded, receipt.record

    def _draw_noise(self) -> NoiseShare:
        layout, release = self.descriptor.metrics, self._spec.release
        return NoiseShare(
            grid=Grid(
                clip_l2=release.clip_l2,
                steps=release.grid,
                dimension=self.descriptor.dimension,
            ),
            block=MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid),
            sigma=self.descriptor.noise_sigma,
            metrics_sigma=layout.sigma,
            source=NoiseSource.fresh("masked_input"),
        )

    def _noiseless(self, survivors: Survivors) -> tuple[str, ...] | None:
        """Whose the sum is, if nothing but masks hides what it is made of."""
        if self._spec.mode is not Mode.NONE:
            return None
        return tuple(header.silo_id for header in survivors.headers)

    def _require_shrinking(self, survivors: Survivors) -> None:
        """Sign for nobody who was not in the newest sum without noise, unless all agreed to that.

        Raises:
            VerificationError: cohort_grew.
        """
        cohort = self._noiseless(survivors)
        if cohort is None or self._all_may_vary:
            return
        if strangers := grown_cohort(self._ledger, cohort):
            raise VerificationError(
                Check.COHORT_GREW,
                f"{len(strangers)} silo(s) were not in the newest sum without noise, and not every "
                "silo lets cohorts vary",
                silo=strangers[0],
            )

    def _refuse_if_agreed(self) -> None:
        mine = self.identity
        if self._ledger.has_agreed(mine.run_id, mine.round, mine.step):
            raise SessionError(
                "survivors of this step were already signed: no later attempt",
                check=Check.IDENTITY,
            )


def _newest_debit_of(ledger: Ledger) -> DebitHead:
    head = ledger.newest_debit()
    return NO_DEBIT if head is None else DebitHead(seq=head.seq, sha256=head.sha256)


def _head_of(ledger: Ledger) -> protocol.LedgerHead:
    seq, sha256 = ledger.head()
    return protocol.LedgerHead(seq=seq, sha256=sha256)

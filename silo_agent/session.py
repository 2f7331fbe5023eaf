"""One attempt of one secure aggregation, from the silo's side.

Ordered invariants:

1. Nothing is sent before the descriptor passed roster, chain, policy and ledger, and its identity
   is newer than every one this silo ever charged.
2. R2: one durable ledger record (debit and "spent" mark), then noise, data and masks in memory,
   then the spool, then the first byte. A delta that is not finite, or none at all, goes up as
   zeros with full noise; nobody outside can tell.
3. R3: the mark "survivors signed" is durable before the signature leaves. After it every later
   attempt of the same step is refused.
4. Any failed check wipes the protocol state; no share is released by an aborted session.

Covered: the honest silo's side of R0 to R4. Not covered: finishing the upload of a spool after a
restart; a restarted silo takes part again from the next round.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import secagg.client as protocol
from dp.config import PrivacySpec
from dp.errors import NonFiniteError
from dp.grid import Grid
from dp.ledger import Identity, Ledger, LedgerEntry
from dp.metrics_block import MetricsBlock
from dp.share import NoiseShare
from dp.source import NoiseSource
from secagg.descriptor import AggregationId, SignedDescriptor
from secagg.messages import BoxDelivery, ConsistencySignatures, KeyBundles, Survivors
from secagg.roster import SignedRoster
from silo_agent.errors import SessionError
from silo_agent.metrics import SiloMetrics
from silo_agent.spool import Spool
from silo_agent.transport import Coordinator

__all__ = ["Contribution", "Session", "round_entry"]

log = structlog.get_logger(__name__)

State = (
    protocol.AdvertiseKeys
    | protocol.ShareKeys
    | protocol.MaskedInput
    | protocol.ConsistencyCheck
    | protocol.Unmask
    | protocol.Finished
    | protocol.Aborted
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contribution:
    """What local work yields for the sum. It stays in this process."""

    delta: np.ndarray
    """Flat float32 vector over the shared layout, not yet clipped."""
    metrics: dict[str, float]
    """Value of each coordinate of the metrics block."""

    def __repr__(self) -> str:
        """Redacted: these numbers must not reach a log."""
        return f"Contribution(dimension={self.delta.size}, values redacted)"


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
        contribution: Contribution,
        ledger: Ledger,
        spool_directory: Path,
        coordinator: Coordinator,
        metrics: SiloMetrics,
    ) -> None:
        self.descriptor = descriptor.descriptor
        self.identity: AggregationId = self.descriptor.identity
        self._silo_id = silo_id
        self._spec = spec
        self._contribution: Contribution | None = contribution
        self._ledger = ledger
        self._spool_directory = spool_directory
        self._spool: Spool | None = None
        self._coordinator = coordinator
        self._metrics = metrics
        self._refuse_if_agreed()
        # Drawn while the peers exchange keys, before any data is touched.
        self._noise: NoiseShare | None = self._draw_noise()
        head_seq, head_sha256 = ledger.head()
        setup = protocol.ClientSetup(
            silo_id=silo_id,
            signing_key=signing_key,
            roster=roster,
            descriptor=descriptor,
            ledger_head=protocol.LedgerHead(seq=head_seq, sha256=head_sha256),
            newest_identity=_newest_identity(ledger, self.identity.run_id),
            base_model_sha256=base_model_sha256,
            adapter_sha256=adapter_sha256,
            families=families,
            entropy=os.urandom,
        )
        self._state: State
        self._state, bundle = protocol.begin(setup)
        try:
            coordinator.advertise_keys(self.identity, bundle)
        except Exception:
            # Nobody else holds this object yet, so nobody else could wipe its keys.
            self.close()
            raise

    def handle(self, message: KeyBundles | BoxDelivery | Survivors | ConsistencySignatures) -> None:
        """Answer one message of the coordinator.

        Raises:
            SecAggError: a check failed; the state is wiped.
            PrivacyError: the ledger refused; nothing left the silo.
            TransportError: the answer could not be delivered.
        """
        state = self._state
        match state, message:
            case protocol.AdvertiseKeys(), KeyBundles():
                self._state, boxes = state.handle(message)
                self._coordinator.share_keys(self.identity, boxes)
            case protocol.ShareKeys(), BoxDelivery():
                masked_input, _ = state.handle(message)
                self._state = masked_input
                self._masked_input(masked_input)
            case protocol.ConsistencyCheck(), Survivors():
                unmask, signature = state.handle(message)
                # Durable before the signature leaves: from here on no later attempt can be joined.
                self._ledger.mark_agreed(_ledger_identity(self.identity))
                self._state = unmask
                self._coordinator.check_consistency(self.identity, signature)
            case protocol.Unmask(), ConsistencySignatures():
                self._state, shares = state.handle(message)
                self._coordinator.unmask(self.identity, shares)
                self.close()
            case _:
                self.close()
                raise SessionError(
                    f"{type(message).__name__} does not fit {type(state).__name__}: "
                    "this silo leaves the attempt"
                )

    def close(self) -> None:
        """Wipe secrets and the spool; idempotent."""
        self._state.wipe()
        self._contribution = None
        self._noise = None
        if self._spool is not None:
            self._spool.delete()
            self._spool = None

    def _masked_input(self, state: protocol.MaskedInput) -> None:
        contribution, noise = self._contribution, self._noise
        if contribution is None or noise is None:
            raise SessionError("this session has already uploaded")
        digest = self.descriptor.sha256
        receipt = self._ledger.reserve(
            round_entry(
                self._spec,
                identity=self.identity,
                dimension=self.descriptor.dimension,
                descriptor_sha256=digest,
            )
        )
        try:
            vector = noise.encode(
                delta=contribution.delta,
                metrics=contribution.metrics,
                receipt=receipt,
                descriptor_sha256=digest,
            )
        except NonFiniteError:
            self._metrics.nonfinite_deltas.inc()
            # One line and no traceback: what was not finite must not end up in a log.
            log.error("delta_not_finite", round=self.identity.round, uploads="zeros")  # noqa: TRY400
            vector = noise.encode(
                delta=None, metrics=None, receipt=receipt, descriptor_sha256=digest
            )
        self._contribution = None
        self._noise = None
        self._state, header = state.mask(vector)
        self._spool = Spool.write(self._spool_directory, self.identity, vector)
        self._coordinator.upload(self.identity, header, self._spool)

    def _draw_noise(self) -> NoiseShare:
        layout = self.descriptor.metrics
        return NoiseShare(
            grid=Grid(
                clip_l2=self._spec.clip_l2,
                steps=self._spec.grid,
                dimension=self.descriptor.dimension,
            ),
            block=MetricsBlock(names=layout.names, bounds=layout.bounds, grid=layout.grid),
            sigma=self.descriptor.noise_sigma,
            metrics_sigma=layout.sigma,
            source=NoiseSource.fresh("masked_input"),
        )

    def _refuse_if_agreed(self) -> None:
        mine = self.identity
        if self._ledger.has_agreed(mine.run_id, mine.round, mine.step, mine.part):
            raise SessionError("survivors of this step were already signed: no later attempt")


def round_entry(
    spec: PrivacySpec, *, identity: AggregationId, dimension: int, descriptor_sha256: bytes
) -> LedgerEntry:
    """The charge for one attempt: delta and metrics block are released together."""
    return LedgerEntry(
        run=identity.run_id,
        round=identity.round,
        attempt=identity.attempt,
        step=identity.step,
        part=identity.part,
        mode=spec.mode,
        q=1.0,
        z=spec.joint_noise_multiplier,
        steps=1,
        dimension=dimension,
        descriptor_sha256=descriptor_sha256,
    )


def _ledger_identity(identity: AggregationId) -> Identity:
    return Identity(
        run=identity.run_id,
        round=identity.round,
        step=identity.step,
        part=identity.part,
        attempt=identity.attempt,
    )


def _newest_identity(ledger: Ledger, run_id: str) -> AggregationId | None:
    newest = ledger.highest_identity(run_id)
    if newest is None:
        return None
    return AggregationId(
        run_id=newest.run,
        round=newest.round,
        step=newest.step,
        part=newest.part,
        attempt=newest.attempt,
    )

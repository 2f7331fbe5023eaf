"""Uploads that an earlier process of this silo masked, kept on disk, and did not finish.

Invariants:

1. Only the newest aggregation of a run is kept, and only if this silo's ledger has charged it under
   the spool's own descriptor. Whatever is damaged, foreign or older is deleted with one log line,
   and never sent.
2. A spool is sent only for exactly its identity, only after every byte of it was verified, and from
   the coordinator's offset on: what arrives is the upload that the earlier process signed.
3. The keys of that attempt died with the earlier process. This silo answers nothing else of it,
   so it counts as dropped in R3 and R4.

Covered: kill and restart at any point after the spool was written. Not covered: a crash between the
debit and the spool, which costs the debit.
"""

from __future__ import annotations

from pathlib import Path

from dp.ledger.ledger import Ledger
from ops.files import is_partial
from ops.logs.errors import told
from ops.logs.logger import get_logger
from secagg.descriptor import AggregationId
from silo_agent.attempt.spool import Spool
from silo_agent.books.ledger import identity_name, ledger_identity
from silo_agent.errors import SpoolError
from silo_agent.line.transport import Coordinator
from silo_agent.metrics import SiloMetrics

__all__ = ["UnfinishedUploads"]

log = get_logger(__name__)


class UnfinishedUploads:
    """What is left of earlier processes; the spool of a live session is none of it."""

    def __init__(
        self, directory: Path, *, silo_id: str, ledger: Ledger, metrics: SiloMetrics
    ) -> None:
        """Look through the directory and delete what may not be sent.

        Raises:
            SpoolError: The directory cannot be read, or a spool cannot be deleted.
        """
        self._metrics = metrics
        self._spools: dict[AggregationId, Spool] = {}
        try:
            paths = sorted(directory.iterdir()) if directory.exists() else []
            for path in paths:
                spool = self._admitted(path, silo_id, ledger)
                if spool is not None:
                    self._spools[spool.identity] = spool
        except OSError as error:
            raise SpoolError(f"cannot look through {directory}: {error}") from error
        for identity in self._spools:
            log.info("upload_unfinished", identity=identity_name(identity))

    def finish(self, identity: AggregationId, coordinator: Coordinator) -> bool:
        """Send what the coordinator lacks of this aggregation's upload; False if there is none.

        Raises:
            TransportError: It could not be delivered; the spool stays.
        """
        spool = self._spools.get(identity)
        if spool is None:
            return False
        try:
            spool.verify()
        except SpoolError as error:
            del self._spools[identity]
            _delete(spool.path, str(error))
            return False
        coordinator.upload(identity, spool.header, spool)
        self._metrics.resumed_uploads.inc()
        log.info("upload_finished", identity=identity_name(identity), counts_as="dropped")
        return True

    def keep_only(self, identity: AggregationId | None) -> None:
        """Delete every spool but the one of this aggregation; all of them for None."""
        for other in [known for known in self._spools if known != identity]:
            self.end(other)

    def end(self, identity: AggregationId) -> None:
        """Delete the spool of an aggregation that is over."""
        spool = self._spools.pop(identity, None)
        if spool is not None:
            spool.delete()

    @staticmethod
    def _admitted(path: Path, silo_id: str, ledger: Ledger) -> Spool | None:
        if is_partial(path):
            # A write that never returned; nothing of it was sent.
            path.unlink()
            return None
        try:
            spool = Spool.open(path)
        except SpoolError as error:
            _delete(path, told(error))
            return None
        identity = ledger_identity(spool.identity)
        if spool.header.silo_id != silo_id or not ledger.has_spent(
            identity, spool.descriptor_sha256
        ):
            _delete(path, "it is not of an upload that this silo charged")
            return None
        if ledger.highest_identity(identity.run) != identity:
            _delete(path, "a later aggregation of its run has begun")
            return None
        return spool


def _delete(path: Path, why: str) -> None:
    path.unlink(missing_ok=True)
    log.warning("spool_deleted", spool=path.name, why=why)

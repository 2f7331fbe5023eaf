"""What one aggregation writes down before anybody is told, and how it is read back.

Invariants: every method is one durable transaction that is over when it returns; writing the same
again changes nothing, so that a step whose transaction failed may be tried again.

Covered: messages, folds, closed phases. Not covered: opening and ending an aggregation, which
``server/run/attempts.py`` does together with other changes.
"""

from __future__ import annotations

from secagg.descriptor import AggregationId
from secagg.messages import KeyBundle
from server.attempt.history import History, SiloMessage
from server.attempt.message_codec import decode, encode
from server.errors import StoreError
from server.phase import STEPS, Phase
from server.store import Store
from server.store.aggregations import AggregationRow
from server.store.heads import HeadRow

__all__ = ["StoreJournal", "read_history"]


class StoreJournal:
    """The journal of one aggregation, in the coordinator's database."""

    def __init__(self, store: Store, identity: AggregationId, descriptor_sha256: bytes) -> None:
        self._store = store
        self._identity = identity
        self._descriptor_sha256 = descriptor_sha256

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

    Args:
        store: The store.
        row: The aggregation.

    Returns:
        What :meth:`server.attempt.attempt.Attempt.replay` takes.

    Raises:
        MalformedMessageError: A row is damaged.
    """
    return History(
        messages=tuple(decode(message) for message in store.messages.with_secrets(row.identity)),
        folded=row.folded,
        members=row.members,
    )

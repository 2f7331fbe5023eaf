"""What one aggregation writes down before anybody is told, and how it is read back.

Invariants: every method is one durable transaction that is over when it returns; writing the same
again changes nothing, so that a step whose transaction failed may be tried again.

Covered: messages, folds, closed phases. Not covered: opening and ending an aggregation, which
``server/attempts.py`` does together with other changes.
"""

from __future__ import annotations

from secagg.descriptor import AggregationId
from server.errors import StoreError
from server.history import History, SiloMessage
from server.message_codec import decode, encode
from server.phase import STEPS, Phase
from server.store import Store
from server.store.aggregations import AggregationRow

__all__ = ["StoreJournal", "read_history"]


class StoreJournal:
    """The journal of one aggregation, in the coordinator's database."""

    def __init__(self, store: Store, identity: AggregationId) -> None:
        self._store = store
        self._identity = identity

    def accepted(self, message: SiloMessage) -> None:
        """Keep a message before it is acknowledged."""
        self._store.messages.put(self._identity, encode(message))

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
        What :meth:`server.round.Attempt.replay` takes.

    Raises:
        MalformedMessageError: A row is damaged.
    """
    return History(
        messages=tuple(decode(message) for message in store.messages.with_secrets(row.identity)),
        folded=row.folded,
        members=row.members,
    )

"""What the silos of one attempt sent: messages that were taken, uploads in flight.

Invariants:

1. A message is acknowledged after the journal has it.
2. A message that the protocol state took but the journal failed to keep is remembered as unwritten
   and written before its phase closes, or the phase does not close. So whatever a closed phase is
   made of, a restart makes it of the same.

Covered: repeats, failed writes. Not covered: checks (``secagg.server``), the sum
(``server/attempt/accumulator.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from secagg.messages import KeyBundle, MaskedInputHeader, ShareBoxes, ShareLeaves
from server.attempt.accumulator import Accumulator, Upload
from server.attempt.journal import Journal, SiloMessage

__all__ = ["Inbox"]


class Inbox:
    """The messages of one attempt, by silo."""

    def __init__(self, journal: Journal, accumulator: Accumulator, *, digest_id: int) -> None:
        self.headers: dict[str, MaskedInputHeader] = {}
        """Uploads that were announced, in flight or in the sum."""
        self.uploads: dict[str, Upload] = {}
        """Uploads in flight."""
        self._journal = journal
        self._accumulator = accumulator
        self._digest_id = digest_id
        self._taken: dict[tuple[type[SiloMessage], str], SiloMessage] = {}
        self._unwritten: dict[tuple[type[SiloMessage], str], SiloMessage] = {}

    def knows(self, message: SiloMessage) -> bool:
        """Whether this very message was acknowledged before."""
        return self._taken.get(_key(message)) == message

    def keep(self, message: SiloMessage) -> None:
        """Write down a message that the protocol state took.

        Raises:
            StoreError: it is not written yet, and must not be acknowledged.
        """
        key = _key(message)
        self._unwritten[key] = message
        self._journal.accepted(message)
        del self._unwritten[key]
        self._taken[key] = message

    def write_rest(self) -> None:
        """Write down what could not be written when it came; only then may its phase close."""
        for message in tuple(self._unwritten.values()):
            self.keep(message)

    def recall(self, message: SiloMessage) -> None:
        """Take over a message that was written down before a restart."""
        self._taken[_key(message)] = message
        if isinstance(message, MaskedInputHeader):
            self.headers[message.silo_id] = message

    @property
    def bundles(self) -> tuple[KeyBundle, ...]:
        """The bundles that were taken, in ascending order of silo id."""
        taken = (item for item in self._taken.values() if isinstance(item, KeyBundle))
        return tuple(sorted(taken, key=lambda bundle: bundle.silo_id))

    def open_spool(self, header: MaskedInputHeader) -> Upload:
        """Start or go on with the spool of an announced upload."""
        upload = self._accumulator.open_upload(
            header.silo_id,
            length_bytes=header.length_bytes,
            sha256=header.masked_sha256,
            digest_id=self._digest_id,
        )
        self.uploads[header.silo_id] = upload
        return upload

    def whole_uploads(self) -> Mapping[str, Upload]:
        """What is all here and not in the sum, by silo."""
        return {s: upload for s, upload in self.uploads.items() if upload.complete}


def _key(message: SiloMessage) -> tuple[type[SiloMessage], str]:
    if isinstance(message, ShareBoxes | ShareLeaves):
        return type(message), message.sender
    return type(message), message.silo_id

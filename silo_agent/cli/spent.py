"""What a data set spent before it joined, as the operator gives it with ``join --spent``.

Invariants:

1. Every file is read, verified and confirmed before the invite is redeemed, and the ledger that
   begins with them is on disk before the identity is.
2. A file counts only if the operator named the fingerprint of its key. It shows that the file is
   that of the silo they mean; its name, or what it says of itself, shows nothing of the kind: two
   departments have files of one name.
3. A directory that ``leave`` has emptied does not begin at 0 while its own file lies in it.

Covered: the words. Not covered: the file itself (``silo_agent/books/spent.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from dp.config import ADJACENCY
from dp.ledger.opening import Carried
from ops.cli.envelope import CommandError, Exit
from silo_agent.books.ledger import LEDGER_FILE
from silo_agent.books.spent import (
    SPENT_FILE,
    SpentDocument,
    begin_ledger,
    opening_of,
    read_spent,
    require_can_begin,
)
from silo_agent.identity.join import read_invite

__all__ = ["Before", "said_of"]

_SHOWN_DELTA: Final = 1e-5
"""For people; the site's own δ stands in its policy, which may not exist yet."""
_LAST_SHOWN_S: Final = 253_402_300_799
"""The end of the year 9999, after which dates have no name here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Before:
    """What was given, verified and confirmed."""

    data_dir: Path
    """The directory that is joined into."""
    documents: tuple[SpentDocument, ...]
    """Each of another ledger."""
    carried: Carried | None
    """All of them together; None where none was given."""
    fresh: bool
    """Whether the directory has no ledger yet."""

    @classmethod
    def read(
        cls, data_dir: Path, files: Sequence[Path], *, keys: Sequence[str], invite: str
    ) -> Self:
        """Read the files; ``keys`` are the fingerprints that the operator named.

        ``invite`` says which federation is joined.

        Raises:
            CommandError: A file's key was not named, or a name is of no file, or the directory's
                own file was not given.
            SpentFileError: A file is damaged, or they cannot begin a ledger here.
            PrivacyError: The ledger that is there cannot be read.
            InviteRefusedError: A file was given, and the invite is malformed.
        """
        documents = tuple(read_spent(file) for file in files)
        named = {key.strip().lower() for key in keys}
        for file, document in zip(files, documents, strict=True):
            if document.fingerprint not in named:
                raise CommandError(
                    f"{file} is signed by a key that --spent-key does not name: "
                    + "; ".join(said_of(document)),
                    code="spent_key",
                    exit_code=Exit.ARGUMENTS,
                    hint="nothing was done, and the invite can still be used",
                    next_step="compare the fingerprint with what the old data directory shows "
                    "(chorale-silo status), then give --spent-key with it",
                )
        strange = named - {document.fingerprint for document in documents}
        if strange:
            raise CommandError(
                f"no file that was given is signed by key {', '.join(sorted(strange))}",
                code="spent_key",
                exit_code=Exit.ARGUMENTS,
                hint="nothing was done, and the invite can still be used",
                next_step="give the file that the key has signed with --spent",
            )
        joined = read_invite(invite).federation if documents else ""
        carried = opening_of(documents, federation=joined)
        ledger = data_dir / LEDGER_FILE
        fresh = not ledger.exists() or not ledger.stat().st_size
        if carried is not None:
            require_can_begin(data_dir, carried)
        elif fresh and (data_dir / SPENT_FILE).exists():
            left = read_spent(data_dir / SPENT_FILE)
            raise CommandError(
                f"{data_dir} has no ledger any more, and {SPENT_FILE} says what its data set has "
                "spent",
                code="spent_not_given",
                exit_code=Exit.ARGUMENTS,
                hint="nothing was done, and the invite can still be used",
                next_step=f"add --spent {data_dir / SPENT_FILE} --spent-key {left.fingerprint}; "
                "if other data lies here now, move the file elsewhere",
            )
        return cls(data_dir=data_dir, documents=documents, carried=carried, fresh=fresh)

    def begin(self) -> None:
        """Begin the ledger, if anything was given.

        Raises:
            PrivacyError: A ledger that began otherwise is there meanwhile.
            LocalStoreError: The disk refused.
        """
        if self.carried is not None:
            begin_ledger(self.data_dir, self.carried)

    def lines(self) -> list[str]:
        """For people."""
        if self.documents:
            said = [line for document in self.documents for line in said_of(document)]
            if self.carried is not None and self.carried.cohort is not None:
                said.append(
                    "a sum without noise is here of no silo but "
                    + ", ".join(self.carried.cohort)
                    + ", whose the newest one was"
                )
            return [f"carried from before: {line}" for line in said]
        if not self.fresh:
            return []
        return [
            "epsilon starts at 0; a data set that took part before needs --spent FILE",
            "to add it: join again with the file and a new invite, before the first `run`",
        ]

    def audited(self) -> dict[str, str]:
        """For the audit log: the ledgers that go on here."""
        if not self.documents:
            return {}
        return {"carried": ",".join(document.ledger_id.hex() for document in self.documents)}

    def as_data(self) -> list[dict[str, Any]]:
        """For the envelope."""
        return [
            {
                "federation": document.federation,
                "silo_id": document.silo_id,
                "key_fingerprint": document.fingerprint,
                "ledger": document.ledger_id.hex(),
                "ledger_seq": document.seq,
                "at_unix_s": document.at_unix_s,
            }
            for document in self.documents
        ]


def said_of(document: SpentDocument) -> list[str]:
    """What a file says, for people."""
    made = datetime.fromtimestamp(min(document.at_unix_s, _LAST_SHOWN_S), tz=UTC)
    spent = document.carried.epsilons(_SHOWN_DELTA)
    return [
        f"{document.silo_id} of {document.federation}, signed by key {document.fingerprint}",
        f"record {document.seq} of ledger {document.ledger_id.hex()[:16]}, on {made:%F %R} UTC",
        f"at delta {_SHOWN_DELTA:g}, {ADJACENCY}: "
        + ", ".join(f"epsilon for each {kind} {found}" for kind, found in spent.items()),
    ]

"""What a data set has spent, signed: from a ledger that ends to the one that begins after it.

A new data directory begins a new ledger, and the same data may have been in another one before. The
document that carries what was spent there is JSON::

    {format, federation, silo_id, verification_key,
     ledger: {id, seq, sha256},       the ledger, and the record at which it stood
     at_unix_s,
     carried: {...},                  dp/ledger/opening.py: curves, failures and every count; whose
                                      the newest sums without noise were
     signature}

One that names no cohort is of format 1, with the domain of earlier releases, which read it; one
that names any is of format 2.

Ordered invariants of reading:

1. The file is a regular one of at most ``MAX_FILE_BYTES``, holds exactly these fields, each of its
   very type and within bounds, and the key in it has signed all of them under a domain of their
   own. So what was cut short or edited is refused.
2. Anybody can sign with a key of their own. Which silo's file it is, the operator says with the
   key's fingerprint, which the old directory shows: a file of another department's silo is then
   noticed, whatever its name (``silo_agent/cli/spent.py``).
3. Several add up, for a data set that took part in several federations. Two of one ledger are
   refused: the newer one holds all of the older.
4. A cohort without noise is that of one federation, by its name, and the newest document that knows
   of one decides. Where the data set goes on in the same federation no later sum has a silo that
   was not in it; it is carried past other federations, which have nothing to compare it with.

And of the ledger that begins with it (``begin_ledger``):

5. It is on disk, with all of that in its first record, before the new identity is. So no daemon can
   charge anything in a directory whose opening is not there.
6. Its head is remembered: it cannot be lost and begun anew with nothing spent.

The document is made from a verified copy of the ledger (``silo_agent/books/ledger_copy.py``), so
beside a daemon as well.

Covered: files cut short, edited, of other kinds, of other silos; crashes. Not covered: an operator
who leaves a file out or gives one that was made before the last charge (its time is shown); a
ledger that another of the files had carried already, which then counts twice; a data set in two
data directories at the same time, which two ledgers charge apart; a cohort without noise that an
earlier release left out of its file, or of a federation that goes on under another name.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Final

from dp.errors import PrivacyError
from dp.ledger.ledger import Ledger
from dp.ledger.opening import MAX_ELSEWHERE, Carried, carried_fields, read_carried
from federation.membership.roster_change import fingerprint
from ops.files import replace_file
from secagg import bounds, canonical, suite
from secagg.errors import MalformedMessageError
from silo_agent.books.ledger import LEDGER_FILE
from silo_agent.books.ledger_copy import ledger_copy
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import LocalStoreError, SpentFileError
from silo_agent.identity.identity import Identity

__all__ = [
    "MAX_FILE_BYTES",
    "SPENT_FILE",
    "SpentDocument",
    "begin_ledger",
    "is_newest",
    "opening_of",
    "read_spent",
    "require_can_begin",
    "spent_here",
    "write_spent",
]

SPENT_FILE: Final = "spent.json"
"""In the data directory; ``chorale-silo leave`` writes it."""
MAX_FILE_BYTES: Final = 1 << 18
_FORMAT: Final = "chorale-spent/1"
_DOMAIN: Final = "chorale/v1/spent"
_FORMAT_WITH_COHORTS: Final = "chorale-spent/2"
_DOMAIN_WITH_COHORTS: Final = "chorale/v2/spent"
_FIELDS: Final = frozenset(
    {
        "format",
        "federation",
        "silo_id",
        "verification_key",
        "ledger",
        "at_unix_s",
        "carried",
        "signature",
    }
)
_LEDGER_FIELDS: Final = frozenset({"id", "seq", "sha256"})
_MAX_INTEGER: Final = (1 << 53) - 1
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})*")
_UNSIGNED: Final = bytes(bounds.SIGNATURE_BYTES)
_ANY_DELTA: Final = 1e-5
"""A ledger is opened at some δ; curves know none."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SpentDocument:
    """The document; one from ``read_spent`` is verified."""

    federation: str
    """In which the silo took part."""
    silo_id: str
    """Its name there."""
    verification_key: bytes
    """Its Ed25519 key, which signs this."""
    ledger_id: bytes
    """Digest of the ledger's first record."""
    seq: int
    """The record at which it stood."""
    sha256: bytes
    """That record's digest."""
    at_unix_s: int
    """When this was signed."""
    carried: Carried
    """What was spent, everything before that ledger included."""
    signature: bytes = _UNSIGNED
    """Over all of it."""

    def __post_init__(self) -> None:
        try:
            bounds.require_name(self.federation, "federation")
            bounds.require_silo_id(self.silo_id, "silo_id")
            bounds.require_verification_key(self.verification_key, "verification_key")
            bounds.require_bytes(self.ledger_id, bounds.DIGEST_BYTES, "ledger.id")
            bounds.require_integer(self.seq, 0, _MAX_INTEGER, "ledger.seq")
            bounds.require_bytes(self.sha256, bounds.DIGEST_BYTES, "ledger.sha256")
            bounds.require_integer(self.at_unix_s, 0, _MAX_INTEGER, "at_unix_s")
            bounds.require_bytes(self.signature, bounds.SIGNATURE_BYTES, "signature")
        except MalformedMessageError as error:
            raise SpentFileError(str(error)) from error
        if self.federation in self.carried.elsewhere:
            raise SpentFileError(f"it counts {self.federation} among other federations than itself")

    @property
    def format(self) -> str:
        """Of the file; which releases read it."""
        return _FORMAT_WITH_COHORTS if self._names_cohorts else _FORMAT

    @property
    def _names_cohorts(self) -> bool:
        return self.carried.cohort is not None or bool(self.carried.elsewhere)

    @property
    def fingerprint(self) -> str:
        """Of the key, as people compare it."""
        return fingerprint(self.verification_key)

    def signed_bytes(self) -> bytes:
        """What the silo signs."""
        carried = json.dumps(
            carried_fields(self.carried), allow_nan=False, separators=(",", ":"), sort_keys=True
        )
        return canonical.encode(
            _DOMAIN_WITH_COHORTS if self._names_cohorts else _DOMAIN,
            self.federation,
            self.silo_id,
            self.verification_key,
            self.ledger_id,
            self.seq,
            self.sha256,
            self.at_unix_s,
            carried,
        )


# Making it ----------------------------------------------------------------------------------------


def spent_here(data_dir: Path, identity: Identity, *, at_unix_s: int) -> SpentDocument | None:
    """What the ledger of a data directory says, signed; None where there was never a ledger.

    Raises:
        LocalStoreError: The ledger cannot be read, or is gone.
        PrivacyError: It is damaged, of another format, or older than this silo remembers.
    """
    with ledger_copy(data_dir, delta=_ANY_DELTA, caps={}) as copy:
        if copy is None:
            return None
        ledger = copy.ledger
        seq, sha256 = ledger.head()
        unsigned = SpentDocument(
            federation=identity.federation,
            silo_id=identity.silo_id,
            verification_key=suite.verification_key(identity.signing_key),
            ledger_id=ledger.id,
            seq=seq,
            sha256=sha256,
            at_unix_s=at_unix_s,
            carried=ledger.carried(),
        )
    return replace(unsigned, signature=suite.sign(identity.signing_key, unsigned.signed_bytes()))


def write_spent(path: Path, spent: SpentDocument) -> None:
    """Write the document, readable by its owner alone; durably and at once.

    Raises:
        LocalStoreError: The disk refused.
    """
    document = {
        "format": spent.format,
        "federation": spent.federation,
        "silo_id": spent.silo_id,
        "verification_key": spent.verification_key.hex(),
        "ledger": {
            "id": spent.ledger_id.hex(),
            "seq": spent.seq,
            "sha256": spent.sha256.hex(),
        },
        "at_unix_s": spent.at_unix_s,
        "carried": carried_fields(spent.carried),
        "signature": spent.signature.hex(),
    }
    try:
        replace_file(path, (json.dumps(document, allow_nan=False).encode() + b"\n",))
    except OSError as error:
        raise LocalStoreError(f"cannot write {path}: {error}") from error


def is_newest(data_dir: Path, document: SpentDocument) -> bool:
    """Whether the ledger of a data directory, if there is one, stands where a document says.

    Raises:
        LocalStoreError: The ledger cannot be read, or is gone.
        PrivacyError: It is damaged, of another format, or older than this silo remembers.
    """
    with ledger_copy(data_dir, delta=_ANY_DELTA, caps={}) as copy:
        stands = document.ledger_id, (document.seq, document.sha256)
        return copy is None or (copy.ledger.id, copy.ledger.head()) == stands


# Reading it ---------------------------------------------------------------------------------------


def read_spent(path: Path) -> SpentDocument:
    """Read and verify a document; whose it is, is for the operator to say.

    Raises:
        SpentFileError: It is not whole, not signed by the key in it, or no such file.
    """
    try:
        return _decode(_content(path))
    except (SpentFileError, PrivacyError, OSError) as error:
        raise SpentFileError(
            f"{path} is not a whole and unchanged file of what was spent: {error}. Take it again "
            "from where it was made: `chorale-silo budget export FILE`, or spent.json, which "
            "`chorale-silo leave` writes"
        ) from error


def opening_of(documents: Sequence[SpentDocument], *, federation: str) -> Carried | None:
    """What a ledger in ``federation`` that follows all of them begins with; None for no document.

    Raises:
        SpentFileError: Two are of one ledger, or they know of too many federations.
    """
    ledgers = [document.ledger_id for document in documents]
    if len(set(ledgers)) != len(ledgers):
        raise SpentFileError(
            "two of the files are of one ledger: give the newer one alone, it holds all of the "
            "other"
        )
    if not documents:
        return None
    cohorts: dict[str, tuple[str, ...]] = {}
    for document in sorted(documents, key=lambda one: (one.at_unix_s, one.ledger_id)):
        cohorts.update(document.carried.elsewhere)
        if document.carried.cohort is not None:
            cohorts[document.federation] = document.carried.cohort
    here = cohorts.pop(federation, None)
    if len(cohorts) > MAX_ELSEWHERE:
        raise SpentFileError(
            f"the files name sums without noise of {len(cohorts)} other federations, of which a "
            f"ledger keeps {MAX_ELSEWHERE}"
        )
    spent = reduce(add, (document.carried for document in documents))
    return replace(spent, cohort=here, elsewhere=cohorts)


def _content(path: Path) -> bytes:
    # Without a wait where a pipe was named.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise SpentFileError("it is no regular file")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise SpentFileError(f"it has more than {MAX_FILE_BYTES} bytes")
    return content


def _decode(content: bytes) -> SpentDocument:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SpentFileError("it is cut short, or no JSON") from error
    formats = (_FORMAT, _FORMAT_WITH_COHORTS)
    if not isinstance(document, dict) or document.get("format") not in formats:
        raise SpentFileError(f"it is of another kind than {' and '.join(formats)}")
    ledger = document.get("ledger")
    if set(document) != _FIELDS or not isinstance(ledger, dict) or set(ledger) != _LEDGER_FIELDS:
        raise SpentFileError("a field is missing, or is one too many")
    spent = SpentDocument(
        federation=document["federation"],
        silo_id=document["silo_id"],
        verification_key=_bytes(document["verification_key"]),
        ledger_id=_bytes(ledger["id"]),
        seq=ledger["seq"],
        sha256=_bytes(ledger["sha256"]),
        at_unix_s=document["at_unix_s"],
        carried=read_carried(document["carried"]),
        signature=_bytes(document["signature"]),
    )
    if document["format"] != spent.format:
        raise SpentFileError(f"what it says is of format {spent.format}")
    if not suite.verify(spent.verification_key, spent.signature, spent.signed_bytes()):
        raise SpentFileError("its signature is not of what it says: it was changed")
    return spent


def _bytes(value: Any) -> bytes:
    if type(value) is not str or not _HEX.fullmatch(value):
        raise SpentFileError("a key, digest or signature is not lower-case hexadecimal")
    return bytes.fromhex(value)


# The ledger that begins with it -------------------------------------------------------------------


def require_can_begin(data_dir: Path, opening: Carried) -> None:
    """Go on only where a ledger can begin with this, or has; nothing is changed.

    Raises:
        SpentFileError: A ledger that began otherwise is there, or one was.
        LocalStoreError: This silo's state cannot be read.
        PrivacyError: The ledger that is there cannot be.
    """
    with ledger_copy(data_dir, delta=_ANY_DELTA, caps={}) as copy:
        if copy is None:
            return
        held = copy.ledger.opening
    if held is None or carried_fields(held) != carried_fields(opening):
        raise SpentFileError(
            f"{data_dir} has a ledger, which goes on counting and did not begin with what the "
            "files say: to go on with it, join without --spent; to begin with the files, join "
            "into a new data directory"
        )


def begin_ledger(data_dir: Path, opening: Carried) -> None:
    """Begin the ledger of a new data directory with what was spent before; again changes nothing.

    Raises:
        PrivacyError: A ledger that began otherwise is there, or a daemon holds it.
        LocalStoreError: The disk refused.
    """
    store = LocalStore(data_dir)
    try:
        ledger = Ledger.open(data_dir / LEDGER_FILE, delta=_ANY_DELTA, caps={}, opening=opening)
    except OSError as error:
        raise LocalStoreError(f"cannot begin {data_dir / LEDGER_FILE}: {error}") from error
    with ledger:
        store.set_ledger_head(*ledger.head())

"""Proof that a release or a training was debited: issued by the ledger, spent by who releases.

Invariants:
    1. Only ``dp.ledger.ledger`` issues receipts.
    2. A ``Receipt`` covers one descriptor and one dimension and is consumed at most once; a
       ``TrainingReceipt`` covers the steps that were charged and no more. Both also under threads.
       The first names the record that it was issued for, which is on disk.
    3. They cannot be copied, stored or printed, and a forked child may not use its parent's: it
       would double what was debited once.

Covered: one debit, one use. Not covered: what is done with a step that was taken.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Iterable
from typing import Final, NoReturn

from dp.accounting.charge import UnitKind
from dp.config import Mode, PrivacySpec
from dp.errors import ReceiptError
from dp.ledger.entry import Head

ISSUER: Final = object()
"""Held by the ledger; its presence in a call marks the ledger as the caller."""


class Receipt:
    """One durable debit of a release, not yet used."""

    __slots__ = (
        "_descriptor_sha256",
        "_dimension",
        "_lock",
        "_mode",
        "_pid",
        "_record",
        "_units",
        "_used",
    )

    def __init__(
        self,
        *,
        issuer: object,
        descriptor_sha256: bytes,
        dimension: int,
        mode: Mode,
        record: Head,
        units: Iterable[UnitKind] = (),
    ) -> None:
        if issuer is not ISSUER:
            raise ReceiptError("only the ledger issues receipts")
        self._record = record
        self._descriptor_sha256 = descriptor_sha256
        self._dimension = dimension
        self._mode = mode
        self._units = frozenset(units)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._used = False

    @property
    def record(self) -> Head:
        """The debit's own record, which the upload is signed with."""
        return self._record

    @property
    def mode(self) -> Mode:
        """The mechanism that was debited."""
        return self._mode

    @property
    def units(self) -> frozenset[UnitKind]:
        """The unit kinds that were debited."""
        return self._units

    @property
    def used(self) -> bool:
        """Whether it has been consumed."""
        return self._used

    def require(self, *, descriptor_sha256: bytes, dimension: int) -> None:
        """Check, without consuming, that the receipt covers this release.

        Raises:
            ReceiptError: If it was used, or was issued for something else.
        """
        _require_process(self._pid)
        if self._used:
            raise ReceiptError("this receipt was already used; a new release needs a new debit")
        if not hmac.compare_digest(self._descriptor_sha256, descriptor_sha256):
            raise ReceiptError("this receipt was issued for another descriptor")
        if dimension != self._dimension:
            raise ReceiptError(
                f"this receipt covers {self._dimension} coordinates, not {dimension}"
            )

    def consume(self, *, descriptor_sha256: bytes, dimension: int) -> None:
        """Use the receipt up.

        Raises:
            ReceiptError: If it was used, or was issued for something else.
        """
        with self._lock:
            self.require(descriptor_sha256=descriptor_sha256, dimension=dimension)
            self._used = True

    def __repr__(self) -> str:
        return f"<Receipt {'used' if self._used else 'unused'}, contents redacted>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ReceiptError("a receipt cannot be copied or stored")


class TrainingReceipt:
    """One durable debit of a local training: the steps it pays for."""

    __slots__ = ("_lock", "_pid", "_spec", "_steps_left")

    def __init__(self, *, issuer: object, spec: PrivacySpec) -> None:
        if issuer is not ISSUER:
            raise ReceiptError("only the ledger issues receipts")
        if spec.mode is not Mode.RECORD_LOCAL or spec.record is None:
            raise ReceiptError(f"mode {spec.mode.value!r} has no training that is charged")
        self._spec = spec
        self._steps_left = spec.record.steps_per_round
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def spec(self) -> PrivacySpec:
        """What was charged; the steps take every setting from here."""
        return self._spec

    @property
    def steps_left(self) -> int:
        """Steps that may still be taken."""
        return self._steps_left

    def take_step(self) -> None:
        """Spend one step, before anything of it is shown.

        Raises:
            ReceiptError: If the reserved steps are used up.
        """
        _require_process(self._pid)
        with self._lock:
            if self._steps_left == 0:
                raise ReceiptError("the reserved steps are used up; more of them need a new debit")
            self._steps_left -= 1

    def __repr__(self) -> str:
        return f"<TrainingReceipt steps_left={self._steps_left}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ReceiptError("a receipt cannot be copied or stored")


def _require_process(pid: int) -> None:
    if os.getpid() != pid:
        raise ReceiptError("a forked process may not use its parent's receipt")

"""Proof that a release was debited: issued by the ledger, spent once by the encoder.

Invariants: only ``dp.ledger`` issues receipts; a receipt covers one descriptor and one dimension;
it is consumed at most once, also under threads; it cannot be copied, stored or printed.
"""

from __future__ import annotations

import hmac
import threading
from typing import Final, NoReturn

from dp.config import Mode
from dp.errors import ReceiptError

ISSUER: Final = object()
"""Held by the ledger; its presence in a call marks the ledger as the caller."""


class Receipt:
    """One durable debit, not yet used."""

    __slots__ = ("_descriptor_sha256", "_dimension", "_lock", "_mode", "_used")

    def __init__(
        self, *, issuer: object, descriptor_sha256: bytes, dimension: int, mode: Mode
    ) -> None:
        if issuer is not ISSUER:
            raise ReceiptError("only the ledger issues receipts")
        self._descriptor_sha256 = descriptor_sha256
        self._dimension = dimension
        self._mode = mode
        self._lock = threading.Lock()
        self._used = False

    @property
    def mode(self) -> Mode:
        """The mechanism that was debited."""
        return self._mode

    @property
    def used(self) -> bool:
        """Whether it has been consumed."""
        return self._used

    def require(self, *, descriptor_sha256: bytes, dimension: int) -> None:
        """Check, without consuming, that the receipt covers this release.

        Raises:
            ReceiptError: If it was used, or was issued for something else.
        """
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

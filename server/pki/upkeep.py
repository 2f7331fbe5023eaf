"""Keeping the coordinator's own certificates fresh while it serves, and rotating its CA.

Invariants:

1. Looking after certificates never stops the coordinator: what fails is logged and tried again at
   the next look, with the certificate before still in use.
2. Whatever changes is in the audit log; of a CA, before it changes.

Covered: the server's certificate at half its life, the end of an overlap. Not covered: waking up on
time; an overlap that is over is over for every call at once (``server/pki/trust.py``), and new
connections see it within a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from federation.errors import FederationError
from ops.logs.logger import get_logger
from server.audit import AuditEvent, AuditLog
from server.errors import CoordinatorError
from server.metrics import CoordinatorMetrics
from server.pki.authority import CertificateAuthority
from server.pki.tls import ServerTls
from server.pki.trust import Retiring, Trust

__all__ = ["Upkeep"]

log = get_logger(__name__)

EVERY_S: Final = 60.0


class Upkeep:
    """Looks after the certificates of one coordinator."""

    def __init__(
        self, *, trust: Trust, tls: ServerTls, audit: AuditLog, metrics: CoordinatorMetrics
    ) -> None:
        self._trust = trust
        self._tls = tls
        self._audit = audit
        self._metrics = metrics
        self._to_note = False
        """Whether a new certificate of the server is not in the log yet."""

    def rotate(self, overlap_s: int, *, admin: str) -> Retiring:
        """Make a new issuing CA; returns the one before, and until when it is trusted.

        The present one is trusted beside it for ``overlap_s``.

        Raises:
            CaRotationError: The overlap is out of bounds, or another rotation is not over.
        """

        def note(new: CertificateAuthority, old: Retiring) -> None:
            self._audit.append(
                AuditEvent.CA_ROTATED,
                admin=admin,
                ca_sha256=new.sha256.hex(),
                before_sha256=old.authority.sha256.hex(),
                until_unix_s=old.until_unix_s,
            )

        retiring = self._trust.rotate(overlap_s, name="chorale", noted=note)
        log.info("ca_rotated", until_unix_s=retiring.until_unix_s)
        self._try(self._refresh)
        return retiring

    def look(self) -> None:
        """Do what is due: end an overlap, renew the server's certificate."""
        # Each by itself: what keeps one from its end must not keep the other.
        self._try(self._tidy)
        self._try(self._refresh)

    async def keep_looking(self) -> None:
        """Look once a minute, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (CoordinatorError, FederationError, OSError) as error:
            log.error("certificate_upkeep_failed", reason=error)  # noqa: TRY400 - says it all

    def _tidy(self) -> None:
        def note(digest: bytes) -> None:
            self._audit.append(AuditEvent.CA_RETIRED, ca_sha256=digest.hex())

        forgotten = self._trust.tidy(note)
        if forgotten is not None:
            log.info("ca_retired", ca_sha256=forgotten.hex())

    def _refresh(self) -> None:
        self._to_note = self._tls.refresh() or self._to_note
        if self._to_note:
            self._audit.append(
                AuditEvent.SERVER_CERTIFICATE_RENEWED, expiry_unix_s=self._tls.expiry_unix_s
            )
            self._to_note = False
        self._metrics.server_certificate_expiry.set(self._tls.expiry_unix_s)

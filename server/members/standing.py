"""How a silo stands: suspended, reinstated, revoked, or gone by its own word.

Invariants:

1. A change is durable and in the audit log, with the admin's name, before it is answered, and bites
   on the silo's next call: the certificate is looked at on every one (``server/rpc/access.py``).
2. Nobody waits for a silo that may take no part: rounds that are open learn of it at once.
3. Revocation withdraws unspent invites, so that only one made after it brings the silo back.

Covered: the admin's changes, a silo's own leaving, coordinators that restart. Not covered: a roster
that names such a silo; publish another one.
"""

from __future__ import annotations

from collections.abc import Callable

from federation.membership.invite import SILO_ID
from ops.logs.logger import get_logger
from server.audit import AuditEvent, AuditLog
from server.context import Liveness
from server.errors import StandingError, UnknownSiloError
from server.states import OVER
from server.store import Store
from server.store.silos import SiloRow

__all__ = ["MAX_REASON_CHARS", "Standing"]

log = get_logger(__name__)

MAX_REASON_CHARS = 200


class Standing:
    """Changes how silos stand, and tells the rounds."""

    def __init__(
        self,
        *,
        store: Store,
        audit: AuditLog,
        liveness: Liveness,
        changed: Callable[[], None],
    ) -> None:
        """Bar at once whoever the store says may take no part.

        ``liveness`` is what rounds ask whom they wait for; ``changed`` wakes everything that waits
        for silos.
        """
        self._store = store
        self._audit = audit
        self._liveness = liveness
        self._changed = changed
        for silo in store.silos.list():
            liveness.bar(silo.silo_id, barred=not silo.takes_part)

    def suspend(self, silo_id: str, *, admin: str, reason: str) -> None:
        """Refuse a silo from its next call on, until it is reinstated.

        Raises:
            UnknownSiloError: No such silo joined.
            StandingError: It is revoked, or the reason is too long.
        """
        silo = self._silo(silo_id, reason)
        if silo.revoked:
            raise StandingError(f"{silo_id} is revoked, which is more than suspended")
        with self._store.transaction():
            self._store.silos.suspend(silo_id, suspended=True)
            self._audit.append(AuditEvent.SILO_SUSPENDED, silo=silo_id, admin=admin, reason=reason)
        self._tell(silo_id)

    def reinstate(self, silo_id: str, *, admin: str) -> None:
        """End a suspension, and let a silo that sits out take part from the next task on.

        Raises:
            UnknownSiloError: No such silo joined.
            StandingError: It is neither suspended nor sits out.
        """
        if not self._silo(silo_id).suspended and not self._sits_out(silo_id):
            raise StandingError(f"{silo_id} is not suspended and does not sit out of a run")
        with self._store.transaction():
            self._store.silos.suspend(silo_id, suspended=False)
            self._store.dropouts.forget(silo_id)
            self._audit.append(AuditEvent.SILO_REINSTATED, silo=silo_id, admin=admin)
        self._tell(silo_id)

    def revoke(self, silo_id: str, *, admin: str, reason: str) -> None:
        """Refuse a silo's certificates for good, the next one included.

        Raises:
            UnknownSiloError: No such silo joined.
            StandingError: The reason is too long.
        """
        self._silo(silo_id, reason)
        with self._store.transaction():
            self._store.silos.revoke(silo_id)
            self._store.invites.withdraw(silo_id)
            self._audit.append(AuditEvent.SILO_REVOKED, silo=silo_id, admin=admin, reason=reason)
        self._tell(silo_id)

    def leave(self, silo_id: str, *, revoke: bool) -> None:
        """Take a silo at its word that it takes part no more; asking twice changes nothing.

        With ``revoke`` its certificates end too.
        """
        silo = self._silo(silo_id)
        if silo.left and not revoke:
            return
        with self._store.transaction():
            self._store.silos.leave(silo_id)
            self._store.invites.withdraw(silo_id)
            if revoke:
                self._store.silos.revoke(silo_id)
            self._audit.append(
                AuditEvent.SILO_LEFT, silo=silo_id, certificate="revoked" if revoke else "kept"
            )
        self._tell(silo_id)

    def tell_joined(self, silo_id: str) -> None:
        """Count on a silo that joined, unless it is still suspended."""
        self._tell(silo_id)

    def _sits_out(self, silo_id: str) -> bool:
        table = self._store.dropouts
        return any(
            silo_id in table.sitting_out(run.run_id)
            for run in self._store.runs.list()
            if run.state not in OVER
        )

    def _silo(self, silo_id: str, reason: str = "") -> SiloRow:
        if len(reason) > MAX_REASON_CHARS:
            raise StandingError(f"a reason has at most {MAX_REASON_CHARS} characters")
        silo = self._store.silos.get(silo_id) if SILO_ID.fullmatch(silo_id) else None
        if silo is None:
            raise UnknownSiloError(f"no silo {silo_id[:63]!r} has joined")
        return silo

    def _tell(self, silo_id: str) -> None:
        silo = self._silo(silo_id)
        self._liveness.bar(silo_id, barred=not silo.takes_part)
        log.info(
            "silo_standing",
            silo=silo_id,
            suspended=silo.suspended,
            revoked=silo.revoked,
            left=silo.left,
        )
        self._changed()

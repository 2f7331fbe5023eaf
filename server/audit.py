"""The coordinator's audit log: who did what, when, in a chain that shows any later change.

The form of a record and the checks of the chain are ``federation/audit/lines.py``'s, the file is
``ops/audit_log.py``'s.

Covered: alteration of any record; with heads that a silo keeps (``server/members/audit_heads.py``
hands them out each round) also a cut at the end and a chain that was computed anew. Not covered:
records after the newest head that anybody else holds.
"""

from __future__ import annotations

from enum import StrEnum

from ops import audit_log

__all__ = ["AuditEvent", "AuditLog"]


class AuditEvent(StrEnum):
    """Everything the log can say."""

    GENESIS = "genesis"
    TORN_WRITE_CUT = "torn_write_cut"
    COORDINATOR_STARTED = "coordinator_started"
    COORDINATOR_STOPPED = "coordinator_stopped"
    ADMIN_CERTIFICATE_ISSUED = "admin_certificate_issued"
    FEDERATION_CREATED = "federation_created"
    INVITE_CREATED = "invite_created"
    SILO_JOINED = "silo_joined"
    JOIN_REFUSED = "join_refused"
    SILO_REVOKED = "silo_revoked"
    SILO_SUSPENDED = "silo_suspended"
    SILO_REINSTATED = "silo_reinstated"
    SILO_LEFT = "silo_left"
    SILO_CERTIFICATE_RENEWED = "silo_certificate_renewed"
    SERVER_CERTIFICATE_RENEWED = "server_certificate_renewed"
    CA_ROTATED = "ca_rotated"
    CA_RETIRED = "ca_retired"
    SILO_REFUSED = "silo_refused"
    SILO_DROPPED_OUT = "silo_dropped_out"
    """A phase waited for it in vain."""
    SILO_SITS_OUT = "silo_sits_out"
    SILO_CALLED_BACK = "silo_called_back"
    """A round has too few silos without it."""
    ROSTER_PROPOSED = "roster_proposed"
    ROSTER_APPROVED = "roster_approved"
    ROSTER_PUBLISHED = "roster_published"
    PREFLIGHT_ASKED = "preflight_asked"
    """An admin asked the roster's silos whether they would take part in a run of a plan."""
    PREFLIGHT_ANSWERED = "preflight_answered"
    PLAN_AMENDED = "plan_amended"
    """The silos' counter-offers made another plan of it, about which they are asked anew."""
    PLAN_NOT_AMENDED = "plan_not_amended"
    """There were counter-offers, and no plan comes of them."""
    RUN_QUEUED = "run_queued"
    RUN_STARTED = "run_started"
    RUN_RESUMED = "run_resumed"
    """The coordinator started again, and with it the run that it drove."""
    RUN_PAUSING = "run_pausing"
    RUN_PAUSED = "run_paused"
    RUN_UNPAUSED = "run_unpaused"
    """An admin put it back; it goes on when it is its turn."""
    RUN_CONTINUED = "run_continued"
    """Its turn has come again."""
    RUN_ABORTED = "run_aborted"
    RUN_FAILED = "run_failed"
    RUN_FINISHED = "run_finished"
    ROLLBACK_ASKED = "rollback_asked"
    """An admin asked a run back to an earlier round; that round's end says that it went."""
    BISECTION_ASKED = "bisection_asked"
    """An admin asked for a round in two halves; that round's end says whose sum was gross."""
    SILOS_CHOSEN = "silos_chosen"
    """Whom a round asks, and why, where the plan has them chosen."""
    ROUND_FINISHED = "round_finished"
    ROUND_STALLED = "round_stalled"
    ATTEMPT_ABORTED = "attempt_aborted"
    ATTEMPT_RESUMED = "attempt_resumed"
    SILOS_AT_FAULT = "silos_at_fault"
    """A sum is right, but a silo dealt or sent what fails a check; the details name both."""
    LEDGER_ROLLED_BACK = "ledger_rolled_back"
    AUDIT_HEAD_CONFLICT = "audit_head_conflict"
    BACKUP_TAKEN = "backup_taken"
    RESTORED = "restored"


class AuditLog(audit_log.AuditLog[AuditEvent]):
    """The coordinator's log."""

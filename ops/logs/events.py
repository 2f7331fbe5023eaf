"""What the daemons may log: the events, the fields of each, and what a field may hold.

Two tables, so that an auditor reads each decision once. ``FIELDS`` says of every field name what
form its values have, and nothing of another form gets into a line: there is no field for bytes, for
a float, or for text that is not ours, so a key, a reward, a norm or a prompt has no place to go.
``EVENTS`` says which fields each event carries, so that a field made for one line does not turn up
in another. Bounds for each event's own fields would repeat one bound in fifty places.

Invariants:

1. Every log call of the daemons names an event of ``EVENTS`` and fields of that event, literally
   (``tests/arch/test_log_events.py``); ``ops/logs/setup.py`` replaces whatever else arrives.
2. A number is a count or a time of the protocol. None is a figure of what a silo learned.
3. ``reason`` and ``detail`` take an error, never its text: what may be told of it is decided in one
   place (``ops/logs/errors.py``).

Covered: both daemons, the admin's and the silo's commands. Not covered: the audit logs, which have
tables of their own (``server/audit.py``, ``silo_agent/books/audit.py``).
"""

from __future__ import annotations

from enum import Enum, auto
from types import MappingProxyType
from typing import Final

__all__ = ["EVENTS", "FIELDS", "Kind"]


class Kind(Enum):
    """The form of a field's values; ``ops/logs/values.py`` holds them to it."""

    NAME = auto()
    """A short word of the protocol, of a file or of a type."""
    NUMBER = auto()
    """A whole number; seconds are rounded."""
    FLAG = auto()
    """True or false."""
    DIGEST = auto()
    """A SHA-256 in hex, or the beginning of one."""
    TEXT = auto()
    """One bounded line of our own wording or of a public name."""
    TEXTS = auto()
    """A few of them."""
    PAIRS = auto()
    """Names by name."""
    CAUSE = auto()
    """An error object."""


FIELDS: Final = MappingProxyType(
    {
        "adapter": Kind.NAME,
        "advice": Kind.TEXT,
        "again_in_s": Kind.NUMBER,
        "attempt": Kind.NUMBER,
        "audited": Kind.NAME,
        "ca_sha256": Kind.DIGEST,
        "check": Kind.NAME,
        "chose": Kind.TEXTS,
        "cohort": Kind.NUMBER,
        "connections": Kind.NUMBER,
        "contributes": Kind.NAME,
        "counts_as": Kind.NAME,
        "detail": Kind.CAUSE,
        "device": Kind.NAME,
        "directory": Kind.NAME,
        "enrol_listen": Kind.TEXT,
        "environment": Kind.NAME,
        "episodes": Kind.NUMBER,
        "error": Kind.NAME,
        "expiry_unix_s": Kind.NUMBER,
        "hint": Kind.TEXT,
        "identity": Kind.NAME,
        "index": Kind.NUMBER,
        "joins_refused": Kind.NUMBER,
        "kind": Kind.NAME,
        "left": Kind.FLAG,
        "library": Kind.NAME,
        "listen": Kind.TEXT,
        "machine": Kind.TEXT,
        "max_tokens": Kind.NUMBER,
        "missing": Kind.TEXT,
        "names": Kind.TEXTS,
        "open": Kind.FLAG,
        "outcome": Kind.NAME,
        "part": Kind.NAME,
        "path": Kind.TEXT,
        "phase": Kind.NAME,
        "place": Kind.NAME,
        "plan": Kind.TEXT,
        "reason": Kind.CAUSE,
        "result": Kind.NAME,
        "retry_in_s": Kind.NUMBER,
        "revoked": Kind.FLAG,
        "round": Kind.NUMBER,
        "rule": Kind.NAME,
        "run": Kind.NAME,
        "said": Kind.TEXT,
        "senders": Kind.PAIRS,
        "server": Kind.TEXT,
        "silo": Kind.NAME,
        "silos": Kind.NUMBER,
        "spool": Kind.NAME,
        "status": Kind.NUMBER,
        "step": Kind.NUMBER,
        "suspended": Kind.FLAG,
        "trajectories": Kind.NUMBER,
        "until_unix_s": Kind.NUMBER,
        "uploads": Kind.NAME,
        "version": Kind.TEXT,
        "waiting_for": Kind.NUMBER,
        "where": Kind.TEXT,
        "why": Kind.TEXT,
        "writer": Kind.NAME,
    }
)
"""Every field that any line may have, and its form."""

_BOTH: Final = {
    "audit_broken": ("reason",),
    "daemon_failed": ("reason",),
    "foreign_log": ("library", "place", "error"),
    "not_alive": (),
    "not_ready": ("check",),
    "probe_failed": ("path",),
    "probe_tls_failed": ("reason",),
    "scrape_incomplete": ("part", "reason"),
    "service_manager_not_told": ("reason",),
    "uncaught": ("where",),
}
_COORDINATOR: Final = {
    "advised": ("run", "round", "outcome", "why"),
    "attempt_aborted": ("round", "step", "phase", "reason"),
    "attempt_not_cleared": ("run", "reason"),
    "attempt_resumed": ("phase", "round", "step", "attempt", "waiting_for"),
    "ca_retired": ("ca_sha256",),
    "ca_rotated": ("until_unix_s",),
    "certificate_upkeep_failed": ("reason",),
    "claim_renewed": (),
    "claim_unseen": ("reason",),
    "coordinator_started": ("listen", "enrol_listen"),
    "driver_failed": ("retry_in_s",),
    "enrolment_port": ("open",),
    "enrolment_port_failed": ("reason",),
    "everybody_is_asked": ("run", "round"),
    "finished_run_not_shown": ("reason",),
    "internal_error": ("kind",),
    "join_refused": ("silo", "outcome"),
    "last_record_not_taken": ("run", "silos"),
    "last_seen_not_noted": ("reason",),
    "over_runs_not_told": ("reason",),
    "round_finished": ("round", "step", "outcome"),
    "run_cannot_begin": ("run", "reason"),
    "run_crashed": ("run",),
    "run_stopped": ("run", "reason"),
    "scratch_not_deleted": ("reason",),
    "secrets_not_scrubbed": ("reason",),
    "selection_crashed": ("run",),
    "server_certificate_renewed": ("expiry_unix_s",),
    "server_certificate_unusable": ("reason",),
    "silo_certificate_renewed": ("silo",),
    "silo_is_older": ("silo", "version", "advice"),
    "silo_joined": ("silo",),
    "silo_sits_out": ("run", "silo", "round"),
    "silo_standing": ("silo", "suspended", "revoked", "left"),
    "silo_version": ("silo", "version"),
    "silo_version_refused": ("silo", "detail"),
    "silos_at_fault": ("run", "round", "step", "attempt", "names"),
    "silos_called_back": ("run", "silos"),
    "silos_kept_out": ("run", "round", "names"),
    "standby_takes_over": (),
    "standing_by": ("reason",),
    "status_page_failed": ("reason",),
    "storage_failed": ("run", "reason", "hint", "retry_in_s"),
    "store_not_writable": ("reason",),
    "strangers": ("connections", "joins_refused"),
    "upload_discarded": ("silo", "reason"),
}
_SILO: Final = {
    "adapter_adopted": ("run", "round", "step", "kind", "adapter"),
    "adapter_not_loaded": ("server", "error"),
    "adapter_not_unloaded": ("adapter", "status", "error"),
    "audit_heads_not_exchanged": ("detail",),
    "audit_not_written": ("audited", "detail"),
    "batch_not_answered": ("episodes", "error"),
    "certificate_not_renewed": ("detail", "again_in_s"),
    "certificate_renewed": ("expiry_unix_s",),
    "coordinator_is_older": ("version", "missing", "advice"),
    "coordinator_silent": ("advice",),
    "coordinator_version": ("version",),
    "corrupt_shares": ("identity", "senders"),
    "delta_not_finite": ("round", "uploads"),
    "environment_not_closed": ("environment", "error"),
    "environment_not_replayed": ("environment", "error"),
    "variants_not_told": ("environment", "error"),
    "episode_dropped": ("environment", "error"),
    "evolve_failed": ("contributes",),
    "explore_failed": ("round", "contributes"),
    "facts_not_published": ("kind", "detail"),
    "credit_failed": ("error",),
    "play_failed": ("error",),
    "not_said": ("error",),
    "gradients_failed": ("contributes",),
    "gradients_one_by_one": (),
    "guard_failed": ("run", "round", "reason"),
    "guard_not_served": ("reason",),
    "guard_vetoes": ("run", "adapter"),
    "guard_verdict": ("run", "round", "adapter", "outcome"),
    "harness_ended": ("environment", "error", "counts_as"),
    "hardware": ("plan", "machine", "chose"),
    "heads_not_forgotten": ("detail",),
    "instruction_failed": ("kind", "detail", "check", "silo", "identity"),
    "left": (),
    "metrics_not_shown": ("listen",),
    "probe_token_unusable": ("reason",),
    "local_work_failed": (),
    "no_sum": ("contributes",),
    "not_followed": ("run", "rule"),
    "not_in_this_aggregation": ("identity",),
    "model_server_failed": ("server", "episodes", "error"),
    "not_invited": ("round", "run", "step"),
    "optimiser_replayed": ("run", "round", "step"),
    "partial_not_deleted": ("detail",),
    "personal_adapter_not_trained": ("round",),
    "preflight_answered": ("outcome", "rule"),
    "preflight_not_answered": ("kind", "detail"),
    "principle_not_read": ("error",),
    "principles_not_kept": ("error",),
    "ready_not_taken": ("reason",),
    "refusal_not_delivered": ("detail",),
    "refused": ("rule", "detail"),
    "renewal_broken": (),
    "result_deleted": ("result", "why"),
    "result_not_deleted": ("result", "reason"),
    "result_found": ("run", "round"),
    "result_not_kept": ("run", "round", "reason"),
    "result_not_used": ("run", "round"),
    "rollout_batch_halved": ("episodes", "device"),
    "round_aborted": ("said",),
    "run_stores_deleted": ("directory",),
    "run_stores_not_deleted": ("detail",),
    "session_opened": ("identity", "cohort"),
    "silo_started": ("silo",),
    "spool_deleted": ("spool", "why"),
    "spool_not_deleted": ("detail",),
    "time_passed": ("contributes",),
    "trainer_moved": ("device", "why"),
    "trajectories_too_long": ("round", "trajectories", "max_tokens"),
    "trajectory_not_read": ("error",),
    "trajectory_not_stored": ("error",),
    "upload_finished": ("identity", "counts_as"),
    "upload_unfinished": ("identity",),
    "work_called_off": ("run", "round"),
}
_OF_TWO: Final = {
    # Either side may find the other's audit log rewritten; each names what it has.
    "audit_head_conflict": ("silo", "reason", "writer", "index"),
}

EVENTS: Final = MappingProxyType(
    {
        event: frozenset(fields)
        for table in (_BOTH, _COORDINATOR, _SILO, _OF_TWO)
        for event, fields in table.items()
    }
)
"""Every event, with the fields that it may carry.

A line also has a timestamp and a level, and where there is occasion the frames of an error that was
caught (``exception``) and the names of the fields that were kept out (``redacted``).
"""

"""An admin's request for one silo's single-use invite.

Invariant: an invite and its line in the audit log are one durable change, and it replaces an
unspent one of the same silo.

Covered: ids, lifetimes, the federation's name. Not covered: redeeming it
(``server/rpc/enrolment.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from federation.membership.invite import SILO_ID, Invite
from secagg.roster import root_key_sha256
from server.audit import AuditEvent, AuditLog
from server.config import CoordinatorConfig
from server.errors import EnrolmentError
from server.members.terms import require_federation
from server.pki.trust import Trust
from server.store import Store

__all__ = ["create_invite"]

MIN_TTL_S: Final = 60
MAX_TTL_S: Final = 30 * 86400


def create_invite(
    store: Store,
    audit: AuditLog,
    *,
    config: CoordinatorConfig,
    trust: Trust,
    root_key: bytes,
    silo_id: str,
    ttl_s: int,
    federation: str,
    admin: str,
    clock: Callable[[], float],
) -> Invite:
    """Make an invite, with its secret, of which the store keeps the digest.

    The silo pins the issuing CA of ``trust`` and the consortium root, whose public key has 32
    bytes. An empty ``federation`` stands for this coordinator's.

    Raises:
        EnrolmentError: The id or the lifetime is out of bounds.
        NoFederationError: There is none of that name.
    """
    if SILO_ID.fullmatch(silo_id) is None:
        raise EnrolmentError("a silo id has lower-case letters, digits and dashes, at most 63")
    if not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        raise EnrolmentError(f"an invite lives {MIN_TTL_S} to {MAX_TTL_S} seconds")
    now = int(clock())
    invite = Invite(
        coordinator_address=config.dial_coordinator,
        enrol_address=config.dial_enrolment,
        federation=require_federation(store, federation).name,
        silo_id=silo_id,
        ca_sha256=trust.issuing.sha256,
        root_sha256=root_key_sha256(root_key),
        secret=secrets.token_bytes(32),
        expires_unix_s=now + ttl_s,
    )
    with store.transaction():
        store.invites.create(
            secret=invite.secret,
            silo_id=silo_id,
            created_unix_s=now,
            expires_unix_s=invite.expires_unix_s,
        )
        audit.append(
            AuditEvent.INVITE_CREATED,
            admin=admin,
            silo=silo_id,
            expires_unix_s=invite.expires_unix_s,
        )
    return invite

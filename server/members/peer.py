"""Who calls: the role, the name and the certificate that a call was admitted with.

Covered: the words. Not covered: judging a certificate (``server/rpc/access.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from federation.version import UNANNOUNCED, Version

__all__ = ["Peer", "Role"]


class Role(StrEnum):
    """What a certificate's URI can say."""

    ADMIN = "admin"
    VIEWER = "viewer"
    SILO = "silo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """An authenticated caller."""

    role: Role
    name: str
    """Silo id, or the admin's name."""
    certificate_sha256: bytes
    version: Version = UNANNOUNCED
    """Of a silo: what it says that it runs."""

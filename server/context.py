"""What every run of one coordinator works with, made once by ``server/daemon.py``.

Covered: the parts and who owns them. Not covered: their behaviour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from server.audit import AuditLog
from server.liveness import Liveness
from server.metrics import CoordinatorMetrics
from server.signal import Signal
from server.store import Store
from server.store.blobs.storage import BlobStorage

__all__ = ["RunContext"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """What every run of this coordinator shares."""

    store: Store
    blobs: BlobStorage
    audit: AuditLog
    metrics: CoordinatorMetrics
    signing_key: Ed25519PrivateKey = field(repr=False)
    liveness: Liveness
    changed: Signal
    scratch: Path
    """Directory for accumulators and upload spools."""
    clock: Callable[[], float] = time.time

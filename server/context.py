"""What every run of one coordinator works with: its parts, who is there, what wakes who waits.

Invariants:

1. ``server/daemon.py`` makes one context; a run owns none of its parts.
2. Every call of a silo counts as a sign of life. A silo that is suspended, revoked or gone for good
   is not there, however lately it called.
3. What silos publish about themselves is kept in memory, and not told once it is older than
   ``FACTS_FOR_S``, by the silo's clock or by this one. A restart forgets it; silos publish again.
4. A restart forgets little more than ``NOTE_EVERY_S`` of the signs of life. When each silo was last
   heard of is noted in the store once a minute, for all who called in it in one transaction; who
   comes after a longer silence is noted at once, for the admin's commands read the store. It is
   read at the start. A poll writes nothing.

Covered: telling a dead silo from a slow one while it polls beside its local work; coordinators that
restart; any number of waiters on one event loop. Not covered: a silo that polls and never finishes
(``server/run/dropouts.py``); threads that wait for a change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.membership.facts import SignedFacts, SiloFacts
from federation.version import Version
from ops.logs.logger import get_logger
from server.audit import AuditLog
from server.errors import StoreError
from server.metrics import CoordinatorMetrics
from server.store import Store
from server.store.blobs.storage import BlobStorage

__all__ = [
    "FACTS_FOR_S",
    "Liveness",
    "PublishedFacts",
    "RunContext",
    "Signal",
    "keep_noting",
]

if TYPE_CHECKING:
    # A coordinator without an advisor needs none of its packages.
    from server.advisor.endpoint import Endpoint

log = get_logger(__name__)

SILENT_AFTER_S = 20.0
"""A silo that has not called for this long is not waited for."""
NOTE_EVERY_S: Final = 60.0
LOOK_EVERY_S: Final = 2.0
"""How soon a silo that comes is in the store."""
FACTS_FOR_S: Final = 900.0
"""Silos publish every five minutes; after three that did not arrive nothing is said of one."""


class Signal:
    """A repeatable event without state to miss: waiters re-check what they care about."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake everyone who waits now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next notification or after ``timeout_s``, whichever is first."""
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await self._event.wait()
        except TimeoutError:
            return


class Liveness:
    """When each silo was last heard of, and who may take no part."""

    def __init__(
        self, clock: Callable[[], float] = time.time, seen: Mapping[str, float] | None = None
    ) -> None:
        """Begin with when an earlier process heard of each silo, in Unix time; 0 for never."""
        self._clock = clock
        # Noted by a clock that was ahead, a time to come would keep a dead silo alive until then.
        self._seen = {silo: min(at, clock()) for silo, at in (seen or {}).items()}
        self._noted = dict(self._seen)
        self._started = clock()
        self._barred: set[str] = set()
        self._versions: dict[str, Version] = {}

    def runs(self, silo_id: str, version: Version) -> None:
        """Note which version a silo runs, as it says at each call; a restart forgets it."""
        self._versions[silo_id] = version

    def version(self, silo_id: str) -> Version | None:
        """Which version a silo runs; None if it has not called since the coordinator started."""
        return self._versions.get(silo_id)

    def touch(self, silo_id: str) -> None:
        """Note a call."""
        self._seen[silo_id] = self._clock()

    def last_seen(self, silo_id: str) -> float:
        """Unix time of the last call, 0 if there never was one."""
        return self._seen.get(silo_id, 0.0)

    def note(self, store: Store, *, after_s: float = 0.0) -> None:
        """Write down who called since the last note, once somebody's is ``after_s`` old or more.

        Raises:
            StoreError: Nothing was written; the next note has it all.
        """
        seen = dict(self._seen)
        fresh = {silo: at for silo, at in seen.items() if self._noted.get(silo) != at}
        # Either way, for a clock may be set back.
        if all(abs(at - self._noted.get(silo, 0.0)) < after_s for silo, at in fresh.items()):
            return
        if fresh:
            store.silos.touch(fresh)
            self._noted |= fresh

    def bar(self, silo_id: str, *, barred: bool) -> None:
        """Count on a silo no more, or again; ``server/members/standing.py`` decides."""
        (self._barred.add if barred else self._barred.discard)(silo_id)

    def barred(self, silo_id: str) -> bool:
        """Whether this silo may take no part now."""
        return silo_id in self._barred

    def alive(self, silo_id: str) -> bool:
        """Heard of recently; everyone gets that long to show up after a restart."""
        if silo_id in self._barred:
            return False
        last = max(self.last_seen(silo_id), self._started)
        return self._clock() - last < SILENT_AFTER_S


async def keep_noting(liveness: Liveness, store: Store) -> None:
    """Note each silo that is heard of, at once and then once a minute, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            liveness.note(store, after_s=NOTE_EVERY_S)
        except StoreError as error:
            # What is wrong shows elsewhere, in the storage's faults; rounds need none of this, and
            # nobody should wait for a database in trouble more often than that.
            log.warning("last_seen_not_noted", reason=error)
            await asyncio.sleep(NOTE_EVERY_S)


class PublishedFacts:
    """What each silo last said about itself; what comes in was checked."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[SignedFacts, float]] = {}

    def put(self, signed: SignedFacts) -> None:
        """Take verified facts in place of the silo's earlier ones."""
        self._kept[signed.silo_id] = signed, self._clock()

    def last(self, silo_id: str) -> tuple[SignedFacts, float] | None:
        """The newest facts that were taken, however old, and when that was."""
        return self._kept.get(silo_id)

    def of(self, silo_id: str) -> SiloFacts | None:
        """What a silo says of itself now; None where it said nothing lately."""
        kept = self._kept.get(silo_id)
        if kept is None:
            return None
        signed, taken_unix_s = kept
        # The older of both clocks counts: one that is ahead makes nothing last longer.
        since = min(float(signed.issued_unix_s), taken_unix_s)
        return signed.facts if self._clock() - since < FACTS_FOR_S else None


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
    facts: PublishedFacts = field(default_factory=PublishedFacts)
    """What silos say about themselves."""
    clock: Callable[[], float] = time.time
    advisor: Endpoint | None = None
    """Whom advised rounds ask; None where none is configured."""

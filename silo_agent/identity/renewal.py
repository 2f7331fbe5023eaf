"""Renewing this silo's certificate while the daemon works.

When, in order:

1. At half its life and a little later, by chance, so that silos do not all ask at once; or
2. soon after the coordinator says that it trusts another set of CAs
   (``federation/membership/renewal.py``): so a silo learns of a new CA, and that an old one is
   gone. However often it says so, one renewal is at least ``LEAST_APART_S`` after the one before.
3. What fails is tried again after a pause that doubles, by chance a little shorter or longer, up to
   ``MAX_PAUSE_S``, as long as the certificate lasts.

How, in order:

1. Each try makes a new P-256 key. The request is signed by the Ed25519 key and names the
   certificate that asks.
2. The answer is believed only if it holds a certificate for that key and this silo, from the first
   of its CAs.
3. The new identity is on disk, beside the one before, before anything uses it.
4. New calls go over its credentials; what runs finishes over the old ones.
5. Once the coordinator accepted it, the identity before is deleted. If it refuses it as none of
   ours, which an answer that overtook another can bring about, the identity before takes its place
   again, and another try follows.

So a crash at any point leaves an identity that the coordinator admits. Nothing that is logged or
counted names a key.

A coordinator of an older protocol renews nothing. It works but for what it does not know: one line
of the log at its first answer, and one at each change of its version, says what that is, and until
when the certificate lasts.

Covered: lost answers, refusals, restarts, hostile answers, a coordinator of the version before.
Not covered: a certificate that ended while the silo was away; it joins again with a new invite, and
the log says so. Nor a coordinator that no protocol is shared with; its answers are refused
(``silo_agent/line/channel.py``).
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import grpc
from cryptography.hazmat.primitives.asymmetric import ec

from federation.membership.renewal import MAX_CAS, renew_statement
from federation.version import MEMBERSHIP, Version
from ops.doctor.reach import ReachError, presented_chain
from ops.logs.logger import get_logger
from silo_agent.errors import SiloError, TransportError
from silo_agent.identity.identity import (
    Identity,
    forget_previous,
    has_previous,
    restore_previous,
)
from silo_agent.identity.leaf import (
    UntrustedCoordinatorError,
    certificate_request,
    read_ca,
    read_leaf,
)
from silo_agent.metrics import SiloMetrics

__all__ = ["Renewal", "missing_with"]

log = get_logger(__name__)

HALF: Final = 0.5
SPREAD: Final = 0.05
"""Of a certificate's life, beyond its half: how far renewals are spread."""
SOON_S: Final = 10.0
"""How far renewals are spread after a change of CAs."""
LEAST_APART_S: Final = 600.0
FIRST_PAUSE_S: Final = 30.0
MAX_PAUSE_S: Final = 3600.0
LOOK_S: Final = 60.0
SILENT_S: Final = 60.0
"""Without an answer for so long, the log says what an operator can do, once an hour."""
ADVICE_APART_S: Final = 3600.0
_REPLACED: Final = "certificate_revoked"
_MISSING: Final = (
    "this silo's certificate is not renewed and ends on {ends}; audit heads are not exchanged; "
    "a run that waits for approval by hand counts as refused; rosters are the root's alone; "
    "chorale-silo leave does not reach it"
)


class Renews(Protocol):
    """What renewing needs of ``silo_agent/line/transport.py``."""

    def renew(self, csr_der: bytes, signature: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """Ask once for the next certificate."""

    def use(self, credentials: grpc.ChannelCredentials) -> None:
        """Let everything that begins from now on go over these credentials."""

    def ping(self) -> None:
        """Make one call that changes nothing."""

    def sweep(self) -> None:
        """Close replaced channels that have run out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chance:
    """What decides when, beside the certificate."""

    clock: Callable[[], float] = time.time
    fraction: Callable[[], float] = random.random
    """From 0 to 1."""


class Renewal:
    """The certificate of one daemon, and the thread that looks after it."""

    def __init__(
        self,
        *,
        identity: Identity,
        data_dir: Path,
        coordinator: Renews,
        metrics: SiloMetrics,
        stopping: threading.Event,
        chance: Chance | None = None,
        renewed: Callable[[Identity], None] = lambda _identity: None,
    ) -> None:
        self.identity = identity
        self._data_dir = data_dir
        self._coordinator = coordinator
        self._metrics = metrics
        self._stopping = stopping
        self._chance = chance or Chance()
        self._renewed = renewed
        self._wake = threading.Event()
        self._failures = 0
        self._not_before_s = 0.0
        """Unix time before which nothing is tried: the pause after a failure or a success."""
        self._heard = ""
        """The digest of the CAs that the coordinator trusts, as it last said."""
        self._soon_s = 0.0
        self._heard_s = self._chance.clock()
        self._advised_s = 0.0
        self._half_s = self._half()
        self._metrics.certificate_expiry.set(identity.certificate_expiry_unix_s)
        self._thread = threading.Thread(target=self._run, name="renewal", daemon=True)

    def start(self) -> None:
        """Look after the certificate until closed."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking; a try that is running ends first."""
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def hear(self, trust_sha256: str) -> None:
        """Take note of the CAs that the coordinator trusts.

        It comes in hexadecimal, unverified, and only ever decides whether to ask.
        """
        self._heard_s = self._chance.clock()
        if trust_sha256 != self._heard:
            self._heard = trust_sha256
            self._soon_s = self._chance.clock() + SOON_S * self._chance.fraction()
            self._wake.set()

    def hear_version(self, version: Version) -> None:
        """Let the log say what the coordinator's version means for this silo."""
        missing = missing_with(version, self.identity)
        if missing:
            log.warning(
                "coordinator_is_older",
                version=str(version),
                missing=missing,
                advice="ask the admin to upgrade the coordinator",
            )
        else:
            log.info("coordinator_version", version=str(version))

    def step(self) -> float:
        """Do what is due now; in seconds, after how long to look again."""
        self._coordinator.sweep()
        now = self._chance.clock()
        if now - max(self._heard_s + SILENT_S, self._advised_s + ADVICE_APART_S) > 0:
            self._advised_s = now
            advice = self._advice()
            if advice:
                log.warning("coordinator_silent", advice=advice)
        due_s = self._due()
        if now < due_s:
            return min(due_s - now, LOOK_S)
        try:
            if has_previous(self._data_dir):
                self._try_newest()
            else:
                self._renew()
        except (SiloError, OSError) as error:
            self._failed(error)
        else:
            self._failures = 0
            self._not_before_s = self._chance.clock() + LEAST_APART_S
        return min(max(self._due() - self._chance.clock(), 0.0), LOOK_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                pause_s = self.step()
            except Exception as error:
                # Without this thread the certificate would end; nothing may end the thread.
                log.exception("renewal_broken")
                self._metrics.count_error(type(error).__name__)
                self._failed(error)
                pause_s = LOOK_S
            if not self._stopping.is_set():
                self._wake.wait(pause_s)

    def _half(self) -> float:
        begins = self.identity.leaf.not_valid_before_utc.timestamp()
        life_s = self.identity.leaf.not_valid_after_utc.timestamp() - begins
        return begins + life_s * (HALF + SPREAD * self._chance.fraction())

    def _due(self) -> float:
        """When to act next, in Unix time."""
        due_s = self._half_s
        if has_previous(self._data_dir):
            due_s = 0.0
        elif self._heard and self._heard != self.identity.trust_sha256.hex():
            due_s = min(due_s, self._soon_s)
        return max(due_s, self._not_before_s)

    def _renew(self) -> None:
        mine = self.identity
        key = ec.generate_private_key(ec.SECP256R1())
        csr = certificate_request(mine.silo_id, key)
        statement = renew_statement(
            mine.federation,
            mine.silo_id,
            certificate_sha256=mine.certificate_sha256,
            csr_der=csr,
        )
        content, cas = self._coordinator.renew(csr, mine.signing_key.sign(statement))
        if not 1 <= len(cas) <= MAX_CAS:
            raise UntrustedCoordinatorError(f"the answer holds {len(cas)} CAs")
        issuer, *others = (read_ca(ca) for ca in cas)
        leaf = read_leaf(
            content, issuer=issuer, key=key, federation=mine.federation, silo_id=mine.silo_id
        )
        renewed = replace(mine, leaf=leaf, leaf_key=key, ca=issuer, also_trusted=tuple(others))
        renewed.store(self._data_dir)
        self._take(renewed)
        self._try_newest()

    def _try_newest(self) -> None:
        """Find out whether the coordinator accepts the identity that is in place.

        Raises:
            TransportError: It did not say, or refused it.
        """
        try:
            self._coordinator.ping()
        except TransportError as error:
            if error.reason == _REPLACED:
                restore_previous(self._data_dir)
                self._take(Identity.load(self._data_dir))
            raise
        forget_previous(self._data_dir)
        self._renewed(self.identity)
        self._metrics.certificate_renewals.labels(outcome="renewed").inc()
        log.info("certificate_renewed", expiry_unix_s=self.identity.certificate_expiry_unix_s)

    def _take(self, identity: Identity) -> None:
        self.identity = identity
        self._half_s = self._half()
        self._metrics.certificate_expiry.set(identity.certificate_expiry_unix_s)
        self._coordinator.use(identity.channel_credentials())

    def _failed(self, error: Exception) -> None:
        if self._stopping.is_set():
            return
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 16), MAX_PAUSE_S)
        pause_s *= 0.5 + self._chance.fraction()
        self._failures += 1
        self._not_before_s = self._chance.clock() + pause_s
        self._metrics.certificate_renewals.labels(outcome="failed").inc()
        log.warning(
            "certificate_not_renewed",
            detail=error,
            again_in_s=round(pause_s),
        )

    def _advice(self) -> str:
        """Say what an operator can do, where gRPC says no more than that nobody answers."""
        if self._chance.clock() >= self.identity.certificate_expiry_unix_s:
            return (
                "this silo's certificate has ended: ask the admin for a new invite and join again"
            )
        try:
            chain = presented_chain(self.identity.coordinator_address, timeout_s=5.0)
        except ReachError:
            return "the coordinator cannot be reached: see chorale-silo doctor"
        if not {self.identity.ca, *self.identity.also_trusted}.intersection(chain):
            return (
                "the coordinator presents a CA that this silo does not know: it was replaced while "
                "this silo was away, or somebody is in between; ask the admin for a new invite and "
                "join again"
            )
        begins, ends = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc
        if not begins.timestamp() <= self._chance.clock() < ends.timestamp():
            return (
                f"the coordinator's certificate is valid from {begins:%F %R} to {ends:%F %R} UTC, "
                "not now by this machine's clock: set it (timedatectl set-ntp true), or tell the "
                "admin"
            )
        return ""


def missing_with(version: Version, mine: Identity) -> str:
    """One line about what does not work with a coordinator of this version; empty if all does."""
    if version.newest >= MEMBERSHIP:
        return ""
    ends = dt.datetime.fromtimestamp(mine.certificate_expiry_unix_s, dt.UTC)
    return _MISSING.format(ends=f"{ends:%F %R} UTC")

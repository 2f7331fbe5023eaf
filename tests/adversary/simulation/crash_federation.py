"""Silos that crash, around a coordinator that lies, watched by an auditor.

A silo is the real ``silo_agent.attempt.session.Session`` over the real ledger and the real spool on
a `Disk`; what it sends goes to the auditor before it goes to the coordinator's store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dp.config import Mode, PrivacySpec
from dp.errors import LedgerCorruptError, PrivacyError
from dp.ledger.ledger import Ledger
from secagg import hybrid
from secagg.descriptor import NOISE_NONE, AggregationId, Descriptor, MetricsLayout
from secagg.errors import SecAggError
from secagg.messages import (
    BoxDelivery,
    ConsistencySignatures,
    KeyBundles,
    LeafDelivery,
    Survivors,
)
from silo_agent.attempt.session import Session
from silo_agent.attempt.unfinished import UnfinishedUploads
from silo_agent.books.audit import AuditLog
from silo_agent.books.local_store import LocalStore
from silo_agent.books.peer_heads import PeerHeads
from silo_agent.errors import SiloError, TransportError
from silo_agent.metrics import SiloMetrics
from tests.adversary.simulation.crash_auditor import Auditor
from tests.adversary.simulation.crash_coordinator import Attempt, Built
from tests.adversary.simulation.crash_disk import Crash, Disk
from tests.kit.secagg.secagg_samples import (
    HYBRID_FIELDS,
    make_descriptor,
    make_roster,
    signed_roster,
    signing_key,
)
from tests.kit.silo_agent.silo_contribution import contribution

DIMENSION, CLIP, GRID = 4, 4.0, 2**20
RUN = "run-1"
FAMILIES = ("craft",)
METRICS = MetricsLayout(names=("episodes/craft",), bounds=(64.0,), grid=4096, sigma=0.0)
SPEC = PrivacySpec(
    mode=Mode.NONE, unit="task", clip_l2=CLIP, noise_multiplier=0.0, metrics_noise_multiplier=0.0,
    delta=1e-5, epsilon_cap=1e9, grid=GRID,
)  # fmt: skip
# What the daemon survives: it drops its session and goes on.
SURVIVABLE = (SecAggError, PrivacyError, SiloError, OSError)


Message = KeyBundles | BoxDelivery | LeafDelivery | Survivors | ConsistencySignatures


class Silo:
    """One silo's machine: its disk lives on, its process does not. Also the session's transport."""

    def __init__(self, federation: Federation, name: str, session_type: type[Session]) -> None:
        self.federation = federation
        self.name = name
        self.session_type = session_type
        self.directory = federation.directory / name
        self.directory.mkdir(parents=True)
        self.metrics = SiloMetrics()
        self.session: Session | None = None
        self.attempt: Attempt | None = None
        # What the coordinator last showed this session.
        self.shown = Built()
        self.uploading: dict[AggregationId, tuple[Attempt, bytes, bytes]] = {}
        # Instants until the process dies, whether the power goes with it, and whether the next
        # answer arrives without its sender learning so.
        self.countdown: int | None = None
        self.power = False
        self.cut = False
        self.ledger = self._opened()

    def open(self, attempt: Attempt) -> bool:
        """Show a descriptor, as the daemon takes it: the session before it ends.

        The daemon turns away identities that it joined before; here the session has to.
        """
        signed = attempt.signed

        def begin() -> None:
            if self.session is not None and self.session.identity == signed.descriptor.identity:
                self.session.handle(signed)
                return
            self.end()
            self.attempt = attempt
            self.session = self.session_type(
                silo_id=self.name,
                signing_key=signing_key(self.name),
                roster=self.federation.roster,
                descriptor=signed,
                base_model_sha256=signed.descriptor.base_model_sha256,
                adapter_sha256=signed.descriptor.adapter_sha256,
                families=FAMILIES,
                suites=frozenset({1, 2}),
                plan_families=signed.descriptor.families,
                task_sha256=signed.descriptor.task_sha256,
                spec=SPEC,
                contribution=contribution(
                    np.full(DIMENSION, 0.25, np.float32), {METRICS.names[0]: 32.0}
                ),
                ledger=self.session_ledger(),
                peers=PeerHeads(self.store),
                spool_directory=self.directory / "spool",
                coordinator=self,  # type: ignore[arg-type] # the calls a session makes
                metrics=self.metrics,
                audit=AuditLog(self.directory),
                advertise=False,
            )
            self.session.handle(signed)

        return self._run(begin)

    def tell(self, message: Message, built: Built) -> bool:
        """Deliver one message; whether the session took it."""
        session = self.session
        if session is None:
            return False
        previous = self.shown
        self.shown = built
        ctx, members = built.ctx, built.members
        if isinstance(message, BoxDelivery | LeafDelivery) and self.attempt is not None:
            # The context of an upload that a later process may finish.
            self.uploading.setdefault(session.identity, (self.attempt, ctx, members))
        taken = self._run(lambda: session.handle(message))
        if not taken:
            self.shown = previous
        return taken

    @property
    def ctx(self) -> bytes:
        return self.shown.ctx

    def session_ledger(self) -> Ledger:
        """The ledger as a session sees it; silos that forget override this."""
        return self.ledger

    def finish_upload(self, identity: AggregationId) -> bool:
        """Send what an earlier process spooled, if it may; whether there was anything to send."""
        if self.session is not None or identity not in self.uploading:
            return False
        sent = False

        def finish() -> None:
            nonlocal sent
            unfinished = UnfinishedUploads(
                self.directory / "spool", silo_id=self.name, ledger=self.ledger,
                metrics=self.metrics,
            )  # fmt: skip
            sent = unfinished.finish(identity, self)  # type: ignore[arg-type] # see `open`

        self.attempt, ctx, members = self.uploading[identity]
        self.shown = Built(ctx=ctx, members=members)
        self._run(finish)
        self.federation.resumed += sent
        return sent

    def end(self) -> None:
        """End the session in order."""
        if self.session is not None:
            session, self.session = self.session, None
            session.close()

    def restart(self, *, power: bool) -> None:
        """The process is gone, with all its memory; a new one opens what is on the disk."""
        self.session = None
        self.ledger.close()
        if power:
            self.federation.disk.cut_power(self.directory)
        self.ledger = self._opened()

    def _opened(self) -> Ledger:
        self.store = LocalStore(self.directory)
        return Ledger.open(self.directory / "ledger", delta=1e-5, caps={"silo": 1e9})

    def _run(self, act: Callable[[], None], *, repeated: bool = False) -> bool:
        disk = self.federation.disk
        try:
            try:
                with disk.process(self.countdown):
                    act()
            finally:
                self.countdown = disk.left
        except Crash:
            self.countdown = None
            self.restart(power=self.power)
            return False
        except TransportError as error:
            if error.refused:
                self.end()
                return False
            # The session stays, and as the daemon asks for the same message again, it comes again.
            return repeated or self._run(act, repeated=True)
        except SURVIVABLE as error:
            self.federation.refusals[type(error).__name__] += 1
            self.end()
            if isinstance(error, LedgerCorruptError):
                self.restart(power=False)
            return False
        return True

    # What a session sends. Bytes that were handed over have left, whether or not it knows.

    def advertise_keys(self, identity: AggregationId, bundle: Any) -> None:
        self._leave(lambda auditor: auditor.bundle(self, identity, bundle))
        self._arrived(lambda attempt: attempt.bundles.__setitem__(self.name, bundle))

    def share_keys(self, identity: AggregationId, boxes: Any) -> None:
        self._leave(lambda auditor: auditor.boxes(self, identity, boxes))
        self._arrived(lambda attempt: attempt.boxes.__setitem__((self.ctx, self.name), boxes))

    def upload(self, identity: AggregationId, header: Any, spool: Any) -> None:
        content = b""
        for chunk in spool.chunks(0, 8):
            content += chunk
            self._leave(lambda auditor: auditor.first_byte(self, identity))
        self.federation.auditor.upload(self, identity, header, content)
        key = self.ctx, self.shown.members, self.name

        def keep(attempt: Attempt) -> None:
            attempt.uploads[key] = header
            attempt.vectors[header.masked_sha256] = np.frombuffer(content, dtype="<u4")

        self._arrived(keep)

    def check_consistency(self, identity: AggregationId, signature: Any) -> None:
        self._leave(lambda auditor: auditor.agreement(self, identity, signature))
        key = self.ctx, self.shown.members, self.shown.survivors, self.name
        self._arrived(lambda attempt: attempt.agreements.__setitem__(key, signature))

    def unmask(self, identity: AggregationId, shares: Any) -> None:
        self._leave(lambda auditor: auditor.release(self, identity, shares))
        key = self.ctx, self.shown.members, self.shown.survivors, self.name
        self._arrived(lambda attempt: attempt.releases.__setitem__(key, shares))

    def _leave(self, noted: Callable[[Auditor], None]) -> None:
        self.federation.disk.instant()
        noted(self.federation.auditor)

    def _arrived(self, keep: Callable[[Attempt], None]) -> None:
        if self.attempt is None:
            raise TransportError("no attempt is open")
        keep(self.attempt)
        self.federation.disk.instant()
        if self.cut:
            self.cut = False
            raise TransportError("the connection was lost after the answer had arrived")


class Federation:
    """Silos, disk, auditor, and every attempt the coordinator ever opened."""

    def __init__(
        self,
        directory: Path,
        *,
        silos: int,
        suite: int = 1,
        silo_type: type[Silo] = Silo,
        session_type: type[Session] = Session,
    ) -> None:
        self.directory = directory
        self.suite = suite
        self.disk = Disk()
        self.disk.attach()
        self.roster = signed_roster(make_roster(silos))
        self.names = self.roster.roster.silo_ids
        self.sizes = make_descriptor(self.roster.roster)
        self.auditor = Auditor(self)
        self.refusals: dict[str, int] = defaultdict(int)
        self.attempts: list[Attempt] = []
        self.resumed = 0
        self.silos = {name: silo_type(self, name, session_type) for name in self.names}

    def close(self) -> None:
        for silo in self.silos.values():
            silo.end()
            silo.ledger.close()
        self.disk.detach()

    def attempt(self, round_number: int, attempt: int, *, variant: int = 0) -> Attempt:
        """A new descriptor; a variant is another descriptor for the same identity."""
        opened = Attempt(
            federation=self,
            descriptor=make_descriptor(
                self.roster.roster,
                identity=AggregationId(
                    run_id=RUN, round=round_number, step=0, part=0, attempt=attempt
                ),
                dimension=DIMENSION,
                unit_clip=CLIP,
                vector_clip=CLIP,
                scale=GRID / CLIP,
                metrics=METRICS,
                noise_sigma=0.0,
                noise_mechanism=NOISE_NONE,
                deadlines_unix_s=tuple(1000 + variant + 100 * k for k in range(5)),
                **(HYBRID_FIELDS if self.suite == hybrid.SUITE else {}),
            ),
        )
        self.attempts.append(opened)
        return opened

    def descriptor_of(self, identity: AggregationId) -> Descriptor:
        """A descriptor of that name, whichever variant of it."""
        return next(a.descriptor for a in self.attempts if a.descriptor.identity == identity)

    def facts(self) -> dict[str, int]:
        """What happened, in numbers."""
        released = self.auditor.released
        dropped = sum(1 for (_, _, kind), silos in released.items() if kind == "msk" and silos)
        pairs = sum(1 for (_, _, kind), silos in released.items() if kind == "s" and silos)
        return {
            f"suite v{self.suite}": 1,
            "signed": self.auditor.agreed,
            "released": len(released),
            "released after a drop": dropped,
            "pair secrets": pairs,
            "crashed": self.disk.crashes,
            "resumed": self.resumed,
            **{f"refused with {name}": count for name, count in self.refusals.items()},
        }

    def show(self, attempt: Attempt, built: Built, names: Iterable[str]) -> int:
        """Deliver a phase's messages; how many silos took them."""
        taken = 0
        for name in sorted(names):
            silo = self.silos[name]
            if name in built.messages:
                taken += silo.tell(built.messages[name], built)
        return taken

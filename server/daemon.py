"""The coordinator's process: two gRPC ports (``rpc/ports.py``), one probe port, one conductor.

Covered: start, resume of the active run, certificates that are replaced while it serves, clean stop
on SIGTERM and SIGINT, a standby that takes over. Not covered: two that serve at once, which
``server/site/claim.py`` refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from chorale.v1 import admin_pb2_grpc, membership_pb2_grpc, round_pb2_grpc
from federation.errors import AuditChainError, ProbeError, ProbePortError
from ops.audit_log import verify_log
from ops.deploy.hardening import harden_process
from ops.files import prove_writable
from ops.logs.logger import get_logger
from ops.probes.heartbeat import Heartbeat, tell_service_manager
from ops.probes.server import Probes, Spaced
from ops.probes.tls import ProbeTls
from secagg.suite import verification_key
from server.advisor.configured import configured_advisor
from server.audit import AuditEvent, AuditLog
from server.conductor.conductor import Conductor
from server.conductor.scrape import Scrape
from server.conductor.storage_faults import keep_proving
from server.config import CoordinatorConfig
from server.context import Liveness, RunContext, Signal, keep_noting
from server.errors import (
    AlreadyServedError,
    ConfigurationError,
    ListenError,
    StoreBusyError,
    StoreError,
)
from server.members.audit_heads import AuditHeadExchange
from server.members.public_facts import PublicFacts
from server.members.renewal import Renewals
from server.members.roster_approvals import RosterApprovals
from server.members.standing import Standing
from server.metrics import CoordinatorMetrics
from server.pki.keys import load_signing_key, read_public_key
from server.pki.tls import ServerTls
from server.pki.trust import Trust
from server.pki.upkeep import Upkeep
from server.rpc.access import AccessInterceptor, AccessPolicy
from server.rpc.admin import AdminContext, AdminService
from server.rpc.enrolment import EnrolmentService
from server.rpc.membership import MembershipContext, MembershipService
from server.rpc.ports import GRACE_S, EnrolmentPort, bind, rounds_options
from server.rpc.rounds import RoundService
from server.rpc.strangers import Strangers
from server.run.driver import RunDriver
from server.site.backup import last_backup_unix_s
from server.site.claim import claimed
from server.site.founding import create_configured
from server.status_page.serve import status_page
from server.store import Store
from server.store.blobs.opening import open_blobs
from server.store.served import database_in_force, record_served

__all__ = ["serve"]

log = get_logger(__name__)


def serve(config: CoordinatorConfig, *, standby: bool = False) -> None:
    """Run the coordinator until SIGTERM or SIGINT.

    A standby waits for as long as another process serves the same data.

    Raises:
        AlreadyServedError: Another does, and this is no standby; or another has taken the database.
    """
    open_files = harden_process()
    asyncio.run(_claim_and_serve(config, open_files, standby=standby))


async def _claim_and_serve(config: CoordinatorConfig, open_files: int, *, standby: bool) -> None:
    stop = _signalled()
    metrics = CoordinatorMetrics()
    heart = Heartbeat(metrics.loop_lag.observe)
    async with _beside(heart.keep_beating):
        claim = await claimed(
            config.data_dir,
            database_in_force(config),
            standby=standby,
            stop=stop,
            # Whoever waits for its turn has started.
            standing_by=partial(tell_service_manager, "READY=1\nSTATUS=standing by"),
        )
        if claim is not None:
            with claim:
                lost = asyncio.create_task(claim.until_lost())
                lost.add_done_callback(lambda _task: stop.set())
                await _serve(config, _Process(open_files, stop, metrics, heart))
                if lost.done():
                    # It ends for one reason, or by a defect, which is raised here.
                    lost.result()
                    raise AlreadyServedError(
                        "the database is served by another coordinator now: this one ended"
                    )
                lost.cancel()


@dataclass(frozen=True, slots=True)
class _Process:
    """What is there before anything is served."""

    open_files: int
    stop: asyncio.Event
    metrics: CoordinatorMetrics
    heart: Heartbeat


async def _serve(config: CoordinatorConfig, process: _Process) -> None:
    paths, metrics, open_files = config.paths, process.metrics, process.open_files
    store = await _open_store(config, metrics)
    audit = AuditLog(paths.audit)
    _verify_audit(audit, metrics)
    create_configured(config, store, audit)
    trust = Trust.load(paths.pki, passphrase=config.ca_passphrase())
    tls = ServerTls(paths.pki, trust, host_names=config.host_names)
    upkeep = Upkeep(trust=trust, tls=tls, audit=audit, metrics=metrics)
    upkeep.look()
    signing_key = load_signing_key(paths.protocol_key)
    root_key = read_public_key(paths.root_public_key)
    liveness = Liveness(seen={silo.silo_id: silo.last_seen_unix_s for silo in store.silos.list()})
    blobs = open_blobs(config)
    changed = Signal()
    standing = Standing(store=store, audit=audit, liveness=liveness, changed=changed.notify)
    conductor = Conductor(
        RunContext(
            store=store,
            blobs=blobs,
            audit=audit,
            metrics=metrics,
            signing_key=signing_key,
            liveness=liveness,
            changed=changed,
            scratch=paths.scratch,
            advisor=configured_advisor(config),
        )
    )
    strangers = Strangers(metrics.handshake_failures.inc)
    interceptor = AccessInterceptor(
        policy=AccessPolicy(trust=trust, federation=store.federation.current, silos=store.silos),
        metrics=metrics,
        called=strangers.called,
    )
    enrolment = EnrolmentPort(
        listen=config.enrol_listen,
        service=EnrolmentService(
            trust=trust,
            root_key=root_key,
            store=store,
            audit=audit,
            metrics=metrics,
            standing=standing,
            strangers=strangers,
        ),
        interceptor=interceptor,
        credentials=partial(tls.credentials, require_client=False, connected=strangers.connected),
        invites=store.invites,
        open_files=open_files,
    )
    rounds = grpc.aio.server(interceptors=[interceptor], options=rounds_options(open_files))
    round_pb2_grpc.add_RoundServiceServicer_to_server(RoundService(conductor), rounds)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(
        AdminService(
            AdminContext(
                config=config,
                trust=trust,
                upkeep=upkeep,
                standing=standing,
                root_key=root_key,
                coordinator_key=verification_key(signing_key),
                store=store,
                blobs=blobs,
                audit=audit,
                conductor=conductor,
                last_seen=liveness.last_seen,
                facts=conductor.context.facts.of,
                invited=enrolment.look,
            )
        ),
        rounds,
    )
    membership_pb2_grpc.add_MembershipServiceServicer_to_server(
        MembershipService(
            MembershipContext(
                renewals=Renewals(trust=trust, store=store, audit=audit, metrics=metrics),
                standing=standing,
                audit_heads=AuditHeadExchange(
                    store=store, audit=audit, metrics=metrics, signing_key=signing_key
                ),
                public_facts=PublicFacts(store=store, facts=conductor.context.facts),
                rosters=RosterApprovals(store=store, audit=audit),
            )
        ),
        rounds,
    )
    members = tls.credentials(require_client=True, connected=strangers.connected)
    bind(rounds, config.listen, members)
    # Also without an invite: that the address cannot be used is for the start to say.
    await enrolment.require_free()

    def shown() -> RunDriver | None:
        return conductor.driver

    scrape = Scrape(
        context=conductor.context,
        trust=trust,
        data_dir=config.data_dir,
        shown=shown,
        driving=lambda: conductor.driving,
        last_backup_unix_s=partial(last_backup_unix_s, config.data_dir),
    )
    try:
        probes = Probes(
            listen=config.probes_listen,
            registry=metrics.registry,
            checks={
                "database": Spaced(partial(_require_database, store)),
                "disk": Spaced(partial(_require_disk, config)),
                "certificate authority": trust.require_valid,
            },
            alive=process.heart.require_beating,
            refresh=scrape.refresh,
            pages=status_page(
                context=conductor.context,
                trust=trust,
                data_dir=config.data_dir,
                shown=shown,
                runbooks_url=config.runbooks_url or "",
            ),
            tls=ProbeTls.of_files(
                config.probes_certificate_file, config.probes_key_file, client_ca=paths.trusted_cas
            ),
        )
    except ProbeError as error:
        raise _of_probes(error) from error
    audit.append(AuditEvent.COORDINATOR_STARTED)
    # Before the ports open: a silo that is told of no attempt leaves the one it is in.
    conductor.resume()
    await rounds.start()
    await enrolment.look()
    probes.start()
    tell_service_manager("READY=1\nSTATUS=serving")
    log.info("coordinator_started", listen=config.listen, enrol_listen=config.enrol_listen)
    async with _beside(
        upkeep.keep_looking,
        partial(keep_noting, liveness, store),
        partial(keep_proving, store, metrics),
        enrolment.keep_looking,
        strangers.keep_summing,
    ):
        await process.stop.wait()
    tell_service_manager("STOPPING=1")
    strangers.sum_up()
    await conductor.close()
    await asyncio.gather(rounds.stop(GRACE_S), enrolment.close())
    audit.append(AuditEvent.COORDINATOR_STOPPED)
    with contextlib.suppress(StoreError):
        liveness.note(store)
    probes.close()
    store.close()


async def _open_store(config: CoordinatorConfig, metrics: CoordinatorMetrics) -> Store:
    """Bring the database up to date, which may take minutes, and note which one is served."""
    tell_service_manager("STATUS=bringing the database up to date")
    # In a thread: the loop goes on beating.
    store = await asyncio.to_thread(Store, database_in_force(config))
    store.tell_times(metrics.observe_transaction)
    record_served(database_in_force(config), config.data_dir)
    return store


@contextlib.asynccontextmanager
async def _beside(*loops: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run what goes on by itself, until the block ends."""
    tasks = [asyncio.create_task(loop()) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _of_probes(error: ProbeError) -> ConfigurationError:
    kind = ListenError if isinstance(error, ProbePortError) else ConfigurationError
    return kind(str(error))


def _require_disk(config: CoordinatorConfig) -> None:
    """Write where uploads, sums, the audit log and adapters are written."""
    prove_writable(config.data_dir)
    if config.adapters_url is None:
        prove_writable(config.adapters)


def _require_database(store: Store) -> None:
    """Write, or read where somebody else holds the lock: that is slow, and counted as a fault."""
    try:
        store.check_writable()
    except StoreBusyError:
        with store.reading():
            pass


def _verify_audit(audit: AuditLog, metrics: CoordinatorMetrics) -> None:
    """Count and log a broken audit chain; stopping the rounds would mend nothing."""
    try:
        verify_log(audit.path)
    except AuditChainError as error:
        metrics.audit_failures.inc()
        log.error("audit_broken", reason=error)  # noqa: TRY400 - the reason says it all


def _signalled() -> asyncio.Event:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop

"""The coordinator's process: two gRPC ports, one probe port, one conductor.

Covered: start, resume of the active run, certificates that are replaced while it serves, clean stop
on SIGTERM and SIGINT. Not covered: several coordinators on one database.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal

import grpc
import structlog

from chorale.v1 import admin_pb2_grpc, enrolment_pb2_grpc, membership_pb2_grpc, round_pb2_grpc
from federation.audit_log import verify_log
from federation.errors import AuditChainError, ProbeError
from federation.probe_tls import ProbeTls
from federation.probes import Probes
from secagg.suite import verification_key
from server.access import AccessInterceptor, AccessPolicy
from server.admin import AdminContext, AdminService
from server.audit import AuditEvent, AuditLog
from server.audit_heads import AuditHeadExchange
from server.blob_storage import open_blobs
from server.conductor import Conductor
from server.config import CoordinatorConfig
from server.context import RunContext
from server.enrolment import EnrolmentService
from server.errors import ConfigurationError
from server.founding import create_configured
from server.keys import load_signing_key, read_public_key
from server.liveness import Liveness
from server.membership import MembershipContext, MembershipService
from server.metrics import CoordinatorMetrics
from server.renewal import Renewals
from server.roster_approvals import RosterApprovals
from server.run import RunDriver
from server.scrape import Scrape
from server.service import RoundService
from server.signal import Signal
from server.standing import Standing
from server.status_page import status_page
from server.store import Store
from server.tls import ServerTls
from server.trust import Trust
from server.upkeep import Upkeep

__all__ = ["serve"]

log = structlog.get_logger(__name__)

MAX_MESSAGE_BYTES = 8 << 20
"""The headers of R1 are the largest message: 6.9 MB for 200 silos with ids of 63 characters."""
GRACE_S = 2.0
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


def serve(config: CoordinatorConfig) -> None:
    """Run the coordinator until SIGTERM or SIGINT."""
    asyncio.run(_serve(config))


async def _serve(config: CoordinatorConfig) -> None:
    paths = config.paths
    store = Store(config.database)
    audit = AuditLog(paths.audit)
    metrics = CoordinatorMetrics()
    _verify_audit(audit, metrics)
    create_configured(config, store, audit)
    trust = Trust.load(paths.pki)
    tls = ServerTls(paths.pki, trust, host_names=config.host_names)
    upkeep = Upkeep(trust=trust, tls=tls, audit=audit, metrics=metrics)
    upkeep.look()
    signing_key = load_signing_key(paths.protocol_key)
    root_key = read_public_key(paths.root_public_key)
    liveness = Liveness()
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
        )
    )
    interceptor = AccessInterceptor(
        policy=AccessPolicy(trust=trust, federation=store.federation.current, silos=store.silos),
        metrics=metrics,
    )
    rounds = grpc.aio.server(interceptors=[interceptor], options=OPTIONS)
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
                rosters=RosterApprovals(store=store, audit=audit),
            )
        ),
        rounds,
    )
    enrolment = grpc.aio.server(interceptors=[interceptor], options=OPTIONS)
    enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(
        EnrolmentService(
            trust=trust,
            root_key=root_key,
            store=store,
            audit=audit,
            metrics=metrics,
            standing=standing,
        ),
        enrolment,
    )
    _bind(rounds, config.listen, tls.credentials(require_client=True))
    _bind(enrolment, config.enrol_listen, tls.credentials(require_client=False))

    def shown() -> RunDriver | None:
        return conductor.driver

    scrape = Scrape(context=conductor.context, trust=trust, data_dir=config.data_dir, shown=shown)
    try:
        probes = Probes(
            listen=config.probes_listen,
            registry=metrics.registry,
            checks={
                "database": store.check_writable,
                "certificate authority": trust.require_valid,
            },
            refresh=scrape.refresh,
            pages=status_page(
                context=conductor.context, trust=trust, data_dir=config.data_dir, shown=shown
            ),
            tls=ProbeTls.of_files(
                config.probes_certificate_file, config.probes_key_file, client_ca=paths.trusted_cas
            ),
        )
    except ProbeError as error:
        raise ConfigurationError(str(error)) from error
    audit.append(AuditEvent.COORDINATOR_STARTED)
    # Before the ports open: a silo that is told of no attempt leaves the one it is in.
    conductor.resume()
    await rounds.start()
    await enrolment.start()
    probes.start()
    log.info("coordinator_started", listen=config.listen, enrol_listen=config.enrol_listen)
    looking = asyncio.create_task(upkeep.keep_looking())
    await _until_signalled()
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    await conductor.close()
    await asyncio.gather(rounds.stop(GRACE_S), enrolment.stop(GRACE_S))
    audit.append(AuditEvent.COORDINATOR_STOPPED)
    probes.close()
    store.close()


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials) -> None:
    try:
        server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigurationError(f"cannot listen on {address}: {error}") from error


def _verify_audit(audit: AuditLog, metrics: CoordinatorMetrics) -> None:
    """Count and log a broken audit chain; stopping the rounds would mend nothing."""
    try:
        verify_log(audit.path)
    except AuditChainError as error:
        metrics.audit_failures.inc()
        log.error("audit_broken", reason=error)  # noqa: TRY400 - the reason says it all


async def _until_signalled() -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()

"""The coordinator's process: two gRPC ports, one probe port, one conductor.

Covered: start, resume of the active run, clean stop on SIGTERM and SIGINT. Not covered: several
coordinators on one database.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace

import grpc
import structlog

from chorale.v1 import admin_pb2_grpc, enrolment_pb2_grpc, round_pb2_grpc
from secagg.suite import verification_key
from server.access import AccessInterceptor, AccessPolicy
from server.admin import AdminContext, AdminService
from server.audit import AuditEvent, AuditLog
from server.blobs import BlobStore
from server.conductor import Conductor
from server.config import CoordinatorConfig, DataPaths
from server.context import RunContext
from server.enrolment import EnrolmentService
from server.errors import AuditError, ConfigurationError
from server.keys import load_signing_key, read_public_key
from server.liveness import Liveness
from server.metrics import CoordinatorMetrics
from server.pki import CertificateAuthority
from server.probes import Probes
from server.service import RoundService
from server.signal import Signal
from server.store import Store

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
    authority = CertificateAuthority.load(paths.pki, config.federation)
    signing_key = load_signing_key(paths.protocol_key)
    root_key = read_public_key(paths.root_public_key)
    liveness = Liveness()
    blobs = BlobStore(config.adapters)
    conductor = Conductor(
        RunContext(
            store=store,
            blobs=blobs,
            audit=audit,
            metrics=metrics,
            signing_key=signing_key,
            liveness=liveness,
            changed=Signal(),
            scratch=paths.scratch,
        )
    )
    interceptor = AccessInterceptor(
        policy=AccessPolicy(
            federation=config.federation, ca=authority.certificate, find_silo=store.silos.get
        ),
        metrics=metrics,
    )
    rounds = grpc.aio.server(interceptors=[interceptor], options=OPTIONS)
    round_pb2_grpc.add_RoundServiceServicer_to_server(RoundService(conductor), rounds)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(
        AdminService(
            AdminContext(
                config=config,
                authority=authority,
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
    enrolment = grpc.aio.server(interceptors=[interceptor], options=OPTIONS)
    enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(
        EnrolmentService(
            authority=authority, root_key=root_key, store=store, audit=audit, metrics=metrics
        ),
        enrolment,
    )
    _bind(rounds, config.listen, _credentials(paths, require_client=True))
    _bind(enrolment, config.enrol_listen, _credentials(paths, require_client=False))
    probes = Probes(
        listen=config.probes_listen,
        registry=metrics.registry,
        checks={"database": store.check_writable},
        refresh=lambda: _refresh(store, metrics, audit, liveness),
    )
    audit.append(AuditEvent.COORDINATOR_STARTED)
    # Before the ports open: a silo that is told of no attempt leaves the one it is in.
    conductor.resume()
    await rounds.start()
    await enrolment.start()
    probes.start()
    log.info("coordinator_started", listen=config.listen, enrol_listen=config.enrol_listen)
    await _until_signalled()
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


def _credentials(paths: DataPaths, *, require_client: bool) -> grpc.ServerCredentials:
    key, chain, ca = (
        (paths.pki / name).read_bytes() for name in ("server.key", "server.pem", "ca.pem")
    )
    return grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=ca, require_client_auth=require_client
    )


def _verify_audit(audit: AuditLog, metrics: CoordinatorMetrics) -> None:
    """Count and log a broken audit chain; stopping the rounds would mend nothing."""
    try:
        audit.verify()
    except AuditError as error:
        metrics.audit_failures.inc()
        log.error("audit_broken", reason=str(error))  # noqa: TRY400 - the reason says it all


def _refresh(
    store: Store, metrics: CoordinatorMetrics, audit: AuditLog, liveness: Liveness
) -> None:
    roster = store.rosters.current()
    rostered = frozenset(roster.roster.silo_ids) if roster is not None else frozenset()
    silos = [
        replace(silo, last_seen_unix_s=max(silo.last_seen_unix_s, liveness.last_seen(silo.silo_id)))
        for silo in store.silos.list()
    ]
    metrics.observe_silos(invited=len(store.invites.open()), silos=silos, rostered=rostered)
    metrics.audit_head.set(audit.head_index)


async def _until_signalled() -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()

"""A coordinator's ports with the real access control; only the conductor is a stand-in."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from chorale.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    enrolment_pb2_grpc,
    membership_pb2_grpc,
    round_pb2,
    round_pb2_grpc,
)
from lab.loopback import free_port
from server.audit import AuditLog
from server.context import Liveness, PublishedFacts
from server.errors import WrongRoundError
from server.members.audit_heads import AuditHeadExchange
from server.members.public_facts import PublicFacts
from server.members.renewal import Renewals
from server.members.root import create_root
from server.members.roster_approvals import RosterApprovals
from server.members.standing import Standing
from server.metrics import CoordinatorMetrics
from server.pki.keys import load_signing_key, read_public_key
from server.pki.tls import ServerTls
from server.pki.trust import Trust
from server.pki.upkeep import Upkeep
from server.rpc.access import AccessInterceptor, AccessPolicy, current_peer
from server.rpc.admin import AdminContext, AdminService
from server.rpc.enrolment import EnrolmentService
from server.rpc.membership import MembershipContext, MembershipService
from server.rpc.strangers import Strangers
from server.site.founding import Founding, found
from server.store import Store
from server.store.blobs.directory import BlobStore
from server.store.served import database_in_force

FEDERATION = "oncology"


class Clock:
    """Real time plus an offset that a test sets."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset_s


class EchoRounds(round_pb2_grpc.RoundServiceServicer):
    """Answers a poll with the caller's name."""

    async def Poll(self, request, context):  # noqa: N802 - the RPC's name
        return round_pb2.PollResponse(instruction_id=current_peer().name)

    async def GetRoster(self, request, context):  # noqa: N802 - the RPC's name
        raise ZeroDivisionError("a defect with a secret in its text")

    async def UploadMaskedInput(self, request_iterator, context):  # noqa: N802 - the RPC's name
        async for _ in request_iterator:
            pass
        raise WrongRoundError("there is no round here")


@dataclass
class RecordingConductor:
    """Remembers what it was asked."""

    started: list[tuple[bytes, bytes, str]] = field(default_factory=list)
    suites: list[int] = field(default_factory=list)
    """Of each start."""
    aborted: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    admins: list[str] = field(default_factory=list)
    """Who asked, each time."""
    asked: list[tuple[bytes, str]] = field(default_factory=list)
    verdicts: tuple[admin_pb2.SiloVerdict, ...] = ()
    """What the silos say when they are asked."""
    quorum: int = 0
    negotiated: list[bool] = field(default_factory=list)
    """Whether they may be asked once more, each time."""
    amended_plan: bytes = b""
    """What their offers make of a plan; nothing where there is none."""
    moves: tuple[admin_pb2.PlanMove, ...] = ()
    verdicts_then: tuple[admin_pb2.SiloVerdict, ...] = ()
    """What they say to that one."""
    not_amended: tuple[str, ...] = ()

    async def start_run(
        self, plan_toml: bytes, adapter: bytes, submit_token: str, *, suite: int, admin: str
    ) -> str:
        self.suites.append(suite)
        self.started.append((plan_toml, adapter, submit_token))
        self.admins.append(admin)
        return "run-1"

    async def ask_silos(
        self, plan_toml: bytes, submit_token: str, *, admin: str, negotiate: bool = False
    ):
        self.asked.append((plan_toml, submit_token))
        self.negotiated.append(negotiate)
        waiting = [admin_pb2.SiloVerdict(silo_id=one.silo_id) for one in self.verdicts]
        yield admin_pb2.AskSilosResponse(verdicts=waiting, quorum=self.quorum)
        yield admin_pb2.AskSilosResponse(
            verdicts=self.verdicts, quorum=self.quorum, complete=True, not_amended=self.not_amended
        )
        if self.amended_plan:
            for verdicts, complete in ((waiting, False), (self.verdicts_then, True)):
                yield admin_pb2.AskSilosResponse(
                    verdicts=verdicts,
                    quorum=self.quorum,
                    complete=complete,
                    round=2,
                    amended_plan=self.amended_plan,
                    moves=self.moves,
                )

    async def abort_run(self, run_id: str, *, admin: str) -> None:
        self.aborted.append(run_id)
        self.admins.append(admin)

    async def pause_run(self, run_id: str, *, admin: str) -> str:
        self.paused.append(run_id)
        self.admins.append(admin)
        return "paused"

    async def resume_run(self, run_id: str, *, admin: str) -> str:
        self.resumed.append(run_id)
        self.admins.append(admin)
        return "run-0"

    async def watch(self, run_id: str):
        for number in range(3):
            run = admin_pb2.RunSummary(run_id=run_id, round=number, rounds=3, state="running")
            yield admin_pb2.WatchRunResponse(run=run)
        yield admin_pb2.WatchRunResponse(
            run=admin_pb2.RunSummary(run_id=run_id, round=3, rounds=3, state="finished")
        )


class Coordinator:
    """Both gRPC ports, on an event loop in a thread."""

    def __init__(self, directory: Path, *, federation: str | None = FEDERATION) -> None:
        self.root_dir = directory / "root"
        root_public = create_root(self.root_dir)
        main, enrol, probes = (free_port() for _ in range(3))
        self.data_dir = directory / "data"
        self.config = found(
            self.data_dir,
            Founding(
                federation=federation,
                hosts=("localhost",),
                root_public_key=root_public,
                listen=f"127.0.0.1:{main}",
                enrol_listen=f"127.0.0.1:{enrol}",
                probes_listen=f"127.0.0.1:{probes}",
            ),
        )
        self.clock = Clock()
        self._open()

    def _open(self) -> None:
        """Everything that a process makes when it starts."""
        paths = self.config.paths
        self.trust = Trust.load(paths.pki, clock=self.clock)
        self.tls = ServerTls(
            paths.pki, self.trust, host_names=self.config.host_names, clock=self.clock
        )
        self.store = Store(database_in_force(self.config))
        self.audit = AuditLog(paths.audit)
        self.metrics = CoordinatorMetrics()
        self.upkeep = Upkeep(trust=self.trust, tls=self.tls, audit=self.audit, metrics=self.metrics)
        self.liveness = Liveness(self.clock)
        self.facts = PublishedFacts(self.clock)
        self.changes = 0
        self.standing = Standing(
            store=self.store, audit=self.audit, liveness=self.liveness, changed=self._changed
        )
        self.conductor = RecordingConductor()
        self.root_key = read_public_key(paths.root_public_key)
        self.signing_key = load_signing_key(paths.protocol_key)
        self.admin = AdminService(
            AdminContext(
                config=self.config,
                trust=self.trust,
                upkeep=self.upkeep,
                standing=self.standing,
                root_key=self.root_key,
                coordinator_key=self.signing_key.public_key().public_bytes_raw(),
                store=self.store,
                blobs=BlobStore(self.config.adapters),
                audit=self.audit,
                conductor=self.conductor,
                last_seen=lambda _: 0.0,
                facts=self.facts.of,
                invited=self._invited,
                clock=self.clock,
            )
        )
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(60)

    async def _start(self) -> None:
        policy = AccessPolicy(
            trust=self.trust,
            federation=self.store.federation.current,
            silos=self.store.silos,
            clock=self.clock,
        )
        interceptor = AccessInterceptor(policy=policy, metrics=self.metrics)
        self.servers = [
            grpc.aio.server(interceptors=(interceptor,)),
            grpc.aio.server(interceptors=(interceptor,)),
        ]
        main, enrol = self.servers
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self.admin, main)
        round_pb2_grpc.add_RoundServiceServicer_to_server(EchoRounds(), main)
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(
            MembershipService(
                MembershipContext(
                    renewals=Renewals(
                        trust=self.trust,
                        store=self.store,
                        audit=self.audit,
                        metrics=self.metrics,
                    ),
                    standing=self.standing,
                    audit_heads=AuditHeadExchange(
                        store=self.store,
                        audit=self.audit,
                        metrics=self.metrics,
                        signing_key=self.signing_key,
                        clock=self.clock,
                    ),
                    public_facts=PublicFacts(store=self.store, facts=self.facts, clock=self.clock),
                    rosters=RosterApprovals(store=self.store, audit=self.audit, clock=self.clock),
                )
            ),
            main,
        )
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(
            EnrolmentService(
                trust=self.trust,
                root_key=self.root_key,
                store=self.store,
                audit=self.audit,
                metrics=self.metrics,
                standing=self.standing,
                strangers=Strangers(),
                clock=self.clock,
            ),
            enrol,
        )
        main.add_secure_port(self.config.listen, self.tls.credentials(require_client=True))
        enrol.add_secure_port(self.config.enrol_listen, self.tls.credentials(require_client=False))
        for server in self.servers:
            await server.start()

    async def _invited(self) -> None:
        """The enrolment port is always open here."""

    def _changed(self) -> None:
        self.changes += 1

    def restart(self) -> None:
        """Stop, and start again from what is on disk."""
        self.close()
        self._open()

    def close(self) -> None:
        async def stop() -> None:
            for server in self.servers:
                await server.stop(None)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        self.store.close()

    def admin_channel(self) -> grpc.Channel:
        directory = self.config.paths.admin
        return grpc.secure_channel(
            self.config.dial_coordinator,
            grpc.ssl_channel_credentials(
                root_certificates=(directory / "ca.pem").read_bytes(),
                private_key=(directory / "admin.key").read_bytes(),
                certificate_chain=(directory / "admin.pem").read_bytes(),
            ),
        )

    def invite(self, silo_id: str, ttl_s: int = 3600) -> str:
        with self.admin_channel() as channel:
            return (
                admin_pb2_grpc.AdminServiceStub(channel)
                .CreateInvite(
                    admin_pb2.CreateInviteRequest(silo_id=silo_id, ttl_s=ttl_s), timeout=60
                )
                .invite
            )

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

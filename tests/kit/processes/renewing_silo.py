"""A real silo's line and renewal, stepped by hand against ``server_harness.py``'s coordinator."""

from __future__ import annotations

import itertools
import threading
import time

import grpc
from cryptography.hazmat.primitives.asymmetric import ec

from chorale.v1 import membership_pb2, membership_pb2_grpc, round_pb2, round_pb2_grpc
from federation.membership.renewal import renew_statement
from server.pki.authority import certificate_sha256
from silo_agent.errors import TransportError
from silo_agent.identity.identity import Identity
from silo_agent.identity.join import join
from silo_agent.identity.leaf import certificate_request
from silo_agent.identity.renewal import Chance, Renewal
from silo_agent.line.transport import Coordinator as Transport
from silo_agent.metrics import SiloMetrics
from tests.kit.processes.server_harness import FEDERATION

DAY = 86400
NUMBERS = itertools.count()


class Clock:
    """The silo's own clock."""

    def __init__(self):
        self.offset_s = 0.0

    def __call__(self):
        return time.time() + self.offset_s


class Lossy:
    """The silo's transport; what it is told to lose is lost after the coordinator acted."""

    def __init__(self, real):
        self.real = real
        self.lose_renewals = 0
        self.lose_pings = 0
        self.asked = []

    def renew(self, csr_der, signature):
        answer = self.real.renew(csr_der, signature)
        self.asked.append(csr_der)
        if self.lose_renewals:
            self.lose_renewals -= 1
            raise TransportError("UNAVAILABLE: the answer was lost")
        return answer

    def ping(self):
        if self.lose_pings:
            self.lose_pings -= 1
            raise TransportError("UNAVAILABLE: nobody answers")
        self.real.ping()

    def use(self, credentials):
        self.real.use(credentials)

    def sweep(self):
        self.real.sweep()


class Silo:
    """One enrolled silo with its line and its renewal, which the test steps by hand."""

    def __init__(self, coordinator, silo_id, directory):
        self.coordinator = coordinator
        self.silo_id = silo_id
        self.directory = directory
        join(coordinator.invite(silo_id), directory)
        self.clock = Clock()
        self.metrics = SiloMetrics()
        self.start()

    def start(self):
        """As a process does that starts: everything comes from the disk."""
        identity = Identity.load(self.directory)
        self.real = Transport(
            address=identity.coordinator_address,
            credentials=identity.channel_credentials(),
            patience_s=0.0,
        )
        self.line = Lossy(self.real)
        self.renewal = Renewal(
            identity=identity,
            data_dir=self.directory,
            coordinator=self.line,
            metrics=self.metrics,
            stopping=threading.Event(),
            chance=Chance(clock=self.clock, fraction=lambda: 0.5),
        )
        self.real.watch_trust(self.renewal.hear)

    def crash(self):
        self.real.close()
        self.start()

    @property
    def row(self):
        return self.coordinator.store.silos.get(self.silo_id)

    @property
    def leaf(self):
        return Identity.load(self.directory).leaf

    def renew_now(self):
        self.clock.offset_s += 16 * DAY
        self.renewal.step()

    def works(self):
        """Whether a call is admitted now, with what a fresh process would use."""
        identity = Identity.load(self.directory)
        return reason(self.coordinator, identity) == ""

    def counted(self, outcome):
        return self.metrics.registry.get_sample_value(
            "chorale_silo_certificate_renewals_total", {"outcome": outcome}
        )


def poll(channel):
    stub = round_pb2_grpc.RoundServiceStub(channel)
    return stub.Poll(round_pb2.PollRequest(), timeout=60).instruction_id


def reason(coordinator, identity):
    """Why a call is refused; empty if it is admitted."""
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, identity.channel_credentials()
    ) as channel:
        return reason_on(channel)


def reason_on(channel):
    try:
        poll(channel)
    except grpc.RpcError as error:
        return dict(error.trailing_metadata() or ()).get("chorale-reason", error.code().name)
    return ""


def ask(channel, silo_id, identity, *, signer=None, key=None, certificate=None, statement=None):
    """One raw request; what is not given is what an honest silo sends."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    csr = certificate_request(silo_id, key)
    digest = certificate_sha256(certificate or identity.leaf)
    signed = statement or renew_statement(
        FEDERATION, silo_id, certificate_sha256=digest, csr_der=csr
    )
    request = membership_pb2.RenewCertificateRequest(
        csr=csr, signature=(signer or identity.signing_key).sign(signed)
    )
    stub = membership_pb2_grpc.MembershipServiceStub(channel)
    stub.RenewCertificate(request, timeout=60)
    return request

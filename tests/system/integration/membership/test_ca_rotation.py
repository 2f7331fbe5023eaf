"""A rotation of the CA over real TLS, from its first minute to after its end, without a restart."""

from __future__ import annotations

import json
import threading

import grpc
import pytest
from cryptography import x509

from chorale.v1 import admin_pb2, admin_pb2_grpc, round_pb2, round_pb2_grpc
from federation.membership.invite import parse_invite
from ops.doctor.reach import presented_chain
from server.pki.authority import certificate_sha256
from server.site.founding import renew_admin
from silo_agent.errors import TransportError
from silo_agent.identity.identity import Identity
from silo_agent.identity.join import join
from silo_agent.identity.leaf import UntrustedCoordinatorError
from silo_agent.identity.renewal import Chance, Renewal
from silo_agent.line.transport import Coordinator as Transport
from silo_agent.metrics import SiloMetrics
from tests.kit.processes.server_harness import Coordinator

pytestmark = pytest.mark.xdist_group("ca_rotation")

HOUR = 3600


@pytest.fixture
def coordinator(tmp_path):
    running = Coordinator(tmp_path)
    yield running
    running.close()


def rotate(coordinator, overlap_s=HOUR):
    with coordinator.admin_channel() as channel:
        return admin_pb2_grpc.AdminServiceStub(channel).RotateCa(
            admin_pb2.RotateCaRequest(overlap_s=overlap_s), timeout=60
        )


def end_overlap(coordinator):
    """The hour is over; the coordinator looks, as it does once a minute."""
    coordinator.clock.offset_s += HOUR
    coordinator.upkeep.look()


def poll_on(channel):
    stub = round_pb2_grpc.RoundServiceStub(channel)
    try:
        return stub.Poll(round_pb2.PollRequest(), timeout=60).instruction_id
    except grpc.RpcError as error:
        return dict(error.trailing_metadata() or ()).get("chorale-reason", error.code().name)


def poll(coordinator, identity):
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, identity.channel_credentials()
    ) as channel:
        return poll_on(channel)


def issuer(certificate):
    return certificate.issuer.rfc4514_string()


class Daemon:
    """A silo's line and renewal, stepped by hand at a clock of its own."""

    def __init__(self, coordinator, directory):
        self.directory, self.coordinator = directory, coordinator
        identity = Identity.load(directory)
        self.transport = Transport(
            address=identity.coordinator_address,
            credentials=identity.channel_credentials(),
            patience_s=0.0,
        )
        self.renewal = Renewal(
            identity=identity,
            data_dir=directory,
            coordinator=self.transport,
            metrics=SiloMetrics(),
            stopping=threading.Event(),
            chance=Chance(clock=coordinator.clock, fraction=lambda: 0.0),
        )
        self.transport.watch_trust(self.renewal.hear)

    def poll(self):
        self.transport.poll("", wait_s=0)

    @property
    def identity(self):
        return Identity.load(self.directory)


@pytest.fixture
def daemon(coordinator, tmp_path):
    join(coordinator.invite("hospital-a"), tmp_path / "silo")
    made = Daemon(coordinator, tmp_path / "silo")
    yield made
    made.transport.close()


def test_a_silo_that_polls_follows_a_rotation_to_its_end(coordinator, daemon):
    old = coordinator.trust.issuing.sha256
    first = daemon.identity
    daemon.poll()
    daemon.renewal.step()
    # Nothing changed, so nothing is asked for.
    assert daemon.identity.leaf == first.leaf

    answer = rotate(coordinator)
    new = answer.ca_sha256
    assert new == coordinator.trust.issuing.sha256 != old
    assert answer.overlap_until_unix_s == pytest.approx(coordinator.clock() + HOUR, abs=30)
    daemon.poll()
    daemon.renewal.step()
    during = daemon.identity
    assert during.leaf != first.leaf
    assert certificate_sha256(during.ca) == new
    assert [certificate_sha256(ca) for ca in during.also_trusted] == [old]
    assert poll(coordinator, during) == "hospital-a"
    assert poll(coordinator, first) == "certificate_revoked"
    # Having both, it asks no more.
    daemon.poll()
    coordinator.clock.offset_s += 1200
    daemon.renewal.step()
    assert daemon.identity.leaf == during.leaf

    end_overlap(coordinator)
    assert poll(coordinator, during) == "hospital-a"
    daemon.poll()
    daemon.renewal.step()
    after = daemon.identity
    assert certificate_sha256(after.ca) == new
    assert after.also_trusted == ()
    assert poll(coordinator, after) == "hospital-a"
    events = [json.loads(line)["event"] for line in coordinator.audit.tail(20)]
    assert events.index("ca_rotated") < events.index("ca_retired")
    assert events.count("server_certificate_renewed") == 1


def test_the_servers_certificate_changes_at_the_end_and_no_connection_breaks(coordinator, daemon):
    old, address = coordinator.trust.issuing.certificate, coordinator.config.dial_coordinator
    before = presented_chain(address, timeout_s=5)[0]
    rotate(coordinator)
    assert presented_chain(address, timeout_s=5)[0] == before
    daemon.poll()
    daemon.renewal.step()
    identity = daemon.identity
    with grpc.secure_channel(address, identity.channel_credentials()) as channel:
        assert poll_on(channel) == "hospital-a"
        end_overlap(coordinator)
        assert poll_on(channel) == "hospital-a"
    after = presented_chain(address, timeout_s=5)
    assert after[0] != before
    assert issuer(after[0]) == coordinator.trust.issuing.certificate.subject.rfc4514_string()
    assert old not in after
    assert presented_chain(coordinator.config.dial_enrolment, timeout_s=5)[0] == after[0]


def test_a_silo_that_was_away_is_refused_on_its_open_connection_and_told_what_to_do(
    coordinator, daemon, capfd
):
    identity = daemon.identity
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, identity.channel_credentials()
    ) as channel:
        assert poll_on(channel) == "hospital-a"
        rotate(coordinator)
        assert poll_on(channel) == "hospital-a"
        coordinator.clock.offset_s += HOUR
        # To the second, though nobody has looked yet.
        assert poll_on(channel) == "unauthenticated"
        coordinator.upkeep.look()
    assert poll(coordinator, identity) == "UNAVAILABLE"
    with pytest.raises(TransportError):
        Daemon(coordinator, daemon.directory).poll()
    capfd.readouterr()
    daemon.renewal.step()
    said = "".join(capfd.readouterr())
    assert "a CA that this silo does not know" in said
    assert "new invite" in said
    # The admin's own certificate lasts a day, so an admin renews meanwhile anyway.
    renew_admin(coordinator.config, "alex")
    again = join(coordinator.invite("hospital-a"), daemon.directory)
    assert poll(coordinator, again) == "hospital-a"


def test_invites_from_before_and_from_the_overlap_work_in_it(coordinator, tmp_path):
    earlier = coordinator.invite("hospital-b")
    rotate(coordinator)
    later, last = coordinator.invite("hospital-c"), coordinator.invite("hospital-d", 2 * HOUR)
    assert parse_invite(earlier).ca_sha256 != parse_invite(later).ca_sha256
    new = coordinator.trust.issuing.sha256
    for invite in (earlier, later):
        identity = join(invite, tmp_path / parse_invite(invite).silo_id)
        assert certificate_sha256(identity.ca) == new
        assert poll(coordinator, identity) == identity.silo_id
    # Who joined with the newer pin knows one CA, and learns of the other by its first poll.
    daemon = Daemon(coordinator, tmp_path / "hospital-c")
    daemon.poll()
    daemon.renewal.step()
    assert len(daemon.identity.also_trusted) == 1
    daemon.transport.close()

    end_overlap(coordinator)
    assert poll(coordinator, join(last, tmp_path / "hospital-d")) == "hospital-d"


def test_an_invite_from_before_the_rotation_says_what_is_wrong_after_it(coordinator, tmp_path):
    earlier = coordinator.invite("hospital-e", 2 * HOUR)
    rotate(coordinator)
    end_overlap(coordinator)
    with pytest.raises(UntrustedCoordinatorError, match="new invite"):
        join(earlier, tmp_path / "silo")


def test_an_admin_who_renews_in_the_overlap_is_served_before_and_after_its_end(coordinator):
    rotate(coordinator)
    renew_admin(coordinator.config, "alex")
    certificate = x509.load_pem_x509_certificate(
        (coordinator.config.paths.admin / "admin.pem").read_bytes()
    )
    assert issuer(certificate) == coordinator.trust.issuing.certificate.subject.rfc4514_string()
    assert coordinator.invite("hospital-f")
    end_overlap(coordinator)
    assert coordinator.invite("hospital-g")


def test_a_viewers_certificate_reads_and_changes_nothing(coordinator, tmp_path):
    renew_admin(coordinator.config, "pat", role="viewer", out=tmp_path / "pat")
    directory = tmp_path / "pat" / "admin"
    assert (directory / "admin.key").stat().st_mode & 0o777 == 0o600
    assert not list((tmp_path / "pat").rglob("ca.key"))
    with grpc.secure_channel(
        coordinator.config.dial_coordinator,
        grpc.ssl_channel_credentials(
            root_certificates=(directory / "ca.pem").read_bytes(),
            private_key=(directory / "admin.key").read_bytes(),
            certificate_chain=(directory / "admin.pem").read_bytes(),
        ),
    ) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        assert list(stub.ListSilos(admin_pb2.ListSilosRequest(), timeout=60).silos) == []
        with pytest.raises(grpc.RpcError) as caught:
            stub.RotateCa(admin_pb2.RotateCaRequest(overlap_s=HOUR), timeout=60)
    assert dict(caught.value.trailing_metadata())["chorale-reason"] == "role_denied"
    # The admin's own place is as it was.
    assert coordinator.invite("hospital-h")


def test_rotating_twice_at_once_is_refused(coordinator):
    rotate(coordinator)
    for overlap_s in (HOUR, 1):
        with pytest.raises(grpc.RpcError) as caught:
            rotate(coordinator, overlap_s)
        assert dict(caught.value.trailing_metadata())["chorale-reason"] == "ca_rotation"


def test_a_coordinator_that_restarts_in_the_overlap_goes_on_with_it(coordinator, daemon):
    address = coordinator.config.dial_coordinator
    rotate(coordinator)
    daemon.poll()
    daemon.renewal.step()
    coordinator.restart()
    assert len(coordinator.trust.certificates()) == 2
    assert len(presented_chain(address, timeout_s=5)) == 4
    assert poll(coordinator, daemon.identity) == "hospital-a"
    end_overlap(coordinator)
    coordinator.restart()
    assert len(coordinator.trust.certificates()) == 1
    assert poll(coordinator, daemon.identity) == "hospital-a"


def test_a_certificate_that_half_its_life_has_passed_is_replaced_under_open_connections(
    coordinator, daemon
):
    """At real time for TLS; only the coordinator's own judgement of time is moved."""
    address = coordinator.config.dial_coordinator
    before = presented_chain(address, timeout_s=5)[0]
    with grpc.secure_channel(address, daemon.identity.channel_credentials()) as channel:
        assert poll_on(channel) == "hospital-a"
        coordinator.clock.offset_s = 200 * 86400
        coordinator.upkeep.look()
        coordinator.clock.offset_s = 0
        assert poll_on(channel) == "hospital-a"
    after = presented_chain(address, timeout_s=5)[0]
    assert after.serial_number != before.serial_number
    assert poll(coordinator, daemon.identity) == "hospital-a"
    gauge = coordinator.counted("chorale_server_certificate_expiry_timestamp_seconds")
    assert gauge == int(after.not_valid_after_utc.timestamp())

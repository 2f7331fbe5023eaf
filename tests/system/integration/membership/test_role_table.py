"""The whole role table over real gRPC: every method, every role, every state of a certificate.

Each cell is asserted to be exactly admitted, or refused for exactly one reason. An admitted call is
empty and may then fail for its content, but never for an access reason. Who may do what is written
out here once more, so that no slip in ``server/rpc/access.py`` passes by agreeing with itself.

A certificate that TLS itself refuses shows as UNAVAILABLE; one that was good when the connection
was made is refused call by call, for a reason. Both are here.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chorale.v1 import admin_pb2, enrolment_pb2, membership_pb2, round_pb2
from server.errors import Reason
from server.pki.authority import CertificateAuthority, certificate_sha256
from tests.kit.processes.server_harness import FEDERATION, Coordinator
from tests.kit.server.store_samples import silo_row

pytestmark = pytest.mark.xdist_group("role_table")

DAY = 86400
OF_ADMINS = {
    "CreateFederation", "CreateInvite", "SuspendSilo", "ReinstateSilo", "RevokeSilo", "RotateCa",
    "ProposeRoster", "PublishRoster", "AskSilos", "StartRun", "AbortRun", "PauseRun", "ResumeRun",
    "RollbackAdapter", "BisectRun",
}  # fmt: skip
OF_READERS = {
    "GetFederation", "ListSilos", "ListRuns", "WatchRun", "ListAdapters", "GetAdapter",
    "GetTranscript", "GetBudget", "TailAudit",
}  # fmt: skip
OF_SILOS = {
    "RenewCertificate", "GetRosterProposal", "ApproveRoster", "ExchangeAuditHeads", "PublishFacts",
    "Leave", "GetRoster", "GetPlan", "Poll", "ReportReady", "Refuse", "AnswerPreflight",
    "AdvertiseKeys", "ShareKeys", "GetUploadOffset", "UploadMaskedInput", "CheckConsistency",
    "Unmask", "FetchBlob", "ListRecords",
}  # fmt: skip
MAY = {"admin": OF_ADMINS | OF_READERS, "viewer": OF_READERS, "silo": OF_SILOS}

ADMITTED = "admitted"
NO_TLS = "UNAVAILABLE"
ACCESS_REASONS = {
    reason.value
    for reason in (
        Reason.ACCESS_DENIED,
        Reason.UNAUTHENTICATED,
        Reason.CERTIFICATE_EXPIRED,
        Reason.CERTIFICATE_REVOKED,
        Reason.SILO_SUSPENDED,
        Reason.FOREIGN_FEDERATION,
        Reason.ROLE_DENIED,
    )
}


@dataclass(frozen=True)
class Method:
    """One RPC."""

    path: str
    name: str
    client_streams: bool
    server_streams: bool


def methods_of(*modules):
    return tuple(
        Method(
            path=f"/{service.full_name}/{method.name}",
            name=method.name,
            client_streams=method.client_streaming,
            server_streams=method.server_streaming,
        )
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    )


METHODS = methods_of(admin_pb2, membership_pb2, round_pb2)
(JOIN,) = methods_of(enrolment_pb2)


def outcome(channel, method):
    """What an empty call comes to: admitted, an access reason, or TLS's silence."""
    shape = (
        f"{'stream' if method.client_streams else 'unary'}_"
        f"{'stream' if method.server_streams else 'unary'}"
    )
    call = getattr(channel, shape)(
        method.path, request_serializer=bytes, response_deserializer=bytes
    )
    request = iter(()) if method.client_streams else b""
    try:
        answer = call(request, timeout=60)
        if method.server_streams:
            next(iter(answer), None)
            answer.cancel()
    except grpc.RpcError as error:
        reason = dict(error.trailing_metadata() or ()).get("chorale-reason", "")
        if reason in ACCESS_REASONS:
            return reason
        if reason:
            return ADMITTED
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return f"UNIMPLEMENTED: {error.details()}"
        return error.code().name
    return ADMITTED


# Certificates -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """A client certificate with its key; None stands for no certificate at all."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def certificate(authority, uris, *, begins=-1.0, ends=20.0, self_signed=False):
    """A client certificate, valid for so many days from now; every field as the CA's own."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = dt.datetime.now(dt.UTC)
    signer = key if self_signed else authority.key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if self_signed else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(days=begins))
        .not_valid_after(now + dt.timedelta(days=ends))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
    )
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(names, critical=False)
    return Held(builder.sign(signer, hashes.SHA256()), key)


def uri(role, name, domain=None):
    domain = domain or (FEDERATION if role == "silo" else "coordinator")
    return f"spiffe://{domain}/{role}/{name}"


class World:
    """A coordinator, and certificates in every state that one can be in."""

    def __init__(self, directory):
        self.coordinator = Coordinator(directory)
        self.ca = self.coordinator.trust.issuing

    def enrolled(self, name, held, **changes):
        self.coordinator.store.silos.enrol(
            silo_row(
                name,
                spiffe_uri=uri("silo", name),
                certificate_sha256=certificate_sha256(held.certificate),
                certificate_expiry_unix_s=int(held.certificate.not_valid_after_utc.timestamp()),
                enrolled_unix_s=0,
                **changes,
            )
        )
        return held

    def channel(self, held, *, enrolment=False):
        config = self.coordinator.config
        pair = {}
        if held is not None:
            pair = {
                "private_key": held.key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
                "certificate_chain": held.certificate.public_bytes(serialization.Encoding.PEM),
            }
        return grpc.secure_channel(
            config.dial_enrolment if enrolment else config.dial_coordinator,
            grpc.ssl_channel_credentials(
                root_certificates=self.ca.certificate.public_bytes(serialization.Encoding.PEM),
                **pair,
            ),
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.coordinator.close()


@pytest.fixture(autouse=True)
def real_time(world):
    yield
    world.coordinator.clock.offset_s = 0.0


def table(world, held, expected, *, connected_first=False, offset_s=0.0):
    """Call every method and compare each cell; then see that refusals were counted."""
    counted = {
        reason: world.coordinator.counted("chorale_rejected_messages_total", reason=reason)
        for reason in ACCESS_REASONS
    }
    wanted = {method.path: expected(method) for method in METHODS}
    with world.channel(held) as channel:
        if connected_first:
            grpc.channel_ready_future(channel).result(timeout=60)
        world.coordinator.clock.offset_s = offset_s
        seen = {method.path: outcome(channel, method) for method in METHODS}
    assert seen == wanted
    for reason in ACCESS_REASONS:
        after = world.coordinator.counted("chorale_rejected_messages_total", reason=reason)
        assert after - counted[reason] == list(wanted.values()).count(reason), reason


def valid(world, role, name):
    held = certificate(world.ca, [uri(role, name)])
    return world.enrolled(name, held) if role == "silo" else held


def test_the_lists_above_are_every_method():
    names = [method.name for method in METHODS]
    assert len(names) == len(set(names))
    assert set(names) == OF_ADMINS | OF_READERS | OF_SILOS
    assert JOIN.path == "/chorale.v1.EnrolmentService/Join"


@pytest.mark.parametrize("role", MAY)
def test_a_valid_certificate_may_do_what_its_role_may_and_nothing_else(world, role):
    held = valid(world, role, f"valid-{role}")
    table(world, held, lambda method: ADMITTED if method.name in MAY[role] else "role_denied")


@pytest.mark.parametrize("role", MAY)
@pytest.mark.parametrize("offset_days", [30, -2], ids=["expired", "not-yet-valid"])
def test_a_certificate_outside_its_time_on_an_open_connection_may_do_nothing(
    world, role, offset_days
):
    held = valid(world, role, f"timed-{role}")
    table(
        world,
        held,
        lambda _: "certificate_expired",
        connected_first=True,
        offset_s=offset_days * DAY,
    )


@pytest.mark.parametrize("role", MAY)
@pytest.mark.parametrize(("begins", "ends"), [(-9, -1), (1, 9)], ids=["expired", "not-yet-valid"])
def test_a_certificate_outside_its_time_makes_no_connection(world, role, begins, ends):
    held = certificate(world.ca, [uri(role, "late")], begins=begins, ends=ends)
    if role == "silo":
        world.enrolled("late", held)
    table(world, held, lambda _: NO_TLS)


@pytest.mark.parametrize("role", MAY)
@pytest.mark.parametrize("domain", ["cardiology", "coordinators", f"{FEDERATION}.example"])
def test_another_federations_certificate_may_do_nothing(world, role, domain):
    held = certificate(world.ca, [uri(role, "valid", domain)])
    if role == "silo":
        world.enrolled("valid", held)
    table(world, held, lambda _: "foreign_federation")


@pytest.mark.parametrize("role", MAY)
def test_a_trust_domain_is_not_another_roles(world, role):
    """No admin of the federation's name, and no silo of the coordinator's."""
    domain = "coordinator" if role == "silo" else FEDERATION
    held = certificate(world.ca, [uri(role, "valid", domain)])
    table(world, held, lambda _: "foreign_federation")


@pytest.mark.parametrize("role", MAY)
@pytest.mark.parametrize("how", ["other-ca", "self-signed", "other-ca-of-the-same-name"])
def test_another_cas_certificate_makes_no_connection(world, role, how):
    other = CertificateAuthority.create(FEDERATION)
    if how == "other-ca-of-the-same-name":
        other = CertificateAuthority(certificate=world.ca.certificate, key=other.key)
    held = certificate(other, [uri(role, "valid")], self_signed=how == "self-signed")
    table(world, held, lambda _: NO_TLS)


def test_no_certificate_makes_no_connection(world):
    table(world, None, lambda _: NO_TLS)


@pytest.mark.parametrize("role", ["owner", "Admin", "root", "silo%2fadmin"])
def test_an_unknown_role_may_do_nothing(world, role):
    held = certificate(world.ca, [f"spiffe://coordinator/{role}/alex"])
    table(world, held, lambda _: "role_denied")


@pytest.mark.parametrize(
    "uris",
    [
        [],
        [uri("admin", "alex"), uri("silo", "alex")],
        ["spiffe://coordinator/admin"],
        ["spiffe://coordinator/admin/alex/more"],
        ["spiffe://coordinator/admin/"],
        ["https://coordinator/admin/alex"],
    ],
    ids=["none", "two", "short", "long", "nameless", "another-scheme"],
)
def test_a_certificate_without_exactly_one_name_may_do_nothing(world, uris):
    table(world, certificate(world.ca, uris), lambda _: "unauthenticated")


STANDINGS = {
    "revoked": ({"revoked": True}, "certificate_revoked"),
    "revoked-and-suspended": ({"revoked": True, "suspended": True}, "certificate_revoked"),
    "suspended": ({"suspended": True}, "silo_suspended"),
    "suspended-and-left": ({"suspended": True, "left": True}, "silo_suspended"),
    "left": ({"left": True}, ADMITTED),
}


@pytest.mark.parametrize("standing", STANDINGS)
def test_how_a_silo_stands_decides_over_what_it_may(world, standing):
    changes, expected = STANDINGS[standing]
    held = certificate(world.ca, [uri("silo", standing)])
    world.enrolled(standing, held, **changes)
    table(world, held, lambda method: expected if method.name in OF_SILOS else "role_denied")


@pytest.mark.parametrize("why", ["stranger", "replaced"])
def test_a_silo_that_is_not_enrolled_with_this_certificate_may_do_nothing(world, why):
    held = certificate(world.ca, [uri("silo", why)])
    if why == "replaced":
        world.enrolled(why, certificate(world.ca, [uri("silo", why)]))
    table(
        world,
        held,
        lambda method: "certificate_revoked" if method.name in OF_SILOS else "role_denied",
    )


def test_a_silos_name_gives_no_admins_rights_and_the_other_way_round(world):
    world.enrolled("alex", certificate(world.ca, [uri("silo", "alex")]))
    admin = certificate(world.ca, [uri("admin", "alex")])
    table(world, admin, lambda method: ADMITTED if method.name in MAY["admin"] else "role_denied")


@pytest.mark.parametrize("role", [*MAY, "none"])
def test_the_enrolment_port_serves_joining_to_anyone_and_nothing_else(world, role):
    held = None if role == "none" else valid(world, role, f"enrolling-{role}")
    with world.channel(held, enrolment=True) as channel:
        assert outcome(channel, JOIN) == ADMITTED
        for method in METHODS:
            assert outcome(channel, method) == "UNIMPLEMENTED: Method not found!", method


@pytest.mark.parametrize("role", MAY)
def test_the_mutual_tls_port_does_not_serve_joining(world, role):
    with world.channel(valid(world, role, f"joining-{role}")) as channel:
        assert outcome(channel, JOIN) == "UNIMPLEMENTED: Method not found!"

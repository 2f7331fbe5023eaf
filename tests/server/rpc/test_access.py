"""The whole access table, times roles, times what can be wrong with a certificate."""

import dataclasses
import datetime as dt
import itertools
import time
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from chorale.v1 import admin_pb2, enrolment_pb2, membership_pb2, round_pb2
from server.errors import (
    AccessError,
    ExpiredCertificateError,
    ForeignFederationError,
    RevokedCertificateError,
    RoleDeniedError,
    SuspendedSiloError,
    UnauthenticatedError,
)
from server.members.peer import Role
from server.pki.authority import CertificateAuthority, certificate_sha256, not_after_unix_s
from server.rpc.access import ACCESS, AccessPolicy, current_peer
from server.store.federation import FederationRow
from tests.kit.server.store_samples import silo_row

CA = CertificateAuthority.create("oncology")
NOW = not_after_unix_s(CA.issue_admin("x").certificate) - 86_400


def silo_certificate(authority=CA, silo_id="hospital-a", federation="oncology"):
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    der = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    return authority.issue_silo(der, silo_id, federation=federation)


SILO = silo_certificate()
CERTIFICATES = {
    Role.ADMIN: CA.issue_admin("alex").certificate,
    Role.VIEWER: CA.issue_admin("pat", role="viewer").certificate,
    Role.SILO: SILO,
}


def row(**changes):
    held = {
        "certificate_sha256": certificate_sha256(SILO),
        "certificate_expiry_unix_s": not_after_unix_s(SILO),
    }
    return silo_row(**held | changes)


class OneSilo:
    """The table of silos, with one row or none."""

    def __init__(self, silo):
        self.silo = silo

    def get(self, silo_id):
        return self.silo if self.silo and silo_id == self.silo.silo_id else None

    def use_next(self, silo_id, certificate_sha256):
        assert self.get(silo_id).next_certificate_sha256 == certificate_sha256
        self.silo = dataclasses.replace(
            self.silo, certificate_sha256=certificate_sha256, next_certificate_sha256=None
        )


def policy(*, now=NOW, silo=row(), cas=(CA,), federation="oncology"):  # noqa: B008 - a frozen value
    silos = silo if isinstance(silo, OneSilo) else OneSilo(silo)
    return AccessPolicy(
        trust=SimpleNamespace(certificates=lambda: tuple(ca.certificate for ca in cas)),
        federation=lambda: federation and FederationRow(name=federation),
        silos=silos,
        clock=lambda: now,
    )


def of_domain(domain, role):
    """An operator's certificate as an earlier version made them."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName(
        [x509.UniformResourceIdentifier(f"spiffe://{domain}/{role.value}/alex")]
    )
    return CA._sign(
        key.public_key(),
        common_name="alex",
        names=names,
        usage=ExtendedKeyUsageOID.CLIENT_AUTH,
        life=dt.timedelta(days=1),
    )


def pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


def test_the_table_is_the_wire():
    services = [
        *enrolment_pb2.DESCRIPTOR.services_by_name.values(),
        *admin_pb2.DESCRIPTOR.services_by_name.values(),
        *membership_pb2.DESCRIPTOR.services_by_name.values(),
        *round_pb2.DESCRIPTOR.services_by_name.values(),
    ]
    assert set(ACCESS) == {
        f"/{service.full_name}/{method.name}" for service in services for method in service.methods
    }


@pytest.mark.parametrize(("method", "role"), tuple(itertools.product(ACCESS, Role)))
def test_every_method_for_every_role(method, role):
    allowed = ACCESS[method]
    if not allowed:
        assert policy().admit(method, None) is None
    elif role in allowed:
        peer = policy().admit(method, pem(CERTIFICATES[role]))
        assert peer.role is role
        assert peer.name == {"admin": "alex", "viewer": "pat", "silo": "hospital-a"}[role]
    else:
        with pytest.raises(RoleDeniedError):
            policy().admit(method, pem(CERTIFICATES[role]))


def test_a_viewer_can_change_nothing():
    writers = {
        "CreateFederation", "CreateInvite", "SuspendSilo", "ReinstateSilo", "RevokeSilo",
        "RotateCa", "ProposeRoster", "PublishRoster", "AskSilos", "StartRun", "AbortRun",
        "PauseRun", "ResumeRun", "RollbackAdapter", "BisectRun",
    }  # fmt: skip
    for method, roles in ACCESS.items():
        if method.rpartition("/")[2] in writers:
            assert roles == {Role.ADMIN}


@pytest.mark.parametrize("method", [method for method, roles in ACCESS.items() if roles])
def test_no_expired_foreign_or_absent_certificate_passes_anywhere(method):
    role = min(ACCESS[method])
    certificate = CERTIFICATES[role]
    with pytest.raises(UnauthenticatedError):
        policy().admit(method, None)
    late = not_after_unix_s(certificate)
    with pytest.raises(ExpiredCertificateError):
        policy(now=late).admit(method, pem(certificate))
    with pytest.raises(ExpiredCertificateError):
        policy(now=NOW - 7 * 86_400).admit(method, pem(certificate))
    with pytest.raises(UnauthenticatedError):
        policy(cas=(CertificateAuthority.create("oncology"),)).admit(method, pem(certificate))
    foreign = (
        silo_certificate(federation="cardiology")
        if role is Role.SILO
        else of_domain("oncology", role)
    )
    # Issued now, which in a long run of tests is not yet valid at the time this module was read.
    with pytest.raises(ForeignFederationError):
        policy(now=time.time()).admit(method, pem(foreign))


POLL = "/chorale.v1.RoundService/Poll"


@pytest.mark.parametrize(
    "silo",
    [None, row(revoked=True), row(certificate_sha256=b"\x00" * 32)],
    ids=["stranger", "revoked", "replaced"],
)
def test_a_silo_needs_the_certificate_on_record(silo):
    with pytest.raises(RevokedCertificateError):
        policy(silo=silo).admit(POLL, pem(SILO))


def test_a_suspended_silo_is_refused_and_its_next_certificate_stays_unused():
    silos = OneSilo(row(suspended=True))
    with pytest.raises(SuspendedSiloError):
        policy(silo=silos).admit(POLL, pem(SILO))
    newer = silo_certificate()
    silos.silo = row(suspended=True, next_certificate_sha256=certificate_sha256(newer))
    with pytest.raises(SuspendedSiloError):
        policy(silo=silos, now=time.time()).admit(POLL, pem(newer))
    assert silos.silo.next_certificate_sha256 == certificate_sha256(newer)


def test_the_next_certificate_takes_over_at_its_first_use():
    newer = silo_certificate()
    silos = OneSilo(row(next_certificate_sha256=certificate_sha256(newer)))
    judge = policy(silo=silos, now=time.time())
    assert judge.admit(POLL, pem(SILO)).name == "hospital-a"
    assert silos.silo.certificate_sha256 == certificate_sha256(SILO)
    assert judge.admit(POLL, pem(newer)).name == "hospital-a"
    with pytest.raises(RevokedCertificateError):
        judge.admit(POLL, pem(SILO))
    assert judge.admit(POLL, pem(newer)).name == "hospital-a"


def test_during_a_rotation_both_cas_are_good_and_afterwards_one():
    newer = CertificateAuthority.create("oncology")
    assert policy(cas=(newer, CA)).admit(POLL, pem(SILO)).name == "hospital-a"
    with pytest.raises(UnauthenticatedError, match="new invite"):
        policy(cas=(newer,)).admit(POLL, pem(SILO))


def test_before_the_federation_has_a_name_no_silo_passes_and_admins_do():
    with pytest.raises(ForeignFederationError):
        policy(federation=None).admit(POLL, pem(SILO))
    invite = "/chorale.v1.AdminService/CreateFederation"
    assert policy(federation=None).admit(invite, pem(CERTIFICATES[Role.ADMIN])).name == "alex"


def test_unknown_methods_and_rubbish_are_refused():
    with pytest.raises(RoleDeniedError):
        policy().admit("/chorale.v1.RoundService/Nothing", pem(SILO))
    with pytest.raises(UnauthenticatedError):
        policy().admit(POLL, b"-----BEGIN CERTIFICATE-----\nrubbish")
    unknown = CA.issue_admin("x", role="owner").certificate
    with pytest.raises(AccessError):
        policy().admit(POLL, pem(unknown))


def test_outside_a_call_there_is_no_peer():
    with pytest.raises(UnauthenticatedError):
        current_peer()

"""Enrolment over real gRPC and TLS: the way in, and every way to be refused.

A refusal is correct when the error is typed, the coordinator counted it, and it goes on serving.
"""

from __future__ import annotations

import dataclasses

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chorale.v1 import enrolment_pb2, enrolment_pb2_grpc, round_pb2, round_pb2_grpc
from federation.membership.invite import join_statement, parse_invite
from server.pki.authority import CertificateAuthority, certificate_sha256
from silo_agent.errors import TransportError
from silo_agent.identity.identity import Identity
from silo_agent.identity.join import AlreadyJoinedError, InviteRefusedError, join
from silo_agent.identity.leaf import UntrustedCoordinatorError
from tests.kit.processes.server_harness import FEDERATION, Coordinator

pytestmark = pytest.mark.xdist_group("enrolment")


@pytest.fixture(autouse=True)
def real_time(coordinator):
    yield
    coordinator.clock.offset_s = 0.0


def poll(coordinator, credentials):
    with grpc.secure_channel(coordinator.config.dial_coordinator, credentials) as channel:
        stub = round_pb2_grpc.RoundServiceStub(channel)
        return stub.Poll(round_pb2.PollRequest(), timeout=60).instruction_id


def alive(coordinator, tmp_path) -> bool:
    """A fresh silo can still join and speak."""
    invite = coordinator.invite("late-silo")
    identity = join(invite, tmp_path / "late")
    return poll(coordinator, identity.channel_credentials()) == "late-silo"


def test_join_gives_an_identity_that_the_coordinator_serves(coordinator, tmp_path):
    before = coordinator.counted("chorale_enrolments_total", outcome="joined")
    identity = join(coordinator.invite("hospital-a"), tmp_path / "silo")
    assert poll(coordinator, identity.channel_credentials()) == "hospital-a"
    loaded = Identity.load(tmp_path / "silo")
    assert loaded.leaf == identity.leaf
    assert loaded.root_key == coordinator.root_key
    row = coordinator.store.silos.get("hospital-a")
    assert row.certificate_sha256 == certificate_sha256(identity.leaf)
    assert row.verification_key == loaded.signing_key.public_key().public_bytes_raw()
    assert row.spiffe_uri == f"spiffe://{FEDERATION}/silo/hospital-a"
    assert coordinator.counted("chorale_enrolments_total", outcome="joined") == before + 1
    assert '"silo_joined"' in coordinator.audit.tail(1)[0]


def test_keys_are_private_on_disk_and_in_repr(coordinator, tmp_path):
    identity = join(coordinator.invite("hospital-b"), tmp_path / "silo")
    directory = tmp_path / "silo" / "identity"
    assert directory.stat().st_mode & 0o777 == 0o700
    for name in ("leaf.key", "protocol.key"):
        assert (directory / name).stat().st_mode & 0o777 == 0o600
    assert "Private" not in repr(identity)
    assert "key=<" not in repr(identity)


def refused(coordinator, tmp_path, reason, invite):
    before = coordinator.counted("chorale_rejected_messages_total", reason=reason)
    outcomes = coordinator.counted("chorale_enrolments_total", outcome=reason)
    with pytest.raises(InviteRefusedError) as caught:
        join(invite, tmp_path / "refused")
    assert caught.value.reason == reason
    assert not (tmp_path / "refused" / "identity").exists()
    assert coordinator.counted("chorale_rejected_messages_total", reason=reason) == before + 1
    assert coordinator.counted("chorale_enrolments_total", outcome=reason) == outcomes + 1
    assert alive(coordinator, tmp_path)


def test_second_use_is_refused(coordinator, tmp_path):
    invite = coordinator.invite("hospital-c")
    join(invite, tmp_path / "first")
    refused(coordinator, tmp_path, "invite_spent", invite)


def test_expired_invite_is_refused(coordinator, tmp_path):
    invite = coordinator.invite("hospital-d", ttl_s=60)
    before = coordinator.counted("chorale_rejected_messages_total", reason="invite_expired")
    coordinator.clock.offset_s = 61
    with pytest.raises(InviteRefusedError, match="chorale invite") as caught:
        join(invite, tmp_path / "silo")
    assert caught.value.reason == "invite_expired"
    after = coordinator.counted("chorale_rejected_messages_total", reason="invite_expired")
    assert after == before + 1
    coordinator.clock.offset_s = 0
    # The refusal spent nothing: in time, the same invite works.
    assert join(invite, tmp_path / "silo").silo_id == "hospital-d"
    assert alive(coordinator, tmp_path)


def test_wrong_secret_is_refused(coordinator, tmp_path):
    invite = parse_invite(coordinator.invite("hospital-e"))
    refused(
        coordinator, tmp_path, "invite_unknown", dataclasses.replace(invite, secret=b"\x07" * 32)
    )


def test_an_invite_is_for_its_silo_alone(coordinator, tmp_path):
    invite = parse_invite(coordinator.invite("hospital-f"))
    refused(
        coordinator, tmp_path, "invite_unknown", dataclasses.replace(invite, silo_id="hospital-x")
    )


def test_a_newer_invite_replaces_the_older(coordinator, tmp_path):
    older = coordinator.invite("hospital-g")
    newer = coordinator.invite("hospital-g")
    refused(coordinator, tmp_path, "invite_unknown", older)
    assert join(newer, tmp_path / "silo").silo_id == "hospital-g"


def raw_join(coordinator, invite, leaf_key, *, signing=None, signer=None, silo_id=None):
    signing = signing or Ed25519PrivateKey.generate()
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr = csr.sign(leaf_key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    silo_id = silo_id or invite.silo_id
    statement = join_statement(invite.federation, silo_id, csr)
    request = enrolment_pb2.JoinRequest(
        federation=invite.federation,
        silo_id=silo_id,
        invite_secret=invite.secret,
        csr=csr,
        verification_key=signing.public_key().public_bytes_raw(),
        signature=(signer or signing).sign(statement),
    )
    ca = (coordinator.config.paths.pki / "ca.pem").read_bytes()
    with grpc.secure_channel(
        invite.enrol_address, grpc.ssl_channel_credentials(root_certificates=ca)
    ) as channel:
        return enrolment_pb2_grpc.EnrolmentServiceStub(channel).Join(request, timeout=60)


@pytest.mark.parametrize(
    ("make_key", "signer", "reason"),
    [
        (lambda: ec.generate_private_key(ec.SECP384R1()), None, "csr_refused"),
        (lambda: rsa.generate_private_key(65537, 2048), None, "csr_refused"),
        (
            lambda: ec.generate_private_key(ec.SECP256R1()),
            Ed25519PrivateKey.generate(),
            "possession_unproven",
        ),
    ],
    ids=["p384", "rsa", "stolen-verification-key"],
)
def test_requests_with_the_wrong_keys_are_refused(coordinator, tmp_path, make_key, signer, reason):
    invite = parse_invite(coordinator.invite("hospital-h"))
    before = coordinator.counted("chorale_rejected_messages_total", reason=reason)
    with pytest.raises(grpc.RpcError) as caught:
        raw_join(coordinator, invite, make_key(), signer=signer)
    trailers = dict(caught.value.trailing_metadata())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert trailers["chorale-reason"] == reason
    assert trailers["chorale-hint"]
    assert coordinator.counted("chorale_rejected_messages_total", reason=reason) == before + 1
    # A refused request spends nothing.
    assert join(invite, tmp_path / "silo").silo_id == "hospital-h"
    assert alive(coordinator, tmp_path)


NEUTRAL = (1).to_bytes(32, "little")
"""The neutral element of edwards25519, and with zeros behind it a signature over anything."""


class Nobody:
    """A signer without a private key."""

    def public_key(self):
        return self

    def public_bytes_raw(self):
        return NEUTRAL

    def sign(self, _statement):
        return NEUTRAL + bytes(32)


def test_a_key_without_a_private_key_proves_no_possession(coordinator, tmp_path):
    invite = parse_invite(coordinator.invite("hospital-q"))
    with pytest.raises(grpc.RpcError, match="small order") as caught:
        raw_join(coordinator, invite, ec.generate_private_key(ec.SECP256R1()), signing=Nobody())
    assert dict(caught.value.trailing_metadata())["chorale-reason"] == "possession_unproven"
    assert join(invite, tmp_path / "silo").silo_id == "hospital-q"


def test_a_root_that_anybody_can_sign_for_is_not_trusted(tmp_path, monkeypatch):
    """The invite pins it, so a coordinator that chose its own root could sign any roster."""
    monkeypatch.setattr("tests.kit.processes.server_harness.read_public_key", lambda _path: NEUTRAL)
    lying = Coordinator(tmp_path / "coordinator")
    try:
        with pytest.raises(UntrustedCoordinatorError, match="anybody could sign"):
            join(lying.invite("hospital-r"), tmp_path / "silo")
    finally:
        lying.close()
    assert not (tmp_path / "silo" / "identity").exists()


def test_another_ca_is_not_trusted_and_learns_nothing(coordinator, tmp_path):
    invite = parse_invite(coordinator.invite("hospital-i"))
    with pytest.raises(UntrustedCoordinatorError, match="Nothing was sent"):
        join(dataclasses.replace(invite, ca_sha256=b"\x01" * 32), tmp_path / "silo")
    assert not (tmp_path / "silo" / "identity").exists()
    assert join(invite, tmp_path / "silo").silo_id == "hospital-i"


def test_another_root_is_not_trusted(coordinator, tmp_path):
    invite = parse_invite(coordinator.invite("hospital-j"))
    with pytest.raises(UntrustedCoordinatorError, match="consortium root"):
        join(dataclasses.replace(invite, root_sha256=b"\x01" * 32), tmp_path / "silo")
    assert not (tmp_path / "silo" / "identity").exists()


def test_nobody_listening_is_a_transport_error(coordinator, tmp_path):
    invite = parse_invite(coordinator.invite("hospital-k"))
    with pytest.raises(TransportError, match="cannot be reached"):
        join(dataclasses.replace(invite, enrol_address="127.0.0.1:1"), tmp_path / "silo")


def test_joining_again_keeps_the_protocol_key_and_retires_the_old_certificate(
    coordinator, tmp_path
):
    first = join(coordinator.invite("hospital-l"), tmp_path / "silo")
    second = join(coordinator.invite("hospital-l"), tmp_path / "silo")
    assert (
        first.signing_key.public_key().public_bytes_raw()
        == second.signing_key.public_key().public_bytes_raw()
    )
    assert poll(coordinator, second.channel_credentials()) == "hospital-l"
    with pytest.raises(grpc.RpcError) as caught:
        poll(coordinator, first.channel_credentials())
    assert dict(caught.value.trailing_metadata())["chorale-reason"] == "certificate_revoked"
    with pytest.raises(AlreadyJoinedError, match="hospital-l"):
        join(coordinator.invite("hospital-m"), tmp_path / "silo")


def test_without_or_with_a_foreign_certificate_the_mutual_tls_port_does_not_answer(
    coordinator, tmp_path
):
    ca = (coordinator.config.paths.pki / "ca.pem").read_bytes()
    foreign = CertificateAuthority.create(FEDERATION).issue_admin("admin")
    for credentials in (
        grpc.ssl_channel_credentials(root_certificates=ca),
        grpc.ssl_channel_credentials(
            root_certificates=ca,
            private_key=foreign.key_pem,
            certificate_chain=foreign.chain_pem,
        ),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            poll(coordinator, credentials)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert alive(coordinator, tmp_path)


def test_a_certificate_of_the_wrong_role_is_refused_by_name(coordinator, tmp_path):
    before = coordinator.counted("chorale_rejected_messages_total", reason="role_denied")
    admin = coordinator.trust.issuing.issue_admin("admin")
    with pytest.raises(grpc.RpcError) as caught:
        poll(
            coordinator,
            grpc.ssl_channel_credentials(
                root_certificates=admin.ca_pem,
                private_key=admin.key_pem,
                certificate_chain=admin.chain_pem,
            ),
        )
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert dict(caught.value.trailing_metadata())["chorale-reason"] == "role_denied"
    after = coordinator.counted("chorale_rejected_messages_total", reason="role_denied")
    assert after == before + 1
    assert alive(coordinator, tmp_path)


def test_an_expired_or_revoked_certificate_is_refused_on_a_live_connection(coordinator, tmp_path):
    identity = join(coordinator.invite("hospital-n"), tmp_path / "silo")
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, identity.channel_credentials()
    ) as channel:
        stub = round_pb2_grpc.RoundServiceStub(channel)
        assert stub.Poll(round_pb2.PollRequest(), timeout=60).instruction_id == "hospital-n"
        coordinator.clock.offset_s = 31 * 86400
        with pytest.raises(grpc.RpcError) as caught:
            stub.Poll(round_pb2.PollRequest(), timeout=60)
        assert dict(caught.value.trailing_metadata())["chorale-reason"] == "certificate_expired"
        coordinator.clock.offset_s = 0
        coordinator.store.silos.revoke("hospital-n")
        with pytest.raises(grpc.RpcError) as caught:
            stub.Poll(round_pb2.PollRequest(), timeout=60)
        assert dict(caught.value.trailing_metadata())["chorale-reason"] == "certificate_revoked"


def test_a_defect_says_nothing_and_the_coordinator_lives(coordinator, tmp_path):
    identity = join(coordinator.invite("hospital-o"), tmp_path / "silo")
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, identity.channel_credentials()
    ) as channel:
        stub = round_pb2_grpc.RoundServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetRoster(round_pb2.GetRosterRequest(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value.details())
        assert stub.Poll(round_pb2.PollRequest(), timeout=60).instruction_id == "hospital-o"


def test_no_secret_is_stored_or_logged(coordinator, tmp_path, capfd):
    invite = parse_invite(coordinator.invite("hospital-p"))
    join(invite, tmp_path / "silo")
    captured = capfd.readouterr()
    for text in (captured.out, captured.err, "".join(coordinator.audit.tail(100))):
        assert invite.secret.hex() not in text
        assert invite.encode() not in text
    for path in coordinator.data_dir.rglob("*"):
        if path.is_file():
            assert invite.secret not in path.read_bytes(), path

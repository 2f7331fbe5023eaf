"""Who tries to renew what is not theirs, over real mutual TLS: each is refused, and counted."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chorale.v1 import membership_pb2, membership_pb2_grpc
from federation.membership.invite import join_statement, silo_spiffe_uri
from federation.membership.renewal import renew_statement
from secagg.roster import RosterEntry
from secagg.suite import verification_key
from server.pki.authority import certificate_sha256
from silo_agent.identity.identity import Identity
from silo_agent.identity.join import join
from silo_agent.identity.leaf import certificate_request
from tests.kit.processes.renewing_silo import DAY, ask, reason
from tests.kit.processes.server_harness import FEDERATION
from tests.kit.secagg.secagg_samples import make_roster, signed_roster

pytestmark = pytest.mark.xdist_group("renewal_attacks")


@pytest.fixture(autouse=True)
def real_time(coordinator):
    yield
    coordinator.clock.offset_s = 0.0


def refused(coordinator, identity, expected, call):
    """A call that is refused for that reason, counted, and changes nothing."""
    before = coordinator.store.silos.get(identity.silo_id)
    counted = coordinator.counted("chorale_rejected_messages_total", reason=expected)
    with (
        grpc.secure_channel(
            coordinator.config.dial_coordinator, identity.channel_credentials()
        ) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        call(channel)
    assert dict(caught.value.trailing_metadata())["chorale-reason"] == expected
    after = coordinator.counted("chorale_rejected_messages_total", reason=expected)
    assert after == counted + 1
    assert coordinator.store.silos.get(identity.silo_id) == before


def raw(csr, signature):
    request = membership_pb2.RenewCertificateRequest(csr=csr, signature=signature)
    return lambda channel: membership_pb2_grpc.MembershipServiceStub(channel).RenewCertificate(
        request, timeout=60
    )


def test_another_silos_signing_key_renews_nothing(coordinator, silo, tmp_path):
    thief = join(coordinator.invite("thief"), tmp_path / "thief")
    mine = Identity.load(silo.directory)
    refused(
        coordinator,
        mine,
        "possession_unproven",
        lambda channel: ask(channel, mine.silo_id, mine, signer=thief.signing_key),
    )
    # With its own certificate it asks for itself alone, whatever it signs.
    refused(
        coordinator,
        thief,
        "possession_unproven",
        lambda channel: ask(channel, mine.silo_id, thief),
    )


def test_another_silos_certificate_renews_nothing(coordinator, silo, tmp_path):
    """A request that the victim signed, sent with the attacker's certificate."""
    attacker = join(coordinator.invite("attacker"), tmp_path / "attacker")
    mine = Identity.load(silo.directory)
    csr = certificate_request(mine.silo_id, ec.generate_private_key(ec.SECP256R1()))
    for digest in (mine.certificate_sha256, attacker.certificate_sha256):
        statement = renew_statement(
            FEDERATION, mine.silo_id, certificate_sha256=digest, csr_der=csr
        )
        refused(
            coordinator,
            attacker,
            "possession_unproven",
            raw(csr, mine.signing_key.sign(statement)),
        )
    assert silo.works()


def test_a_recorded_request_is_worth_nothing_after_the_renewal(coordinator, silo):
    mine = Identity.load(silo.directory)
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, mine.channel_credentials()
    ) as channel:
        recorded = ask(channel, mine.silo_id, mine)
    silo.renew_now()
    newer = Identity.load(silo.directory)
    assert newer.leaf != mine.leaf
    refused(coordinator, newer, "possession_unproven", raw(recorded.csr, recorded.signature))
    refused(coordinator, mine, "certificate_revoked", raw(recorded.csr, recorded.signature))


def test_a_signature_of_another_kind_is_no_renewal(coordinator, silo):
    mine = Identity.load(silo.directory)
    csr = certificate_request(mine.silo_id, ec.generate_private_key(ec.SECP256R1()))
    joining = mine.signing_key.sign(join_statement(FEDERATION, mine.silo_id, csr))
    for signature in (joining, b"", b"\x00" * 64, b"\x00" * 65, b"\x00" * 100_000):
        refused(coordinator, mine, "possession_unproven", raw(csr, signature))


@pytest.mark.parametrize(
    "make_key",
    [
        lambda: ec.generate_private_key(ec.SECP384R1()),
        lambda: rsa.generate_private_key(65537, 2048),
        Ed25519PrivateKey.generate,
    ],
    ids=["p384", "rsa", "ed25519"],
)
def test_a_request_for_another_kind_of_key_is_refused(coordinator, silo, make_key):
    mine, key = Identity.load(silo.directory), make_key()
    algorithm = None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr = builder.sign(key, algorithm).public_bytes(serialization.Encoding.DER)
    statement = renew_statement(
        FEDERATION, mine.silo_id, certificate_sha256=mine.certificate_sha256, csr_der=csr
    )
    refused(coordinator, mine, "csr_refused", raw(csr, mine.signing_key.sign(statement)))


@pytest.mark.parametrize("content", [b"", b"\x30" * 40, b"\x30" * 8193, b"\x00" * 3_000_000])
def test_a_malformed_or_oversize_request_is_refused(coordinator, silo, content):
    mine = Identity.load(silo.directory)
    statement = renew_statement(
        FEDERATION, mine.silo_id, certificate_sha256=mine.certificate_sha256, csr_der=content
    )
    refused(coordinator, mine, "csr_refused", raw(content, mine.signing_key.sign(statement)))
    assert silo.works()


def test_a_suspended_or_revoked_silo_renews_nothing(coordinator, silo):
    mine = Identity.load(silo.directory)
    coordinator.standing.suspend(mine.silo_id, admin="alex", reason="audit")
    refused(coordinator, mine, "silo_suspended", lambda channel: ask(channel, mine.silo_id, mine))
    silo.renew_now()
    assert silo.counted("failed") == 1
    coordinator.standing.reinstate(mine.silo_id, admin="alex")
    assert silo.works()
    coordinator.standing.revoke(mine.silo_id, admin="alex", reason="")
    refused(
        coordinator, mine, "certificate_revoked", lambda channel: ask(channel, mine.silo_id, mine)
    )


def test_revocation_takes_the_pending_certificate_too(coordinator, silo):
    silo.line.lose_pings = 1
    silo.renew_now()
    newer = Identity.load(silo.directory)
    assert silo.row.next_certificate_sha256 == certificate_sha256(newer.leaf)
    coordinator.standing.revoke(silo.silo_id, admin="alex", reason="")
    assert reason(coordinator, newer) == "certificate_revoked"


def test_an_expired_certificate_renews_nothing(coordinator, silo):
    mine = Identity.load(silo.directory)
    coordinator.clock.offset_s = 31 * DAY
    refused(
        coordinator, mine, "certificate_expired", lambda channel: ask(channel, mine.silo_id, mine)
    )


def test_a_silo_that_left_is_renewed_only_while_a_roster_names_it(coordinator, silo):
    identity = Identity.load(silo.directory)
    renewal = lambda channel: ask(channel, identity.silo_id, identity)  # noqa: E731
    with grpc.secure_channel(
        coordinator.config.dial_coordinator, identity.channel_credentials()
    ) as channel:
        membership_pb2_grpc.MembershipServiceStub(channel).Leave(
            membership_pb2.LeaveRequest(), timeout=60
        )
        refused(coordinator, identity, "silo_standing", renewal)
        mine = RosterEntry(
            silo_id=identity.silo_id,
            spiffe_uri=silo_spiffe_uri(FEDERATION, identity.silo_id),
            verification_key=verification_key(identity.signing_key),
        )
        others = make_roster(3)
        for epoch, entries in ((1, (*others.entries[:2], mine)), (2, others.entries)):
            named = replace(others, federation=FEDERATION, epoch=epoch, entries=entries)
            coordinator.store.rosters.publish(signed_roster(named), at_unix_s=1)
            if mine in entries:
                # It may still be waited for, so it is helped to its last round.
                renewal(channel)
        refused(coordinator, identity, "silo_standing", renewal)

"""What a stored identity is, without a coordinator; joining is in tests/system/integration."""

import dataclasses
import datetime as dt
import hashlib
import shutil
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from federation.membership.invite import Invite
from silo_agent.errors import IdentityError
from silo_agent.identity.identity import Identity, NotJoinedError, forget_previous, has_previous
from silo_agent.identity.join import InviteRefusedError, join


def certificate(key):
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )


@pytest.fixture
def identity():
    key = ec.generate_private_key(ec.SECP256R1())
    return Identity(
        federation="oncology",
        silo_id="hospital-a",
        coordinator_address="coord.example.org:7443",
        root_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw(),
        leaf=certificate(key),
        ca=certificate(key),
        signing_key=Ed25519PrivateKey.generate(),
        leaf_key=key,
    )


def test_store_and_load(tmp_path, identity):
    identity.store(tmp_path)
    loaded = Identity.load(tmp_path)
    for field in ("federation", "silo_id", "coordinator_address", "root_key", "leaf", "ca"):
        assert getattr(loaded, field) == getattr(identity, field)
    assert loaded.signing_key.private_bytes_raw() == identity.signing_key.private_bytes_raw()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["identity"]
    assert sorted(p.name for p in (tmp_path / "identity").iterdir()) == [
        "ca.pem",
        "identity.json",
        "leaf.key",
        "leaf.pem",
        "protocol.key",
        "root.pub",
    ]


def test_an_absent_identity_says_what_to_do(tmp_path):
    with pytest.raises(NotJoinedError, match="chorale-silo join"):
        Identity.load(tmp_path)


@pytest.mark.parametrize("name", ["identity.json", "leaf.pem", "leaf.key", "root.pub"])
def test_a_damaged_file_is_a_typed_error(tmp_path, identity, name):
    identity.store(tmp_path)
    (tmp_path / "identity" / name).write_bytes(b"damaged")
    with pytest.raises(IdentityError):
        Identity.load(tmp_path)


@pytest.mark.parametrize("name", ["protocol.key", "leaf.key", "ca.pem"])
def test_a_missing_file_is_a_typed_error(tmp_path, identity, name):
    identity.store(tmp_path)
    (tmp_path / "identity" / name).unlink()
    with pytest.raises(IdentityError):
        Identity.load(tmp_path)


def test_a_key_open_to_others_is_refused(tmp_path, identity):
    identity.store(tmp_path)
    (tmp_path / "identity" / "protocol.key").chmod(0o640)
    with pytest.raises(IdentityError, match="open to other users"):
        Identity.load(tmp_path)


def test_a_crash_between_the_renames_is_healed(tmp_path, identity):
    identity.store(tmp_path)
    (tmp_path / "identity").rename(tmp_path / "identity.previous")
    shutil.copytree(tmp_path / "identity.previous", tmp_path / "identity.partial")
    assert Identity.load(tmp_path).silo_id == "hospital-a"


def test_a_second_store_replaces_the_first(tmp_path, identity):
    identity.store(tmp_path)
    dataclasses.replace(identity, coordinator_address="new.example.org:1").store(tmp_path)
    assert Identity.load(tmp_path).coordinator_address == "new.example.org:1"
    assert has_previous(tmp_path)
    forget_previous(tmp_path)
    assert not has_previous(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["identity"]


def test_the_repr_shows_no_key(identity):
    assert "PrivateKey" not in repr(identity)
    assert "signing_key" not in repr(identity)


def invite(**changes):
    values = {
        "coordinator_address": "127.0.0.1:1",
        "enrol_address": "127.0.0.1:1",
        "federation": "oncology",
        "silo_id": "hospital-a",
        "ca_sha256": hashlib.sha256(b"ca").digest(),
        "root_sha256": hashlib.sha256(b"root").digest(),
        "secret": b"\x01" * 32,
        "expires_unix_s": int(time.time()) + 60,
    }
    return Invite(**{**values, **changes})


def test_an_invite_that_expired_is_refused_before_anything_is_sent(tmp_path):
    with pytest.raises(InviteRefusedError, match="chorale invite hospital-a") as caught:
        join(invite(expires_unix_s=1), tmp_path / "silo")
    assert caught.value.reason == "invite_expired"
    assert not (tmp_path / "silo").exists()


def test_a_malformed_invite_is_refused(tmp_path):
    with pytest.raises(InviteRefusedError, match="chorale1") as caught:
        join("hello", tmp_path / "silo")
    assert caught.value.reason == "invite_malformed"


def test_the_work_seed_is_another_one_for_each_run_and_silo():
    def seeds(key, *runs):
        # Only the key matters; a whole identity would need a certificate.
        bare = object.__new__(Identity)
        object.__setattr__(bare, "signing_key", key)
        return [Identity.work_seed(bare, run) for run in runs]

    mine, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    first, second, again = seeds(mine, "run-1", "run-2", "run-1")
    assert first == again
    assert len({first, second, *seeds(other, "run-1")}) == 3
    assert all(0 <= seed < 2**63 for seed in (first, second))

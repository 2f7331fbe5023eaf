"""What the table of silos remembers of certificates and standing, across a restart of the store."""

import pytest

from server.store import Store
from tests.kit.server.store_samples import silo_row

FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/coordinator.db"


@pytest.fixture
def store(url):
    made = Store(url, create=True)
    made.silos.enrol(row())
    yield made
    made.close()


def row(**changes):
    held = {"certificate_sha256": FIRST, "certificate_expiry_unix_s": 100}
    return silo_row(**held | changes)


def reread(url):
    again = Store(url)
    found = again.silos.get("hospital-a")
    again.close()
    return found


def renew(store, digest, expiry_unix_s):
    store.silos.renew("hospital-a", certificate_sha256=digest, expiry_unix_s=expiry_unix_s)


def test_a_next_certificate_waits_beside_the_first_and_a_later_one_replaces_it(store, url):
    renew(store, SECOND, 200)
    renew(store, THIRD, 300)
    found = reread(url)
    assert (found.certificate_sha256, found.certificate_expiry_unix_s) == (FIRST, 100)
    assert (found.next_certificate_sha256, found.next_certificate_expiry_unix_s) == (THIRD, 300)


def test_the_next_one_takes_over_and_nothing_else_does(store, url):
    renew(store, SECOND, 200)
    for other in (FIRST, THIRD):
        store.silos.use_next("hospital-a", other)
        assert reread(url).certificate_sha256 == FIRST
    store.silos.use_next("hospital-a", SECOND)
    assert reread(url) == row(certificate_sha256=SECOND, certificate_expiry_unix_s=200)
    store.silos.use_next("hospital-a", SECOND)
    assert reread(url) == row(certificate_sha256=SECOND, certificate_expiry_unix_s=200)


def test_joining_again_ends_everything_but_a_suspension(store, url):
    renew(store, SECOND, 200)
    store.silos.suspend("hospital-a", suspended=True)
    store.silos.leave("hospital-a")
    store.silos.revoke("hospital-a")
    found = reread(url)
    assert (found.suspended, found.left, found.revoked) == (True, True, True)
    assert not found.is_member
    assert not found.takes_part
    store.silos.enrol(row(certificate_sha256=THIRD))
    found = reread(url)
    assert found == row(certificate_sha256=THIRD, suspended=True)
    assert found.is_member
    assert not found.takes_part
    store.silos.suspend("hospital-a", suspended=False)
    assert reread(url).takes_part


def test_withdrawing_takes_one_silos_unspent_invites(store):
    for silo_id, secret in (("hospital-a", b"a" * 32), ("hospital-b", b"b" * 32)):
        store.invites.create(secret=secret, silo_id=silo_id, created_unix_s=1, expires_unix_s=1000)
    spent = store.invites.find(secret=b"a" * 32, silo_id="hospital-a")
    store.invites.spend(spent, at_unix_s=2)
    store.invites.create(
        secret=b"c" * 32, silo_id="hospital-a", created_unix_s=1, expires_unix_s=1000
    )
    store.invites.withdraw("hospital-a")
    assert store.invites.find(secret=b"c" * 32, silo_id="hospital-a") is None
    assert store.invites.find(secret=b"b" * 32, silo_id="hospital-b") is not None
    # That the other was used stays known: trying it again is told apart from guessing.
    assert store.invites.find(secret=b"a" * 32, silo_id="hospital-a").spent_unix_s == 2

"""Looking after certificates: what does not stop it, and that no change is without its record."""

import json
import time

import pytest

from server.audit import AuditEvent, AuditLog
from server.metrics import CoordinatorMetrics
from server.pki.authority import CertificateAuthority
from server.pki.tls import ServerTls, _issued_by
from server.pki.trust import Trust
from server.pki.upkeep import Upkeep

HOUR = 3600


class House:
    def __init__(self, directory):
        self.pki = directory / "pki"
        CertificateAuthority.create("x").save(self.pki)
        self.now = time.time()
        clock = lambda: self.now  # noqa: E731
        self.trust = Trust.load(self.pki, clock=clock)
        self.tls = ServerTls(self.pki, self.trust, host_names=("localhost",), clock=clock)
        self.audit = AuditLog(directory / "audit.jsonl")
        self.upkeep = Upkeep(
            trust=self.trust, tls=self.tls, audit=self.audit, metrics=CoordinatorMetrics()
        )

    def events(self):
        return [json.loads(line)["event"] for line in self.audit.tail(100)]

    @property
    def serves_the_issuing_ca(self):
        return _issued_by(self.tls._leaf.certificate, self.trust.issuing.certificate)


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


@pytest.fixture
def full_disk(house, monkeypatch):
    """Make the log refuse records of one kind until it is lifted."""
    real = house.audit.append

    def fill(event):
        def append(asked, **details):
            if asked is event:
                raise OSError(28, "No space left on device")
            real(asked, **details)

        monkeypatch.setattr(house.audit, "append", append)
        return lambda: monkeypatch.setattr(house.audit, "append", real)

    return fill


def test_what_an_operator_put_beside_the_cas_neither_stops_upkeep_nor_is_deleted(house):
    house.upkeep.rotate(HOUR, admin="a")
    authorities = house.pki / "authorities"
    (authorities / "ca.pem.bak").write_text("a copy")
    (authorities / "old").mkdir()
    (authorities / "old" / "ca.key").write_text("a copy")
    (authorities / ("ab" * 32)).write_text("a file under a name of ours")
    before = house.trust.retiring.authority.sha256.hex()
    house.now += 2 * HOUR
    house.upkeep.look()
    assert house.serves_the_issuing_ca
    assert (authorities / "old" / "ca.key").exists()
    assert not (authorities / before).exists()
    assert house.events() == ["ca_rotated", "ca_retired", "server_certificate_renewed"]


def test_where_tidying_fails_the_servers_certificate_is_still_renewed(house, monkeypatch):
    house.upkeep.rotate(HOUR, admin="a")
    house.now += 2 * HOUR

    def fail():
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(house.trust, "_settle", fail)
    house.upkeep.look()
    assert house.serves_the_issuing_ca


def test_a_rotation_without_its_record_has_not_happened(house, full_disk):
    before = house.trust.issuing.sha256
    room = full_disk(AuditEvent.CA_ROTATED)
    with pytest.raises(OSError, match="No space"):
        house.upkeep.rotate(HOUR, admin="mallory")
    assert house.trust.issuing.sha256 == Trust.load(house.pki).issuing.sha256 == before
    assert house.trust.retiring is None
    room()
    house.upkeep.rotate(HOUR, admin="a")
    assert house.events() == ["ca_rotated"]
    # What the attempt before left is gone.
    assert len(list((house.pki / "authorities").iterdir())) == 2


@pytest.mark.parametrize("event", [AuditEvent.CA_RETIRED, AuditEvent.SERVER_CERTIFICATE_RENEWED])
def test_a_record_that_could_not_be_written_is_written_at_the_next_look(house, full_disk, event):
    house.upkeep.rotate(HOUR, admin="a")
    house.now += 2 * HOUR
    room = full_disk(event)
    house.upkeep.look()
    room()
    house.upkeep.look()
    house.upkeep.look()
    assert sorted(house.events()) == ["ca_retired", "ca_rotated", "server_certificate_renewed"]


def test_a_certificate_of_a_clock_that_was_ahead_is_replaced(house):
    assert not house.tls.refresh()
    house.now = house.tls._leaf.certificate.not_valid_before_utc.timestamp() - 1
    assert house.tls.refresh()

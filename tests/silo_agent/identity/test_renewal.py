"""When a silo renews, and which answers it does not believe; the rest is tested over real TLS."""

import dataclasses
import itertools
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from server.pki.authority import CertificateAuthority
from silo_agent.errors import TransportError
from silo_agent.identity.identity import Identity
from silo_agent.identity.leaf import certificate_request
from silo_agent.identity.renewal import Chance, Renewal
from silo_agent.metrics import SiloMetrics

DAY = 86400
CA = CertificateAuthority.create("oncology")
OTHER = CertificateAuthority.create("oncology")
VERSION_3, VERSION_6 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"


def der(certificate):
    return certificate.public_bytes(Encoding.DER)


def leaf(ca=CA, key=None, silo_id="hospital-a", federation="oncology"):
    key = key or ec.generate_private_key(ec.SECP256R1())
    return ca.issue_silo(certificate_request(silo_id, key), silo_id, federation=federation), key


class Coordinator:
    """Answers as a test wants; by default as the real one does."""

    def __init__(self):
        self.asked, self.pinged, self.used = 0, 0, []
        self.cas = [CA.certificate]
        self.answer = lambda csr: der(CA.issue_silo(csr, "hospital-a", federation="oncology"))
        self.ping_error = None

    def renew(self, csr_der, signature):
        self.asked += 1
        return self.answer(csr_der), tuple(der(ca) for ca in self.cas)

    def use(self, credentials):
        self.used.append(credentials)

    def ping(self):
        self.pinged += 1
        if self.ping_error is not None:
            raise self.ping_error

    def sweep(self):
        pass


class World:
    def __init__(self, directory, fraction=0.0):
        certificate, key = leaf()
        self.directory = directory
        self.identity = Identity(
            federation="oncology",
            silo_id="hospital-a",
            coordinator_address="127.0.0.1:1",
            root_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw(),
            leaf=certificate,
            ca=CA.certificate,
            signing_key=Ed25519PrivateKey.generate(),
            leaf_key=key,
        )
        self.identity.store(directory)
        self.begins = certificate.not_valid_before_utc.timestamp()
        self.life_s = certificate.not_valid_after_utc.timestamp() - self.begins
        self.now = self.begins + 3600
        self.coordinator = Coordinator()
        self.fraction = fraction
        self.stopping = threading.Event()
        self.metrics = SiloMetrics()
        self.renewal = Renewal(
            identity=self.identity,
            data_dir=directory,
            coordinator=self.coordinator,
            metrics=self.metrics,
            stopping=self.stopping,
            chance=Chance(clock=lambda: self.now, fraction=lambda: self.fraction),
        )

    def trust(self, *authorities):
        """What the coordinator would say it trusts."""
        cas = tuple(one.certificate for one in authorities)
        held = dataclasses.replace(self.identity, ca=cas[0], also_trusted=cas[1:])
        return held.trust_sha256.hex()

    def heard(self, *authorities):
        self.renewal.hear(self.trust(*authorities))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.999])
def test_it_asks_at_half_its_life_and_a_little_later_by_chance(tmp_path, fraction):
    world = World(tmp_path, fraction)
    due = world.begins + world.life_s * (0.5 + 0.05 * fraction)
    world.now = due - 2
    assert world.renewal.step() == pytest.approx(2, abs=0.1)
    assert world.coordinator.asked == 0
    world.now = due + 1
    world.renewal.step()
    assert world.coordinator.asked == 1
    assert world.renewal.identity.leaf != world.identity.leaf


def test_it_looks_once_a_minute_at_least(world):
    assert world.renewal.step() == 60


def test_the_same_cas_are_no_reason_and_others_are_one_soon(world):
    world.heard(CA)
    world.renewal.step()
    assert world.coordinator.asked == 0
    world.fraction = 0.5
    world.heard(OTHER, CA)
    assert world.renewal.step() == pytest.approx(5, abs=0.1)
    world.now += 6
    world.coordinator.cas = [CA.certificate, OTHER.certificate]
    world.renewal.step()
    assert world.coordinator.asked == 1
    assert world.renewal.identity.also_trusted == (OTHER.certificate,)


def test_a_coordinator_that_says_another_set_each_time_makes_no_storm(world):
    for _ in range(1000):
        world.heard(CertificateAuthority(certificate=OTHER.certificate, key=OTHER.key), CA)
        world.renewal.hear(f"{world.now:064.0f}")
        world.renewal.step()
        world.now += 1
    # A thousand seconds: at once, and after ten minutes again.
    assert world.coordinator.asked == 2


def test_what_fails_is_tried_again_after_longer_and_longer_pauses(world):
    def lost(_csr):
        raise TransportError("UNAVAILABLE: nobody")

    world.coordinator.answer = lost
    world.fraction = 0.5
    world.now = world.begins + world.life_s * 0.6
    tried = []
    while len(tried) < 9:
        before = world.coordinator.asked
        step_s = world.renewal.step()
        if world.coordinator.asked > before:
            tried.append(world.now)
        world.now += max(step_s, 1)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    expected = [30, 60, 120, 240, 480, 960, 1920, 3600]
    assert pauses == pytest.approx(expected, abs=70)
    assert Identity.load(world.directory).leaf == world.identity.leaf
    assert world.coordinator.used == []


def hostile(name, world):
    """Answers that no honest coordinator gives."""
    coordinator = world.coordinator
    honest = coordinator.answer

    def altered(csr):
        content = bytearray(honest(csr))
        content[-1] ^= 1
        return bytes(content)

    ca, certificate = (
        CA.certificate,
        {
            "another key": lambda _: der(leaf()[0]),
            "another silo": lambda csr: der(
                CA.issue_silo(csr, "hospital-b", federation="oncology")
            ),
            "another federation": lambda csr: der(
                CA.issue_silo(csr, "hospital-a", federation="cardiology")
            ),
            "another issuer": lambda csr: der(
                OTHER.issue_silo(csr, "hospital-a", federation="oncology")
            ),
            "altered": altered,
            "nothing": lambda _: b"",
            "rubbish": lambda _: b"\x30" * 500,
            "too long": lambda _: b"\x30" * 1_000_000,
            "no known version": lambda csr: honest(csr).replace(VERSION_3, VERSION_6),
        }.get(name, honest),
    )
    coordinator.answer = certificate
    coordinator.cas = {
        "no ca": [],
        "five cas": [ca] * 5,
        "a leaf as ca": [leaf()[0]],
        "a ca that another signed": [OTHER.vouch_for(ca)],
    }.get(name, [ca])


@pytest.mark.parametrize(
    "name",
    [
        "another key", "another silo", "another federation", "another issuer", "altered",
        "nothing", "rubbish", "too long", "no known version", "no ca", "five cas", "a leaf as ca",
        "a ca that another signed",
    ],
)  # fmt: skip
def test_an_answer_that_is_not_what_was_asked_for_changes_nothing(world, name):
    before = sorted(path.read_bytes() for path in world.directory.rglob("*") if path.is_file())
    hostile(name, world)
    world.now = world.begins + world.life_s * 0.6
    world.renewal.step()
    assert world.coordinator.asked == 1
    assert world.coordinator.used == []
    assert world.coordinator.pinged == 0
    after = sorted(path.read_bytes() for path in world.directory.rglob("*") if path.is_file())
    assert after == before
    assert world.renewal.identity is world.identity


def test_a_certificate_that_ended_says_what_to_do(world, capfd):
    world.now = world.identity.certificate_expiry_unix_s + 1
    world.renewal.step()
    assert "ask the admin for a new invite" in "".join(capfd.readouterr())


def test_a_suspension_is_no_reason_to_go_back(world):
    """Only the coordinator's word that this certificate is none of ours is one."""
    world.coordinator.ping_error = TransportError(
        "PERMISSION_DENIED: suspended", reason="silo_suspended", refused=True
    )
    world.now = world.begins + world.life_s * 0.6
    world.renewal.step()
    newest = Identity.load(world.directory).leaf
    assert newest != world.identity.leaf
    world.coordinator.ping_error = None
    world.now += 3600
    world.renewal.step()
    assert world.coordinator.asked == 1
    assert Identity.load(world.directory).leaf == newest
    assert [path.name for path in world.directory.iterdir()] == ["identity"]


def test_what_nobody_foresaw_is_counted_and_tried_again(world, monkeypatch):
    monkeypatch.setattr("silo_agent.identity.renewal.LOOK_S", 0.01)
    world.now = world.begins + world.life_s * 0.6
    renewed, failures = threading.Event(), [ZeroDivisionError("nobody foresaw this")]
    honest = world.coordinator.answer

    def answer(csr):
        if failures:
            raise failures.pop()
        renewed.set()
        return honest(csr)

    world.coordinator.answer = answer
    world.renewal.start()
    for _ in range(500):
        world.now += 1
        if renewed.wait(0.02):
            break
    assert renewed.is_set()
    world.stopping.set()
    world.renewal.close()
    value = world.metrics.registry.get_sample_value
    assert value("chorale_silo_errors_total", {"kind": "other"}) == 1
    assert value("chorale_silo_certificate_renewals_total", {"outcome": "failed"}) == 1


def test_it_stops_at_once(world):
    world.renewal.start()
    world.stopping.set()
    world.renewal.close()
    assert not world.renewal._thread.is_alive()

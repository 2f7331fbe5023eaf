"""The coordinator's side of published facts: whose it takes, when, and how long it tells them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.errors import FactsError
from federation.membership.facts import Availability, SignedFacts, SiloFacts
from federation.wire import signed_facts_to_proto
from secagg.suite import verification_key
from server.context import FACTS_FOR_S, PublishedFacts
from server.errors import FactsTooOftenError, NoFederationError, StaleFactsError
from server.members.public_facts import APART_S, CLOCKS_S, PublicFacts
from server.store import Store
from server.store.federation import FederationRow
from tests.kit.server.store_samples import silo_row

SILO, OTHER = "hospital-a", "hospital-b"
KEYS = {
    SILO: Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32),
    OTHER: Ed25519PrivateKey.from_private_bytes(bytes([2]) * 32),
}
START = 1_800_000_000
UP, BUSY = SiloFacts(availability=Availability.UP, queue=0), SiloFacts(queue=7)


class Desk:
    """One coordinator that silos publish to."""

    def __init__(self, directory):
        self.now = float(START)
        self.store = Store(f"sqlite:///{directory / 'coordinator.db'}", create=True)
        self.store.federation.create(FederationRow(name="oncology"))
        for number, (silo_id, key) in enumerate(KEYS.items()):
            self.store.silos.enrol(
                silo_row(
                    silo_id,
                    verification_key=verification_key(key),
                    certificate_sha256=bytes([number]) * 32,
                )
            )
        self.restart()

    def restart(self):
        self.facts = PublishedFacts(lambda: self.now)
        self.desk = PublicFacts(store=self.store, facts=self.facts, clock=lambda: self.now)

    def signed(self, facts=UP, *, issued=None, silo_id=SILO, federation="oncology", key=None):
        return SignedFacts(
            silo_id=silo_id,
            federation=federation,
            issued_unix_s=int(self.now) if issued is None else issued,
            facts=facts,
        ).sign(key or KEYS[silo_id])

    def publish(self, signed, *, caller=SILO):
        self.desk.publish(caller, signed_facts_to_proto(signed))


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    yield made
    made.store.close()


def test_the_newest_facts_of_each_silo_are_told_for_fifteen_minutes(desk):
    assert desk.facts.of(SILO) is None
    desk.publish(desk.signed())
    assert (desk.facts.of(SILO), desk.facts.of(OTHER)) == (UP, None)
    desk.now += APART_S
    desk.publish(desk.signed(BUSY))
    desk.publish(desk.signed(silo_id=OTHER), caller=OTHER)
    assert (desk.facts.of(SILO), desk.facts.of(OTHER)) == (BUSY, UP)
    desk.now += FACTS_FOR_S - 1
    assert desk.facts.of(SILO) == BUSY
    desk.now += 1
    assert desk.facts.of(SILO) is None
    desk.publish(desk.signed())
    assert desk.facts.of(SILO) == UP


def test_a_restart_forgets_and_silos_publish_again(desk):
    desk.publish(desk.signed())
    desk.restart()
    assert desk.facts.of(SILO) is None
    desk.now += 1
    desk.publish(desk.signed(BUSY))
    assert desk.facts.of(SILO) == BUSY


def test_a_clock_that_is_ahead_makes_nothing_last_longer(desk):
    desk.publish(desk.signed(issued=START + 299))
    desk.now += FACTS_FOR_S
    assert desk.facts.of(SILO) is None
    # And one that is behind, shorter.
    desk.publish(desk.signed(issued=int(desk.now) - 299))
    desk.now += FACTS_FOR_S - 299
    assert desk.facts.of(SILO) is None


@pytest.mark.parametrize(
    "forged",
    [
        # Another silo's, sent on; under its name or under one's own.
        {"silo_id": OTHER},
        {"key": KEYS[OTHER]},
        {"federation": "cardiology"},
    ],
)
def test_nothing_but_the_callers_own_facts_in_this_federation_are_taken(desk, forged):
    desk.publish(desk.signed())
    desk.now += APART_S
    with pytest.raises(FactsError, match="not signed"):
        desk.publish(desk.signed(BUSY, **forged))
    assert (desk.facts.of(SILO), desk.facts.of(OTHER)) == (UP, None)


def test_facts_that_were_changed_on_the_way_or_not_signed_are_refused(desk):
    for changed in (replace(desk.signed(), facts=BUSY), replace(desk.signed(), signature=b"")):
        with pytest.raises(FactsError, match="not signed"):
            desk.publish(changed)
    assert desk.facts.of(SILO) is None


def test_a_silo_without_a_key_here_and_a_coordinator_without_a_federation(desk, tmp_path):
    with pytest.raises(FactsError, match="not enrolled"):
        desk.publish(desk.signed(silo_id="hospital-c", key=KEYS[SILO]), caller="hospital-c")
    (tmp_path / "fresh").mkdir()
    fresh = Store(f"sqlite:///{tmp_path / 'fresh' / 'coordinator.db'}", create=True)
    with pytest.raises(NoFederationError):
        PublicFacts(store=fresh, facts=desk.facts, clock=lambda: START).publish(
            SILO, signed_facts_to_proto(desk.signed())
        )
    fresh.close()


@pytest.mark.parametrize("away", [CLOCKS_S + 1, -CLOCKS_S - 1])
def test_facts_of_another_time_are_refused(desk, away):
    with pytest.raises(StaleFactsError, match="clock"):
        desk.publish(desk.signed(issued=int(START + away)))
    assert desk.facts.of(SILO) is None


def test_recorded_facts_count_once(desk):
    """Whoever holds them cannot put them back over newer ones, nor have them live on."""
    idle = desk.signed()
    desk.publish(idle)
    desk.now += APART_S
    with pytest.raises(StaleFactsError, match="newer"):
        desk.publish(idle)
    desk.publish(desk.signed(BUSY))
    desk.now += APART_S
    for again in (idle, desk.signed(UP, issued=START + 1)):
        with pytest.raises(StaleFactsError, match="newer"):
            desk.publish(again)
    assert desk.facts.of(SILO) == BUSY
    # Also when nothing is told any more.
    desk.now = START + FACTS_FOR_S + 60
    with pytest.raises(StaleFactsError, match="clock"):
        desk.publish(idle)


def test_a_flood_is_refused_before_it_is_read(desk):
    desk.publish(desk.signed())
    for _ in range(100):
        desk.now += (APART_S - 1) / 100
        with pytest.raises(FactsTooOftenError):
            desk.publish(desk.signed(BUSY, key=KEYS[OTHER]))
    # It holds nobody else up, and is over in time.
    desk.publish(desk.signed(silo_id=OTHER), caller=OTHER)
    desk.now = START + APART_S
    desk.publish(desk.signed(BUSY))
    assert desk.facts.of(SILO) == BUSY


def test_a_coordinators_clock_that_is_set_back_locks_nobody_out_for_longer_than_that(desk):
    desk.publish(desk.signed())
    desk.now -= 200
    with pytest.raises(StaleFactsError, match="newer"):
        desk.publish(desk.signed())
    desk.now += 200 + APART_S
    desk.publish(desk.signed(BUSY))
    assert desk.facts.of(SILO) == BUSY

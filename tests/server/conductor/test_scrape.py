"""What a scrape finds out by itself: silos, runs, who is waited for, certificates, the machine."""

import asyncio

import numpy as np
import pytest
from structlog.testing import capture_logs

from server.conductor.scrape import Scrape
from server.errors import StoreError
from server.pki.authority import CertificateAuthority
from server.pki.trust import Trust
from tests.kit.server import world as sw
from tests.kit.server.store_samples import enrol
from tests.kit.server.world_plan import EPISODES, FAMILY, fixed_point

STARTED = "chorale_round_phase_started_timestamp_seconds"
DEADLINE = "chorale_round_deadline_timestamp_seconds"


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path) as made:
        enrol(made.store, made.silos, last_seen_unix_s=50.0)
        yield made


@pytest.fixture
def scrape(world, tmp_path):
    CertificateAuthority.create("test").save(tmp_path)
    return Scrape(
        context=world.context,
        trust=Trust.load(tmp_path),
        data_dir=tmp_path,
        shown=lambda: world.conductor.driver,
    )


def test_when_each_silo_last_called(world, scrape):
    first, second = list(world.silos)[:2]
    world.context.liveness.touch(first)
    scrape.refresh()
    name = "chorale_silo_last_seen_timestamp_seconds"
    assert world.value(name, silo=first) == world.clock.now
    # Before this process it called another one, which noted it.
    assert world.value(name, silo=second) == 50.0


def test_the_machine_and_the_certificates(world, scrape):
    scrape.refresh()
    ends = scrape.trust.issuing.certificate.not_valid_after_utc.timestamp()
    assert world.value("chorale_ca_certificate_expiry_timestamp_seconds") == ends
    assert world.value("chorale_data_free_bytes") > 0
    assert world.value("process_resident_memory_bytes") > 1e6
    assert world.value("chorale_audit_head_index") == world.audit.head_index


def test_every_phase_says_whom_it_waits_for_since_when_and_until_when(world, scrape):
    """One silo never answers: from its first phase on it is waited for, then no more."""
    dead = list(world.silos)[-1]
    seen = {}

    def look():
        scrape.refresh()
        phase = world.driver.current.phase.value
        waited = tuple(
            name for name in world.silos if world.value("chorale_round_waiting", silo=name)
        )
        seen.setdefault(phase, []).append((waited, world.value(STARTED), world.value(DEADLINE)))
        world.silos[dead].dead = phase != "training"

    world.before_wait = look
    asyncio.run(world.run(sw.plan_toml(rounds=1)))
    assert {"training", "advertise_keys"} <= set(seen)
    for looks in seen.values():
        for _, started, deadline in looks:
            assert 0 < started <= world.clock.now
            assert deadline >= started
    assert seen["advertise_keys"][-1][0] == (dead,)
    assert all(dead not in waited for waited, _, _ in seen.get("share_keys", []))
    world.before_wait = lambda: None
    scrape.refresh()
    assert world.value("chorale_runs", state="finished") == 1
    assert [world.value("chorale_round_waiting", silo=name) for name in world.silos] == [0] * 4
    assert (world.value(STARTED), world.value(DEADLINE)) == (0, 0)
    assert world.value("chorale_round_phase", phase="finished") == 1


def test_what_cannot_be_looked_up_hides_nothing_else(world, scrape, monkeypatch):
    def broken():
        raise StoreError("the database is away")

    monkeypatch.setattr(world.store.silos, "list", broken)
    with capture_logs() as logs:
        scrape.refresh()
    assert [(entry["event"], entry["part"]) for entry in logs] == [("scrape_incomplete", "_silos")]
    assert world.value("chorale_data_free_bytes") > 0


OF_ONE_SILO = {
    "chorale_silo_last_seen_timestamp_seconds",
    "chorale_certificate_expiry_timestamp_seconds",
    "chorale_round_waiting",
    "chorale_silo_dropouts_total",
    "chorale_silo_dropouts_created",
    "chorale_silo_dropouts_in_a_row",
}
"""What a relay sees of a silo by itself, and all that it may say of one."""


def test_nothing_that_one_silo_learned_is_shown(world, scrape):
    """Each silo has another success ratio and another norm; only those of the sum come out."""
    asyncio.run(world.run(sw.plan_toml(rounds=2)))
    scrape.refresh()
    samples = [s for family in world.metrics.registry.collect() for s in family.samples]
    assert {s.name for s in samples if "silo" in s.labels} == OF_ONE_SILO
    named = {s.name for s in samples if set(world.silos) & set(s.labels.values())}
    assert named == OF_ONE_SILO

    successes = [8 * (1 + int(name[-3:])) for name in world.silos]
    norms = [np.linalg.norm(fixed_point(name) * (sw.CLIP / sw.GRID)) for name in world.silos]
    ratios = [count / EPISODES for count in successes]
    private = [*ratios, *norms, *np.square(norms)]
    shown = [s.value for s in samples if not s.name.startswith(("process_", "python_"))]
    # Positive control: the pooled ratio, from the masked sum, is there.
    pooled = sum(successes) / (EPISODES * len(successes))
    ratio = world.value("chorale_federation_success_ratio", environment=FAMILY)
    assert ratio == pytest.approx(pooled, rel=1e-4)
    assert not [value for value in private if any(np.isclose(value, shown, rtol=1e-4, atol=0))]

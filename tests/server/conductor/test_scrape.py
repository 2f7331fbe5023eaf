"""What a scrape finds out by itself: silos, runs, who is waited for, certificates, the machine."""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from secagg.roster import approvals_needed
from server.conductor.scrape import Scrape
from server.errors import StoreError
from server.members.roster_approvals import RosterApprovals
from server.pki.authority import CertificateAuthority
from server.pki.trust import Trust
from server.site.backup import last_backup_unix_s, note_backup
from tests.kit.server import world as sw
from tests.kit.server.server_runs import start, until
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
        driving=lambda: world.conductor.driving,
        last_backup_unix_s=lambda: last_backup_unix_s(tmp_path),
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
    assert world.value("chorale_round_duration_seconds_count") == 1
    assert world.value("chorale_rounds_planned") == 0


def test_a_round_that_stalls_and_how_many_silos_it_can_lose(world, scrape):
    """Three of four are needed; when two are dead the first missed deadline is shown."""
    STALLED = "chorale_run_stalled_since_timestamp_seconds"
    began, seen = world.clock.now, []

    def look():
        scrape.refresh()
        strength = [world.value(f"chorale_silos_{each}") for each in ("live", "needed", "spare")]
        seen.append((world.clock.now, world.value(STALLED), strength))

    async def scenario():
        await start(world, "t", rounds=2)
        look()
        for silo in list(world.silos.values())[2:]:
            silo.dead = True
        await until(lambda: world.clock.now > began + 40)
        look()
        await until(lambda: world.clock.now > began + 150)
        look()
        assert world.value("chorale_rounds_planned") == 2
        await world.conductor.close()

    asyncio.run(scenario())
    assert [strength for _, _, strength in seen] == [[4, 3, 1], [2, 3, 0], [2, 3, 0]]
    assert [stalled for _, stalled, _ in seen] == [0, 0, began + 60]


def test_whether_somebody_drives_and_how_long_a_run_waits(world, scrape):
    async def scenario():
        scrape.refresh()
        assert world.value("chorale_driver_alive") == 1
        await start(world, "t")
        world.clock.now += 5
        queued = world.clock.now
        await start(world, "u")
        scrape.refresh()
        assert world.value("chorale_driver_alive") == 1
        assert world.value("chorale_queue_oldest_timestamp_seconds") == queued
        await world.conductor.close()
        scrape.refresh()
        assert world.value("chorale_driver_alive") == 0

    asyncio.run(scenario())


def test_approvals_that_a_roster_still_needs(world, scrape, tmp_path):
    name = "chorale_roster_approvals_waiting"
    scrape.refresh()
    assert world.value(name) == 0
    current = world.store.rosters.current().roster
    proposed = replace(current, epoch=current.epoch + 1)
    RosterApprovals(store=world.store, audit=world.audit).propose(proposed)
    scrape.refresh()
    assert world.value(name) == approvals_needed(current)


@pytest.mark.parametrize("content", [b"", b"x", b"1e400", b"nan", b"-", b"9" * 100])
def test_when_the_newest_backup_was_whole(world, scrape, tmp_path, content):
    name = "chorale_backup_last_success_timestamp_seconds"
    scrape.refresh()
    assert world.value(name) == 0
    note_backup(tmp_path)
    scrape.refresh()
    assert 0 <= time.time() - world.value(name) < 60
    (tmp_path / "backup.newest").write_bytes(content)
    scrape.refresh()
    assert world.value(name) == (float(b"9" * 32) if content[:1] == b"9" else 0)


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

"""``chorale run credit`` over runs of real sessions: participation, credits that add up, groups.

A failure: a silo is said to be lost, waited for or in a sum where it was not, credits do not add up
to what the run changed, or a figure is told that the published sums do not say.
"""

import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from federation.chain.sums import mean_of_parts, mean_of_release
from federation.errors import AuditChainError, ChainError, UpdateError
from server.audit import AuditEvent
from server.cli.main import app
from server.credit.report import report_of
from server.credit.text import CANNOT, GROUPS_CANNOT, as_json, as_lines, as_markdown
from server.run import attempts
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw

NAMES = silo_names(5)
LAST = NAMES[4]
PHASE_S, READY_S = 6, 60
"""Of the plan."""


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=5) as made:
        yield made


@pytest.fixture
def nine(tmp_path):
    with sw.World(tmp_path, silos=9) as made:
        yield made


def reported(world, run_id):
    return report_of(world.store, world.context.blobs, world.directory / "audit.jsonl", run_id)


def of(report, silo_id):
    return next(each for each in report.participation if each.silo_id == silo_id)


def stalling(rounds, **settings):
    """Four of five open a round; who is lost three times sits out two rounds."""
    text = sw.plan_toml(rounds=rounds, mode="silo", noise=0.01, quorum=4, **settings)
    return text.replace(b"[rounds]\n", b"[rounds]\nsit_out_after = 3\nsit_out_rounds = 2\n")


def grouped(rounds, noise=0.001):
    text = sw.plan_toml(rounds=rounds, mode="silo", noise=noise)
    table = b'[aggregation.groups]\ncount = 3\nbyzantine = 1\nrule = "median"\n[privacy]\n'
    return text.replace(b"[privacy]\n", table)


def learning(world, *succeeding):
    """So many silos succeed in each round; the last number stays."""

    def before_wait():
        place = min(world.driver.current.round, len(succeeding)) - 1
        for number, silo in enumerate(world.silos.values()):
            silo.succeeds = number < succeeding[max(place, 0)]

    world.before_wait = before_wait


def test_a_silo_that_stalls_is_lost_in_its_phase_waited_for_and_sits_out(world):
    world.silos[LAST].check_consistency = lambda *_: None
    run_id = asyncio.run(world.run(stalling(7)))
    report = reported(world, run_id)
    slow, other = of(report, LAST), of(report, NAMES[0])
    # Three rounds, two without it, one more and one without: its uploads are in the sums.
    assert (slow.asked, slow.ready, slow.in_sums, slow.sat_out) == (4, 4, 4, 3)
    assert slow.lost == {"consistency_check": 4}
    assert slow.waited_s == pytest.approx(4 * PHASE_S, abs=4)
    assert (other.asked, other.ready, other.in_sums, other.sat_out) == (7, 7, 7, 0)
    assert (other.lost, other.waited_s, other.waits_unknown) == ({}, 0.0, 0)
    took = [sum(done.timings_s.values()) for done in world.driver.finished]
    assert other.present_s == pytest.approx(sum(took))
    assert slow.present_s == pytest.approx(sum(took[n - 1] for n in (1, 2, 3, 6)))
    rows = world.store.aggregations.list(run_id)
    assert other.upload_bytes == sum(r.descriptor.descriptor.length_bytes for r in rows)
    assert {each.silo_id: float(each.share) for each in report.credit.silos} == pytest.approx(
        dict.fromkeys(NAMES[:4], (4 / 5 + 3 / 4) / 7) | {LAST: 4 / 5 / 7}
    )
    said = "\n".join(as_lines(report))
    assert "4 consistency_check" in said


def test_a_silo_that_never_says_ready_is_lost_in_training(world):
    world.silos[LAST]._answer = lambda *_: None
    run_id = asyncio.run(world.run(stalling(4)))
    slow = of(reported(world, run_id), LAST)
    assert (slow.asked, slow.ready, slow.in_sums, slow.upload_bytes) == (3, 0, 0, 0)
    assert (slow.lost, slow.sat_out) == ({"training": 3}, 1)
    assert slow.waited_s == pytest.approx(3 * READY_S, abs=4)


def test_an_admin_who_lets_a_silo_in_again_ends_its_sitting_out(world):
    world.silos[LAST].check_consistency = lambda *_: None

    def before_wait():
        if world.driver.current.round == 5 and LAST in world.store.dropouts.sitting_out(
            world.driver.row.run_id
        ):
            del world.silos[LAST].check_consistency
            world.store.dropouts.forget(LAST)
            world.audit.append(AuditEvent.SILO_REINSTATED, silo=LAST, admin="ada")

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(stalling(7).replace(b"rounds = 2", b"rounds = 4")))
    slow = of(reported(world, run_id), LAST)
    rows = world.store.aggregations.list(run_id)
    took_part = {r.identity.round for r in rows if LAST in r.descriptor.descriptor.cohort}
    # The task of round 5 was out without it.
    assert took_part == {1, 2, 3, 6, 7}
    assert slow.sat_out == len({1, 2, 3, 4, 5, 6, 7} - took_part)


def test_the_credits_of_a_run_add_up_to_what_it_changed(world):
    learning(world, 1, 2, 4)
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=4)))
    report = reported(world, run_id)
    ratios = [done.success["constant"][0] for done in world.driver.finished]
    assert ratios[0] < ratios[1] < ratios[2]
    credit = report.credit
    assert float(credit.change.value) == pytest.approx(ratios[3] - ratios[0])
    assert sum(each.credit.value for each in credit.silos) == credit.change.value
    assert (credit.line, credit.unmeasured, credit.undone) == ((1, 2, 3, 4), (4,), ())
    assert {each.credit for each in credit.silos} == {credit.silos[0].credit}
    told = as_json(report)
    json.dumps(told, allow_nan=False)
    assert math.fsum(each["credit"]["value"] for each in told["silos"]) == pytest.approx(
        told["success"]["change"]["value"]
    )
    assert told["cannot_say"] == list(CANNOT)
    assert told["groups"] is None


def test_a_silo_that_uploads_nothing_but_zeros_gets_the_same_credit(world):
    """What the report says of itself, shown."""
    learning(world, 1, 4)
    idle = world.silos[LAST]
    idle.poison = np.zeros(sw.DIMENSION + 3, dtype=np.uint32)
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=3)))
    credit = reported(world, run_id).credit
    assert len({each.credit for each in credit.silos}) == 1
    assert credit.silos[0].credit.value > 0


def test_a_sum_that_was_opened_and_not_used_credits_nobody(world, monkeypatch):
    real = attempts.aggregate

    def aggregate(**given):
        if given["descriptor"].identity.round == 2:
            raise UpdateError("not finite")
        return real(**given)

    monkeypatch.setattr(attempts, "aggregate", aggregate)
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=3)))
    report = reported(world, run_id)
    assert report.outcomes == {"aggregated": 2, "skipped": 1}
    assert (of(report, LAST).in_sums, of(report, LAST).not_applied) == (2, 1)
    assert report.credit.line == (1, 3)


def test_a_plan_without_figures_tells_shares_alone(world):
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2, exact_figures=False)))
    report = reported(world, run_id)
    said = "\n".join(as_lines(report))
    assert "Success cannot be compared: not reported. Shares are of the sums alone." in said
    assert as_json(report)["success"]["change"] is None


def test_what_groups_added_is_their_published_sums_against_the_combined_update(nine):
    run_id = asyncio.run(nine.run(grouped(3, noise=0.0002)))
    report, plan = reported(nine, run_id), nine.driver.plan
    records = nine.store.records.list(run_id)[1:]
    blobs = nine.context.blobs
    assert [release.round for release in report.groups.releases] == [1, 2, 3]
    for record, release in zip(records, report.groups.releases, strict=True):
        assert [group.silos for group in release.groups] == [p.survivors for p in record.parts]
        sums = [
            (np.frombuffer(blobs.get(p.sum_sha256), dtype="<i4")[: sw.DIMENSION], len(p.survivors))
            for p in record.parts
        ]
        total = mean_of_parts(plan, sums)[:]
        for group, (delta, count) in zip(release.groups, sums, strict=True):
            # The noise is small beside what moved, and so is what is taken off for it.
            projected = mean_of_release(plan, delta, count)[:] @ total / (total @ total)
            assert abs(group.along.mean - projected) < 3 * group.along.standard_error
            # Of one that moved as the update did the mean is 1.
            assert group.along.standard_error < 0.5
    assert {silo.silo_id for silo in report.groups.silos} == set(silo_names(9))
    assert math.fsum(silo.added.mean for silo in report.groups.silos) == pytest.approx(
        report.groups.total.mean
    )
    told = as_json(report)
    json.dumps(told, allow_nan=False)
    assert told["cannot_say"] == [*CANNOT, *GROUPS_CANNOT]
    assert told["groups"]["rank"] == report.groups.cohorts.rank
    # Of several sums that take turns no phase's times are one sum's.
    assert {each["waits_unknown"] for each in told["silos"]} == {0}


def test_groups_whose_noise_hides_what_moved_are_below_noise(nine):
    run_id = asyncio.run(nine.run(grouped(1, noise=3.0)))
    report = reported(nine, run_id)
    (release,) = report.groups.releases
    # Noise alone lies beyond its own error now and then, but hardly in every group.
    hidden = [math.isnan(group.along.reportable) for group in release.groups]
    assert any(hidden)
    (line,) = [line for line in as_lines(report) if line.startswith("round 1: ")]
    assert line.count("below noise") == sum(hidden)
    assert True in {s["below_noise"] for s in as_json(report)["groups"]["silos"]}


@pytest.mark.parametrize("change", ["lost", "altered"])
def test_a_release_whose_sum_is_not_the_published_one_is_not_told(nine, change):
    run_id = asyncio.run(nine.run(grouped(2)))
    part = nine.store.records.list(run_id)[1].parts[0]
    path = nine.context.blobs.path(part.sum_sha256)
    content = bytearray(path.read_bytes())
    path.unlink()
    if change == "altered":
        content[0] ^= 1
        path.write_bytes(content)
    report = reported(nine, run_id)
    assert [release.round for release in report.groups.releases] == [2]
    assert list(report.groups.untold) == [1]
    assert any(line.startswith("round 1 is not told: ") for line in as_lines(report))


def test_a_chain_or_a_log_that_was_altered_is_not_reported(world):
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=1)))
    audit = world.directory / "audit.jsonl"
    whole = audit.read_bytes()
    audit.write_bytes(whole.replace(b'"run_finished"', b'"run_aborted"'))
    with pytest.raises(AuditChainError):
        reported(world, run_id)
    # A crash in the middle of a write leaves half a line, which nobody was told of.
    audit.write_bytes(whole + b'{"at":')
    assert reported(world, run_id).rounds == 1
    first, last = world.store.records.list(run_id)
    world.store.records.list = lambda _run: (first, replace(last, signature=b"x" * 64))
    with pytest.raises(ChainError):
        reported(world, run_id)


def test_the_command_writes_text_json_and_a_page(world, monkeypatch):
    learning(world, 1, 4)
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=3)))
    report = reported(world, run_id)
    at = world.directory
    (at / "coordinator.toml").write_text(
        f'host_names = ["localhost"]\nadapters_dir = "{at}/blobs"\n'
    )
    command = ["run", "credit", run_id, "--data", str(at)]
    text = CliRunner().invoke(app, command)
    assert text.exit_code == 0, text.output
    assert text.stdout.splitlines() == list(as_lines(report))
    page = at / "report.md"
    answer = CliRunner().invoke(app, [*command, "--format", "json", "--out", str(page)])
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)["data"]
    assert data.pop("report") == str(page)
    assert data == as_json(report)
    assert page.read_text() == as_markdown(report)
    assert page.read_text().startswith("# Participation and credit: ")
    assert "\n## What this cannot say\n\n* An equal split" in page.read_text()
    absent = CliRunner().invoke(app, ["run", "credit", "nothing", "--data", str(at)])
    assert absent.exit_code == 4

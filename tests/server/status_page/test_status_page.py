"""What the status page says: every state, every figure."""

import asyncio
import dataclasses
import math
import re

import pytest

from server.figures import RoundFigures
from server.run.strength import Strength
from server.states import RunState
from server.status_page.picture import SiloView
from server.store.schema import runs
from tests.kit.server import status_page_samples as samples
from tests.kit.server import world as sw
from tests.kit.server.server_runs import in_phase, one_at_a_time
from tests.kit.server.status_page_reader import seen

NOW = samples.NOW


def a_run_with(coordinator, *releases, of=20, **plan):
    """A run that is driven, after these releases of five silos."""
    coordinator.found()
    for silo_id in samples.SILOS:
        coordinator.enrol(silo_id)
    coordinator.publish(*samples.SILOS)
    row = coordinator.start(rounds=of, **plan)
    for index, values in enumerate(releases):
        coordinator.release(
            row.run_id,
            index + 1,
            **{"cohort": samples.SILOS, "begin_s": 300.0 * (len(releases) - index), **values},
        )
    coordinator.driver = samples.Driven(
        row=row,
        current=RoundFigures(round=len(releases) + 1, attempt=1, phase_since_unix_s=NOW - 5),
    )
    return row


# What it says -------------------------------------------------------------------------------------


def test_a_run_in_progress_answers_the_four_questions(running):
    text = seen(running).text
    assert "All is well" in text
    assert "Round 13 of 20: masked_input for 20 s, waiting for hospital-d." in text
    assert "Waiting for hospital-d heard 3 s ago for 20 s since 07:59:40 UTC" in text
    assert "deadline in 4 min 08:04:00 UTC" in text
    assert "Round 13 of 20 maze-and-wordle-4f2a is running" in text
    assert "75 % of the run's cap; 12 of 22 charged releases" in text
    assert "Silos heard of 5 of 5 4 needed now, 1 to spare" in text


def test_rounds_say_only_what_did_not_go_as_it_should(running):
    text = seen(running, f"/runs/{running.driver.row.run_id}").text
    assert "4 of 5 in the sum; lost hospital-d" in text
    assert text.count("lost attempt") == 1
    assert "rolled back to round 7" in text
    assert text.count("in the sum; lost") == 1
    # A skipped round had no sum, so it names nobody.
    assert "1 dropout in 11 rounds, 1 without a sum" in text


def test_provenance_is_short_with_the_whole_digest_at_hand(running):
    whole = samples.digest(f"{running.driver.row.run_id} 12 0").hex()
    tags = seen(running).tags
    assert ("code", {"title": whole}) in tags
    text = seen(running).text
    assert f"12 {whole[:12]} sum of 5" in text
    assert "back to round 7" in text


def test_figures_stand_with_their_standard_error(running):
    text = seen(running).text
    assert re.search(r"maze 6\d\.\d ± 2\.2 %", text)
    assert "Agreement κ 0.588 ± 0.04" in text
    descriptions = " ".join(seen(running).texts)
    assert re.search(r"From round 1 to 12: lowest 3\d\.\d ± 2\.2 %, highest", descriptions)


def test_below_noise_is_a_dash_with_its_reason_and_a_gap(coordinator):
    known = {"success": {"maze": (0.4, 0.1)}, "agreement": 0.5, "agreement_error": 0.1}
    lost = {"success": {"maze": (math.nan, math.inf)}, "agreement_error": math.inf}
    a_run_with(coordinator, known, known, lost)
    text = seen(coordinator).text
    assert "maze —" in text
    assert "below noise now; 40.0 ± 10.0 % in round 2" in text
    assert "Agreement κ —" in text
    assert "Spread ζ̂² —" in text
    assert "not reported: no sum tells it" in text
    assert "nan" not in text.lower()
    assert not re.search(r"[ML ]-?(nan|inf)", coordinator.html())
    # Two points make one line; nothing is drawn to the third.
    lines = [tag["d"] for name, tag in seen(coordinator).tags if tag.get("class") == "line"]
    assert [line.count("L") for line in lines] == [1, 1]


def test_a_scale_ends_at_a_round_number_above_every_band(coordinator):
    spread = {"heterogeneity": 0.000031, "heterogeneity_error": 0.000002}
    a_run_with(coordinator, {**spread, "agreement": 1.2, "agreement_error": 0.1})
    tops = re.findall(r'class="top"[^>]*>([^<]*)<', coordinator.html())
    # κ ends at 1 whatever the noise did.
    assert tops == ["1", "5e−5", "5"]


def test_where_nothing_was_above_the_noise_there_is_no_scale(coordinator):
    a_run_with(coordinator, {})
    assert re.findall(r'class="top"[^>]*>([^<]*)<', coordinator.html()) == ["1", "", "5"]


def test_figures_are_for_rounds_with_a_sum(coordinator):
    a_run_with(coordinator, {"outcome": "skipped", "survivors": ()})
    text = seen(coordinator).text
    assert "Round 1 ended without a sum" in text
    assert "Agreement κ — " in text
    assert "nothing was summed yet" in text
    assert "below noise" not in text


def test_a_run_without_noise_claims_no_budget(coordinator):
    a_run_with(coordinator, {}, mode="none", noise=0.0)
    text = seen(coordinator).text
    assert "Privacy spent no noise mode none" in text
    assert "ε ∞" not in text


def test_a_run_of_several_steps_names_them(coordinator):
    coordinator.found()
    row = coordinator.start(mode="record_distributed", noise=0.5, steps=3, optimiser="adam")
    for step in range(3):
        phases = dict(samples.PHASES_S)
        if step:
            del phases["training"]
        coordinator.release(
            row.run_id, 1, step=step, cohort=samples.SILOS, begin_s=1000 - 250 * step, phases=phases
        )
    text = seen(coordinator).text
    assert "not defined for sums of gradients (mode record_distributed)" in text
    assert "1, step 3" in text
    rounds = [tag for name, tag in seen(coordinator).tags if tag.get("class") == "bar"]
    assert len(rounds) == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (RunState.QUEUED, "waits for its turn"),
        (RunState.PAUSED, "is paused for 2 h 30 min and waits for an admin. "),
        (RunState.FINISHED, "finished its 20 rounds 2 h 30 min ago"),
        (RunState.ABORTED, "was aborted 2 h 30 min ago"),
        (RunState.FAILED, "failed 2 h 30 min ago"),
    ],
)
def test_a_run_that_is_not_driven_says_what_it_waits_for(coordinator, state, said):
    coordinator.found()
    row = coordinator.start(state=state)
    text = seen(coordinator).text + " "
    assert said in text
    assert "a round needs 3" in text
    assert ("Waiting for nobody" in text) == (state not in {RunState.QUEUED, RunState.PAUSED})
    assert (f"chorale run resume {row.run_id}" in text) == (state is RunState.PAUSED)


def test_what_was_open_when_a_run_stopped_does_not_grow(coordinator):
    coordinator.found()
    row = coordinator.start(state=RunState.ABORTED, since_s=4000)
    coordinator.opened(row.run_id, 1, begin_s=4200, phases=("training",))
    (release,) = coordinator.observer.look(releases=5).run.releases
    assert release.length_s == pytest.approx(200)


def test_the_queue_is_in_its_order_and_the_driven_run_is_shown(coordinator):
    coordinator.found()
    coordinator.start("old-1", state=RunState.FINISHED, since_s=10)
    driven = coordinator.start("driven-1")
    for name in ("second-1", "third-1"):
        coordinator.start(name, state=RunState.QUEUED)
    coordinator.store.runs.set_state("third-1", RunState.PAUSED)
    coordinator.store.runs.set_state("third-1", RunState.QUEUED, first=True)
    picture = coordinator.observer.look(releases=5)
    assert picture.run.line.run_id == driven.run_id
    lines = [(line.run_id, line.behind) for line in picture.runs]
    assert lines == [
        ("driven-1", ""), ("third-1", "driven-1"), ("second-1", "third-1"), ("old-1", ""),
    ]  # fmt: skip


def test_a_plan_of_another_version_hides_no_other_run(coordinator):
    coordinator.found()
    coordinator.start("driven-1")
    coordinator.store.runs.create(
        run_id="ancient-1", name="x", plan=b"no plan", plan_sha256=b"", submit_token="x",
        state=RunState.FAILED,
    )  # fmt: skip
    text = seen(coordinator).text
    assert "ancient-1 failed" in text
    assert "0 of —" in text


# A real run ---------------------------------------------------------------------------------------


def test_a_run_of_real_sessions_is_seen_as_it_goes(tmp_path, monkeypatch):
    (tmp_path / "page").mkdir()
    shell = samples.Coordinator(tmp_path / "page")
    with one_at_a_time(tmp_path, monkeypatch) as world:
        from server.status_page.observer import Observer

        observer = Observer(
            context=world.context,
            trust=shell.trust,
            data_dir=tmp_path,
            shown=lambda: world.conductor.driver,
        )
        pictures = []

        async def look():
            pictures.append(observer.look(releases=10))

        done = in_phase(world, "masked_input", look, round_number=2)
        plan = sw.plan_toml(rounds=2, mode="silo", noise=0.01)
        asyncio.run(world.run(plan))
        assert done[0].done()
        pictures.append(observer.look(releases=10))
        driver = world.conductor.driver
    shell.close()
    during, after = (picture.run for picture in pictures)
    assert (during.current.round, during.current.phase) == (2, "masked_input")
    assert [one.silo_id for one in during.current.waited] == list(world.silos)
    assert during.current.strength == Strength(live=3, needed=3)
    assert during.current.deadline_unix_s > during.current.since_unix_s
    assert [release.outcome for release in during.releases] == ["aggregated", ""]
    assert during.releases[1].spans[-1].phase == "masked_input"
    assert (after.line.state, after.line.round, after.current) == (RunState.FINISHED, 2, None)
    assert [release.survivors for release in after.releases] == [3, 3]
    assert after.adapters[-1].sha256 == driver.head.adapter_sha256.hex()
    assert 0 < during.epsilon_spent <= after.epsilon_spent
    assert set(after.releases[0].success) == {"constant"}


# Nothing of one silo's learning -------------------------------------------------------------------


def test_of_a_silo_there_is_what_a_relay_knows(running):
    assert {field.name for field in dataclasses.fields(SiloView)} == {
        "silo_id", "state", "alive", "last_seen_unix_s", "certificate_end_unix_s", "waited",
        "dropouts_in_a_row",
    }  # fmt: skip
    # What a silo declares is not shown as its own either.
    running.store.silos.set_families("hospital-a", ("a-family-of-one-silo",))
    assert "a-family-of-one-silo" not in running.html()


# From nothing to the first run --------------------------------------------------------------------


def test_every_stage_of_founding_names_the_next_command(coordinator):
    def commands():
        return [" ".join(seen(coordinator).text.split())]

    (text,) = commands()
    assert "chorale federation create oncology --min-silos 3" in text
    assert "chorale invite FEDERATION hospital-a --ttl 24h" in text
    coordinator.found("cardiology")
    (text,) = commands()
    assert "federation create" not in text
    assert text.count("chorale invite cardiology hospital-a --ttl 24h") == 2
    for silo_id in samples.SILOS[:2]:
        coordinator.enrol(silo_id)
    coordinator.invite("hospital-c")
    (text,) = commands()
    assert "2 of at least 3 joined, 1 invited." in text
    assert "invited the invite ends in 20 h" in text
    coordinator.enrol("hospital-c")
    assert "chorale roster propose" in commands()[0]
    coordinator.publish(*samples.SILOS[:3])
    (text,) = commands()
    assert "chorale run plan plan.toml chorale run start plan.toml -f cardiology" in text
    assert "Nothing runs yet" in text
    coordinator.start()
    assert "To the first run" not in commands()[0]


def test_a_run_says_that_it_is_not_post_quantum_and_who_takes_no_part_any_more(coordinator):
    row = a_run_with(coordinator)
    for kept_out, suite in (((), 2), (("hospital-d",), 1)):
        coordinator.driver.cohorts.kept_out = kept_out
        with coordinator.store.transaction() as connection:
            connection.execute(runs.update().where(runs.c.run_id == row.run_id).values(suite=suite))
        text = seen(coordinator).text
        assert ("Not asked in this run any more: hospital-d." in text) == bool(kept_out)
        assert ("suite v1: not post-quantum" in text) == (suite == 1)

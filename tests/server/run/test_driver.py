"""Whole runs in one process: real protocol states, sessions, ledgers and store; time is simulated.

A silo that dies, lags or refuses is no failure here; a wrong sum, a lost round, a second release of
one attempt or a charge beyond the plan's is.
"""

import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from federation.chain.record import Place
from federation.chain.task import SURVIVORS_ALREADY_SIGNED
from ops.audit_log import verify_log
from secagg.errors import Check, VerificationError
from server.errors import WrongRoundError
from server.figures import Phase, RoundFigures
from server.run.budget import shown_epsilon
from server.states import RunState
from silo_agent.line.instruction import RoundAborted
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.run_checks import require_chain, require_exact
from tests.kit.server.world_plan import fixed_point, value_of

NAMES = silo_names(4)


def test_a_run_to_its_end(world):
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    require_exact(world, NAMES, rounds=2)
    assert [r.kind for r in require_chain(world, run_id)] == ["initial", "aggregated", "aggregated"]
    rows = world.store.rounds.finished(run_id)
    figures = [RoundFigures.from_json(row.figures_json) for row in rows]
    for figure in figures:
        assert figure.survivors == figure.cohort == NAMES
        assert figure.success["constant"][0] == pytest.approx((8 + 16 + 24 + 32) / 256, abs=1e-3)
        assert set(figure.timings_s) == {p.value for p in Phase if p is not Phase.FINISHED}
        assert figure.upload_bytes == 4 * (sw.DIMENSION + 3) * 4
        # All silos move in one direction, so they agree as far as their unequal lengths allow.
        assert 0.4 < figure.agreement < 1.0
    assert verify_log(world.audit.path) == len(world.events())
    assert world.events().count("round_finished") == 2
    assert world.value("chorale_rounds_total", outcome="aggregated") == 2
    # Without noise a charge is unbounded, and the gauge says so from the first release on.
    assert world.value("chorale_dp_epsilon_spent") == float("inf")
    assert not list((world.directory / "scratch").rglob("*.masked"))


def test_without_noise_the_coordinator_is_told_no_figure_unless_the_plan_asks_for_it(world):
    """Success, κ, ζ̂² and norms would be one silo's own where the others had nothing to report."""
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2, exact_figures=False)))
    require_exact(world, NAMES, rounds=2)
    require_chain(world, run_id)
    for row in world.store.rounds.finished(run_id):
        figure = RoundFigures.from_json(row.figures_json)
        assert figure.upload_bytes == 4 * sw.DIMENSION * 4
        assert figure.success == {}
        for name in ("agreement", "heterogeneity", "silo_norm_sq"):
            assert math.isnan(getattr(figure, name))
            assert math.isnan(getattr(figure, f"{name}_error"))
        # The sum is published, and with it the length of its mean.
        assert figure.update_norm > 0


@pytest.mark.parametrize(("mode", "noise"), [("none", 0.0), ("silo", 1.0)])
def test_what_one_silo_alone_contributes_is_the_sum_unless_noise_hides_it(
    world, monkeypatch, mode, noise
):
    """Contributions may be zero and no check can see it: SECURITY.md, claim (a)."""
    alone = NAMES[2]
    monkeypatch.setattr(
        "tests.kit.server.world_silo.value_of",
        lambda silo_id: value_of(silo_id) if silo_id == alone else 0.0,
    )
    asyncio.run(world.run(sw.plan_toml(mode=mode, noise=noise, exact_figures=False)))
    head = world.driver.head
    assert head.survivors == NAMES
    total = np.frombuffer(world.context.blobs.get(head.sum_sha256), dtype="<i4")
    exposed = np.array_equal(total[: sw.DIMENSION], fixed_point(alone))
    assert exposed is (mode == "none")


def test_epsilon_is_shown_from_when_a_task_is_out(world):
    """Under record_local a training is charged before it begins, and the gauge says so.

    The silos of this world charge no training, so that they refuse to upload and the run ends.
    """
    seen = []

    def look():
        charged = world.store.rounds.charged(world.driver.row.run_id)
        if charged.rounds and world.driver.current.phase is Phase.TRAINING:
            shown = world.value("chorale_dp_epsilon_spent")
            seen.append((shown, shown_epsilon(world.driver.plan, charged)))

    world.before_wait = look
    plan = sw.plan_toml(rounds=1, mode="record_local", noise=1.0, steps=4)
    plan = plan.replace(b"steps_per_round = 4", b"steps_per_round = 4\ndelta_clip_l2 = 2.0")
    asyncio.run(world.run(plan))
    assert seen
    for shown, charged in seen:
        assert 0 < shown == pytest.approx(charged)


def test_epsilon_is_shown_after_each_attempt(world):
    seen = []
    world.before_wait = lambda: seen.append(world.value("chorale_dp_epsilon_spent"))
    asyncio.run(world.run(sw.plan_toml(rounds=2, mode="silo", noise=1.0)))
    after = world.value("chorale_dp_epsilon_spent")
    first = [value for value in seen if value > 0]
    assert seen[0] == 0
    assert 0 < min(first) < after < 100
    assert world.value("chorale_dp_epsilon_cap") == 1e9
    # Every silo's own ledger says the same: one charge a round.
    for silo in world.silos.values():
        assert silo.ledger.spent_epsilons()["silo"] == pytest.approx(after)


@pytest.mark.parametrize(
    ("die_at", "survivors"),
    [
        ("report_ready", NAMES[:3]),
        ("advertise_keys", NAMES[:3]),
        ("share_keys", NAMES[:3]),
        ("upload", NAMES[:3]),
        ("check_consistency", NAMES),
        ("unmask", NAMES),
    ],
)
def test_a_silo_may_die_anywhere(world, die_at, survivors):
    world.silos[NAMES[3]].die_at = (die_at, 1)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert world.driver.head.survivors == survivors
    require_exact(world, survivors)
    require_chain(world, run_id)
    if die_at != "report_ready":
        step = {"upload": "masked_input", "check_consistency": "consistency_check"}
        stage = step.get(die_at, die_at)
        assert world.value("chorale_secagg_dropouts_total", stage=stage) == 1


def test_a_silo_that_lags_is_told_once_and_takes_part_again(world):
    lagging = world.silos[NAMES[3]]

    def before_wait():
        phase = world.driver.current.phase
        if world.driver.current.round == 1:
            lagging.dead = phase in (Phase.SHARE_KEYS, Phase.MASKED_INPUT, Phase.CONSISTENCY_CHECK)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2, mode="silo", noise=1.0)))
    records = require_chain(world, run_id)
    assert [r.survivors for r in records] == [(), NAMES[:3], NAMES]
    assert sum(isinstance(message, RoundAborted) for message in lagging.told) == 1


def test_too_few_uploads_are_followed_by_another_attempt_with_new_keys(world):
    for name in NAMES[2:]:
        world.silos[name].die_at = ("upload", 1)

    def before_wait():
        if "round_stalled" in world.events():
            world.silos[NAMES[2]].come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.plan_toml(mode="silo", noise=1.0)))
    events = world.events()
    assert events.index("attempt_aborted") < events.index("round_stalled")
    assert world.driver.head.survivors == NAMES[:3]
    rows = {row.attempt: row for row in world.store.rounds.list(run_id)}
    assert rows[2].outcome == "aggregated"
    assert rows[1].outcome == ""
    assert world.store.rounds.charged(run_id)[:2] == (2, 2)
    assert world.value("chorale_secagg_aborts_total", reason="too_few_masked_input") == 1
    # Both attempts were debited by those who were alive.
    assert world.silos[NAMES[0]].ledger.highest_identity(run_id).attempt == 2


def test_after_survivors_were_declared_there_is_no_second_attempt(world):
    for name in NAMES[2:]:
        world.silos[name].die_at = ("check_consistency", 1)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    initial, record = require_chain(world, run_id)
    assert (record.kind, record.adapter_sha256) == ("skipped", initial.adapter_sha256)
    assert [row.attempt for row in world.store.rounds.list(run_id)] == [1]
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert world.value("chorale_rounds_total", outcome="skipped") == 1
    assert world.value("chorale_secagg_aborts_total", reason="too_few_consistency_check") == 1


def test_an_impossible_sum_is_not_applied(world):
    # More than four clipped silos could reach together.
    world.silos[NAMES[0]].poison = np.full(sw.DIMENSION + 3, 2**21, dtype=np.uint32)
    run_id = asyncio.run(world.run(sw.plan_toml()))
    initial, record = require_chain(world, run_id)
    assert (record.kind, record.adapter_sha256) == ("skipped", initial.adapter_sha256)
    aborted = [json.loads(x) for x in world.audit.tail(99) if "attempt_aborted" in x]
    assert "not applied" in aborted[0]["details"]["reason"]


def test_the_charged_attempts_of_the_plan_are_never_exceeded(world):
    """Every attempt loses two silos at upload; they come back when the round stalls."""

    def before_wait():
        current = world.driver.current
        for name in NAMES[2:]:
            silo = world.silos[name]
            if silo.dead and world.driver.training is not None:
                silo.come_back()
            if current.attempt:
                silo.die_at = ("upload", current.attempt)

    world.before_wait = before_wait
    plan = sw.plan_toml(rounds=3, spare=1)
    run_id = asyncio.run(world.run(plan))
    charged = sw.parsed(plan).charged_releases
    assert [r.kind for r in world.store.records.list(run_id)[1:]] == ["skipped"] * 3
    assert world.store.rounds.charged(run_id).releases == charged == 4
    # The spare attempt was used up where it was first needed.
    assert [row.round for row in world.store.rounds.list(run_id)] == [1, 1, 2, 3]


def test_refusals_below_the_quorum_stop_the_run_and_say_why(world):
    for name in NAMES[2:]:
        world.silos[name].refuses = "budget"
    run_id = asyncio.run(world.run(sw.plan_toml()))
    row = world.store.runs.get(run_id)
    assert row.state is RunState.FAILED
    assert f"{NAMES[2]}: budget" in row.error
    assert "quorum of 3" in row.error
    assert world.events().count("silo_refused") == 2
    assert world.events()[-1] == "run_failed"


def test_silos_that_signed_survivors_already_end_the_round_as_skipped(world):
    for name in NAMES[:2]:
        world.silos[name].refuses = SURVIVORS_ALREADY_SIGNED
    run_id = asyncio.run(world.run(sw.plan_toml()))
    assert [r.kind for r in world.store.records.list(run_id)] == ["initial", "skipped"]
    assert world.store.runs.get(run_id).state is RunState.FINISHED


def test_messages_that_do_not_fit_change_nothing(world):
    async def scenario():
        run_id = await world.conductor.start_run(sw.plan_toml(), sw.INITIAL, "t")
        driver = world.driver
        with pytest.raises(WrongRoundError, match="no aggregation"):
            driver.active_attempt()
        await asyncio.sleep(0)
        head = driver.head.adapter_sha256
        with pytest.raises(WrongRoundError, match="another adapter"):
            driver.cohorts.report_ready(
                NAMES[0], place=Place(1, 0), adapter_sha256=bytes(32), families=("constant",)
            )
        for place in (Place(2, 0), Place(1, 1)):
            with pytest.raises(WrongRoundError, match=str(place)):
                driver.cohorts.report_ready(NAMES[0], place=place, adapter_sha256=head, families=())
            with pytest.raises(WrongRoundError, match=str(place)):
                driver.cohorts.refuse(NAMES[0], place=place, reason="budget")
        assert driver.waiting_for == NAMES
        driver.cohorts.refuse(NAMES[0], place=Place(1, 0), reason="busy")
        driver.cohorts.report_ready(
            NAMES[0], place=Place(1, 0), adapter_sha256=head, families=("constant",)
        )
        assert (driver.training.refused, driver.waiting_for) == ({}, NAMES[1:])
        await world.conductor.close()
        return run_id

    run_id = asyncio.run(scenario())
    # A stopped coordinator leaves the run to be resumed.
    assert world.store.runs.get(run_id).state is RunState.RUNNING


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_silo_that_declares_other_families_than_it_was_ready_with_just_drops_out(world, restarts):
    """A restart in between changes nothing: what each was ready with is in the store."""
    liar, refused = world.silos[NAMES[3]], []
    honest = liar.advertise_keys

    def advertise(identity, bundle):
        if not world.driver.current.attempt or len(refused) > 5:
            return
        try:
            honest(identity, replace(bundle, families=()))
        except VerificationError as error:
            refused.append((error.check, error.silo))

    liar.advertise_keys = advertise
    left = [None] * restarts

    def before_wait():
        if left and world.driver.current.phase is Phase.ADVERTISE_KEYS:
            left.pop()
            raise sw.PowerCut

    world.before_wait = before_wait
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml(), cuts=restarts))
    assert refused[0] == (Check.METRICS_FAMILIES, NAMES[3])
    assert [row.identity.attempt for row in world.store.aggregations.list(run_id)] == [1]
    assert world.driver.head.survivors == NAMES[:3]
    require_exact(world, NAMES[:3])

"""Silos whose sums are not applied: when that ends the run, and what it costs until then.

One silo sends random ring elements. Real sessions, ledgers and store; time is simulated.

A failure: a round after the plan's last allowed one, a charge for it, a run that ends as finished
though nobody's work came of its last sums, or a count that a restart forgets.
"""

import asyncio

import numpy as np
import pytest

from federation.errors import PlanError
from server.figures import Phase, RoundFigures
from server.run.driver import RunDriver
from server.states import RunState
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.run_checks import require_chain
from tests.kit.server.world_plan import fixed_point

NAMES = silo_names(4)
HOSTILE = NAMES[0]
WORDS = sw.DIMENSION + 3


def plan_toml(*, allowed=None, **settings):
    text = sw.plan_toml(**{"rounds": 4, "mode": "silo", "noise": 1.0, "spare": 2, **settings})
    key = b"" if allowed is None else b"max_quarantined = %d\n" % allowed
    return text.replace(b"[rounds]\n", b"[rounds]\n" + key)


def poisons(world, *places):
    """Let the hostile silo send random ring elements in these rounds; in all if none is named."""
    draw = np.random.default_rng(5)

    def before_wait():
        current = world.driver.current
        here = not places or (current.round, current.step) in places or current.round in places
        world.silos[HOSTILE].poison = (
            draw.integers(0, 2**32, WORDS, dtype=np.uint32) if here else None
        )

    world.before_wait = before_wait


def require_failed(world, run_id, *, charged):
    row = world.store.runs.get(run_id)
    assert row.state is RunState.FAILED
    assert "in a row were not applied" in row.error
    assert "max_quarantined" in row.error
    assert not any(name in row.error for name in NAMES)
    assert world.store.rounds.charged(run_id).releases == charged
    for silo in world.silos.values():
        assert silo.ledger.debits_of_run(run_id).releases == charged
    # What was closed is closed for good, signed as any other round.
    return [record.kind for record in require_chain(world, run_id)[1:]]


def outcomes(world, run_id):
    return [row.outcome for row in world.store.rounds.finished(run_id)]


def test_a_run_whose_sums_are_not_applied_fails_and_charges_no_more(world):
    poisons(world)
    run_id = asyncio.run(world.run(plan_toml()))
    assert require_failed(world, run_id, charged=2) == ["skipped", "skipped"]
    assert outcomes(world, run_id) == ["quarantined", "quarantined"]
    assert world.value("chorale_releases_total", outcome="quarantined") == 2
    assert world.value("chorale_secagg_aborts_total", reason="quarantined") == 2
    # Nothing of such a sum is kept or shown.
    figures = [RoundFigures.from_json(r.figures_json) for r in world.store.rounds.finished(run_id)]
    assert all(not one.success and np.isnan(one.update_norm) for one in figures)
    assert world.events()[-1] == "run_failed"


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.MASKED_INPUT, Phase.UNMASK])
def test_a_restart_in_the_next_round_forgets_no_quarantined_sum(world, phase):
    poisons(world)
    poison, left = world.before_wait, [None]

    def before_wait():
        poison()
        current = world.driver.current
        if left and (current.round, current.phase) == (2, phase):
            left.pop()
            raise sw.PowerCut

    world.before_wait = before_wait
    run_id = asyncio.run(world.run_over_power_cuts(plan_toml()))
    assert require_failed(world, run_id, charged=2) == ["skipped", "skipped"]


def test_a_restart_right_after_the_last_allowed_one_opens_no_further_round(world, monkeypatch):
    poisons(world)
    closed, left = RunDriver._closed, [None]

    def cut(driver):
        # The release is closed in the store, and nobody has drawn a conclusion from it.
        if left and driver.current.round == 2:
            left.pop()
            raise sw.PowerCut
        closed(driver)

    monkeypatch.setattr(RunDriver, "_closed", cut)
    run_id = asyncio.run(world.run_over_power_cuts(plan_toml()))
    assert not left
    assert require_failed(world, run_id, charged=2) == ["skipped", "skipped"]


def test_a_sum_that_is_applied_begins_the_count_again(world):
    poisons(world, 1, 3)
    run_id = asyncio.run(world.run(plan_toml()))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert outcomes(world, run_id) == ["quarantined", "aggregated"] * 2


def test_a_round_without_a_sum_does_not(world, monkeypatch):
    monkeypatch.setattr("server.context.SILENT_AFTER_S", 5.0)
    poisons(world, 1, 3)
    poison = world.before_wait

    def before_wait():
        poison()
        for name in NAMES[2:]:
            silo = world.silos[name]
            if world.driver.current.round == 2:
                silo.die_at = ("check_consistency", 1)
            elif silo.dead:
                silo.come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan_toml()))
    assert outcomes(world, run_id) == ["quarantined", "skipped", "quarantined"]
    assert world.store.runs.get(run_id).state is RunState.FAILED


@pytest.mark.parametrize("allowed", [1, 3])
def test_the_plan_says_how_many_also_when_they_are_its_last(world, allowed):
    poisons(world)
    run_id = asyncio.run(world.run(plan_toml(allowed=allowed, rounds=3)))
    assert require_failed(world, run_id, charged=allowed) == ["skipped"] * allowed


def test_the_steps_of_a_round_count_each(world):
    poisons(world, (1, 1), (1, 2))
    run_id = asyncio.run(world.run(sw.stepped_toml(rounds=2)))
    assert require_failed(world, run_id, charged=3) == ["aggregated", "skipped", "skipped"]
    # The round did yield a sum, in its first step.
    assert world.value("chorale_rounds_total", outcome="aggregated") == 1


@pytest.mark.parametrize("allowed", [0, 11])
def test_a_plan_cannot_switch_it_off(allowed):
    with pytest.raises(PlanError, match=r"rounds\.max_quarantined: Input should be"):
        sw.parsed(plan_toml(allowed=allowed))


# What is possible, and one silo's ----------------------------------------------------------------


@pytest.mark.parametrize("restarts", [0, 1])
def test_one_silo_may_use_the_room_of_all_and_its_sum_stands_out_from_those_before(world, restarts):
    """The norm that is checked is the sum's, so a vector of nearly n clips passes as one silo's."""
    attack = np.zeros(WORDS, dtype=np.int64)
    honest = sum(fixed_point(name) for name in NAMES[1:])
    attack[0] = 4 * sw.GRID - int(np.linalg.norm(honest)) - 1
    assert attack[0] > 3 * sw.GRID
    ratios, left = {}, [None] * restarts

    def before_wait():
        current = world.driver.current
        ratios[current.round] = world.value("chorale_update_norm_ratio")
        world.silos[HOSTILE].poison = attack.astype(np.uint32) if current.round == 5 else None
        if left and (current.round, current.phase) == (6, Phase.SHARE_KEYS):
            left.pop()
            raise sw.PowerCut

    world.before_wait = before_wait
    plan = plan_toml(rounds=6, mode="none", noise=0.0)
    run_id = asyncio.run(world.run_over_power_cuts(plan, cuts=restarts))
    assert outcomes(world, run_id) == ["aggregated"] * 6
    poisoned = world.store.records.list(run_id)[5]
    total = np.frombuffer(world.context.blobs.get(poisoned.sum_sha256), dtype="<i4")
    delta = total[: sw.DIMENSION].astype(np.float64)
    assert delta @ attack[: sw.DIMENSION] > 0.99 * np.linalg.norm(delta) * attack[0]
    # Nothing to compare with, then honest rounds, then the attack; a restart shows it again.
    assert all(np.isnan(ratios[number]) for number in (1, 2, 3, 4))
    assert ratios[5] == pytest.approx(1.0)
    assert ratios[6] > 10
    assert world.value("chorale_update_norm_ratio") == pytest.approx(1.0)


def test_of_factors_that_take_turns_each_has_its_own_history(world):
    ratios = {}

    def before_wait():
        ratios[world.driver.current.round] = world.value("chorale_update_norm_ratio")

    world.before_wait = before_wait
    asyncio.run(world.run(sw.plan_toml(rounds=8, method="rolora")))
    # The fourth sum of a factor is the seventh of the run.
    assert [number for number, ratio in ratios.items() if not np.isnan(ratio)] == [8]

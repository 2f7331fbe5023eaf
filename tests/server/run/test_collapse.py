"""An agent that collapses is told from noise, over restarts and rollbacks, by hand and in a run."""

import asyncio
import math

import numpy as np
import pytest

from server.cli.watch import Panel
from server.conductor.rollback import request_rollback
from server.conductor.scrape import Scrape
from server.conductor.status import watch_response
from server.figures import Phase, RoundFigures
from server.run import collapse as rule
from server.run.collapse import Collapse, collapse
from tests.kit.server.server_runs import in_phase, one_at_a_time, settled, start, until


def closed(number, *, back=None, step=0, outcome="aggregated", **success):
    if back is not None:
        outcome = "rollback"
    return RoundFigures(
        round=number, step=step, outcome=outcome, success=success, restored_round=back
    )


def rounds(*values, error=0.02, first=1):
    """Rounds of one environment; None for one that was skipped."""
    return [
        closed(number, outcome="skipped") if value is None else closed(number, maze=(value, error))
        for number, value in enumerate(values, first)
    ]


# √(0.02² + 0.02²) = 0.0283. Of one earlier round z = 3, so 0.0849; of two 3.205, so 0.0906.
@pytest.mark.parametrize(
    ("values", "error", "collapsed"),
    [
        ([0.40, 0.0, 0.0], 0.02, True),
        ([0.05, 0.40, 0.35, 0.01, 0.0], 0.02, True),
        ([0.40, 0.0], 0.02, False),  # One round.
        ([0.0, 0.0], 0.02, False),
        ([0.40, 0.0, 0.38], 0.02, False),
        ([0.40, 0.0, 0.38, 0.0], 0.02, False),
        ([0.40, 0.0, None, None, 0.0], 0.02, True),  # Skipped rounds are not judged.
        ([0.40, None, 0.0], 0.02, False),
        ([0.40, 0.19, 0.19], 0.02, True),
        ([0.40, 0.20, 0.19], 0.02, False),  # A half is not below the half.
        ([0.40, 0.19, 0.21], 0.02, False),
        # 0.40 is 3.210 errors of √2 · 0.0881, and 3.199 of √2 · 0.0884: enough for the first fall,
        # which has one earlier round, but not for the second, which has two.
        ([0.40, 0.0, 0.0], 0.0881, True),
        ([0.40, 0.0, 0.0], 0.0884, False),
        ([0.40, 0.0, 0.0], 0.1, False),  # 2.83 errors.
        # Without noise, less than ten points is a bad draw; more is not.
        ([0.095, 0.0, 0.0], 0.0, False),
        ([0.105, 0.0, 0.0], 0.0, True),
        # Below what noise hides there is no figure, and none is judged.
        ([1.0, 0.0, 0.0], 0.126, False),
        ([0.40, 0.0, math.nan, 0.0], 0.02, True),
        ([], 0.02, False),
    ],
)
def test_by_hand(values, error, collapsed):
    assert (collapse(rounds(*values, error=error)) is not None) == collapsed


def test_what_is_told_is_the_best_the_newest_and_the_newest_good_round():
    found = collapse(rounds(0.2, 0.41, 0.38, 0.33, 0.25, 0.03, 0.02))
    assert isinstance(found, Collapse)
    assert (found.round, found.best_round, found.good_round) == (7, 2, 4)
    assert (found.success, found.best) == ((0.02, 0.02), (0.41, 0.02))
    assert found.words == "success fell from 41.0 ± 2.0 % in round 2 to 2.0 ± 2.0 % in round 7"
    # Round 4 explored with the adapter of round 3.
    assert found.back("r") == "chorale adapter rollback r --to-round 3"


@pytest.mark.parametrize(
    ("rounds_before", "errors"), [(1, 3.0), (2, 3.205), (10, 3.643), (100, 4.198)]
)
def test_the_best_of_many_has_to_lie_further_away(rounds_before, errors):
    assert rule._errors(rounds_before) == pytest.approx(errors, abs=0.002)


def test_another_mix_of_environments_is_no_news_of_the_agent():
    hard, easy = (0.05, 0.01), (0.75, 0.01)
    both = [closed(number, easy=easy, hard=hard) for number in (1, 2)]
    # The mean falls from 40 to 5 % as the sites of one environment are away, or noise hides it.
    assert collapse([*both, *(closed(number, hard=hard) for number in (3, 4))]) is None
    hidden = {"easy": (math.nan, math.inf), "hard": hard}
    assert collapse([*both, *(closed(number, **hidden) for number in (3, 4))]) is None
    # Of what both tell it fell: from 75 % to 3 %, whatever the other did.
    found = collapse([*both, *(closed(number, easy=(0.03, 0.01)) for number in (3, 4))])
    assert (found.best.mean, found.success.mean) == (0.75, 0.03)
    # An environment of which no earlier round tells is compared with nothing.
    assert collapse([*both, *(closed(number, new=(0.0, 0.01)) for number in (3, 4))]) is None


def test_only_the_first_sum_of_a_round_tells_success_and_only_a_sum_does():
    steps = [closed(1, maze=(0.4, 0.01)), closed(1, step=1), closed(2, maze=(0.0, 0.01))]
    assert collapse([*steps, closed(2, step=1), closed(2, step=2)]) is None
    spoiled = [closed(number, outcome="quarantined", maze=(0.0, 0.01)) for number in (2, 3)]
    assert collapse([closed(1, maze=(0.4, 0.01)), *spoiled]) is None


def test_after_a_rollback_the_count_is_new_and_the_best_is_the_whole_runs():
    fallen = rounds(0.40, 0.41, 0.01, 0.01)
    back = closed(5, back=1)
    assert collapse(fallen) is not None
    assert collapse([*fallen, back]) is None
    assert collapse([*fallen, back, *rounds(0.0, first=6)]) is None
    again = collapse([*fallen, back, *rounds(0.0, 0.0, first=6)])
    assert (again.best_round, again.round) == (2, 7)
    # What came back is well, and it falls once more, from the best of both stretches.
    well = [*fallen, back, *rounds(0.38, 0.45, first=6)]
    assert collapse(well) is None
    assert collapse([*well, *rounds(0.02, 0.02, first=8)]).best_round == 7


def alarms(seed, *, runs=40, length=150):
    draw, found = np.random.default_rng(seed), 0
    for _ in range(runs):
        told = rounds(*draw.normal(0.25, 0.06, length).tolist(), error=0.06)
        found += any(collapse(told[:count]) for count in range(20, length, 10))
    return found


def test_noise_alone_is_no_collapse_however_long_the_run(monkeypatch):
    assert alarms(1) == 0
    # Three errors from the best of many rounds are not enough: luck alone makes such a best.
    monkeypatch.setattr(rule, "_errors", lambda _rounds: 3.0)
    assert alarms(1) > 0


# In a run ----------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path, monkeypatch):
    with one_at_a_time(tmp_path, monkeypatch, silos=4) as made:
        yield made


def gauge(world):
    Scrape(
        context=world.context,
        trust=None,
        data_dir=world.directory,
        shown=lambda: world.conductor.driver,
    )._round()
    return world.value("chorale_run_collapsed")


def test_a_run_whose_agent_collapses_says_so_until_an_admin_acts_and_after_a_restart(world):
    seen = {}

    def look():
        number = world.driver.current.round
        seen.setdefault(number, set()).add(gauge(world))
        for silo in world.silos.values():
            # With the adapter of round 2 nobody succeeds any more, nor with what comes of it.
            silo.succeeds = number not in range(3, 8)

    async def scenario():
        run_id = await start(world, "t", rounds=10)
        in_phase(world, Phase.TRAINING, lambda: world.conductor.pause_run(run_id), round_number=7)
        pause = world.before_wait
        world.before_wait = lambda: (look(), pause())
        await settled(world)
        # Known from when the second round is closed; nobody has to be told of a run that rests.
        assert seen == {1: {0}, 2: {0}, 3: {0}, 4: {0}, 5: {1}, 6: {1}, 7: {1}}
        assert gauge(world) == 0

        # A coordinator that starts again finds the same in its database.
        world.store.close()
        world._boot()
        seen.clear()
        world.conductor.resume()
        world.before_wait = look
        await world.conductor.resume_run(run_id)
        await until(lambda: gauge(world) == 1)
        assert world.driver.current.round == 7
        shown = watch_response(
            row=world.store.runs.get(run_id),
            driver=world.driver,
            finished=world.driver.finished,
            context=world.context,
        )
        request_rollback(
            world.store,
            world.audit,
            run_id=run_id,
            to_round=1,
            submit_token="back",
            admin="ada",
            clock=world.clock,
        )
        await settled(world)
        return run_id, shown

    run_id, shown = asyncio.run(scenario())
    with Panel(live=True) as panel:
        panel.show(shown)
    (line,) = [line for line in panel.end() if line.startswith("success fell")]
    assert line.startswith("success fell from 31.2 % in round 1 to 0.0 % in round 6, ")
    assert line.endswith(f"chorale adapter rollback {run_id} --to-round 1")
    # The rollback ends it, before a round has judged what came back.
    records = world.store.records.list(run_id)
    back = [record.round for record in records if record.kind == "rollback"]
    assert back[0] + 1 in seen
    assert {number: told for number, told in seen.items() if number > back[0]} == {
        number: {0} for number in range(back[0] + 1, 11)
    }

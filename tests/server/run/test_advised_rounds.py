"""Rounds that ask an advisor: real driver and sessions, a scripted endpoint, simulated time.

What a real endpoint can do is in ``tests/server/advisor``, real processes are in
``tests/system/integration/rounds/test_advised_runs.py``.
"""

import asyncio
import json

import pytest

from federation.advice.conversation import Failure
from federation.chain.task import RoundTask
from federation.errors import AdviceError, PlanError
from federation.selection.decided import Decided
from federation.selection.policies import Choice
from secagg import suite
from server.run.selection import Selection
from server.states import RunState
from server.store.decisions import Decisions
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.scripted_advisor import Scripted, says
from tests.kit.server.server_runs import details, settled

NAMES = silo_names(6)
COUNTED = 'policy = "advised"\ncount = 5'
RANGES = "[selection.ranges]\nready_deadline_s = [30, 90]\nlocal_epochs = [1, 3]"
ADVICE = "[selection.advice]\nmay_stop = true"
NOISE = {"mode": "silo", "noise": 0.05}


def plan(rounds=2, selection=COUNTED, **settings):
    return sw.plan_toml(**{"rounds": rounds, "selection": selection, **NOISE, **settings})


@pytest.fixture
def made(tmp_path):
    worlds = []

    def make(*answers, advised=True):
        endpoint = Scripted(*answers) if advised else None
        worlds.append(sw.World(tmp_path, silos=6, advisor=endpoint))
        return worlds[-1], endpoint

    yield make
    for world in worlds:
        world.close()


def choices(world, run_id):
    return {row.round: row for row in world.store.choices.newest(run_id, 100)}


def decided(world, run_id):
    """Every decision as ``chorale audit decisions`` writes it, through its one line of JSON."""
    found = []
    for number, row in sorted(choices(world, run_id).items()):
        kept = world.store.decisions.of_round(run_id, number)
        choice = Choice(
            silos=row.silos,
            why=row.why,
            ready_deadline_s=row.ready_deadline_s,
            local_epochs=row.local_epochs,
            stop=row.stop,
            diagnose=row.diagnose,
        )
        line = Decided(
            run_id=run_id, round=number, inputs=kept.inputs, advice=kept.advice, choice=choice
        ).to_line()
        found.append(Decided.from_line(line.encode()))
    return found


def require_replayed(world, run_id):
    for each in decided(world, run_id):
        assert asyncio.run(each.again()) == each.choice


def tasks(world):
    told = [m for m in world.silos[NAMES[0]].told if isinstance(m, RoundTask)]
    return {task.round: task for task in told}


def test_a_proposal_within_its_limits_is_what_a_round_does(made):
    world, endpoint = made(says(count=4, ready_deadline_s=45, local_epochs=2), says(count=6))
    began = world.clock.now
    run_id = asyncio.run(world.run(plan(selection=f"{COUNTED}\n{RANGES}")))
    rows = choices(world, run_id)
    assert [len(rows[number].silos) for number in (1, 2)] == [4, 6]
    assert (rows[1].ready_deadline_s, rows[1].local_epochs) == (45, 2)
    assert (rows[2].ready_deadline_s, rows[2].local_epochs) == (None, None)
    assert rows[1].why.startswith("advised: 4 of 6 whose turn it is")
    sent = tasks(world)
    assert (sent[1].local_epochs, sent[2].local_epochs) == (2, 0)
    assert sent[1].ready_deadline_unix_s - int(began) == 45
    kept = decided(world, run_id)
    for said, each in zip(details(world, "silos_chosen"), kept, strict=True):
        assert (said["advice_sha256"], said["inputs_sha256"]) == (
            each.advice_sha256,
            each.inputs_sha256,
        )
    require_replayed(world, run_id)
    assert len(endpoint.asked) == 2
    assert (
        world.metrics.registry.get_sample_value("chorale_advice_total", {"outcome": "proposal"})
        == 2
    )


@pytest.mark.parametrize("takes_tools", [True, False])
def test_tools_are_offered_to_a_server_that_takes_them_alone(made, takes_tools):
    world, endpoint = made(says(count=4))
    endpoint.takes_tools = takes_tools
    run_id = asyncio.run(world.run(plan(rounds=1)))
    (body,) = [json.loads(content) for content in endpoint.asked]
    assert ("tools" in body, "response_format" in body) == (takes_tools, not takes_tools)
    # What was asked is asked so again, whatever the configuration says by then.
    require_replayed(world, run_id)


def test_a_model_that_names_silos_has_those_asked(made):
    named = list(NAMES[1:5])
    world, _ = made(says(silos=named))
    style = f'{COUNTED}\n[selection.advice]\nstyle = "silos"'
    run_id = asyncio.run(world.run(plan(selection=style)))
    assert {row.silos for row in choices(world, run_id).values()} == {tuple(named)}
    require_replayed(world, run_id)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([says(count=3)], "refused: count is not within 4 to 6"),
        ([says(count=7)], "refused: count is not within 4 to 6"),
        (["as I said, three"], "refused: the answer is not JSON"),
        ([says(count=4, stop=True)], "refused: stop may not be proposed here"),
        ([says(count=4, ready_deadline_s=45)], "refused: ready_deadline_s may not be moved here"),
        ([Failure.UNREACHABLE], "endpoint: unreachable"),
        ([says(count=1), Failure.TIMEOUT], "endpoint: timeout"),
    ],
)
def test_a_bad_answer_leaves_the_round_to_its_policy(made, answers, why):
    world, _ = made(*answers)
    run_id = asyncio.run(world.run(plan(rounds=1)))
    (row,) = choices(world, run_id).values()
    assert len(row.silos) == 5
    assert row.why.startswith(f"no advice ({why}")
    assert "whose turn it is" in row.why
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    require_replayed(world, run_id)


def test_a_correction_is_taken(made):
    world, endpoint = made(says(count=1), says(count=4))
    run_id = asyncio.run(world.run(plan(rounds=1)))
    assert len(choices(world, run_id)[1].silos) == 4
    assert len(endpoint.asked) == 2
    assert b"count is not within 4 to 6" in endpoint.asked[1]


def test_a_stop_pauses_the_run_after_its_round_and_an_admin_goes_on(made):
    world, _ = made(says(count=4, stop=True), says(count=4))

    async def main():
        run_id = await world.conductor.start_run(
            plan(rounds=3, selection=f"{COUNTED}\n{ADVICE}"), sw.INITIAL, "t"
        )
        await settled(world)
        row = world.store.runs.get(run_id)
        assert (row.state, world.driver.head.round) == (RunState.PAUSED, 1)
        assert row.error.startswith("the advisor proposed to stop after round 1.")
        assert f"chorale audit explain {run_id} 1" in row.error
        await world.conductor.resume_run(run_id)
        await settled(world)
        return run_id

    run_id = asyncio.run(main())
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert world.driver.head.round == 3


def test_a_stop_in_the_last_round_has_nothing_to_stop(made):
    world, _ = made(says(count=4, stop=True))
    run_id = asyncio.run(world.run(plan(rounds=1, selection=f"{COUNTED}\n{ADVICE}")))
    assert world.store.runs.get(run_id).state is RunState.FINISHED


def test_without_noise_and_word_fewer_than_all_are_never_asked(made):
    """The advisor moves the deadline and no more; whom it would leave out is asked."""
    world, _ = made(says(count=3), says(ready_deadline_s=45), says(count=3))
    quiet = {"mode": "none", "noise": 0.0}
    selection = f'policy = "advised"\n{RANGES}'
    run_id = asyncio.run(world.run(plan(rounds=2, selection=selection, **quiet)))
    rows = choices(world, run_id)
    assert {row.silos for row in rows.values()} == {NAMES}
    assert rows[1].ready_deadline_s == 45
    assert "fewer than all 6 silos may not be asked here" in rows[2].why
    require_replayed(world, run_id)


def test_a_run_that_asks_an_advisor_needs_one(made):
    world, _ = made(advised=False)
    with pytest.raises(PlanError, match="advisor_url and advisor_model"):
        asyncio.run(world.run(plan()))
    assert world.store.runs.list() == ()


def test_no_suite_v1_run_is_advised(tmp_path):
    with (
        sw.World(tmp_path, silos=6, suite=suite.SUITE, advisor=Scripted(says())) as world,
        pytest.raises(PlanError, match=r"selection\.policy: .* suite v2"),
    ):
        asyncio.run(world.run(plan()))


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_coordinator_killed_in_a_decision_decides_the_same_and_asks_nothing_twice(
    made, monkeypatch, cut
):
    """Cut after each of the durable words of one decision: what was answered is not asked again."""
    world, endpoint = made(says(count=1), says(count=2), says(count=4))
    calls = []

    def cutting(owner, name):
        real = getattr(owner, name)

        def called(self, *arguments, **named):
            result = real(self, *arguments, **named)
            calls.append(name)
            if len(calls) == cut:
                raise sw.PowerCut
            return result

        monkeypatch.setattr(owner, name, called)

    cutting(Decisions, "begin")
    cutting(Decisions, "advise")
    cutting(Selection, "_note")
    run_id = asyncio.run(world.run_over_power_cuts(plan(rounds=1), down_s=1))
    assert len(calls) >= cut
    row = choices(world, run_id)[1]
    assert len(row.silos) == 4
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    # Three requests, and the one that was out when the power went is sent again, byte for byte.
    assert len(set(endpoint.asked)) == 3
    assert len(endpoint.asked) in {3, 4}
    assert len(details(world, "silos_chosen")) == 1
    require_replayed(world, run_id)


def test_a_record_that_was_changed_is_not_replayed(made):
    world, _ = made(says(count=4))
    run_id = asyncio.run(world.run(plan(rounds=1)))
    (each,) = decided(world, run_id)
    forged = each.advice.replace(b'"round":1', b'"round":2')
    with pytest.raises(AdviceError):
        asyncio.run(
            Decided(
                run_id=each.run_id,
                round=1,
                inputs=each.inputs,
                advice=forged,
                choice=each.choice,
            ).again()
        )


def test_a_task_that_moves_epochs_out_of_range_is_never_sent(made):
    world, _ = made(says(count=4, local_epochs=4))
    run_id = asyncio.run(world.run(plan(rounds=1, selection=f"{COUNTED}\n{RANGES}")))
    assert choices(world, run_id)[1].local_epochs is None
    assert tasks(world)[1].local_epochs == 0

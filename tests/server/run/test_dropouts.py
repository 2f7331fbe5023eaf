"""Silos that say ready and then stall: counted, named, left out for a while; time is simulated.

The attack is one silo of five that is healthy but for one step, in every round. A failure: it costs
more rounds their deadlines than the plan says, somebody else is blamed, a restart forgets or counts
twice, or a round goes without its quorum.
"""

import asyncio
import json

import pytest

from federation.chain.task import RoundTask
from server.errors import StandingError, WrongRoundError
from server.figures import Phase
from server.members.standing import Standing
from server.run.dropouts import sitting_out_now
from server.states import RunState
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.store_samples import enrol

NAMES = silo_names(5)
STALLS = NAMES[4]
PHASES = {
    "advertise_keys": Phase.ADVERTISE_KEYS,
    "share_keys": Phase.SHARE_KEYS,
    "upload": Phase.MASKED_INPUT,
    "check_consistency": Phase.CONSISTENCY_CHECK,
    "unmask": Phase.UNMASK,
}
PHASE_S = 6
"""Of the plan; a round that waits for nobody takes less."""


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=5) as made:
        yield made


def plan(rounds=6, *, mode="silo", after=3, out=2, **settings):
    """A plan with noise, unless it says otherwise: five silos, four open a round."""
    text = sw.plan_toml(
        rounds=rounds, mode=mode, noise=0.0 if mode == "none" else 0.01, quorum=4, **settings
    )
    keys = f"[rounds]\nsit_out_after = {after}\nsit_out_rounds = {out}\n"
    return text.replace(b"[rounds]\n", keys.encode())


def stall(silo, call):
    """Say nothing at one step, and go on calling."""
    setattr(silo, call, lambda *_: None)


def rounds_of(world, run_id, silo_id):
    """The rounds whose cohorts had a silo."""
    rows = world.store.aggregations.list(run_id)
    cohorts = {row.identity.round: row.descriptor.descriptor.cohort for row in rows}
    return [number for number, cohort in cohorts.items() if silo_id in cohort]


def told(world, event):
    lines = [json.loads(line) for line in world.audit.tail(1000)]
    return [line["details"] for line in lines if line["event"] == event]


def lasting_s(world, run_id):
    """How long each round took, by its number."""
    found = {}
    for row in world.store.rounds.finished(run_id):
        timings = json.loads(row.figures_json)["timings_s"]
        found[row.round] = sum(timings.values())
    return found


@pytest.mark.parametrize("call", PHASES)
def test_a_silo_that_stalls_every_round_is_named_and_sits_out(world, call):
    stall(world.silos[STALLS], call)
    run_id = asyncio.run(world.run(plan(rounds=7)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    # Three rounds with it, two without, one more in which it stalls again, and one without.
    assert rounds_of(world, run_id, STALLS) == [1, 2, 3, 6]
    took_s = lasting_s(world, run_id)
    assert all(took_s[number] >= PHASE_S for number in (1, 2, 3, 6))
    assert all(took_s[number] < PHASE_S for number in (4, 5, 7))
    drops = told(world, "silo_dropped_out")
    assert [(d["silo"], d["round"], d["phase"], d["in_a_row"]) for d in drops] == [
        (STALLS, number, PHASES[call].value, count)
        for count, number in enumerate((1, 2, 3, 6), start=1)
    ]
    assert [(o["silo"], o["until_round"]) for o in told(world, "silo_sits_out")] == [
        (STALLS, 5),
        (STALLS, 7),
    ]
    assert world.value("chorale_silo_dropouts_total", silo=STALLS) == 4
    # Nobody else is blamed, also not by another metric.
    labels = {
        s.labels["silo"]
        for metric in world.metrics.registry.collect()
        for s in metric.samples
        if metric.name == "chorale_silo_dropouts"
    }
    assert labels == {STALLS}


def test_who_sits_out_does_no_work_and_is_charged_nothing(world):
    silo, other = world.silos[STALLS], world.silos[NAMES[0]]
    stall(silo, "check_consistency")
    spent = {}

    def before_wait():
        spent[world.driver.current.round] = [
            one.ledger.spent_epsilons().get("silo", 0.0) for one in (silo, other)
        ]

    world.before_wait = before_wait
    asyncio.run(world.run(plan(rounds=5)))
    tasks = [message.round for message in silo.told if isinstance(message, RoundTask)]
    assert tasks == [1, 2, 3]
    assert 0 < spent[3][0] == spent[4][0] == spent[5][0]
    assert spent[3][1] < spent[4][1] < spent[5][1]


def test_a_silo_that_never_says_ready_is_named_too(world):
    """It is there and costs each round the longest deadline of all."""
    stall(world.silos[STALLS], "_answer")
    run_id = asyncio.run(world.run(plan(rounds=5)))
    drops = told(world, "silo_dropped_out")
    assert [(d["round"], d["phase"]) for d in drops] == [(n, "training") for n in (1, 2, 3)]
    took_s = lasting_s(world, run_id)
    assert [number for number, length_s in took_s.items() if length_s >= 60] == [1, 2, 3]


def test_without_noise_it_sits_out_the_rest_of_the_run(world):
    """Two sums without noise whose cohorts differ by one silo can be subtracted."""
    stall(world.silos[STALLS], "share_keys")
    run_id = asyncio.run(world.run(plan(rounds=4, mode="none", after=1, out=1)))
    assert rounds_of(world, run_id, STALLS) == [1]
    assert [out["until_round"] for out in told(world, "silo_sits_out")] == [4]


def test_a_round_to_its_end_begins_the_count_anew(world):
    silo = world.silos[STALLS]
    real = silo.share_keys

    def share_keys(*arguments):
        if world.driver.current.round % 3:
            return None
        return real(*arguments)

    silo.share_keys = share_keys
    run_id = asyncio.run(world.run(plan(rounds=8)))
    assert rounds_of(world, run_id, STALLS) == list(range(1, 9))
    assert [d["in_a_row"] for d in told(world, "silo_dropped_out")] == [1, 2, 1, 2, 1, 2]


def test_a_stall_at_the_last_step_of_each_round_is_as_good_as_any(world):
    """With several steps in a round a silo that is in all but the last one is not excused."""
    silo = world.silos[STALLS]
    real = silo.unmask

    def unmask(identity, shares):
        return None if identity.step == 2 else real(identity, shares)

    silo.unmask = unmask
    text = sw.stepped_toml(rounds=5, quorum=4).replace(
        b"[rounds]\n", b"[rounds]\nsit_out_after = 3\nsit_out_rounds = 2\n"
    )
    run_id = asyncio.run(world.run(text))
    assert sorted(set(rounds_of(world, run_id, STALLS))) == [1, 2, 3]
    assert [d["in_a_row"] for d in told(world, "silo_dropped_out")] == [1, 2, 3]


def test_who_loses_the_first_attempt_of_each_round_is_not_excused_by_the_second(world):
    for name in NAMES[3:]:
        silo = world.silos[name]
        real = silo.share_keys

        def share_keys(identity, boxes, real=real):
            return None if identity.attempt == 1 else real(identity, boxes)

        silo.share_keys = share_keys
    run_id = asyncio.run(world.run(plan(rounds=3, n_min=4, after=0)))
    assert [row.outcome for row in world.store.aggregations.list(run_id)] == [
        "aborted",
        "released",
    ] * 3
    assert [d["in_a_row"] for d in told(world, "silo_dropped_out")] == [1, 1, 2, 2, 3, 3]


def test_nobody_is_blamed_for_an_attempt_that_another_ended(world):
    """Two lose the attempt at R0; the others, who had answered, count as nothing."""
    for name in NAMES[3:]:
        stall(world.silos[name], "advertise_keys")
    run_id = asyncio.run(world.run(plan(rounds=1, n_min=4, after=0)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert {d["silo"] for d in told(world, "silo_dropped_out")} == set(NAMES[3:])
    assert {row.silo_id for row in world.store.dropouts.list(run_id)} == set(NAMES[3:])


def test_who_is_suspended_meanwhile_is_not_blamed(world):
    world.silos[STALLS].die_at = ("share_keys", 1)

    def before_wait():
        if world.silos[STALLS].dead:
            world.context.liveness.bar(STALLS, barred=True)

    world.before_wait = before_wait
    asyncio.run(world.run(plan(rounds=1)))
    assert told(world, "silo_dropped_out") == []


def test_sitting_out_never_costs_the_quorum(world):
    """Two of five stall; a round opens with four, so both are asked again, and it is said."""
    for name in NAMES[3:]:
        stall(world.silos[name], "unmask")
    run_id = asyncio.run(world.run(plan(rounds=5)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert rounds_of(world, run_id, STALLS) == [1, 2, 3, 4, 5]
    called = told(world, "silo_called_back")
    assert {(c["silo"], c["round"]) for c in called} == {(n, r) for n in NAMES[3:] for r in (4, 5)}
    assert "round_stalled" not in world.events()


def test_who_sits_out_is_asked_before_a_round_stalls_or_a_run_ends(world):
    """One sits out; of the other four one refuses for good in round 4."""
    stall(world.silos[STALLS], "share_keys")

    def before_wait():
        if world.driver.current.round == 4:
            world.silos[NAMES[0]].refuses = "privacy_mode"
            world.silos[STALLS].__dict__.pop("share_keys", None)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=4)))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert world.driver.head.survivors == NAMES[1:]


def test_who_sits_out_is_asked_as_soon_as_too_few_others_are_there(world):
    """One sits out; of the other four one dies in round 4. Nobody waits for the deadline."""
    stall(world.silos[STALLS], "share_keys")

    def before_wait():
        if world.driver.current.round == 4:
            world.silos[NAMES[0]].dead = True
            world.silos[STALLS].__dict__.pop("share_keys", None)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=4)))
    assert world.driver.head.survivors == NAMES[1:]
    assert lasting_s(world, run_id)[4] < 30
    assert "round_stalled" not in world.events()


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.MASKED_INPUT, Phase.UNMASK])
def test_a_restart_neither_forgets_nor_counts_twice(world, phase):
    """The coordinator dies in each round once, after the silo was lost in it."""
    stall(world.silos[STALLS], "share_keys")
    cut = set()

    def before_wait():
        current = world.driver.current
        if current.phase is phase and current.round not in cut:
            cut.add(current.round)
            raise sw.PowerCut

    world.before_wait = before_wait
    run_id = asyncio.run(world.run_over_power_cuts(plan(rounds=6), cuts=6))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    assert rounds_of(world, run_id, STALLS) == [1, 2, 3, 6]
    assert [d["in_a_row"] for d in told(world, "silo_dropped_out")] == [1, 2, 3, 4]


def test_who_answers_though_it_sits_out_is_refused(world):
    stall(world.silos[STALLS], "share_keys")
    refused = []

    def before_wait():
        driver = world.driver
        if driver.training is not None and STALLS in driver.cohorts.sitting_out:
            try:
                driver.cohorts.report_ready(
                    STALLS,
                    place=driver.next_place,
                    adapter_sha256=driver.head.adapter_sha256,
                    families=(),
                )
            except WrongRoundError as error:
                refused.append(str(error))

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=4)))
    assert "sits out" in refused[0]
    assert rounds_of(world, run_id, STALLS) == [1, 2, 3]


def test_an_admin_lets_it_in_again(world):
    enrol(world.store, NAMES)
    standing = Standing(
        store=world.store,
        audit=world.audit,
        liveness=world.context.liveness,
        changed=world.context.changed.notify,
    )
    silo = world.silos[STALLS]
    stall(silo, "share_keys")

    def before_wait():
        if world.driver.current.round == 4 and sitting_out_now(world.store):
            assert sitting_out_now(world.store) == {STALLS}
            del silo.share_keys
            standing.reinstate(STALLS, admin="ada")
            assert not sitting_out_now(world.store)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=6, out=9)))
    assert rounds_of(world, run_id, STALLS) == [1, 2, 3, 5, 6]
    with pytest.raises(StandingError, match="not suspended and does not sit out"):
        standing.reinstate(STALLS, admin="ada")

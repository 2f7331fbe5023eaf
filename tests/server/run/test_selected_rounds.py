"""Rounds that ask some silos: a real driver and real sessions, time is simulated."""

import asyncio

import pytest

from federation.chain.task import RoundTask
from federation.errors import PlanError
from federation.plan.section import Section
from federation.selection import decide as deciding
from federation.selection.policies import Choice, Counted, SelectionPolicy
from secagg import suite
from server.conductor import queue
from server.conductor.bisection import request_bisection
from server.conductor.status import watch_response
from server.errors import BisectionError, WrongRoundError
from server.run import selection
from server.run.chain import Chain
from server.run.cohorts import Cohorts
from server.run.selection import Selection
from server.states import RunState
from server.store.tasks import Tasks
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw
from tests.kit.server.run_checks import require_chain
from tests.kit.server.server_runs import details, settled, until

NAMES = silo_names(5)
RANDOM = 'policy = "random"\ncount = 3'
RANGE = f"{RANDOM}\n[selection.ranges]\nready_deadline_s = [30, 90]"
NOISE = {"mode": "silo", "noise": 0.05}


@pytest.fixture(autouse=True)
def _the_same_draw_in_every_run(monkeypatch):
    """A run's id is random, and these tests are about what a draw leads to."""
    real = deciding.public_draw
    monkeypatch.setattr(
        deciding, "public_draw", lambda _run, number, _plan: real("run-1", number, bytes(32))
    )


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=5) as made:
        yield made


def plan(rounds=6, **settings):
    return sw.plan_toml(**{"rounds": rounds, "selection": RANDOM, **NOISE, **settings})


def choices(world, run_id):
    return {row.round: row for row in world.store.choices.newest(run_id, 100)}


def tasks_of(silo, round_number=None):
    tasks = [message for message in silo.told if isinstance(message, RoundTask)]
    return [task for task in tasks if round_number in {None, task.round}]


def rounds_of(silo):
    """The rounds in whose sums a silo put something."""
    return sorted({identity.round for identity in silo.encoded})


def test_rounds_ask_whom_they_choose_and_nobody_else_works_or_pays(world):
    run_id = asyncio.run(world.run(plan()))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    made = choices(world, run_id)
    assert sorted(made) == [1, 2, 3, 4, 5, 6]
    assert len({row.silos for row in made.values()}) > 1
    records = require_chain(world, run_id)
    for record in records[1:]:
        assert (record.kind, record.survivors) == ("aggregated", made[record.round].silos)
    for name, silo in world.silos.items():
        mine = [number for number, row in made.items() if name in row.silos]
        assert 0 < len(mine) < 6, "this run shows nothing about this silo"
        assert rounds_of(silo) == mine
        assert silo.ledger.debits_of_run(run_id).releases == len(mine)
        # Who is not asked is told so, and verifies it.
        assert {task.round: name in task.invited for task in tasks_of(silo)} == {
            number: number in mine for number in made
        }
    assert details(world, "silos_chosen") == [
        {
            "run": run_id,
            "round": number,
            "policy": "random",
            "silos": list(row.silos),
            "why": "3 drawn of 5",
        }
        for number, row in made.items()
    ]


def test_a_run_that_is_watched_says_whom_each_round_asks(world):
    seen = {}

    def before_wait():
        driver = world.driver
        shown = watch_response(row=driver.row, driver=driver, finished=(), context=world.context)
        if shown.current.chosen:
            seen[shown.current.round] = (tuple(shown.current.chosen), shown.current.chosen_why)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=2)))
    made = {n: (row.silos, row.why) for n, row in choices(world, run_id).items()}
    assert seen == made
    over = watch_response(
        row=world.store.runs.get(run_id),
        driver=world.driver,
        finished=world.driver.finished,
        context=world.context,
    ).finished
    assert {one.round: (tuple(one.chosen), one.chosen_why) for one in over} == made


def test_a_ledger_does_not_move_in_a_round_that_does_not_ask_its_silo(world):
    heads: dict[int, dict[str, object]] = {}

    def before_wait():
        heads.setdefault(
            world.driver.current.round, {n: s.ledger.head() for n, s in world.silos.items()}
        )

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=3)))
    made = choices(world, run_id)
    for number in (1, 2):
        for name in NAMES:
            moved = heads[number][name] != heads[number + 1][name]
            assert moved == (name in made[number].silos), (number, name)


def cut_after(monkeypatch, owner, name, when=1):
    """Lose power right after the call number ``when`` of a method; later calls go through."""
    real, calls = getattr(owner, name), []

    def called(self, *arguments, **named):
        result = real(self, *arguments, **named)
        calls.append(name)
        if len(calls) == when:
            raise sw.PowerCut
        return result

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Selection, "_note"), (Chain, "sign_task"), (Tasks, "put"), (Cohorts, "_new_task")],
)
@pytest.mark.parametrize("when", [1, 3])
def test_a_coordinator_killed_after_a_choice_asks_the_same_silos(
    world, monkeypatch, owner, name, when
):
    cut_after(monkeypatch, owner, name, when)
    drawn, real = [], deciding.public_draw

    def otherwise(run_id, round_number, plan_sha256):
        # What is chosen anew comes out otherwise: only what is read back is the same.
        drawn.append(round_number)
        return real(run_id, 100 * len(drawn) + round_number, plan_sha256)

    monkeypatch.setattr(deciding, "public_draw", otherwise)
    run_id = asyncio.run(world.run_over_power_cuts(plan(rounds=4), down_s=1))
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    made = choices(world, run_id)
    assert drawn == [1, 2, 3, 4]
    assert [one["silos"] for one in details(world, "silos_chosen")] == [
        list(made[number].silos) for number in drawn
    ]
    for record in world.store.records.list(run_id)[1:]:
        assert record.survivors == made[record.round].silos


def test_a_coordinator_killed_before_the_choice_is_durable_chooses_alike(world, monkeypatch):
    """Nothing was stored, and the draw is the same by itself."""
    before, real = [], Selection._note

    def note(self, round_number, choice):
        before.append(choice)
        if len(before) == 2:
            raise sw.PowerCut
        real(self, round_number, choice)

    monkeypatch.setattr(Selection, "_note", note)
    run_id = asyncio.run(world.run_over_power_cuts(plan(rounds=2), down_s=1))
    assert len(before) == 3
    assert before[1] == before[2]
    assert choices(world, run_id)[2].silos == before[2].silos


def test_a_retry_stays_with_those_who_were_chosen(world):
    """Two of four are lost before survivors are declared; the attempt is made anew with them."""
    lost = []

    def before_wait():
        training = world.driver.training
        if training is not None and not lost:
            lost.extend(training.task.invited[:2])
            for name in lost:
                world.silos[name].die_at = ("upload", 1)
        if "attempt_aborted" in world.events():
            for name in lost:
                if world.silos[name].dead:
                    world.silos[name].come_back()

    world.before_wait = before_wait
    four = RANDOM.replace("3", "4")
    run_id = asyncio.run(world.run(plan(rounds=1, selection=four)))
    (row,) = choices(world, run_id).values()
    (out,) = set(NAMES) - set(row.silos)
    sent = {task.sha256: task for task in tasks_of(world.silos[out])}
    assert len(sent) == 2
    assert {task.invited for task in sent.values()} == {row.silos}
    assert world.driver.head.survivors == row.silos
    assert rounds_of(world.silos[out]) == []
    assert len(details(world, "silos_chosen")) == 1


def test_who_is_not_invited_has_no_say_and_is_not_waited_for(world):
    seen = []

    def before_wait():
        training = world.driver.training
        if training is None or seen:
            return
        invited = training.task.invited
        assert set(world.driver.waiting_for) <= set(invited)
        out = min(set(NAMES) - set(invited))
        with pytest.raises(WrongRoundError, match="is not invited"):
            world.driver.cohorts.report_ready(
                out,
                place=world.driver.next_place,
                adapter_sha256=training.task.adapter_sha256,
                families=(),
            )
        with pytest.raises(WrongRoundError, match="is not invited"):
            world.driver.cohorts.refuse(out, place=world.driver.next_place, reason="no")
        seen.append(out)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=2)))
    assert seen
    assert world.store.dropouts.list(run_id) == ()


@pytest.mark.parametrize("gone", [2, 3])
def test_with_fewer_than_a_round_needs_everybody_is_asked(world, gone):
    """Of five, two may be away: three are a quorum. With three away the round waits for all."""
    names = NAMES[:gone]
    for name in names:
        world.silos[name].dead = True
    # Whoever is away is not heard of since long before the run.
    world.clock.now += 3600
    for name in NAMES[gone:]:
        world.context.liveness.touch(name)

    def before_wait():
        if "round_stalled" in world.events():
            for name in names:
                if world.silos[name].dead:
                    world.silos[name].come_back()

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=1)))
    (row,) = choices(world, run_id).values()
    if gone == 2:
        assert (row.silos, row.why) == (NAMES[2:], "3 drawn of 3")
    else:
        assert row.silos == NAMES
        assert row.why == "everybody: 2 are there, and a round needs 3"
        assert details(world, "silos_chosen")[0]["why"] == row.why
    assert world.store.runs.get(run_id).state is RunState.FINISHED


class Broken(SelectionPolicy):
    """Chooses what it is told to."""

    name = "random"
    options = Counted
    answer: object = None

    async def choose(self, live, past, *, at_least, rng):
        assert (at_least, past.rounds) == (3, ())
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "slow":
            await asyncio.sleep(60)
        return self.answer


WHY = "because"
WRONG = [
    (ValueError("secret"), "'random' failed: see the coordinator's log"),
    ("slow", "'random' did not answer within 0.05 s"),
    (None, "'random' answered with no choice"),
    (Choice(silos=(*NAMES[:3], "silo-x"), why=WHY), "'random' chose somebody who is not there"),
    (Choice(silos=[*NAMES[:3]], why=WHY), "'random' chose somebody who is not there"),
    (
        Choice(silos=(NAMES[1], NAMES[0], NAMES[2]), why=WHY),
        "'random' did not name silos once, in ascending order",
    ),
    (
        Choice(silos=(NAMES[0], NAMES[0], NAMES[1]), why=WHY),
        "'random' did not name silos once, in ascending order",
    ),
    (Choice(silos=NAMES[:2], why=WHY), "'random' chose 2, and a round needs 3"),
    *(
        (
            Choice(silos=NAMES[:3], why=why),
            "'random' gave no reason of one line and at most 600 characters",
        )
        for why in ("", "two\nlines", "x" * 601, None)
    ),
    *(
        (
            Choice(silos=NAMES[:3], why=WHY, ready_deadline_s=moved),
            "'random' moved ready_deadline_s out of the plan's range",
        )
        for moved in (29, 91, True, 45.0)
    ),
]


def broken(monkeypatch, answer):
    monkeypatch.setattr(Broken, "answer", answer)
    monkeypatch.setattr(selection, "CHOOSE_S", 0.05)
    monkeypatch.setattr(deciding, "POLICIES", {"random": Broken})


@pytest.mark.parametrize(("answer", "why"), WRONG)
def test_a_policy_that_fails_or_is_late_asks_everybody_and_the_audit_log_says_so(
    world, monkeypatch, answer, why
):
    broken(monkeypatch, answer)
    run_id = asyncio.run(world.run(plan(rounds=1, selection=RANGE)))
    (row,) = choices(world, run_id).values()
    assert (row.silos, row.why, row.ready_deadline_s) == (NAMES, f"everybody: {why}", None)
    assert [one["why"] for one in details(world, "silos_chosen")] == [row.why]
    assert world.driver.head.survivors == NAMES


@pytest.mark.parametrize("moved", [None, 30, 90])
def test_a_choice_moves_the_deadline_of_its_round_within_the_range(world, monkeypatch, moved):
    broken(monkeypatch, Choice(silos=NAMES[:3], why=WHY, ready_deadline_s=moved))
    began = world.clock.now
    asyncio.run(world.run(plan(rounds=1, selection=RANGE)))
    task = tasks_of(world.silos[NAMES[0]])[0]
    assert task.ready_deadline_unix_s - int(began) == (60 if moved is None else moved)
    said = details(world, "silos_chosen")[0]
    assert said.get("ready_deadline_s") == moved


def test_a_plan_without_a_count_never_asks_fewer(world, monkeypatch):
    """Whatever a policy answers: sums without noise are of everybody who is there."""
    broken(monkeypatch, Choice(silos=NAMES[:3], why=WHY))
    monkeypatch.setattr(deciding, "POLICIES", {"all": Broken})
    monkeypatch.setattr(Broken, "options", Section)
    advised = 'policy = "advised"'
    monkeypatch.setattr(queue, "_require_advisor", lambda plan, context: None)
    run_id = asyncio.run(world.run(plan(rounds=1, selection=advised)))
    (row,) = choices(world, run_id).values()
    why = "'advised' chose 3 of 5, and rounds of this plan ask everybody"
    assert (row.silos, row.why) == (NAMES, f"everybody: {why}")


def test_without_a_range_a_choice_may_not_move_the_deadline(world, monkeypatch):
    broken(monkeypatch, Choice(silos=NAMES[:3], why=WHY, ready_deadline_s=61))
    run_id = asyncio.run(world.run(plan(rounds=1)))
    (row,) = choices(world, run_id).values()
    assert row.why == "everybody: 'random' moved ready_deadline_s out of the plan's range"


def test_who_refuses_for_good_costs_one_round_and_is_chosen_no_more(world):
    no = NAMES[0]
    world.silos[no].refuses = "the site's policy does not allow this base model"
    run_id = asyncio.run(world.run(plan(rounds=6)))
    made = choices(world, run_id)
    asked = [number for number, row in made.items() if no in row.silos]
    assert len(asked) == 1
    kinds = {record.round: record.kind for record in require_chain(world, run_id)[1:]}
    assert kinds == {n: "skipped" if n in asked else "aggregated" for n in range(1, 7)}
    (stalled,) = details(world, "round_stalled")
    assert (stalled["round"], "others would do" in stalled["reason"]) == (asked[0], True)
    assert world.store.runs.get(run_id).state is RunState.FINISHED


def test_a_chosen_silo_that_dies_costs_a_round_and_not_the_run(world):
    killed = []

    def before_wait():
        training = world.driver.training
        if training is not None and not killed:
            killed.append(training.task.invited[0])
            world.silos[killed[0]].dead = True

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=3)))
    made = choices(world, run_id)
    assert killed[0] in made[1].silos
    assert killed[0] not in {*made[2].silos, *made[3].silos}
    kinds = [record.kind for record in require_chain(world, run_id)]
    assert kinds == ["initial", "skipped", "aggregated", "aggregated"]
    assert [world.silos[name].encoded for name in made[1].silos[:1]] == [{}]


def test_a_run_that_too_many_refuse_ends_and_says_why(world):
    for name in NAMES[:3]:
        world.silos[name].refuses = "the site's policy does not allow this base model"
    run_id = asyncio.run(world.run(plan(rounds=6)))
    row = world.store.runs.get(run_id)
    assert row.state is RunState.FAILED
    assert "cannot reach its quorum of 3" in row.error


def test_who_says_later_is_waited_for(world):
    """A passing reason is no reason to lose the round: its task goes out again."""
    later = []

    def before_wait():
        training = world.driver.training
        if training is not None and not later:
            later.append(training.task.invited[0])
            world.silos[later[0]].refuses = "the site's policy does not allow a round at this time"
        if "round_stalled" in world.events():
            world.silos[later[0]].refuses = ""

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=1)))
    assert world.driver.head.kind == "aggregated"
    assert later[0] in world.driver.head.survivors
    assert len(choices(world, run_id)) == 1


def test_who_sits_out_or_is_suspended_is_not_chosen(world):
    world.context.liveness.bar(NAMES[0], barred=True)

    def before_wait():
        # As the end of an attempt would note it.
        run_id = world.driver.row.run_id
        if not world.store.dropouts.list(run_id):
            world.store.dropouts.add(run_id, NAMES[1], 1)
            world.store.dropouts.sit_out(run_id, NAMES[1], until_round=6)

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(plan(rounds=4)))
    made = choices(world, run_id)
    for number in (2, 3, 4):
        assert (made[number].silos, made[number].why) == (NAMES[2:], "3 drawn of 3")
    assert NAMES[0] not in made[1].silos


def test_without_noise_it_takes_the_plans_word_and_every_silos(world):
    quiet = {"mode": "none", "noise": 0.0}
    with pytest.raises(PlanError, match=r"selection\.policy: .* can be subtracted"):
        asyncio.run(world.run(plan(**quiet)))
    assert world.store.runs.list() == ()
    word = f"{RANDOM}\ncohort_may_vary = true"
    for silo in world.silos.values():
        silo.cohort_may_vary = True
    run_id = asyncio.run(world.run(plan(**quiet, selection=word)))
    made = choices(world, run_id)
    assert len({row.silos for row in made.values()}) > 1
    for record in world.store.records.list(run_id)[1:]:
        assert (record.kind, record.survivors) == ("aggregated", made[record.round].silos)


def test_without_noise_one_silo_that_does_not_say_so_keeps_the_cohort(world):
    """Its guardian would refuse such a plan; a coordinator must not count on that."""
    reluctant = []

    def before_wait():
        training = world.driver.training
        if training is not None and not reluctant:
            reluctant.append(training.task.invited[0])
            for name, silo in world.silos.items():
                silo.cohort_may_vary = name != reluctant[0]

    world.before_wait = before_wait
    word = f"{RANDOM}\ncohort_may_vary = true"
    run_id = asyncio.run(world.run(plan(mode="none", noise=0.0, selection=word)))
    records = world.store.records.list(run_id)[1:]
    sums = {record.survivors for record in records if record.kind == "aggregated"}
    assert sums == {choices(world, run_id)[1].silos}


def test_suite_v1_cannot_say_whom_it_invites(tmp_path):
    with sw.World(tmp_path, silos=5, suite=suite.SUITE) as world:
        with pytest.raises(PlanError, match=r"selection\.policy: .* start it with suite v2"):
            asyncio.run(world.run(plan()))
        assert world.store.runs.list() == ()


def test_groups_are_drawn_of_the_chosen(tmp_path):
    names = silo_names(11)
    with sw.World(tmp_path, silos=11) as world:
        groups = plan(rounds=2, selection='policy = "round-robin"\ncount = 9').replace(
            b"[privacy]", b"[aggregation.groups]\ncount = 3\n[privacy]", 1
        )
        run_id = asyncio.run(world.run(groups))
        made = choices(world, run_id)
        for record in require_chain(world, run_id)[1:]:
            assert [len(part.survivors) for part in record.parts] == [3, 3, 3]
            silos = sorted(silo for part in record.parts for silo in part.survivors)
            assert tuple(silos) == made[record.round].silos
        assert set(names) - set(made[1].silos) <= set(made[2].silos)


def test_steps_of_a_round_stay_within_its_choice(world):
    run_id = asyncio.run(world.run(sw.stepped_toml(rounds=2, selection=RANDOM)))
    made = choices(world, run_id)
    assert sorted(made) == [1, 2]
    for record in world.store.records.list(run_id)[1:]:
        assert (record.kind, record.survivors) == ("aggregated", made[record.round].silos)


def bisect(world, run_id):
    return request_bisection(
        world.store,
        world.audit,
        run_id=run_id,
        named=(),
        submit_token="token",
        admin="ada",
        clock=world.clock,
    )


@pytest.mark.parametrize("begun", [False, True])
def test_a_bisected_round_asks_everybody_and_none_that_is_chosen_for_is_bisected(
    tmp_path, monkeypatch, begun
):
    async def at_once(work, *arguments, **named):
        return work(*arguments, **named)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    names = silo_names(7)
    with sw.World(tmp_path, silos=7) as world:

        async def main():
            run_id = await world.conductor.start_run(plan(rounds=4), sw.INITIAL, "t")
            await until(lambda: not begun or world.driver.training is not None)
            await world.conductor.pause_run(run_id)
            assert (world.store.choices.of_round(run_id, 1) is not None) == begun
            bisect(world, run_id)
            await world.conductor.resume_run(run_id)
            await settled(world)
            return run_id

        run_id = asyncio.run(main())
        bisected = 2 if begun else 1
        assert world.store.bisections.newest(run_id).round == bisected
        assert bisected not in choices(world, run_id)
        told = tasks_of(world.silos[names[0]], bisected)
        assert {task.invited for task in told} == {names}
        assert world.store.runs.get(run_id).state is RunState.PAUSED


def test_a_bisection_has_no_place_after_the_choice_for_the_last_round(tmp_path):
    with sw.World(tmp_path, silos=7) as world:

        async def main():
            run_id = await world.conductor.start_run(plan(rounds=1), sw.INITIAL, "t")
            await until(lambda: world.driver.training is not None)
            await world.conductor.pause_run(run_id)
            with pytest.raises(BisectionError, match="has begun, so a bisection has no round"):
                bisect(world, run_id)

        asyncio.run(main())


def test_a_stored_choice_outlives_another_policy_object(world):
    """The store decides, whatever the process has in memory."""
    asyncio.run(world.run(plan(rounds=1)))
    driver = world.driver
    made = Selection(row=driver.row, plan=driver.plan, roster=driver.roster, context=world.context)
    again = asyncio.run(made.make(1, NAMES[:3], NAMES))
    assert again.silos == world.store.choices.of_round(driver.row.run_id, 1).silos
    assert len(details(world, "silos_chosen")) == 1

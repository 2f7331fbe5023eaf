"""``[selection]``: which tables can be honoured, and what the others are told to do."""

import pytest

from federation.errors import PlanError
from federation.forecast.alternatives import alternatives
from federation.forecast.forecast import forecast_plan
from federation.plan.read import read_plan
from tests.kit.server.world_plan import plan_toml

NOISE = {"mode": "silo", "noise": 0.05}
RANDOM = 'policy = "random"\ncount = 3'
GROUPS = (b"[privacy]", b"[aggregation.groups]\ncount = 3\n[privacy]")


def plan(selection=RANDOM, *edits, **settings):
    document = plan_toml(**{"selection": selection, **NOISE, **settings})
    for old, new in edits:
        assert document.count(old) == 1, old
        document = document.replace(old, new)
    return read_plan(document)


def problems(*arguments, **settings):
    with pytest.raises(PlanError) as caught:
        plan(*arguments, **settings)
    return caught.value.problems


@pytest.mark.parametrize("policy", ["random", "round-robin"])
def test_a_policy_with_k_silos_is_read(policy):
    read = plan(f'policy = "{policy}"\ncount = 4')
    assert (read.selection.policy, read.selection.count) == (policy, 4)
    assert [read.asked_of(silos) for silos in (3, 4, 9)] == [3, 4, 4]
    assert plan('policy = "all"').asked_of(9) == 9


@pytest.mark.parametrize(
    ("selection", "told"),
    [
        ('policy = "random"', "selection: policy 'random' asks so many silos a round: set count"),
        ('policy = "all"\ncount = 3', "selection: policy 'all' chooses nothing: remove the other"),
        ("cohort_may_vary = true", "selection: policy 'all' chooses nothing"),
        ("[selection.ranges]\nready_deadline_s = [1, 60]", "selection: policy 'all' chooses"),
        (f"{RANDOM}\ncohort_may_vary = true", "selection.cohort_may_vary: in mode 'silo'"),
        ('policy = "random"\ncount = 2', "selection.count: "),
        ('policy = "random"\ncount = 201', "selection.count: "),
        (f"{RANDOM}\n[selection.ranges]\nready_deadline_s = [90, 60]", "selection.ranges: ready_"),
        (f"{RANDOM}\n[selection.ranges]\nready_deadline_s = [61, 90]", "leaves out rounds.ready_"),
        (f"{RANDOM}\n[selection.ranges]\nready_deadline_s = [30, 59]", "leaves out rounds.ready_"),
        (f"{RANDOM}\n[selection.ranges]\nepochs = [1, 3]", "selection.ranges."),
    ],
)
def test_a_table_that_cannot_be_honoured_says_what_to_do(selection, told):
    assert any(told in problem for problem in problems(selection))


def test_k_silos_must_be_able_to_open_a_round():
    (problem,) = problems(RANDOM, quorum=4)
    assert problem.startswith("selection.count: 3 silos are asked, and a round opens with 4 ready")
    assert "raise it to 4 or more, or lower rounds.quorum" in problem
    # n_min + 1 where the plan has no quorum.
    (problem,) = problems(RANDOM, (b"quorum = 3\n", b""))
    assert "raise it to 4 or more" in problem
    # Survivors are asked for whatever the quorum is.
    (problem,) = problems(RANDOM, n_min=4)
    assert "raise it to 4 or more" in problem


def test_each_group_of_the_chosen_must_be_able_to_open():
    eight = 'policy = "random"\ncount = 8'
    (problem,) = problems(eight, GROUPS)
    assert "in each of 3 groups" in problem
    assert "raise it to 9 or more" in problem
    read = plan(eight.replace("8", "9"), GROUPS)
    read.require_cohort(20, 1)
    with pytest.raises(PlanError, match=r"aggregation\.groups\.count"):
        read.require_cohort(8, 1)


def test_those_who_are_asked_must_stand_the_rosters_colluders():
    read = plan()
    read.require_cohort(9, 1)
    with pytest.raises(PlanError) as caught:
        read.require_cohort(9, 2)
    assert caught.value.problems[0].startswith("selection.count: a round asks 3 of 9 silos")
    plan('policy = "random"\ncount = 4', quorum=4).require_cohort(9, 2)


@pytest.mark.parametrize("policy", ["random", "round-robin"])
def test_without_noise_a_plan_needs_its_own_word(policy):
    table = f'policy = "{policy}"\ncount = 3'
    (problem,) = problems(table, mode="none", noise=0.0)
    for said in ("can be subtracted", "a mode with noise", "cohort_may_vary = true"):
        assert said in problem
    read = plan(f"{table}\ncohort_may_vary = true", mode="none", noise=0.0)
    assert read.selection.cohort_may_vary


@pytest.mark.parametrize("mode", ["record_local", "record_distributed"])
def test_the_record_modes_have_noise(mode):
    more = {"steps": 3, "noise": 1.0}
    more |= {"delta_clip": 4.0} if mode == "record_local" else {"optimiser": "adam"}
    assert plan(mode=mode, **more).asked_of(9) == 3


def test_the_longest_deadline_is_that_of_the_range():
    assert plan().longest_ready_s == 60
    ranged = plan(f"{RANDOM}\n[selection.ranges]\nready_deadline_s = [30, 90]")
    assert ranged.longest_ready_s == 90


def test_no_deadline_of_the_range_is_before_the_ready_reports():
    record = {"mode": "record_local", "steps": 3, "noise": 1.0, "delta_clip": 4.0}
    ranged = RANDOM + "\n[selection.ranges]\nready_deadline_s = [{}, 90]"
    assert plan(ranged.format(2), **record).rounds.ready_after_s == 1
    (problem,) = problems(ranged.format(1), **record)
    assert problem.startswith("selection.ranges.ready_deadline_s: rounds.ready_after_s = 1 leaves")


def test_a_forecast_is_about_those_who_are_asked():
    """Noise, drops and cosine are those of K silos; what is charged is charged in full."""
    chosen, few, many = (
        forecast_plan(read, silos=silos, colluding=1, dimension=100)
        for read, silos in ((plan(), 9), (plan(""), 3), (plan(""), 9))
    )
    assert (chosen.silos, chosen.asked, many.asked) == (9, 3, 9)
    for name in ("threshold", "drops", "silo_sigma", "predicted_cosine", "bytes_up", "bytes_down"):
        assert getattr(chosen, name) == getattr(few, name) != getattr(many, name), name
    # No amplification: a silo that is asked in a third of the rounds is told what all of them cost.
    assert chosen.epsilon_total == many.epsilon_total
    other = {row.mode: row.predicted_cosine for row in alternatives(
        plan(), silos=9, colluding=1, dimension=100
    )}  # fmt: skip
    assert other == {
        row.mode: row.predicted_cosine
        for row in alternatives(plan(""), silos=3, colluding=1, dimension=100)
    }


def test_an_advised_plan_without_a_count_needs_no_word_and_no_noise():
    read = plan('policy = "advised"', mode="none", noise=0.0)
    assert (read.selection.varies, read.asked_of(9)) == (False, 9)
    (problem,) = problems('policy = "advised"\ncount = 4', mode="none", noise=0.0)
    assert "can be subtracted" in problem


def test_the_least_of_a_schedule_has_to_make_the_sums_of_a_round():
    decay = (
        'policy = "random"\ncount = 9\n[selection.schedule]\nkind = "decay"\nrate = 0.1\nto = {}'
    )
    assert plan(decay.format(4), quorum=4).asked_of(20) == 4
    (problem,) = problems(decay.format(3), quorum=4)
    assert problem.startswith("selection.schedule.to: 3 silos are asked")


def test_local_epochs_move_around_the_plans_own_and_in_no_record_mode():
    ranged = RANDOM + "\n[selection.ranges]\nlocal_epochs = [{}, 4]"
    read = plan(ranged.format(1))
    assert (read.most_local_epochs, read.longest_ready_s) == (4, 60)
    (problem,) = problems(ranged.format(2))
    assert "leaves out evolve.local_epochs = 1" in problem
    record = {"mode": "record_local", "steps": 3, "noise": 1.0, "delta_clip": 4.0}
    (problem,) = problems(ranged.format(1), **record)
    assert "the released adapter alone may play" in problem

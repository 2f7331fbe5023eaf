"""What samplers that read the memory have in common, and where they run."""

import dataclasses
from collections import Counter

import pytest

from dp.config import RECORD_MODES, Mode
from federation.plan.methods import PARTS, Couples
from federation.plan.recipe import refusal
from tests.kit.evolution.pools import draw, part_of, pool_of, tried

# In each of them something is to be learned about the tasks 2 and 3, and options leave no place to
# fresh tasks.
PAST = [tried(2, (1, 0, 0, 0), actions="abc"), tried(3, (0, 1, 0, 0), actions="abd")]
READERS = ("bandit", "failures", "prefixes", "regret", "rerun")
SAMPLERS = ("uniform", *READERS)


def ids(tasks):
    return [task.task_id for task in tasks]


@pytest.mark.parametrize("name", READERS)
def test_they_run_where_no_unit_is_protected_and_nowhere_else(name):
    card = PARTS[name]
    for mode in Mode:
        for unit in ("task", "user"):
            said = refusal(card, mode, unit)
            assert (said is None) is (mode not in RECORD_MODES)
            if said:
                assert f"sampler {name!r} couples 'all'" in said
                # One that coupled nothing would tell results all the same.
                alone = refusal(dataclasses.replace(card, couples=Couples.TRY), mode, unit)
                assert f"sampler {name!r} reads the silo's results" in alone


@pytest.mark.parametrize("name", READERS)
def test_without_a_memory_every_task_is_as_likely(name):
    counts = Counter(
        task_id
        for seed in range(200)
        for task_id in ids(draw(name, pool=pool_of(part_of(range(10))), count=2, seed=seed))
    )
    # Binomial(400, 1/10): 40, with a standard deviation of 6.
    assert len(counts) == 10
    assert all(abs(count - 40) < 24 for count in counts.values())


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_stream_draws_the_same_and_another_one_does_not(name):
    assert draw(name, PAST) == draw(name, PAST)
    assert draw(name, PAST) != draw(name, PAST, seed=1)


@pytest.mark.parametrize("name", READERS)
def test_a_round_that_is_begun_again_draws_what_it_drew(name):
    """After a crash the memory holds what the round had tried."""
    own = [tried(4, (1, 0, 0, 0), round_index=9, actions="abc")]
    assert draw(name, [*PAST, *own], fresh=0.0) == draw(name, PAST, fresh=0.0)
    assert draw(name, [*PAST, *own], fresh=0.0, round_index=10) != draw(
        name, PAST, fresh=0.0, round_index=10
    )


@pytest.mark.parametrize("name", READERS)
def test_what_is_remembered_and_not_in_the_pool_is_not_drawn(name):
    """Another shard's task, one of another environment, and one that is gone."""
    elsewhere = [tried(2, (1, 0, 0, 0), environment="maze", actions="abc"), *PAST]
    drawn = draw(name, elsewhere, pool_of(part_of(range(10, 40))), fresh=0.0, count=30)
    assert sorted(ids(drawn)) == [*range(10, 40)]
    assert drawn == draw(name, pool=pool_of(part_of(range(10, 40))), fresh=0.0, count=30)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("distinct", [False, True])
def test_environments_get_equal_parts_and_no_task_twice_while_there_are_others(name, distinct):
    mazes = [tried(5, (1, 0, 0, 0), environment="maze", actions="ab")]
    pool = pool_of(part_of(range(20)), part_of(range(20), environment="maze"), distinct=distinct)
    for fresh in (0.0, 0.5, 1.0):
        drawn = draw(name, [*PAST, *mazes], pool, count=17, fresh=fresh)
        assert Counter(task.environment for task in drawn) == {"craft": 8, "maze": 8}
        assert len({(t.environment, t.task_id, t.prefix, t.variant) for t in drawn}) == 16
        assert all(task.subject == f"user {task.task_id}" for task in drawn)
    # Fewer tasks than environments: one of each all the same.
    assert len(draw(name, PAST, pool, count=1)) == 2


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_part_with_fewer_tasks_than_places_repeats_them_unless_none_may_come_twice(name):
    few = part_of(range(2, 5))
    assert len(draw(name, PAST, pool_of(few), count=8)) == 8
    once = draw(name, PAST, pool_of(few, distinct=True), count=8)
    assert len(once) == len(set(once)) >= 3
    assert draw(name, PAST, pool_of(part_of(()), few), count=2)[0].task_id in {2, 3, 4}


@pytest.mark.parametrize("name", ["failures", "prefixes", "regret", "rerun"])
def test_so_large_a_share_is_fresh(name):
    """Every place is fresh with the probability that the plan says."""
    past = [tried(n, (1, 0, 0, 0), actions="ab") for n in range(20)]
    pool = pool_of(part_of(range(1000)))
    seen = sum(
        task.task_id < 20
        for seed in range(100)
        for task in draw(name, past, pool, count=10, fresh=0.3, seed=seed)
    )
    # Binomial(1000, 0.7) of tasks that were seen, and some 6 that are fresh: ± 4 · 14.5.
    assert abs(seen - 706) < 58

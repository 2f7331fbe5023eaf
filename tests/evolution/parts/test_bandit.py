"""Labels whose tries disagree are tried more: Q and softmax against numbers worked out by hand."""

from collections import Counter

import pytest

from evolution.part import Part
from evolution.parts.samplers.bandit import contrast
from tests.kit.evolution.pools import draw, part_of, pool_of, tried

# Not in the order of rounds, as a memory has them: task by task.
PAST = [
    tried(2, (1, 1, 0, 0), round_index=1),  # ½
    tried(2, (1, 1, 1, 0), round_index=3),  # 3/8
    tried(3, (1, 0, 0, 0), round_index=1),  # 3/8
    tried(4, (1, 1, 1, 1), round_index=1),  # 0
    tried(5, (0, 0, 0, 0), round_index=3),  # 0
    tried(6, (1, 0), round_index=2),  # ½
]


def worth(groups, part=None, **options):
    return Part.own("bandit", **options).make().worth(part or part_of(), groups)


def test_contrast_is_the_mean_distance_from_the_mean_over_the_deviation_if_asked():
    one_of_four = tried(1, (1, 0, 0, 0))
    assert contrast(one_of_four, scaled=False) == pytest.approx((0.75 + 3 * 0.25) / 4)
    assert contrast(one_of_four, scaled=True) == pytest.approx(0.375 / 0.1875**0.5)
    assert contrast(tried(1, (1, 1)), scaled=True) == contrast(tried(1, (0,)), scaled=True) == 0


def test_worth_after_three_rounds():
    # even  (½ + 0)/2 = ¼, ½, 3/8:  0 → 1/8 → 5/16 → 11/32
    # odd   3/8, nothing, 0:        0 → 3/16 → 3/16 → 3/32
    assert worth(PAST) == pytest.approx({"even": 11 / 32, "odd": 3 / 32})
    # even  (1 + 0)/2, 1, 2√(3/16);  odd  2√(3/16), nothing, 0
    root = 2 * (3 / 16) ** 0.5
    expected = {"even": 0.3125 + root / 2, "odd": root / 4}
    assert worth(PAST, contrast="std") == pytest.approx(expected)
    assert worth(PAST, alpha=1.0) == pytest.approx({"even": 3 / 8, "odd": 0.0})


def test_groups_of_one_try_and_tries_from_elsewhere_are_no_word_on_a_label():
    lone = [tried(2, (1,)), tried(3, ())]
    assert worth(lone) == {}
    begun = [tried(3, (1, 0), prefix=("a",)), tried(3, (1, 0), variant="after 1")]
    assert draw("bandit", [*PAST, *begun]) == draw("bandit", PAST)


def share(label_of, **options):
    drawn = draw("bandit", PAST, pool_of(part_of(range(100_000))), count=2000, **options)
    assert len({task.task_id for task in drawn}) == 2000
    return Counter(label_of(task.task_id) for task in drawn)


def test_labels_are_drawn_by_softmax_of_their_worth():
    # exp(11/96/0.3) to exp(3/32/0.3): the difference is ¼, and 1/(1 + exp(−¼/0.3)) = 0.69706.
    found = share(lambda task_id: task_id % 2)
    assert abs(found[0] - 1394) < 83  # 4 · √(2000 · 0.697 · 0.303)
    # A colder one: 1/(1 + exp(−¼/0.1)) = 0.92414.
    assert abs(share(lambda task_id: task_id % 2, tau=0.1)[0] - 1848) < 48
    # Half of the places are fresh and take no notice.
    assert abs(share(lambda task_id: task_id % 2, tau=0.1, fresh=0.5)[0] - 1424) < 83


def test_a_label_that_nobody_tried_is_worth_nothing_and_is_tried():
    part = part_of(range(99_999), labels=("even", "odd", "new"))
    past = [tried(3, (1, 0)), tried(4, (1, 0))]
    assert worth(past, part) == {"even": 0.25, "odd": 0.25}
    drawn = draw("bandit", past, pool_of(part), count=2000)
    found = sum(task.task_id % 3 == 2 for task in drawn)
    # 1/(1 + 2·exp(0.25/0.3)) = 0.17850.
    assert abs(found - 357) < 69


def test_a_labels_tasks_are_as_likely_and_repeat_where_it_has_too_few():
    part = part_of(range(9), labels=("rare", *["plenty"] * 8))
    past = [tried(0, (1, 0))]
    drawn = Counter(
        task.task_id
        for seed in range(50)
        for task in draw("bandit", past, pool_of(part), count=8, tau=0.01, alpha=1.0, seed=seed)
    )
    assert drawn == {0: 400}
    distinct = draw("bandit", past, pool_of(part, distinct=True), count=8, tau=0.01, alpha=1.0)
    assert len({task.task_id for task in distinct}) == 8
    even = Counter(
        task.task_id
        for seed in range(100)
        for task in draw("bandit", PAST, pool_of(part_of(range(8))), count=4, tau=0.01, seed=seed)
    )
    # All places are the even label's, which has four tasks.
    assert even == {0: 100, 2: 100, 4: 100, 6: 100}

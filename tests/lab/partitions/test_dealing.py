"""Whatever the dials say: exact counts, within bounds, from the right tasks, by streams apart."""

import numpy as np
import pytest

from lab.partitions.dealing import coverage, hardness, joint, preference
from lab.partitions.errors import DialError, PoolError
from lab.partitions.quotas import Bounds, quotas, shares
from lab.partitions.streams import Streams
from tests.kit.lab.pools import P0, SIZE, SOLVED, TYPES

FEDAGENT = Bounds(100, 500, 1000)
HALF = Bounds(0, 50, 100)


def prefer(omega, seed=42, **changes):
    given = {"length": 100, "silos": 100, "rng": Streams(seed), **changes}
    return preference(TYPES, omega=omega, **given)


def cover(xi, seed=42, **changes):
    given = {"sizes": FEDAGENT, "silos": 100, "rng": Streams(seed), **changes}
    return coverage(SIZE, xi=xi, **given)


def harden(xi_hard, seed=42, **changes):
    given = {"length": 100, "solved_counts": HALF, "silos": 100, "rng": Streams(seed), **changes}
    return hardness(SOLVED, xi_hard=xi_hard, **given)


def join(seed=42, **changes):
    given = {"omega": 0.5, "xi": 4.0, "xi_hard": 4.0, "sizes": Bounds(20, 50, 80), "silos": 100}
    given |= {"solved_shares": Bounds(0.0, 0.5, 1.0), "rng": Streams(seed), **changes}
    return joint(TYPES, SOLVED, **given)


ALL = {
    "preference": lambda seed: prefer(0.5, seed),
    "coverage": lambda seed: cover(4.0, seed),
    "hardness": lambda seed: harden(4.0, seed),
    "joint": join,
}


def is_same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.silos, other.silos, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_a_silo_has_a_task_once_and_equal_seeds_deal_alike(name):
    dealt = ALL[name](42)
    for places in dealt.silos:
        assert np.array_equal(places, np.unique(places))
        assert 0 <= places[0] <= places[-1] < SIZE
    assert is_same(dealt, ALL[name](42))
    assert not is_same(dealt, ALL[name](43))


@pytest.mark.parametrize("name", ALL)
def test_no_two_silos_hold_the_same_tasks(name):
    assert len({places.tobytes() for places in ALL[name](42).silos}) == 100


@pytest.mark.parametrize(("xi_hard", "theirs"), [(1, 2629), (256, 986)])
def test_silos_with_equal_quotas_draw_other_tasks(xi_hard, theirs):
    """With one stream for all, 450 pairs were the same and the union was 986 of 6,410 tasks."""
    dealt = harden(xi_hard)
    assert len({places.tobytes() for places in dealt.silos}) == 100
    # 50 unsolved tasks a silo in the mean, of 4,487, leave few of them to nobody.
    assert dealt.union > 4500 > theirs


@pytest.mark.parametrize("omega", [0.01, 0.5, 0.99])
def test_preference_deals_its_length_and_what_a_silo_draws_does_not_depend_on_the_others(omega):
    dealt = prefer(omega)
    assert set(dealt.sizes) == {100}
    assert dealt.moved == 0
    few = prefer(omega, silos=3)
    assert is_same(few, type(few)(silos=dealt.silos[:3]))


@pytest.mark.parametrize("omega", [1e-6, 0.5, 0.99, 1 - 1e-6])
def test_a_type_that_runs_out_sends_the_rest_elsewhere(omega):
    types = np.array([0] * 3 + [1] * 5 + [2] * 12)
    dealt = preference(types, omega=omega, length=15, silos=40, rng=Streams(0))
    assert set(dealt.sizes) == {15}
    assert all(len(np.unique(places)) == 15 for places in dealt.silos)
    # Three types have 15 tasks together, no two of them have.
    assert all(set(types[places]) >= {2} for places in dealt.silos)
    assert dealt.moved > 0
    whole = preference(types, omega=omega, length=20, silos=2, rng=Streams(0))
    assert all(np.array_equal(places, np.arange(20)) for places in whole.silos)


@pytest.mark.parametrize("xi", [1, 256])
def test_coverage_keeps_bounds_and_sum_and_deals_every_task_about_equally_often(xi):
    dealt = cover(xi)
    assert dealt.sizes.min() >= 100
    assert dealt.sizes.max() <= 1000
    assert dealt.sizes.sum() == 50_000
    copies = np.bincount(np.concatenate(dealt.silos), minlength=SIZE)
    # 50,000 copies of 6,410 tasks: 7 or 8 of each.
    assert set(copies) == {7, 8}
    assert (copies == 8).sum() == 50_000 - 7 * SIZE


def test_coverage_deals_r_copies_of_the_pool():
    dealt = cover(4, r=7.5)
    assert dealt.sizes.sum() == 48_075
    few = coverage(1000, xi=1, sizes=Bounds(1, 5, 20), silos=30, rng=Streams(0))
    copies = np.bincount(np.concatenate(few.silos), minlength=1000)
    assert (few.sizes.sum(), copies.max(), few.union) == (150, 1, 150)


@pytest.mark.parametrize("average", [1, 2.5, 4, 6.75, 7])
@pytest.mark.parametrize("xi", [0.05, 1, 50])
def test_coverage_never_runs_into_a_dead_end(average, xi):
    """Silos that need every task that is left leave the last tasks no choice."""
    for seed in range(40):
        given = {"silos": 4, "rng": Streams(seed)}
        dealt = coverage(7, xi=xi, sizes=Bounds(1, average, 7), **given)
        quota = quotas(Bounds(1, average, 7), xi, total=round(4 * average), **given)
        assert list(dealt.sizes) == list(quota)
        assert all(len(np.unique(places)) == len(places) for places in dealt.silos)
        copies = np.bincount(np.concatenate(dealt.silos), minlength=7)
        assert copies.max() - copies.min() <= 1


@pytest.mark.parametrize("xi_hard", [1, 16])
def test_hardness_has_its_quota_of_solved_tasks_and_fills_with_unsolved_ones(xi_hard):
    dealt = harden(xi_hard)
    assert set(dealt.sizes) == {100}
    quota = quotas(HALF, xi_hard, silos=100, total=5000, rng=Streams(42).below("solved"))
    assert [SOLVED[places].sum() for places in dealt.silos] == list(quota)
    assert (quota.sum(), quota.min() >= 0, quota.max() <= 100) == (5000, True, True)


def test_joint_keeps_sizes_and_shares_of_solved_tasks():
    dealt = join()
    assert dealt.sizes.sum() == 5000
    assert dealt.sizes.min() >= 20
    assert dealt.sizes.max() <= 80
    easy = shares(Bounds(0, 0.5, 1), 4.0, silos=100, rng=Streams(42).below("solved"))
    assert easy.mean() == pytest.approx(0.5)
    found = np.array([SOLVED[places].mean() for places in dealt.silos])
    assert np.abs(found - easy).max() <= 0.5 / 20


def test_joint_counts_what_a_type_has_no_tasks_of_the_kind_for():
    """Of type 1 nothing is solved: who likes it gets solved tasks of type 0, and that is told."""
    types, solved = np.repeat([0, 1], 500), np.repeat([True, False], 500)
    given = {"omega": 0.999, "xi": 1e9, "xi_hard": 1e9, "sizes": Bounds(20, 20, 20), "silos": 60}
    given |= {"solved_shares": Bounds(0.5, 0.5, 0.5), "rng": Streams(1)}
    dealt = joint(types, solved, **given)
    assert set(dealt.sizes) == {20}
    assert all(solved[places].sum() == 10 for places in dealt.silos)
    # Half of each silo, whichever of the two types it likes.
    assert dealt.moved == pytest.approx(600, abs=20)


def test_means_are_kept():
    """(D3): a dial moves silos apart, and leaves what they are in the mean where it was."""
    for omega in (0.01, 0.5):
        mean = np.mean(
            [np.bincount(TYPES[p], minlength=6) / 100 for p in prefer(omega).silos], axis=0
        )
        # Four standard errors of the most variable share: sqrt(omega * p(1 - p) / 100).
        assert np.abs(mean - P0).max() < 4 * np.sqrt((omega + 0.01) * 0.1875 / 100)
    for dial in (1, 256):
        assert cover(dial).sizes.mean() == 500
        assert sum(SOLVED[places].sum() for places in harden(dial).silos) == 50 * 100


def test_streams_have_names_and_no_two_names_are_one_stream():
    names = [("a", "b"), ("ab",), ("a", "b", ""), (1,), ("1",), ("a",), ("a", 1), (11,), (1, 1)]
    first = [Streams(0).of(*name).random() for name in names]
    assert len(set(first)) == len(names)
    assert Streams(0).below("a").of("b").random() == first[0]
    assert Streams(1).of("a", "b").random() != first[0]


def test_quotas_that_no_draw_decides_are_the_average():
    same = quotas(Bounds(5, 5, 5), 1.0, silos=4, total=20, rng=Streams(0))
    assert list(same) == [5, 5, 5, 5]
    alike = quotas(Bounds(0, 5, 10), 1e9, silos=4, total=22, rng=Streams(0))
    assert sorted(alike) == [5, 5, 6, 6]
    # At the smallest xi every draw is a bound; those at 0 are lifted all the same.
    most = quotas(Bounds(0, 5, 10), 1e-6, silos=4, total=40, rng=Streams(0))
    assert list(most) == [10] * 4
    assert list(quotas(Bounds(0, 5, 10), 1e-6, silos=4, total=0, rng=Streams(0))) == [0] * 4
    tenth = shares(Bounds(0, 0.1, 0.1), 1.0, silos=10, rng=Streams(0))
    assert list(tenth) == pytest.approx([0.1] * 10)


@pytest.mark.parametrize(
    ("deal", "error", "says"),
    [
        (lambda: prefer(0.0), DialError, "omega: between 0 and 1"),
        (lambda: prefer(1.0), DialError, "omega: between 0 and 1"),
        (lambda: prefer(float("nan")), DialError, "omega: between 0 and 1"),
        (lambda: prefer(0.5, length=0), DialError, "length: at least one task"),
        (lambda: prefer(0.5, silos=0), DialError, "silos: at least 1"),
        (lambda: prefer(0.5, length=SIZE + 1), PoolError, "6411 tasks and the pool has 6410"),
        (lambda: cover(0.0), DialError, "from 1e-6 to 1e9"),
        (lambda: cover(float("nan")), DialError, "from 1e-6 to 1e9"),
        (lambda: cover(1, sizes=Bounds(1, 5, 7000)), PoolError, "the pool has 6410"),
        (lambda: cover(1, sizes=Bounds(1.5, 5, 7)), DialError, "whole numbers of tasks"),
        (lambda: cover(1, r=20.0), DialError, "10000 to 100000 in all, and 128200 are to be dealt"),
        (lambda: Bounds(5, 4, 7), DialError, "in this order"),
        (lambda: Bounds(-1, 4, 7), DialError, "from 0 on"),
        (lambda: harden(1, length=80), DialError, "of 80 tasks of a silo no more can be solved"),
        (
            lambda: harden(1, length=3000, solved_counts=Bounds(0, 900, 2000)),
            PoolError,
            "2000 solved tasks and the pool has 1923",
        ),
        (
            lambda: harden(1, length=5000, solved_counts=Bounds(0, 900, 1900)),
            PoolError,
            "5000 unsolved tasks and the pool has 4487",
        ),
        (
            lambda: hardness([1, 0], xi_hard=1, length=1, solved_counts=HALF, silos=2, rng=None),
            DialError,
            "no more can be solved",
        ),
        (lambda: join(solved_shares=Bounds(0, 0.5, 1.5)), DialError, "at most 1, got 1.5"),
        (
            lambda: join(sizes=Bounds(20, 3000, 6000), solved_shares=Bounds(0.9, 0.9, 0.9)),
            PoolError,
            "solved tasks and the pool has 1923",
        ),
        (
            lambda: preference([0.5], omega=0.5, length=1, silos=1, rng=Streams(0)),
            DialError,
            "types: a row of whole numbers",
        ),
        (
            lambda: preference([], omega=0.5, length=1, silos=1, rng=Streams(0)),
            DialError,
            "types: a row of whole numbers",
        ),
        (lambda: Streams(-1), DialError, "seed: a whole number from 0 on"),
    ],
)
def test_what_cannot_be_dealt_is_refused_with_what_to_do(deal, error, says):
    with pytest.raises(error) as caught:
        deal()
    assert says in str(caught.value)

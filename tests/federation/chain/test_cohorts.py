"""The rank of the cohorts that occurred: exact, and whom the combinations show alone."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from federation.chain.cohorts import PRIME, cohorts_of_sums
from federation.errors import ChainError
from secagg.bounds import MAX_COHORT

FIVE = ("ant", "bee", "cat", "dog", "eel")


def without(*lost):
    return tuple(silo for silo in FIVE if silo not in lost)


def rational_form(rows):
    """The reduced row echelon form in fractions, column by column."""
    rows = [[Fraction(value) for value in row] for row in rows]
    done = 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(done, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        rows[done] = [value / rows[done][column] for value in rows[done]]
        for i in range(len(rows)):
            if i != done:
                factor = rows[i][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[done], strict=True)]
        done += 1
    return rows[:done]


def test_no_minor_of_the_largest_matrix_reaches_the_prime():
    k = MAX_COHORT
    # Squared, so that the bound is an integer.
    assert (k + 1) ** (k + 1) < PRIME**2 * 4**k


def test_one_cohort_throughout_has_rank_one():
    found = cohorts_of_sums([FIVE] * 7)
    assert (found.sums, found.distinct, found.rank, found.alone) == (7, 1, 1, ())
    assert "7 sums, all of one cohort of 5 silos: rank 1" in found.sentence()


def test_another_silo_lost_each_round_opens_every_one():
    found = cohorts_of_sums(without(silo) for silo in FIVE)
    assert (found.rank, found.alone) == (5, FIVE)
    assert "rank 5" in found.sentence()
    assert "show ant, bee, cat, dog, eel alone" in found.sentence()


def test_one_silo_lost_once_is_shown_alone():
    found = cohorts_of_sums([FIVE, without("cat"), FIVE])
    assert (found.sums, found.distinct, found.rank, found.alone) == (3, 2, 2, ("cat",))
    assert "only noise hides a difference" in found.sentence()


def test_two_silos_lost_together_are_shown_together():
    found = cohorts_of_sums([FIVE, without("cat", "dog")])
    assert (found.rank, found.alone) == (2, ())
    assert "no combination shows one silo alone" in found.sentence()


def test_without_a_sum_there_is_nothing_to_show():
    found = cohorts_of_sums([])
    assert (found.sums, found.rank, found.sentence()) == (0, 0, "no sum yet")


def test_every_pair_and_triple_of_cohorts_has_the_rational_rank_and_rows():
    """Against fractions: all sets of up to three of the cohorts of three silos or more."""
    cohorts = [silos for size in (3, 4, 5) for silos in itertools.combinations(FIVE, size)]
    for count in (1, 2, 3):
        for chosen in itertools.combinations(cohorts, count):
            found = cohorts_of_sums(chosen)
            silos = found.silos
            form = rational_form([[int(s in cohort) for s in silos] for cohort in chosen])
            assert found.rank == len(form)
            alone = {silos[row.index(1)] for row in form if sum(1 for value in row if value) == 1}
            assert set(found.alone) == alone


def test_a_rank_that_a_small_prime_would_miss():
    """All pairs of a triangle: determinant 2, so over two elements the rank would be two."""
    found = cohorts_of_sums([("ant", "bee"), ("bee", "cat"), ("ant", "cat")])
    assert (found.rank, found.alone) == (3, ("ant", "bee", "cat"))


def test_more_silos_than_a_cohort_may_have_are_refused():
    with pytest.raises(ChainError, match="more than 200"):
        cohorts_of_sums([[f"silo-{number}" for number in range(MAX_COHORT + 1)]])

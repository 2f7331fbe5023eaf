"""Credit by participation: computed by hand, adding up without a remainder."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dp.noise.estimate import Estimate
from federation.chain.credit import credit_of
from federation.errors import ChainError
from tests.kit.federation.records import after, initial, one_sum

FOUR = ("ant", "bee", "cat", "dog")
THREE = FOUR[:3]


def chain(*made):
    """Records: the silos of a round's only sum, a kind, or the round that a rollback goes to."""
    records = [initial()]
    for each in made:
        if isinstance(each, int):
            record = after(records[-1], "rollback", restored_round=each)
        elif isinstance(each, str):
            record = after(records[-1], each)
        else:
            record = after(records[-1], parts=one_sum(survivors=each))
        records.append(record)
    return records


def told(figures, error=0.0):
    return {
        number: {"maze": Estimate(mean, error), "shop": Estimate(mean, error)}
        for number, mean in figures.items()
    }


def credits_of(found):
    return {each.silo_id: each.credit.value for each in found.silos}


def test_a_change_is_split_among_the_silos_of_the_sum_before_it():
    found = credit_of(chain(FOUR, THREE, FOUR), told({1: 0.25, 2: 0.5, 3: 0.875}))
    # Round 1 brought 1/4, a sixteenth each; round 2 3/8, an eighth each of three.
    assert credits_of(found) == {
        "ant": Fraction(3, 16), "bee": Fraction(3, 16), "cat": Fraction(3, 16),
        "dog": Fraction(1, 16),
    }  # fmt: skip
    assert [(each.rounds, each.change.value) for each in found.changes] == [
        ((1,), Fraction(1, 4)), ((2,), Fraction(3, 8)),
    ]  # fmt: skip
    # Nobody knows what the last round brought.
    assert (found.line, found.unmeasured) == ((1, 2, 3), (3,))
    assert {each.silo_id: each.share for each in found.silos} == {
        "ant": Fraction(5, 18), "bee": Fraction(5, 18), "cat": Fraction(5, 18),
        "dog": Fraction(1, 6),
    }  # fmt: skip


def test_credits_and_shares_add_up_without_a_remainder():
    sums = [FOUR, THREE, FOUR[1:], "skipped", FOUR, THREE, ("ant", "cat", "dog")]
    figures = {1: 0.1, 2: 0.3, 3: 0.2, 5: 0.7, 6: 0.1 + 0.2, 7: 0.6}
    found = credit_of(chain(*sums), told(figures, 0.01))
    assert sum(credits_of(found).values()) == found.change.value == Fraction(0.6) - Fraction(0.1)
    assert sum(each.change.value for each in found.changes) == found.change.value
    assert sum(each.share for each in found.silos) == 1


def test_errors_are_those_of_the_figures_and_add_up_as_squares():
    """Of a cohort that stays only the first and the last figure count, whatever lies between."""
    found = credit_of(chain(FOUR, FOUR, FOUR), told({1: 0.2, 2: 0.5, 3: 0.4}, 0.04))
    # Two environments: the variance of their mean is 0.04²/2.
    one = Fraction(0.04) ** 2 / 2
    assert found.change.variance == 2 * one
    assert [each.change.variance for each in found.changes] == [2 * one, 2 * one]
    assert {each.credit.variance for each in found.silos} == {2 * one / 16}
    assert math.isclose(found.change.estimate.standard_error, 0.04)


def test_a_figure_between_two_changes_is_counted_once():
    found = credit_of(chain(FOUR, THREE, FOUR), told({1: 0.2, 2: 0.5, 3: 0.4}, 0.04))
    one = Fraction(0.04) ** 2 / 2
    variances = {each.silo_id: each.credit.variance for each in found.silos}
    # ant: (M2 − M1)/4 + (M3 − M2)/3 = −M1/4 − M2/12 + M3/3; dog: (M2 − M1)/4.
    assert variances["ant"] == one * (Fraction(1, 16) + Fraction(1, 144) + Fraction(1, 9))
    assert variances["dog"] == one * Fraction(1, 8)


def test_a_round_without_a_sum_credits_nobody():
    found = credit_of(chain(FOUR, "skipped", THREE, FOUR), told({1: 0.25, 3: 0.5, 4: 0.5}))
    assert found.line == (1, 3, 4)
    assert [each.rounds for each in found.changes] == [(1,), (3,)]
    assert credits_of(found) == dict.fromkeys(FOUR, Fraction(1, 16))


def test_what_a_rollback_takes_back_credits_nobody():
    """Round 2 is undone; the adapter of round 1 is measured twice, as 1/2 and as 3/4."""
    records = chain(FOUR, THREE, 1, FOUR, FOUR)
    found = credit_of(records, told({1: 0.25, 2: 0.5, 4: 0.75, 5: 0.875}, 0.04))
    assert (found.line, found.undone, found.unmeasured) == ((1, 4, 5), (2,), (5,))
    assert [(each.rounds, each.change.value) for each in found.changes] == [
        ((1,), Fraction(3, 8)), ((4,), Fraction(1, 4)),
    ]  # fmt: skip
    assert credits_of(found) == dict.fromkeys(FOUR, Fraction(5, 32))
    assert sum(credits_of(found).values()) == found.change.value
    # The mean of two figures has half the variance.
    one = Fraction(0.04) ** 2 / 2
    assert found.changes[0].change.variance == one + one / 2


def test_a_figure_of_a_branch_that_was_taken_back_is_compared_with_nothing():
    records = chain(FOUR, THREE, FOUR, 1, FOUR)
    with_it = credit_of(records, told({1: 0.25, 2: 0.5, 3: 0.9, 5: 0.5}))
    assert with_it == credit_of(records, told({1: 0.25, 2: 0.5, 5: 0.5}))
    # A round taken back may be brought back: then it counts again.
    brought = credit_of([*records, after(records[-1], "rollback", restored_round=3)], {})
    assert (brought.line, brought.undone) == ((1, 2, 3), (5,))


def test_a_round_below_noise_is_passed_over_and_its_change_shared():
    success = told({1: 0.25, 3: 0.75}) | told({2: 0.9}, 0.3)
    found = credit_of(chain(FOUR, THREE, FOUR), success)
    assert [(each.rounds, each.change.value) for each in found.changes] == [
        ((1, 2), Fraction(1, 2)),
    ]  # fmt: skip
    assert credits_of(found)["dog"] == Fraction(1, 2) / 2 / 4
    assert credits_of(found)["ant"] == Fraction(1, 2) / 2 / 4 + Fraction(1, 2) / 2 / 3


def test_only_environments_that_every_round_tells_are_compared():
    success = told({1: 0.25, 2: 0.5, 3: 0.75})
    success[1]["desk"] = Estimate(0.9, 0.0)
    success[2]["shop"] = Estimate(math.nan, math.inf)
    found = credit_of(chain(FOUR, FOUR, FOUR), success)
    assert found.environments == ("maze",)
    assert found.change.value == Fraction(1, 2)


def test_the_releases_of_a_round_share_it_alike():
    records = [initial()]
    for step, silos in enumerate((FOUR, THREE)):
        parts = one_sum(survivors=silos)
        records.append(after(records[-1], round=1, step=step, parts=parts))
    records.append(after(records[-1], round=2, parts=one_sum(survivors=FOUR)))
    found = credit_of(records, told({1: 0.0, 2: 1.0}))
    assert credits_of(found)["dog"] == Fraction(1, 8)
    assert credits_of(found)["ant"] == Fraction(1, 8) + Fraction(1, 6)


@pytest.mark.parametrize(
    ("success", "why"),
    [
        ({}, "not reported"),
        (told({1: 0.5}, 0.3), "below noise"),
        (told({1: 0.5}), "figures of one adapter alone: nothing to compare them with"),
    ],
)
def test_without_two_figures_only_shares_are_told(success, why):
    found = credit_of(chain(FOUR, THREE), success)
    assert found.why_none == why
    assert (found.change, found.environments, found.changes) == (None, (), ())
    assert {each.credit for each in found.silos} == {None}
    assert sum(each.share for each in found.silos) == 1
    assert found.unmeasured == (1, 2)


def test_a_run_that_only_began_credits_nobody():
    found = credit_of([initial()], {})
    assert (found.line, found.silos) == ((), ())


def test_a_rollback_to_nowhere_is_refused():
    broken = after(initial(), "rollback", round=3, restored_round=2)
    with pytest.raises(ChainError, match="round 2 is not there"):
        credit_of([initial(), broken], {})

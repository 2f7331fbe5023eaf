"""Attack 10 without noise: cohorts chosen so that their sums can be subtracted from one another.

A coordinator loses, selects or regroups silos from round to round. Without noise a silo signs no
survivors outside those of the newest such sum that it signed, so cohorts only shrink. A failure: a
sum over silos one of which was not in an honest member's newest sum, or a shrunk cohort that cannot
go on. Not a failure: what each loss shows, the difference of two sums (`test_a10e`), which only
noise removes; and whatever every member of a run allowed by its own word.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp.config import Mode
from secagg.descriptor import AggregationId
from secagg.errors import Check, VerificationError
from secagg.messages import KeyBundles
from tests.kit.simulation.session_federation import (
    ROUND,
    Attempt,
    Federation,
    assert_not_joined,
    assert_refused,
    assert_usable,
    identity_of,
)


def next_round(number: int) -> AggregationId:
    return identity_of(ROUND + number)


def other_run(number: int) -> AggregationId:
    """Every sum is of a run of its own."""
    return identity_of(ROUND, run=f"run-{number}")


def rank(federation: Federation, cohorts: list[tuple[str, ...]]) -> int:
    """How many silos' contributions the sums of these cohorts tell apart, if nothing else moved."""
    rows = [[name in cohort for name in federation.names] for cohort in cohorts]
    return int(np.linalg.matrix_rank(np.array(rows, dtype=float)))


def summed_without(federation: Federation, attempt: Attempt, lost: str) -> np.ndarray | None:
    """The sum of an attempt that loses one silo, or None if too few sign; who refuses is checked.

    Refusing members end at `cohort_grew`; the coordinator goes on with whoever signs.
    """
    told = attempt.until("consistency_check", {"masked_input": (lost,)})
    for name in attempt.survivors:
        member = federation[name]
        cohort = member.ledger.cohort
        if cohort is None or set(attempt.survivors) <= cohort:
            member.tell(told[name])
            attempt.server.receive(member.last("check_consistency"))
        else:
            assert_refused(member, told[name], Check.COHORT_GREW)
    if not attempt.server.ready:
        with pytest.raises(VerificationError) as caught:
            attempt.server.close()
        assert caught.value.check is Check.AGREEMENT_SIZE
        return None
    return attempt.unmask(attempt.closed_agreement())


@pytest.mark.parametrize("suite", [1, 2])
@pytest.mark.parametrize("identity", [next_round, other_run], ids=["over rounds", "over runs"])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a10e_another_silo_lost_each_round_gives_one_difference_and_no_more(
    tmp_path, suite, identity: Callable[[int], AggregationId], restarted
):
    """Attack 10: five cohorts of four of five silos would have rank five, and show every silo.

    Nothing moves between the rounds here, as after a rollback: the adapter is always the same.
    """
    federation = Federation(tmp_path, suite=suite)
    sums: list[tuple[tuple[str, ...], np.ndarray]] = []
    for number, lost in enumerate((None, *federation.names)):
        attempt = federation.attempt(identity(number))
        if lost is None:
            sums.append((federation.names, attempt.sum()))
        elif (found := summed_without(federation, attempt, lost)) is not None:
            sums.append((attempt.survivors, found))
        if restarted:
            for member in federation.members.values():
                member.crash()
    # The first loss is allowed, and what it shows is documented: without noise nothing hides it.
    assert len(sums) == 2
    np.testing.assert_array_equal(sums[0][1] - sums[1][1], federation["silo-000"].plain())
    assert rank(federation, [cohort for cohort, _ in sums]) == 2
    every = [tuple(n for n in federation.names if n != lost) for lost in federation.names]
    assert rank(federation, every) == 5
    assert_usable(federation, identity(9))
    federation.close()


@pytest.mark.parametrize("suite", [1, 2])
def test_a10f_a_regrouped_cohort_is_refused_at_its_survivors(tmp_path, suite):
    """Attack 10: the coordinator selects; whom it left out does not come back."""
    federation = Federation(tmp_path, suite=suite)
    first = federation.names[:4]
    federation.attempt(next_round(0), cohort=first).sum()
    stranger = federation.names[4]
    for number, cohort in enumerate(itertools.combinations(federation.names, 4), 1):
        attempt = federation.attempt(next_round(number), cohort=cohort)
        told = attempt.until("consistency_check")
        for name in cohort:
            if cohort == first:
                federation[name].tell(told[name])
            elif name != stranger:
                assert_refused(federation[name], told[name], Check.COHORT_GREW, stranger)
    assert_usable(federation, next_round(9))
    federation.close()


@pytest.mark.parametrize("suite", [1, 2])
def test_a10g_cohorts_that_only_shrink_go_on(tmp_path, suite):
    federation = Federation(tmp_path, silos=6, suite=suite)
    for number, size in enumerate((6, 5, 5, 4)):
        cohort = federation.names[:size]
        total = federation.attempt(next_round(number), cohort=cohort).sum()
        np.testing.assert_array_equal(total, federation.expected(cohort))
    federation.close()


@pytest.mark.parametrize("suite", [1, 2])
def test_a10h_with_noise_cohorts_may_vary(tmp_path, suite):
    """Attack 10: what the ledger charges for; every round has noise of its own."""
    federation = Federation(tmp_path, suite=suite)
    for number, lost in enumerate(federation.names):
        attempt = federation.attempt(next_round(number), mode=Mode.SILO)
        attempt.sum({"masked_input": (lost,)})
        assert lost not in attempt.survivors
    assert all(member.ledger.cohort is None for member in federation.members.values())
    federation.close()


WHO = {"everybody": (), "one does not": ("silo-002",), "nobody": None}


@pytest.mark.parametrize("case", sorted(WHO))
def test_a10i_cohorts_grow_only_where_every_member_of_the_run_says_so(tmp_path, case):
    """Attack 10: the word is signed in each silo's R0, and one silo's silence is enough."""
    federation = Federation(tmp_path, suite=2)
    against: Any = federation.names if WHO[case] is None else WHO[case]
    for name in federation.names:
        federation[name].may_vary = name not in against
    federation.attempt(next_round(0), cohort=federation.names[:4]).sum()
    attempt = federation.attempt(next_round(1))
    told = attempt.until("consistency_check")
    if case == "everybody":
        total = attempt.unmask(attempt.agree(told))
        np.testing.assert_array_equal(total, federation.expected(federation.names))
    else:
        for name in federation.names[:4]:
            assert_refused(federation[name], told[name], Check.COHORT_GREW, federation.names[4])
    federation.close()


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.SILO])
def test_a10k_no_silo_takes_part_in_two_parts_of_one_round(tmp_path, mode):
    """Attack 10: parts are of disjoint groups; two with one silo in both would be subtracted."""
    federation = Federation(tmp_path, suite=2)
    federation.attempt(identity_of(part=0), mode=mode).sum()
    for part in (1, 2):
        attempt = federation.attempt(identity_of(part=part, attempt=9), mode=mode)
        for member in federation.members.values():
            assert_not_joined(member, attempt.descriptor)
            member.crash()
            assert_not_joined(member, attempt.descriptor)
    federation.close()


def test_a10j_a_word_for_another_silo_is_not_taken(tmp_path):
    """Attack 10: the coordinator cannot put the word into a bundle that its silo signed."""
    federation = Federation(tmp_path, suite=2)
    attempt = federation.attempt()
    told = attempt.until("share_keys")
    forged = tuple(replace(bundle, cohort_may_vary=True) for bundle in told["silo-000"].bundles)
    own = [bundle for bundle in told["silo-000"].bundles if bundle.silo_id == "silo-000"]
    message = KeyBundles(bundles=(*own, *forged[1:]))
    assert_refused(federation["silo-000"], message, Check.BUNDLE_SIGNATURE, "silo-001")
    federation.close()

"""Attack 14: the coordinator picks a cohort that holds all c colluding silos.

The adversary is the coordinator together with everything that c silos hold and sign. A failure: a
single honest silo's vector, or a release that fewer than t silos agreed to. Not a failure: that the
colluders know the sum of the others, which is of t - c honest silos or more.
"""

import numpy as np
import pytest

from secagg import shamir
from secagg.errors import Check, VerificationError
from secagg.messages import ConsistencySignatures
from secagg.transcript import ShareKind
from tests.kit.simulation.adversary_holdings import (
    agreement,
    apply,
    own_mask_secret,
    pair_mask,
    released,
    self_mask,
    share_in,
)
from tests.kit.simulation.session_federation import (
    ROUND,
    Attempt,
    Federation,
    assert_refused,
    assert_usable,
    client_threshold,
    identity_of,
)

pytestmark = pytest.mark.usefixtures("both_suites")

# A cohort that holds all colluders ---------------------------------------------------------------


@pytest.mark.parametrize(("n", "c"), [(4, 1), (7, 2), (10, 3)])
def test_p02a_all_colluders_together_see_a_sum_of_two_honest_silos_or_more(tmp_path, n, c):
    """Attack 14: the cohort holds all colluders and as many honest silos as possible are dropped.

    The adversary is the coordinator with everything that c silos hold.
    """
    federation = Federation(tmp_path, silos=n, colluding=c)
    t = client_threshold(n, c)
    colluding = federation.names[n - c :]
    honest = federation.names[: n - c]
    dropped = honest[t - c :]
    summed = honest[: t - c]
    attempt = federation.attempt()
    bundles = attempt.advertise()
    # For the counter-check at the end alone: no adversary has those of honest silos.
    keys = {name: own_mask_secret(federation[name]) for name in (*summed[1:], *colluding)}
    uploads = attempt.share(bundles)
    told = attempt.upload(uploads, list(dropped))
    assert attempt.survivors == (*summed, *colluding)
    held = {
        (name, kind, owner): share_in(federation[name], kind, owner)
        for name in colluding
        for kind in ShareKind
        for owner in honest
    }
    total = attempt.unmask(attempt.agree(told))
    # What is released, less what the colluders know of themselves.
    rest = total - federation.expected(colluding)
    np.testing.assert_array_equal(rest, federation.expected(summed))
    assert len(summed) >= 2
    singles = [federation[name].plain() for name in honest]
    assert not any(np.array_equal(rest, single) for single in singles)
    # One honest survivor's upload: its self mask is public, the colluders know their masks with it.
    victim = summed[0]
    answers = [federation[name].last("unmask") for name in attempt.survivors]
    b = shamir.combine(released(attempt, answers, ShareKind.SELF_SEED, victim), t)
    residue = federation[victim].uploads[attempt.identity].copy()
    apply(residue, [self_mask(attempt, b, victim)])
    apply(residue, [pair_mask(attempt, keys[name], name, victim, victim) for name in colluding])
    for lost in dropped:
        private = shamir.combine(released(attempt, answers, ShareKind.MASK_KEY, lost), t)
        apply(residue, [pair_mask(attempt, private, lost, victim, victim)])
    # What is left on it are the masks it shares with the other honest survivors.
    plain = (federation[victim].plain() % 2**32).astype("<u4")
    assert not np.any(residue == plain)
    for owner in honest:
        withheld = ShareKind.MASK_KEY if owner in summed else ShareKind.SELF_SEED
        assert not released(attempt, answers, withheld, owner)
        assert len([key for key in held if key[1:] == (withheld, owner)]) == c < t
    # With the masks of one more honest pair known the vector would be open: nothing else hides it.
    apply(residue, [pair_mask(attempt, keys[peer], peer, victim, victim) for peer in summed[1:]])
    np.testing.assert_array_equal(residue, plain)
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


@pytest.mark.parametrize(("n", "c"), [(4, 1), (7, 2), (10, 3)])
def test_p02b_colluders_agreements_do_not_replace_honest_ones(tmp_path, n, c):
    """Attack 14: the colluders agree to anything; one honest agreement short releases nothing."""
    federation = Federation(tmp_path, silos=n, colluding=c)
    t = client_threshold(n, c)
    honest, colluding = federation.names[: n - c], federation.names[n - c :]
    attempt = federation.attempt()
    told = attempt.until("consistency_check")
    for name in honest:
        federation[name].tell(told[name])
    signers = honest[: t - c - 1]
    signatures = [federation[name].last("check_consistency") for name in signers]
    signatures += [agreement(attempt, told[name], name) for name in colluding]
    assert len(signatures) == t - 1
    for name in honest:
        message = ConsistencySignatures(signatures=tuple(signatures))
        assert_refused(federation[name], message, Check.AGREEMENT_SIZE)
        assert "unmask" not in federation[name].calls()
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


@pytest.mark.parametrize("c", [1, 2])
def test_p02c_a_smaller_c_than_the_rosters_is_refused(tmp_path, c):
    """Attack 14: c is never the coordinator's to choose, nor t."""
    federation = Federation(tmp_path, silos=10, colluding=3)
    t = client_threshold(10, c)
    lies = [{"colluding": c, "threshold": t}, {"colluding": c}, {"threshold": 6}, {"threshold": 8}]
    for changes in lies:
        forged = federation.describe(identity_of(), **changes)
        with pytest.raises(VerificationError) as caught:
            Attempt(federation, forged)
        assert caught.value.check is Check.POLICY_THRESHOLD
    federation.close()

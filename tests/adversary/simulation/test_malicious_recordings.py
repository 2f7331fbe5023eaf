"""Attack 23: a recording is kept until a computer breaks X25519, or ML-KEM-768, or both.

The adversary has all that a coordinator saw, and the private keys of what it broke. A failure: one
box, one pair secret between survivors, or one coordinate of a survivor's vector while either of the
two stands. Not a failure: everything once both fall, and everything of suite v1 once X25519 does.
"""

import numpy as np
import pytest

from secagg import shamir, suite
from secagg.prg import Mask
from secagg.transcript import ShareKind
from tests.kit.simulation.adversary_holdings import apply, released
from tests.kit.simulation.broken_primitives import MLKEM, X25519, Adversary
from tests.kit.simulation.secagg_cohort import Cohort, deterministic_entropy

LOST = "silo-002"
CASES = [(), (X25519,), (MLKEM,), (X25519, MLKEM)]


def recorded(*lost: str, suite: int = 2) -> Cohort:
    cohort = Cohort(5, suite=suite)
    cohort.run({"masked_input": lost})
    return cohort


@pytest.mark.parametrize("lost", [(), (LOST,)], ids=["no drop", "a drop"])
@pytest.mark.parametrize("broken", CASES, ids=lambda broken: "+".join(broken) or "nothing")
def test_a23a_either_primitive_alone_keeps_every_vector_and_box(broken, lost):
    """Attack 23: what R4 gives away of a lost silo's pairs opens no pair of survivors."""
    cohort = recorded(*lost)
    adversary = Adversary(cohort, broken)
    both = len(broken) == 2
    dealt = {(low, high) for low in cohort.names for high in cohort.names if low < high}
    assert adversary.boxes_opened() == (5 * 4 if both else 0)
    with_lost = {pair for pair in dealt if lost and pair[1] == LOST}
    assert adversary.secrets_opened() == (dealt if MLKEM in broken else with_lost)
    for victim in cohort.alive:
        vector = adversary.vector_of(victim)
        if both:
            np.testing.assert_array_equal(vector, cohort.plain(victim))
        else:
            assert not np.any(vector == cohort.plain(victim))


def test_a23b_a_recording_of_the_first_suite_opens_with_x25519_alone():
    """Attack 23: why suite v2 comes before such a computer does, and why v1 needs a site's word."""
    cohort = recorded(suite=1)
    victim, *peers = cohort.names
    private = deterministic_entropy(f"{cohort.seed}/{victim}")
    private(32)
    mask_private = private(32)
    shares = released(cohort, cohort.sent.values(), ShareKind.SELF_SEED, victim)
    seed = shamir.combine(shares, cohort.descriptor.descriptor.threshold)
    residue = cohort.vectors[victim].copy()
    apply(residue, [Mask(key=suite.derive_key(seed, "self", cohort.ctx, victim), sign=-1)])
    for peer in peers:
        public = next(b for b in cohort.announced.bundles if b.silo_id == peer).mask_key
        shared = suite.agree(suite.agreement_key(mask_private), public)
        key = suite.derive_key(shared, "mask", cohort.ctx, victim, peer)
        apply(residue, [Mask(key=key, sign=-1)])
    np.testing.assert_array_equal(residue.view("<i4"), cohort.plain(victim))

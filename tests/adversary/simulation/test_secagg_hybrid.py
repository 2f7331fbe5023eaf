"""Suite v2 from the silo's side: what it keeps, for how long, and what it asks of its caller."""

import numpy as np
import pytest

from secagg import client, digest_tree, hybrid
from secagg.errors import Check, ParameterError, VerificationError
from secagg.messages import DebitHead
from secagg.server.collect_unmasking import PAIR
from secagg.transcript import ShareKind
from tests.kit.simulation.secagg_cohort import LEDGER_SEQ, Cohort, uploaded_digest
from tests.kit.simulation.secagg_tampering import ME, PEER, masked_input_state


def kinds(state):
    return {kind for kind, _ in state._vault._items}


def test_seeds_end_with_the_leaves_and_mask_keys_with_the_mask():
    """What a later step does not need is gone: a seized machine shows that much less."""
    cohort = Cohort(5, suite=2)
    bundles = cohort.advertise()
    assert kinds(cohort.states[ME]) == {"mask_seed", "box_seed"}
    deliveries = cohort.share(bundles)
    # The secrets it dealt, to the three silos after it.
    assert kinds(cohort.states[ME]) == {
        "mask_seed", "box_seed", "own_seed", "pair", ShareKind.SELF_SEED,
    }  # fmt: skip
    seeds = [cohort.states[ME]._vault.get(kind, ME) for kind in ("mask_seed", "box_seed")]
    state, _ = cohort.states[ME].handle(deliveries[ME])
    assert not any(any(seed) for seed in seeds)
    assert kinds(state) == {"own_seed", "pair", "mask", *ShareKind}
    state, _ = state.mask(np.zeros(18, dtype="<u4"), cohort.debit(ME))
    assert kinds(state) == {"pair", *ShareKind}


def test_both_ends_of_a_pair_have_one_secret_and_one_key():
    cohort = Cohort(5, suite=2)
    deliveries = cohort.share(cohort.advertise())
    states = {name: cohort.states[name].handle(deliveries[name])[0] for name in cohort.names}
    seen = set()
    for low in cohort.names:
        for high in cohort.names:
            if low < high:
                for kind in ("pair", "mask"):
                    secret = bytes(states[low]._vault.get(kind, high))
                    assert secret == states[high]._vault.get(kind, low)
                    seen.add(secret)
    assert len(seen) == 2 * 10


def test_an_upload_opens_with_the_leaves_of_its_signed_root():
    cohort, state = masked_input_state(suite=2)
    vector = np.zeros(18, dtype="<u4")
    following, header = state.mask(vector, cohort.debit(ME))
    assert header.masked_sha256 == uploaded_digest(cohort.descriptor.descriptor, vector)
    assert len(following.leaves) == 32
    cohort, state = masked_input_state(suite=1)
    assert state.mask(vector)[0].leaves == b""


@pytest.mark.parametrize(
    ("suite", "debit"),
    [
        (1, DebitHead(seq=LEDGER_SEQ + 1, sha256=bytes(32))),
        (2, None),
        (2, DebitHead(seq=LEDGER_SEQ, sha256=bytes(32))),
    ],
)
def test_a_vector_is_not_masked_on_another_charge(suite, debit):
    """The caller's mistake, which costs nothing: the right one is taken after it."""
    cohort, state = masked_input_state(suite=suite)
    vector = np.zeros(18, dtype="<u4")
    with pytest.raises(ParameterError):
        state.mask(vector, debit)
    assert not vector.any()
    assert state.mask(vector, cohort.debit(ME))[1].debit == cohort.debit(ME)


def test_nothing_of_a_pair_leaves_when_nobody_is_lost():
    cohort = Cohort(5, suite=2)
    cohort.run()
    assert all(shares.pair_secrets == () for shares in cohort.sent.values())


def test_a_released_secret_that_is_not_the_signed_one_is_discarded_and_its_sender_named():
    cohort = Cohort(5, suite=2)
    signatures = cohort.until("unmask", {"masked_input": [PEER]})
    secret = cohort.states[ME]._vault.get("pair", PEER)
    secret[:] = bytes(32)
    unmasking = cohort.unmask(signatures)
    (rejected,) = cohort.server.rejected
    assert (rejected.sender, rejected.owner, rejected.kind) == (ME, PEER, PAIR)
    assert unmasking.rejected_senders == (ME,)
    assert unmasking.bad_pair_dealers == ()
    unmasking.apply(cohort.accumulator)
    np.testing.assert_array_equal(cohort.accumulator.view("<i4"), cohort.expected(cohort.alive))


def test_a_machine_without_the_digest_or_ml_kem_makes_no_key(monkeypatch):
    setup = Cohort(5, suite=2).setup(ME)
    for module in (digest_tree, hybrid):
        with monkeypatch.context() as patched:
            patched.setattr(module, "is_available", lambda *_: False)
            with pytest.raises(VerificationError) as caught:
                client.begin(setup)
            assert caught.value.check is Check.SUITE


def test_the_coordinator_declares_no_survivors_that_silos_would_refuse():
    cohort = Cohort(6, suite=2, families={"silo-005": ("chess",)}, figures=())
    with pytest.raises(VerificationError) as caught:
        cohort.until("consistency_check", {"masked_input": ["silo-000", "silo-001"]})
    assert caught.value.check is Check.CONTRIBUTORS
    assert not cohort.states["silo-002"].aborted

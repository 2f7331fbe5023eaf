"""Attack 13 and its kin: what malicious silos can do to a sum, and who is named for it.

The coordinator's states are the real ones, the honest silos run real sessions. A failure: a wrong
sum, an honest silo named, or a round that one message can spoil. Not a failure: a round that is
lost because more than n - t silos misbehave, with nothing summed.
"""

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.errors import Check, VerificationError
from secagg.messages import KeyBundles, UnmaskingShares
from secagg.transcript import ShareKind
from tests.kit.server import world as sw
from tests.kit.simulation.forgeries import headers_of, resigned_boxes, with_header
from tests.kit.simulation.secagg_tampering import ME, PEER
from tests.kit.simulation.session_federation import (
    ROUND,
    Attempt,
    Federation,
    assert_refused,
    assert_usable,
    client_threshold,
    identity_of,
)
from tests.kit.simulation.spoiled import resigned, spoiled


def answers(attempt: Attempt, told: dict[str, Any]) -> dict[str, UnmaskingShares]:
    """What every silo that agreed sends in R4, before anybody tampers with it."""
    found = {}
    for name in sorted(attempt.server.pending):
        attempt.federation[name].tell(told[name])
        found[name] = attempt.federation[name].last("unmask")
    return found


def finished(attempt: Attempt) -> np.ndarray:
    attempt.server.finish().apply(attempt.accumulator)
    return attempt.accumulator.view("<i4").astype(np.int64)


# Attack 13 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "c"), [(5, 1), (10, 3)])
@pytest.mark.parametrize("dropped", [0, 1])
def test_a13a_up_to_n_less_t_silos_with_corrupt_shares_are_named(tmp_path, n, c, dropped):
    """Attack 13: 1…n-t corrupt senders, of either kind of share: the sum is exact all the same."""
    federation = Federation(tmp_path, silos=n, colluding=c)
    t = client_threshold(n, c)
    lost = federation.names[:dropped]
    for count in range(1, n - t - dropped + 1):
        attempt = federation.attempt(identity_of(ROUND + count))
        shares = answers(attempt, attempt.until("unmask", {"masked_input": lost}))
        liars = federation.names[-count:]
        for name, message in shares.items():
            said = message
            if name in liars:
                said = resigned(
                    attempt, message,
                    self_seed_shares=spoiled(message.self_seed_shares),
                    mask_key_shares=spoiled(message.mask_key_shares),
                )  # fmt: skip
            attempt.server.receive(said)
        assert {share.sender for share in attempt.server.rejected} == set(liars)
        assert len(attempt.server.rejected) == count * n
        unmasking = attempt.server.finish()
        assert unmasking.rejected_senders == liars
        unmasking.apply(attempt.accumulator)
        kept = [name for name in federation.names if name not in lost]
        np.testing.assert_array_equal(
            attempt.accumulator.view("<i4"), federation.expected(kept)
        )  # fmt: skip
    assert_usable(federation, identity_of(ROUND + n, 2))
    federation.close()


@pytest.mark.parametrize("kind", list(ShareKind))
def test_a13b_one_corrupt_share_more_is_no_sum_and_never_a_wrong_one(tmp_path, kind):
    """Attack 13: n-t+1 senders spoil one secret. The coordinator has no sum, not a wrong one."""
    n, c = 5, 1
    federation = Federation(tmp_path, silos=n, colluding=c)
    drops = {"masked_input": [PEER]} if kind is ShareKind.MASK_KEY else {}
    owner = PEER if kind is ShareKind.MASK_KEY else ME
    attempt = federation.attempt()
    shares = answers(attempt, attempt.until("unmask", drops))
    most = len(shares) - client_threshold(n, c)
    liars = sorted(shares)[-(most + 1) :]
    field = "mask_key_shares" if kind is ShareKind.MASK_KEY else "self_seed_shares"
    for name, message in shares.items():
        said = message
        if name in liars:
            altered = spoiled(getattr(message, field), {owner})
            said = resigned(attempt, message, **{field: altered})
        attempt.server.receive(said)
    masked = attempt.accumulator.copy()
    assert not attempt.server.ready
    with pytest.raises(VerificationError) as caught:
        attempt.server.finish()
    assert caught.value.check is Check.SHARE_COUNT
    np.testing.assert_array_equal(attempt.accumulator, masked)
    assert {share.sender for share in attempt.server.rejected} == set(liars)
    assert_usable(federation, identity_of(ROUND + 1, 2))
    federation.close()


def test_a13c_a_dealer_cannot_frame_a_recipient(tmp_path):
    """Attack 13: the dealer signs the hash of another share than it seals. The recipient sees it in
    R1, names the dealer, and never sends that share: the coordinator has nothing to blame it for.
    """
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    delivery = attempt.until("masked_input")[ME]
    header = headers_of(delivery, PEER)
    boxes = tuple(
        replace(box, self_seed_share_sha256=bytes(32)) if box.recipient == ME else box
        for box in header.boxes
    )
    member = federation[ME]
    assert member.session is not None
    state, _ = member.session._state.handle(
        with_header(delivery, resigned_boxes(attempt, header, boxes=boxes))
    )
    assert [(r.silo_id, r.check) for r in state.rejected] == [(PEER, Check.SHARE_HASH)]
    assert not any(state._vault.has(kind, PEER) for kind in ShareKind)
    state.wipe()
    assert_usable(federation, identity_of(attempt=2))
    federation.close()


def test_a13d_a_share_of_the_other_kind_is_refused_whole(tmp_path):
    """Attack 13: a silo that offers shares nobody may ask for is refused, and named."""
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    shares = answers(attempt, attempt.until("unmask"))
    message = shares[PEER]
    swapped = resigned(
        attempt, message, self_seed_shares=(), mask_key_shares=message.self_seed_shares
    )
    with pytest.raises(VerificationError) as caught:
        attempt.server.receive(swapped)
    assert caught.value.check is Check.UNMASK_KIND
    for name, honest in shares.items():
        if name != PEER:
            attempt.server.receive(honest)
    np.testing.assert_array_equal(finished(attempt), federation.expected(federation.names))
    federation.close()


# What a silo puts into its vector, and what it says about itself ---------------------------------


def test_a_gross_sum_is_quarantined_and_the_next_run_is_whole(tmp_path):
    """Poisoning: a sum longer than n clipped vectors and noise can be is not applied; nobody is
    named, because no masked upload is ever opened."""
    with sw.World(tmp_path) as world:
        name = next(iter(world.silos))
        words = sw.DIMENSION + 3
        world.silos[name].poison = np.full(words, 2**21, dtype=np.uint32)
        run_id = asyncio.run(world.run(sw.plan_toml()))
        records = world.store.records.list(run_id)
        assert [record.kind for record in records] == ["initial", "skipped"]
        assert records[0].adapter_sha256 == records[1].adapter_sha256
        reasons = [
            json.loads(line)["details"]["reason"]
            for line in world.audit.tail(99)
            if "attempt_aborted" in line
        ]
        assert "not applied" in reasons[0]
        assert not any(silo in reasons[0] for silo in world.silos)
        world.silos[name].poison = None
        after = asyncio.run(world.run(sw.plan_toml(), token="after"))
        assert world.store.records.list(after)[-1].kind == "aggregated"
        assert world.store.records.list(after)[-1].survivors == tuple(sorted(world.silos))


@pytest.mark.parametrize(("honest", "accepted"), [(1, False), (2, False), (3, True)])
def test_false_declarations_of_a_family_leave_t_less_c_honest_ones(tmp_path, honest, accepted):
    """c colluders declare a family they do not have. Its figures then cover max(t, n_min) - c
    honest silos or more: with one honest declarer less every silo refuses the block."""
    n, c = 5, 1
    federation = Federation(tmp_path, silos=n, colluding=c)
    assert client_threshold(n, c) - c == 3
    colluding = federation.names[-c:]
    for name in federation.names:
        declares = name in federation.names[:honest] or name in colluding
        federation[name].families = ("craft",) if declares else ("other-things",)
    attempt = federation.attempt()
    if accepted:
        np.testing.assert_array_equal(attempt.sum(), federation.expected(federation.names))
    else:
        for name in federation.names:
            federation[name].open(attempt.descriptor)
        bundles = tuple(federation[name].last("advertise_keys") for name in federation.names)
        for member in federation.members.values():
            assert_refused(member, KeyBundles(bundles=bundles), Check.METRICS_FAMILIES)
            member.families = ("craft",)
        assert_usable(federation, identity_of(attempt=2))
    federation.close()

"""Attack 21: what a coordinator can do with leaves and paths, alone and with a silo of its own.

From version 2 on a silo signs the root of a tree over what it deals, and each recipient is shown
its own leaf with a path. A failure: a silo that takes another leaf than the one at its own index
under the signed root, or two silos that sign survivors although one sender dealt them two trees.
Not a failure: an attempt that is lost.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from secagg import merkle
from secagg.errors import Check, VerificationError
from secagg.messages import DeliveredLeaf, LeafDelivery, ShareLeaves, Survivors
from tests.kit.simulation.leaf_forgeries import (
    dealt,
    delivered,
    hashes_of,
    redealt,
    resigned_root,
    root_of,
    with_dealt,
    with_leaf,
    with_root,
    without_senders,
)
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import ME, PEER, assert_refused, flip

# Of five silos; ME deals to PEER, and DEALER deals to ME.
DEALER, OTHER = "silo-000", "silo-002"


class Dealt(NamedTuple):
    """An attempt in which every silo has dealt."""

    cohort: Cohort
    ctx: bytes
    # What each silo sent in R1.
    sent: dict[str, ShareLeaves]
    deliveries: dict[str, LeafDelivery]

    def index(self, sender: str, recipient: str) -> int:
        return [leaf.recipient for leaf in self.sent[sender].leaves].index(recipient)


def dealt_by(cohort: Cohort) -> Dealt:
    bundles = cohort.advertise()
    sent = {}
    for name in cohort.names:
        cohort.states[name], sent[name] = cohort.states[name].handle(bundles)
        cohort.server.receive(sent[name])
    return Dealt(cohort=cohort, ctx=cohort.ctx, sent=sent, deliveries=cohort.deliver())


class Attack(NamedTuple):
    """One forged delivery for ME, and the check at which it ends."""

    id: str
    forge: Callable[[Dealt, LeafDelivery], LeafDelivery]
    check: Check
    silo: str | None = None


def at_another_index(d: Dealt, m: LeafDelivery) -> LeafDelivery:
    """PEER deals to ME twice, in ME's place and in another; the second is delivered."""
    mine = d.sent[PEER].leaves[d.index(PEER, ME)]
    leaves = [mine if leaf.recipient == OTHER else leaf for leaf in d.sent[PEER].leaves]
    twice = dealt(d.ctx, d.sent[PEER], leaves)
    index = d.index(PEER, OTHER)
    return with_root(with_leaf(m, PEER, delivered(d.ctx, twice, index)), twice.root)


def anothers_leaf(d: Dealt, m: LeafDelivery) -> LeafDelivery:
    """The genuine leaf of another recipient, with its own genuine path."""
    return with_leaf(m, PEER, delivered(d.ctx, d.sent[PEER], d.index(PEER, OTHER)))


def anothers_leaf_in_my_place(d: Dealt, m: LeafDelivery) -> LeafDelivery:
    """PEER puts a leaf for another recipient in ME's place."""
    return with_dealt_at(d, m, redealt(d.ctx, d.sent[PEER], ME, recipient=OTHER))


def with_dealt_at(d: Dealt, m: LeafDelivery, message: ShareLeaves) -> LeafDelivery:
    leaf = delivered(d.ctx, message, d.index(message.sender, ME))
    return with_root(with_leaf(m, message.sender, leaf), message.root)


def under_another_ctx(d: Dealt, m: LeafDelivery) -> LeafDelivery:
    """PEER signs, for this ctx, the tree that it made for another one."""
    hashes = hashes_of(bytes([7]) * 32, PEER, d.sent[PEER].leaves)
    root = resigned_root(d.ctx, d.sent[PEER].root, root=merkle.root(hashes))
    leaf = delivered(d.ctx, d.sent[PEER], d.index(PEER, ME), hashes)
    return with_root(with_leaf(m, PEER, leaf), root)


def deeper(d: Dealt, m: LeafDelivery) -> LeafDelivery:
    """PEER puts a node over two leaves for ME where one leaf belongs, and shows the second."""
    hashes = hashes_of(d.ctx, PEER, d.sent[PEER].leaves)
    index = d.index(PEER, ME)
    mine = d.sent[PEER].leaves[index]
    second = replace(mine, ciphertext=flip(mine.ciphertext))
    (second_hash,) = hashes_of(d.ctx, PEER, [second])
    path = merkle.path(hashes, index)
    hashes[index] = merkle.node_hash(hashes[index], second_hash)
    root = resigned_root(d.ctx, d.sent[PEER].root, root=merkle.root(hashes))
    first_hash = hashes_of(d.ctx, PEER, [mine])[0]
    below = DeliveredLeaf(leaf=second, path=(first_hash, *path))
    return with_root(with_leaf(m, PEER, below), root)


def counted(change: int) -> Callable[[Dealt, LeafDelivery], LeafDelivery]:
    """PEER signs another number of leaves."""

    def forge(d: Dealt, m: LeafDelivery) -> LeafDelivery:
        root = root_of(m, PEER)
        return with_root(m, resigned_root(d.ctx, root, leaf_count=root.leaf_count + change))

    return forge


def fewer(d: Dealt, m: LeafDelivery) -> LeafDelivery:
    """PEER leaves a recipient out of its tree, and all it says fits."""
    kept = [leaf for leaf in d.sent[PEER].leaves if leaf.recipient != OTHER]
    return with_dealt(m, d.ctx, dealt(d.ctx, d.sent[PEER], kept), ME)


def altered(sender: str, **changes: Any) -> Callable[[Dealt, LeafDelivery], LeafDelivery]:
    """The coordinator alters a leaf; its sender's signature stays as it was."""

    def forge(d: Dealt, m: LeafDelivery) -> LeafDelivery:
        given = m.leaves[sender]
        return with_leaf(m, sender, replace(given, leaf=replace(given.leaf, **changes)))

    return forge


def path_altered(alter: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> Any:
    def forge(d: Dealt, m: LeafDelivery) -> LeafDelivery:
        given = m.leaves[PEER]
        return with_leaf(m, PEER, replace(given, path=alter(given.path)))

    return forge


def dealing_upwards(d: Dealt, m: LeafDelivery) -> LeafDelivery:
    """PEER, the higher id, deals a pair secret of its own."""
    lent = d.sent[DEALER].leaves[d.index(DEALER, ME)]
    changes = {name: getattr(lent, name) for name in ("mask_kem", "sealed", "pair_secret_sha256")}
    return with_dealt_at(d, m, redealt(d.ctx, d.sent[PEER], ME, **changes))


def dealing_nothing(d: Dealt, m: LeafDelivery) -> LeafDelivery:
    """DEALER, the lower id, deals no pair secret."""
    none = dict.fromkeys(("mask_kem", "sealed", "pair_secret_sha256"), b"")
    return with_dealt_at(d, m, redealt(d.ctx, d.sent[DEALER], ME, **none))


ATTACKS = (
    Attack("A21a-a-root-rewritten",
           lambda d, m: with_root(m, replace(root_of(m, PEER), root=bytes(32))),
           Check.SHARE_SIGNATURE, PEER),
    Attack("A21b-a-commitment-rewritten",
           lambda d, m: with_root(m, replace(root_of(m, PEER), self_seed_commitment=bytes(32))),
           Check.SHARE_SIGNATURE, PEER),
    Attack("A21c-own-root-of-another-tree",
           lambda d, m: with_root(m, redealt(d.ctx, d.sent[ME], PEER, box_kem=bytes(1088)).root),
           Check.OWN_SHARES),
    Attack("A21d-own-root-left-out", lambda d, m: LeafDelivery(
               roots=tuple(root for root in m.roots if root.sender != ME), leaves=m.leaves),
           Check.OWN_SHARES),
    Attack("A21e-a-leaf-held-back", lambda d, m: replace(
               m, leaves={k: v for k, v in m.leaves.items() if k != PEER}),
           Check.BOX_SET),
    Attack("A21f-a-leaf-of-a-stranger", lambda d, m: with_leaf(m, "stranger", m.leaves[PEER]),
           Check.BOX_SET),
    Attack("A21g-a-box-replaced", altered(PEER, ciphertext=bytes(82)), Check.LEAF, PEER),
    Attack("A21h-an-encapsulation-replaced", altered(PEER, box_kem=bytes(1088)),
           Check.LEAF, PEER),
    Attack("A21i-a-sealed-secret-replaced", altered(DEALER, sealed=bytes(48)),
           Check.LEAF, DEALER),
    Attack("A21j-leaves-exchanged",
           lambda d, m: with_leaf(m, PEER, m.leaves["silo-004"]), Check.LEAF, PEER),
    Attack("A21k-another-recipients-leaf", anothers_leaf, Check.LEAF, PEER),
    Attack("A21l-another-recipients-leaf-in-my-place", anothers_leaf_in_my_place,
           Check.LEAF, PEER),
    Attack("A21m-my-leaf-at-another-index", at_another_index, Check.LEAF, PEER),
    Attack("A21n-a-tree-of-another-ctx", under_another_ctx, Check.LEAF, PEER),
    Attack("A21o-a-node-where-a-leaf-belongs", deeper, Check.LEAF, PEER),
    Attack("A21p-a-path-too-short", path_altered(lambda path: path[1:]), Check.LEAF, PEER),
    Attack("A21q-a-path-too-long", path_altered(lambda path: (*path, bytes(32))),
           Check.LEAF, PEER),
    Attack("A21r-a-path-rewritten", path_altered(lambda path: (flip(path[0]), *path[1:])),
           Check.LEAF, PEER),
    Attack("A21s-one-leaf-fewer-signed", counted(-1), Check.LEAF_COUNT, PEER),
    Attack("A21t-one-leaf-more-signed", counted(1), Check.LEAF_COUNT, PEER),
    Attack("A21u-a-recipient-left-out", fewer, Check.LEAF_COUNT, PEER),
    Attack("A21v-the-higher-id-deals", dealing_upwards, Check.LEAF, PEER),
    Attack("A21w-the-lower-id-does-not-deal", dealing_nothing, Check.LEAF, DEALER),
    Attack("A21x-senders-out-of-order",
           lambda d, m: replace(m, roots=m.roots[::-1]), Check.SHARE_SET),
    Attack("A21y-U2-below-t", lambda d, m: without_senders(m, DEALER, PEER), Check.SHARES_SIZE),
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_a_forged_delivery_ends_at_its_check(attack):
    """Attack 21: see the table; PEER and DEALER sign whatever the coordinator wants."""
    made = dealt_by(Cohort(5, suite=2))
    forged = attack.forge(made, made.deliveries[ME])
    assert_refused(made.cohort.states[ME], forged, attack.check, attack.silo)


@pytest.mark.parametrize("size", [3, 4, 5, 6, 9])
def test_every_silo_takes_its_own_leaves_whatever_the_size(size):
    """The control of the table above: trees of two to eight leaves, at every index."""
    made = dealt_by(Cohort(size, suite=2))
    for name in made.cohort.names:
        state, _ = made.cohort.states[name].handle(made.deliveries[name])
        assert state.rejected == ()


@pytest.mark.parametrize("half", [(ME,), (DEALER, ME), (DEALER, ME, OTHER)])
def test_a21z_two_trees_of_one_silo_end_at_the_upload_signatures(half):
    """Attack 21: PEER deals one tree to some silos and another to the rest, both signed.

    Each silo finds its own leaf in order. H(U2) is over the signed roots, so the two halves signed
    different uploads, and no honest silo signs survivors from both.
    """
    made = dealt_by(Cohort(5, suite=2))
    cohort = made.cohort
    second = redealt(made.ctx, made.sent[PEER], OTHER, box_kem=bytes(1088))
    for name in cohort.names:
        delivery = made.deliveries[name]
        if name in half:
            delivery = with_dealt(delivery, made.ctx, second, name)
        cohort.states[name], _ = cohort.states[name].handle(delivery)
    headers = [cohort.masked(name) for name in cohort.names]
    first_of_the_others = next(name for name in cohort.names if name not in half)
    survivors = Survivors(headers=tuple(headers))
    assert_refused(cohort.states[ME], survivors, Check.UPLOAD_SIGNATURE, first_of_the_others)


def test_an_honest_coordinator_takes_one_tree_of_a_silo_and_only_a_whole_one():
    """Attack 21, from the silo's side: what would stop every other silo is refused by name."""
    cohort = Cohort(5, suite=2)
    bundles = cohort.advertise()
    cohort.states[PEER], honest = cohort.states[PEER].handle(bundles)
    ctx = cohort.ctx
    kept = [leaf for leaf in honest.leaves if leaf.recipient != OTHER]
    swapped = [honest.leaves[1], honest.leaves[0], *honest.leaves[2:]]
    refused = (
        (replace(honest, leaves=tuple(swapped)), Check.SHARE_RECIPIENTS),
        (dealt(ctx, honest, swapped), Check.SHARE_RECIPIENTS),
        (dealt(ctx, honest, kept), Check.SHARE_RECIPIENTS),
        (replace(honest, root=replace(honest.root, root=bytes(32))), Check.SHARE_SIGNATURE),
        (replace(honest, root=resigned_root(ctx, honest.root, root=bytes(32))), Check.LEAF),
    )
    for message, check in refused:
        with pytest.raises(VerificationError) as caught:
            cohort.server.receive(message)
        assert (caught.value.check, caught.value.silo) == (check, PEER)
    assert cohort.server.receive(honest)
    with pytest.raises(VerificationError) as caught:
        cohort.server.receive(redealt(ctx, honest, OTHER, box_kem=bytes(1088)))
    assert caught.value.check is Check.DUPLICATE

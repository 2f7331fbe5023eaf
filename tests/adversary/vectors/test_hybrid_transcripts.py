"""What suite v2 signs, hashes and derives: the same bytes as in the vectors."""

import hashlib
import json
from types import SimpleNamespace

import pytest

from secagg import digest_tree, hybrid, merkle, transcript
from secagg.messages import agreement_bytes
from tests.adversary.vectors import hybrid_documents as documents
from tests.adversary.vectors import hybrid_generator as generator
from tests.adversary.vectors import secagg_documents
from tests.adversary.vectors.hybrid_reference import tree_levels, tree_path, tree_root

POSITIVE = json.loads(generator.POSITIVE.read_text(encoding="utf-8"))
HALVES = json.loads(generator.HALVES.read_text(encoding="utf-8"))
TREES = json.loads(generator.TREES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(POSITIVE))
def test_every_signature_covers_the_bytes_of_the_vectors(name):
    case = POSITIVE[name]
    roster = secagg_documents.roster(case["roster"]).roster
    task = documents.round_task(case["round_task"])
    descriptor = documents.descriptor(case["descriptor"]).descriptor
    signed = lambda item: item["signed_bytes"]  # noqa: E731
    assert roster.signed_bytes().hex() == signed(case["roster"])
    assert task.signed_bytes().hex() == signed(case["round_task"])
    task.verify(roster.coordinator_key)
    assert descriptor.signed_bytes().hex() == signed(case["descriptor"])
    assert (descriptor.roster_sha256, descriptor.task_sha256) == (roster.sha256, task.sha256)
    bundles = [documents.bundle(item) for item in case["r0"]]
    for bundle, item in zip(bundles, case["r0"], strict=True):
        content = bundle.signed_bytes(descriptor.sha256)
        assert hashlib.sha256(content).hexdigest() == item["signed_sha256"]
    ctx = transcript.context(descriptor, bundles)
    assert ctx.hex() == case["ctx"]
    roots = [documents.root(item) for item in case["r1"]]
    for root, item in zip(roots, case["r1"], strict=True):
        assert root.signed_bytes(ctx).hex() == signed(item)
    members = transcript.members(ctx, roots)
    assert members.sha256.hex() == case["members_sha256"]
    for item in case["r2"] + case["not_summed"]:
        header = documents.header(item)
        assert header.signed_bytes(ctx, members.sha256).hex() == signed(item)
    headers = [documents.header(item) for item in case["r2"]]
    u3 = transcript.survivors_sha256(ctx, headers)
    assert u3.hex() == case["survivors_sha256"]
    assert agreement_bytes(ctx, members.sha256, u3).hex() == case["r3_signed_bytes"]
    for item in case["r4"]:
        assert documents.unmasking_shares(item).signed_bytes(ctx, u3).hex() == signed(item)


@pytest.mark.parametrize("name", sorted(POSITIVE))
def test_every_leaf_leads_from_its_index_to_the_signed_root(name):
    case = POSITIVE[name]
    ctx = bytes.fromhex(case["ctx"])
    for item in case["r1"]:
        root = documents.root(item)
        hashes = [
            merkle.leaf_hash(documents.leaf(leaf).signed_bytes(ctx, item["sender"]))
            for leaf in item["leaves"]
        ]
        assert merkle.root(hashes) == root.root
        for index, leaf in enumerate(item["leaves"]):
            path = tuple(bytes.fromhex(step) for step in leaf["path"])
            assert merkle.path(hashes, index) == path
            for place in range(root.leaf_count):
                leads = merkle.leads_to(root.root, hashes[index], place, root.leaf_count, path)
                assert leads == (place == index)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 199])
def test_trees_are_those_of_the_reference(count):
    hashes = [hashlib.sha256(bytes([index])).digest() for index in range(count)]
    assert merkle.root(hashes) == tree_root(hashes) == tree_levels(hashes)[-1][0]
    for index in range(count):
        assert list(merkle.path(hashes, index)) == tree_path(hashes, index)


# Derivations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n3-c1-t3-drop0", "n5-c2-t4-false-accuser-lost"])
def test_both_seeds_make_the_four_keys_of_a_bundle(name):
    case = POSITIVE[name]
    digest = documents.descriptor(case["descriptor"]).descriptor.sha256
    for item in case["r0"]:
        silo = case["silos"][item["silo_id"]]
        masks = hybrid.mask_keys(bytes.fromhex(silo["mask_seed"]), digest, item["silo_id"])
        boxes = hybrid.box_keys(bytes.fromhex(silo["box_seed"]), digest, item["silo_id"])
        assert masks.agreement_public.hex() == item["mask_key"]
        assert masks.kem_public.hex() == item["kem_keys"]["mask_key"]
        assert boxes.agreement_public.hex() == item["cipher_key"]
        assert boxes.kem_public.hex() == item["kem_keys"]["cipher_key"]


def values(part):
    return SimpleNamespace(**{key: bytes.fromhex(value) for key, value in HALVES[part].items()})


def test_a_pair_s_mask_needs_both_halves():
    mask, ctx, pair = values("mask"), bytes.fromhex(HALVES["ctx"]), HALVES["pair"]
    key = hybrid.pair_mask_key(mask.x25519, mask.pair_secret, ctx, *pair)
    assert key == mask.key
    without = {mask.key_without_x25519, mask.key_without_ml_kem}
    assert len(without | {key}) == 3
    for half in (mask.x25519, mask.pair_secret):
        assert hybrid.pair_mask_key(half, b"", ctx, *pair) in without
    seed = bytes.fromhex(POSITIVE[HALVES["case"]]["silos"][pair[0]]["mask_seed"])
    assert hybrid.pair_secret(seed, ctx, *pair) == mask.pair_secret


def test_a_box_needs_both_halves_and_its_ciphertext():
    box, ctx, pair = values("box"), bytes.fromhex(HALVES["ctx"]), tuple(HALVES["pair"])
    ciphertext = bytes.fromhex(leaf_of(pair)["box_kem"])
    assert hashlib.sha256(ciphertext).digest() == box.ciphertext_sha256
    key = hybrid.box_key(box.x25519, box.ml_kem, ctx, pair, ciphertext)
    assert key == box.key
    others = {box.key_without_x25519, box.key_without_ml_kem, box.key_without_ciphertext}
    assert len(others | {key}) == 4
    assert hybrid.box_key(box.x25519, box.ml_kem, ctx, pair[::-1], ciphertext) != key


def test_a_seal_is_bound_to_its_ciphertext():
    seal, ctx, pair = values("seal"), bytes.fromhex(HALVES["ctx"]), HALVES["pair"]
    ciphertext = bytes.fromhex(leaf_of(pair)["mask_kem"])
    key = hybrid.seal_key(seal.ml_kem, ctx, *pair, ciphertext)
    assert key == seal.key != seal.key_without_ciphertext


def leaf_of(pair):
    sender, recipient = pair
    item = next(item for item in POSITIVE[HALVES["case"]]["r1"] if item["sender"] == sender)
    return next(leaf for leaf in item["leaves"] if leaf["recipient"] == recipient)


# Digest trees -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tree", TREES, ids=lambda tree: f"{tree['digest_id']}-{tree['length_bytes']}"
)
def test_a_digest_tree_has_the_leaves_and_the_root_of_the_vectors(tree):
    if tree["digest_id"] == digest_tree.BLAKE3:
        pytest.importorskip("blake3")
    size = tree["length_bytes"]
    assert generator.tree(tree["digest_id"], size) == tree
    hasher = digest_tree.TreeHasher(size, tree["digest_id"])
    hasher.update(generator.content_of(size))
    assert hasher.leaves().hex() == tree["leaves"]
    assert hasher.root().hex() == tree["root"]

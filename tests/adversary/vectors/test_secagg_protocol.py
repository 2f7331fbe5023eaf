"""The protocol vectors: reproduced byte for byte, recomputed independently, refused by name."""

import ast
import hashlib
import json
from pathlib import Path

import pytest

from secagg import client
from secagg.errors import Check, VerificationError
from tests.adversary.vectors import secagg_documents as documents
from tests.adversary.vectors import secagg_generator as generator
from tests.adversary.vectors.secagg_reference import Case
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.simulation.secagg_cohort import deterministic_entropy

POSITIVE = json.loads(generator.POSITIVE.read_text(encoding="utf-8"))
NEGATIVE = json.loads(generator.NEGATIVE.read_text(encoding="utf-8"))
STEPS = ("advertise_keys", "share_keys", "masked_input", "consistency_check", "unmask")


def test_the_files_are_what_the_generator_writes():
    assert generator.POSITIVE.read_text() == generator.written(generator.all_positive())
    assert generator.NEGATIVE.read_text() == generator.written(generator.Alterations().all())


def test_the_cases_are_those_that_the_protocol_promises():
    sizes = {
        (c["n"], c["c"], c["t"], sum(map(len, c["drops"].values()))) for c in POSITIVE.values()
    }
    assert sizes == {(3, 1, 3, 0), (4, 1, 3, 1), (5, 1, 4, 1), (10, 3, 7, 3)}
    for n in (4, 5):
        dropped = [set(case["drops"]) for case in POSITIVE.values() if case["n"] == n]
        assert dropped == [{"share_keys"}, {"masked_input"}, {"consistency_check"}]
    everywhere = {"share_keys", "masked_input", "consistency_check"}
    assert set(POSITIVE["n10-c3-t7-drop3"]["drops"]) == everywhere


def test_the_reference_knows_nothing_of_this_project():
    tree = ast.parse((Path(__file__).parent / "secagg_reference.py").read_text())
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.split(".")[0] for name in imported} == {
        "hashlib",
        "struct",
        "functools",
        "cryptography",
    }


@pytest.mark.parametrize("name", sorted(POSITIVE))
def test_an_independent_computation_gives_the_same_bytes(name):
    case = POSITIVE[name]
    reference = Case(case)
    same(reference.roster(), case["roster"])
    same(reference.descriptor(), case["descriptor"])
    for item in case["r0"]:
        same(reference.bundle(item), item)
    assert reference.ctx.hex() == case["ctx"]
    for item in case["r1"]:
        same(reference.share_header(item["sender"]), item)
        for box in item["boxes"]:
            sealed, seed_hash, key_hash = reference.box(item["sender"], box["recipient"])
            assert sealed.hex() == box["ciphertext"]
            assert seed_hash.hex() == box["self_seed_share_sha256"]
            assert key_hash.hex() == box["mask_key_share_sha256"]
    assert reference.members.hex() == case["members_sha256"]
    for item in case["r2"]:
        masked = reference.masked(item["silo_id"])
        assert masked.hex() == item["masked"]
        assert hashlib.sha256(masked).hexdigest() == item["masked_sha256"]
        same(reference.upload(item["silo_id"]), item)
    assert reference.survivors.hex() == case["survivors_sha256"]
    assert reference.agreement().hex() == case["r3_signed_bytes"]
    for item in case["r3"]:
        agreed = bytes.fromhex(case["r3_signed_bytes"])
        assert reference.signed(item["silo_id"], agreed).hex() == item["signature"]
    for item in case["r4"]:
        same(reference.released(item["silo_id"]), item)
    assert reference.sum_from_shares().hex() == case["sum"]
    assert reference.sum_in_the_open().hex() == case["sum"]
    assert case["survivors"] == [item["silo_id"] for item in case["r2"]]


def same(computed, item):
    content, signature = computed
    assert content.hex() == item["signed_bytes"]
    assert signature.hex() == item["signature"]


# Negative ----------------------------------------------------------------------------------------


def delivery(case, receiver):
    """The message of R1's end as one silo gets it."""
    return {
        "headers": [
            {
                **{key: item[key] for key in item if key not in ("boxes", "signed_bytes")},
                "boxes": [
                    {key: box[key] for key in box if key != "ciphertext"}
                    | {"ciphertext_sha256": sha256_of(box["ciphertext"])}
                    for box in item["boxes"]
                ],
            }
            for item in case["r1"]
        ],
        "ciphertexts": {
            item["sender"]: box["ciphertext"]
            for item in case["r1"]
            for box in item["boxes"]
            if box["recipient"] == receiver
        },
    }


def sha256_of(content):
    return hashlib.sha256(bytes.fromhex(content)).hexdigest()


def good_messages(case, receiver):
    return {
        "advertise_keys": case["descriptor"],
        "share_keys": {"bundles": case["r0"]},
        "masked_input": delivery(case, receiver),
        "consistency_check": {"headers": case["r2"]},
        "unmask": {"signatures": case["r3"]},
    }


def brought_to(step, case, receiver, message):
    """Give a silo the good messages before a step, and at it the one given."""
    documents_of = good_messages(case, receiver) | {step: message}
    silo = case["silos"][receiver]
    good = documents.descriptor(case["descriptor"]).descriptor
    setup = client.ClientSetup(
        silo_id=receiver,
        signing_key=signing_key(receiver),
        roster=documents.roster(case["roster"]),
        descriptor=documents.descriptor(documents_of["advertise_keys"]),
        ledger_head=client.LedgerHead(seq=7, sha256=bytes(32)),
        newest_identity=None,
        base_model_sha256=good.base_model_sha256,
        adapter_sha256=good.adapter_sha256,
        families=("craft", "maze"),
        entropy=deterministic_entropy(f"protocol-vectors/{receiver}"),
        suites=frozenset({1}),
    )
    state, bundle = client.begin(setup)
    assert bundle.cipher_key.hex() == own(case, receiver)["cipher_key"]
    for following in STEPS[1 : STEPS.index(step) + 1]:
        state, _ = state.handle(documents.message(following, documents_of[following]))
        if following == "masked_input":
            vector = bytearray.fromhex(silo["vector"])
            state, _ = state.mask(documents.words(vector))
    return state


def own(case, receiver):
    return next(item for item in case["r0"] if item["silo_id"] == receiver)


@pytest.mark.parametrize("step", STEPS)
def test_the_unaltered_messages_are_accepted(step):
    case = POSITIVE[generator.NEGATIVE_CASE]
    brought_to(step, case, generator.ME, good_messages(case, generator.ME)[step])


@pytest.mark.parametrize("vector", NEGATIVE, ids=lambda vector: vector["name"].replace(" ", "-"))
def test_an_altered_message_is_refused_at_the_named_check(vector):
    case = POSITIVE[vector["case"]]
    with pytest.raises(VerificationError) as caught:
        brought_to(vector["step"], case, vector["receiver"], vector["message"])
    assert caught.value.check == vector["check"]
    if vector["silo"] is not None:
        assert caught.value.silo == vector["silo"]


def test_every_check_that_a_silo_makes_of_a_message_has_a_negative_vector():
    covered = {vector["check"] for vector in NEGATIVE}
    # What no message of the coordinator can bring about, or what names a sender instead.
    elsewhere = {
        Check.MALFORMED, Check.UNEXPECTED_MESSAGE, Check.PARAMETER,
        Check.ROSTER_SIGNATURE, Check.ROSTER_EPOCH, Check.ROSTER_APPROVALS, Check.IDENTITY,
        Check.METRICS_FAMILIES, Check.LEDGER_HEAD,
        Check.BOX_OPEN, Check.SHARE_HASH, Check.SHARE_RANGE, Check.MASKED_DIGEST,
        Check.UNMASK_SIGNATURE, Check.UNMASK_KIND, Check.SHARE_COUNT, Check.COMMITMENT,
        Check.MASK_KEY, Check.SENDER, Check.DUPLICATE,
        # Suite v2's own (`hybrid_negative.json`), and what guards a run without noise.
        Check.SUITE, Check.TASK, Check.DEBIT_HEAD, Check.KEM_KEY, Check.CONTRIBUTORS,
        Check.LEAF_COUNT, Check.LEAF, Check.PAIR_SECRET, Check.DIGEST_LEAF, Check.REJECTED_PAIR,
        Check.COHORT_GREW,
    }  # fmt: skip
    assert covered == {check.value for check in set(Check) - elsewhere}
    assert len(NEGATIVE) == len({vector["name"] for vector in NEGATIVE})

"""The vectors of suite v2: written by the reference, kept by the protocol's own code both ways.

A client with a case's entropy and encapsulations sends the case's bytes; a coordinator with the
case's messages sends the others and finds the case's sum; an altered message is refused by name.
"""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import client, hybrid, server
from secagg.errors import Check, VerificationError
from secagg.messages import DebitHead
from tests.adversary.vectors import hybrid_alterations as alterations
from tests.adversary.vectors import hybrid_documents as documents
from tests.adversary.vectors import hybrid_generator as generator
from tests.adversary.vectors import secagg_documents
from tests.adversary.vectors.hybrid_reference import HybridCase, decapsulated
from tests.adversary.vectors.secagg_documents import made, words

POSITIVE = json.loads(generator.POSITIVE.read_text(encoding="utf-8"))
NEGATIVE = json.loads(generator.NEGATIVE.read_text(encoding="utf-8"))
STEPS = alterations.STEPS


def test_the_files_are_what_the_generator_writes():
    positive = generator.all_positive()
    assert generator.POSITIVE.read_text() == generator.written(positive)
    assert generator.NEGATIVE.read_text() == generator.written(alterations.all_negative(positive))
    first = positive[next(iter(generator.CASES))]
    assert generator.HALVES.read_text() == generator.written(generator.halves(first))


def test_the_reference_knows_nothing_of_this_project():
    beside = Path(__file__).parent
    reference = ("hybrid_reference", "hybrid_alterations", "hybrid_generator", "reference_mlkem")
    allowed = {"tests.adversary.vectors.secagg_reference", "tests.adversary.vectors"} | {
        f"tests.adversary.vectors.{name}" for name in reference
    }
    for name in reference:
        tree = ast.parse((beside / f"{name}.py").read_text())
        imported = {
            (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        standard = {"copy", "functools", "hashlib", "hmac", "json", "pathlib", "struct", "typing"}
        others = {module for module in imported - allowed if module.split(".")[0] not in standard}
        assert {module.split(".")[0] for module in others} <= {"cryptography", "blake3"}


# The client ---------------------------------------------------------------------------------------


def entropy_of(silo):
    """What a silo draws, in the order in which it does."""
    names = ("mask_seed", "box_seed", "self_seed")
    lists = ("self_seed_coefficients", "mask_seed_coefficients")
    draws = [silo[name] for name in names] + [item for name in lists for item in silo[name]]
    remaining = iter(bytes.fromhex(draw) for draw in draws)

    def entropy(size):
        found = next(remaining)
        assert len(found) == size
        return found

    return entropy


def encapsulate_of(case, sender):
    """The encapsulations of a case for the keys that a silo asks for."""
    reference, found = HybridCase(case), {}
    for (dealer, recipient), (box_kem, mask_kem) in reference.ciphertexts.items():
        if dealer == sender:
            boxes, masks = reference.box_keys(recipient), reference.mask_keys(recipient)
            found[boxes.ek] = decapsulated(boxes.dk, box_kem), box_kem
            if mask_kem:
                found[masks.ek] = decapsulated(masks.dk, mask_kem), mask_kem
    # Each once: a client that encapsulates twice for one key fails here.
    return found.pop


def setup_of(case, name, descriptor=None):
    good = documents.descriptor(case["descriptor"]).descriptor
    silo = case["silos"][name]
    declared = next(item for item in case["r0"] if item["silo_id"] == name)
    return client.ClientSetup(
        silo_id=name,
        signing_key=Ed25519PrivateKey.from_private_bytes(bytes.fromhex(silo["signing_key"])),
        roster=secagg_documents.roster(case["roster"]),
        descriptor=descriptor or documents.descriptor(case["descriptor"]),
        ledger_head=client.LedgerHead(
            seq=declared["ledger_seq"], sha256=bytes.fromhex(declared["ledger_sha256"])
        ),
        newest_identity=None,
        base_model_sha256=good.base_model_sha256,
        adapter_sha256=good.adapter_sha256,
        families=tuple(declared["families"]),
        entropy=entropy_of(silo),
        suites=frozenset({2}),
        debit_head=made(DebitHead, declared["debit"]),
        cohort_may_vary=declared["cohort_may_vary"],
        task_sha256=documents.round_task(case["round_task"]).sha256,
        families_of_plan=good.families,
        encapsulate=encapsulate_of(case, name),
    )


def masked(case, name, state):
    """The next state, the header and the masked vector."""
    silo = case["silos"][name]
    vector = words(bytearray.fromhex(silo["vector"]))
    state, header = state.mask(vector, made(DebitHead, silo["debit"]))
    return state, header, vector


def item_of(items, name):
    return next((item for item in items if item.get("sender", item.get("silo_id")) == name), None)


HONEST = [
    (label, name)
    for label, case in sorted(POSITIVE.items())
    for name, silo in sorted(case["silos"].items())
    # One that deals another secret than it should, or accuses a fair dealer, is no client of ours.
    if "dealt" not in silo and name not in case.get("accuses", {})
]


@pytest.mark.parametrize(("label", "name"), HONEST)
def test_a_client_sends_the_bytes_of_the_vectors(label, name):
    case = POSITIVE[label]
    messages = alterations.good_messages(case, name)
    state, bundle = client.begin(setup_of(case, name))
    assert bundle == documents.bundle(item_of(case["r0"], name))
    if (expected := item_of(case["r1"], name)) is None:
        return
    state, leaves = state.handle(documents.message("share_keys", messages["share_keys"]))
    assert leaves == documents.share_leaves(expected)
    state, _ = state.handle(documents.message("masked_input", messages["masked_input"]))
    if (expected := item_of(case["r2"] + case["not_summed"], name)) is None:
        return
    state, header, vector = masked(case, name, state)
    assert header == documents.header(expected)
    assert vector.tobytes().hex() == expected["masked"]
    if item_of(case["r3"], name) is None:
        return
    survivors = documents.message("consistency_check", messages["consistency_check"])
    state, agreement = state.handle(survivors)
    assert agreement.signature.hex() == item_of(case["r3"], name)["signature"]
    _, shares = state.handle(documents.message("unmask", messages["unmask"]))
    assert shares == documents.unmasking_shares(item_of(case["r4"], name))


WITHOUT = {
    "the mask's X25519 half": ("pair_mask_key", lambda args: (b"", *args[1:])),
    "the mask's ML-KEM half": ("pair_mask_key", lambda args: (args[0], b"", *args[2:])),
    "the box's X25519 half": ("box_key", lambda args: (b"", *args[1:])),
    "the box's ML-KEM half": ("box_key", lambda args: (args[0], b"", *args[2:])),
    "the box's ciphertext": ("box_key", lambda args: (*args[:-1], b"")),
    "the seal's ciphertext": ("seal_key", lambda args: (*args[:-1], b"")),
}


@pytest.mark.parametrize("part", WITHOUT)
def test_a_client_without_one_part_of_the_hybrid_sends_other_bytes(part, monkeypatch):
    """Whatever is left out on both sides alike still agrees with itself, and not with these."""
    function, reduced = WITHOUT[part]
    whole = getattr(hybrid, function)
    monkeypatch.setattr(hybrid, function, lambda *args: whole(*reduced(args)))
    case, name = POSITIVE["n3-c1-t3-drop0"], "bravo-hospital"
    messages = alterations.good_messages(case, name)
    state, _ = client.begin(setup_of(case, name))
    state, leaves = state.handle(documents.message("share_keys", messages["share_keys"]))
    same = leaves == documents.share_leaves(item_of(case["r1"], name))
    if function == "pair_mask_key":
        state, _ = state.handle(documents.message("masked_input", messages["masked_input"]))
        _, _, vector = masked(case, name, state)
        same = vector.tobytes().hex() == item_of(case["r2"], name)["masked"]
    assert not same


# The coordinator ----------------------------------------------------------------------------------


@pytest.mark.parametrize("label", sorted(POSITIVE))
def test_a_coordinator_finds_the_sum_of_the_vectors(label):
    case = POSITIVE[label]
    roster = secagg_documents.roster(case["roster"])
    state = server.open(documents.descriptor(case["descriptor"]), roster)
    for item in case["r0"]:
        state.receive(documents.bundle(item))
    state, bundles = state.close()
    good = alterations.good_messages(case, case["survivors"][0])
    assert bundles == documents.message("share_keys", good["share_keys"])
    for item in case["r1"]:
        state.receive(documents.share_leaves(item))
    state, deliveries = state.close()
    for name, delivery in deliveries.items():
        good = alterations.good_messages(case, name)
        assert delivery == documents.message("masked_input", good["masked_input"])
    accumulator = uploaded(case, state)
    state, survivors = state.close()
    assert survivors == documents.message("consistency_check", good["consistency_check"])
    for item in documents.message("unmask", good["unmask"]).signatures:
        state.receive(item)
    state, signatures = state.close()
    assert signatures == documents.message("unmask", good["unmask"])
    for item in case["r4"]:
        state.receive(documents.unmasking_shares(item))
    unmasking = state.finish()
    unmasking.apply(accumulator)
    assert list(unmasking.survivors) == case["survivors"]
    assert accumulator.tobytes().hex() == case["sum"]
    assert list(unmasking.bad_pair_dealers) == case["bad_dealers"]


def uploaded(case, state):
    """The sum of what survives. Whom rejections cost is for the coordinator to say."""
    accumulator = np.zeros(len(case["sum"]) // 8, dtype="<u4")
    for item in case["r2"] + case["not_summed"]:
        if item["silo_id"] not in case["drops"].get("masked_input", ()):
            header = documents.header(item)
            state.expect(header)
            state.completed(item["silo_id"], header.masked_sha256)
        if item in case["r2"]:
            accumulator += words(bytes.fromhex(item["masked"]))
    assert list(state.left_out) == case["drops"].get("left_out", [])
    return accumulator


# Negative -----------------------------------------------------------------------------------------


def brought_to(step, case, receiver, message):
    """Give a silo the good messages before a step, and at it the one given."""
    messages = alterations.good_messages(case, receiver) | {step: message}
    descriptor = documents.descriptor(messages["advertise_keys"])
    state, _ = client.begin(setup_of(case, receiver, descriptor))
    header, rejected = None, []
    for following in STEPS[1 : STEPS.index(step) + 1]:
        state, _ = state.handle(documents.message(following, messages[following]))
        if following == "masked_input":
            rejected = [(sender.silo_id, sender.check.value) for sender in state.rejected]
            state, header, _ = masked(case, receiver, state)
    return header, rejected


def altered(vector):
    case = POSITIVE[vector["case"]]
    good = alterations.good_messages(case, vector["receiver"])[vector["step"]]
    return case, alterations.applied(good, vector["changes"])


def name_of(vector):
    return vector["name"].replace(" ", "-")


@pytest.mark.parametrize("vector", [vector for vector in NEGATIVE if vector["aborts"]], ids=name_of)
def test_an_altered_message_is_refused_at_the_named_check(vector):
    case, message = altered(vector)
    with pytest.raises(VerificationError) as caught:
        brought_to(vector["step"], case, vector["receiver"], message)
    assert caught.value.check == vector["check"]
    if vector["silo"] is not None:
        assert caught.value.silo == vector["silo"]


@pytest.mark.parametrize(
    "vector", [vector for vector in NEGATIVE if not vector["aborts"]], ids=name_of
)
def test_a_bad_leaf_names_its_sender_and_stops_nobody(vector):
    case, message = altered(vector)
    header, rejected = brought_to(vector["step"], case, vector["receiver"], message)
    assert rejected == [(vector["silo"], vector["check"])]
    paired = vector["check"] != Check.PAIR_SECRET
    assert header.rejected == (() if paired else (vector["silo"],))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("label", sorted({vector["case"] for vector in NEGATIVE}))
def test_the_unaltered_messages_are_accepted(label, step):
    case = POSITIVE[label]
    good = alterations.good_messages(case, alterations.ME)
    brought_to(step, case, alterations.ME, good[step])


def test_every_check_that_suite_v2_brings_has_a_negative_vector():
    covered = {vector["check"] for vector in NEGATIVE}
    # What is new in v2 and what no message of a coordinator can bring about.
    elsewhere = {Check.DIGEST_LEAF, Check.COHORT_GREW}
    new = {
        Check.SUITE, Check.TASK, Check.DEBIT_HEAD, Check.KEM_KEY, Check.CONTRIBUTORS,
        Check.LEAF_COUNT, Check.LEAF, Check.PAIR_SECRET, Check.REJECTED_PAIR,
    }  # fmt: skip
    assert new - elsewhere <= covered
    assert len(NEGATIVE) == len({vector["name"] for vector in NEGATIVE})

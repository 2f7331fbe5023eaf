"""``python -m tests.adversary.vectors.hybrid_generator`` writes suite v2's vectors (README.md).

Everything in them comes from the reference alone: the protocol's own code is checked against them.
The altered messages are those of `hybrid_alterations`.
"""

import hashlib
import json
from pathlib import Path

from tests.adversary.vectors import reference_mlkem as mlkem
from tests.adversary.vectors.hybrid_reference import (
    HybridCase,
    box_key,
    decapsulated,
    derived,
    digest_leaves,
    digest_root,
    pair_mask_key,
    record_content,
    record_sha256,
    seal_key,
)
from tests.adversary.vectors.secagg_reference import PRIME, agreed, sha256, signature

HERE = Path(__file__).parent
POSITIVE, NEGATIVE = HERE / "hybrid_protocol.json", HERE / "hybrid_negative.json"
HALVES, TREES = HERE / "hybrid_halves.json", HERE / "hybrid_digest_trees.json"
RECORDS = HERE / "hybrid_records.json"
DIMENSION = 15
NAMES = ("alpha", "bravo-hospital", "charlie", "delta-7", "echo")
FAMILIES = ("craft", "maze")
# What the liar seals or commits to in place of the derived secret.
ANOTHER_SECRET = bytes(range(32))
BAD_SEAL = {"dealt": {"alpha": {"charlie": {"sealed_secret": ANOTHER_SECRET.hex()}}}}
UNFAIR = {"dealt": {"alpha": {"charlie": {"pair_secret": ANOTHER_SECRET.hex()}}}}
ACCUSING = {"accuses": {"charlie": ["alpha", "bravo-hospital"]}}
CASES = {
    "n3-c1-t3-drop0": (3, 1, {}, {}),
    "n4-c1-t3-drop0": (4, 1, {}, {"families": {"delta-7": ("maze",)}}),
    "n4-c1-t3-decoy": (4, 1, {}, {"families": {"delta-7": ("weave",)}, "figures": ()}),
    "n4-c1-t3-drop1-r1": (4, 1, {"share_keys": ["bravo-hospital"]}, {}),
    "n4-c1-t3-drop1-r2-lowest": (4, 1, {"masked_input": ["alpha"]}, {}),
    "n4-c1-t3-drop1-r2-highest": (4, 1, {"masked_input": ["delta-7"]}, {}),
    "n4-c1-t3-drop1-r3": (4, 1, {"consistency_check": ["charlie"]}, {}),
    "n4-c1-t3-rejected-dealer-lost": (4, 1, {"left_out": ["alpha"]}, BAD_SEAL),
    "n4-c1-t3-rejecter-lost": (4, 1, {"masked_input": ["charlie"]}, BAD_SEAL),
    "n4-c1-t3-unfair-dealer-lost": (4, 1, {"masked_input": ["alpha"]}, UNFAIR),
    "n4-c1-t3-unfair-dealer-stays": (4, 1, {"masked_input": ["charlie"]}, UNFAIR),
    "n5-c2-t4-false-accuser-lost": (5, 2, {"left_out": ["charlie"]}, ACCUSING),
}


def drawn(label, size):
    return hashlib.shake_256(f"hybrid vectors/{label}".encode()).digest(size)


def signing_key(name):
    return hashlib.sha256(name.encode()).digest()


def verification_key(name):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(signing_key(name)).public_key().public_bytes_raw()


# The inputs of a case -----------------------------------------------------------------------------


def roster(names, c):
    return {
        "federation": "example",
        "epoch": 3,
        "colluding": c,
        "coordinator_key": verification_key("coordinator"),
        "entries": [
            {
                "silo_id": name,
                "spiffe_uri": f"spiffe://example.org/silo/{name}",
                "verification_key": verification_key(name),
            }
            for name in names
        ],
    }


def round_task(names):
    return {
        "run_id": "run-1",
        "round": 4,
        "step": 0,
        "plan_sha256": bytes([1]) * 32,
        "roster_sha256": b"",
        "roster_epoch": 3,
        "base_model_sha256": bytes([2]) * 32,
        "adapter_sha256": bytes([3]) * 32,
        "ready_deadline_unix_s": 900,
        "invited": list(names),
    }


def descriptor(names, c, t, figures):
    return {
        "version": 2,
        "suite": 2,
        "identity": {"run_id": "run-1", "round": 4, "step": 0, "part": 0, "attempt": 0},
        "roster_sha256": b"",
        "roster_epoch": 3,
        "cohort": list(names),
        "colluding": c,
        "threshold": t,
        "n_min": 3,
        "plan_sha256": bytes([1]) * 32,
        "base_model_sha256": bytes([2]) * 32,
        "adapter_sha256": bytes([3]) * 32,
        "layout_sha256": bytes([4]) * 32,
        "dimension": DIMENSION,
        "unit_clip": 1.0,
        "vector_clip": 1.0,
        "max_units": 1,
        "scale": 2.0**20,
        "metrics": {
            "names": list(figures),
            "bounds": [64.0] * len(figures),
            "grid": 4096 if figures else 0,
            "sigma": 0.0,
        },
        "ring_bits": 32,
        "noise_mechanism": "none",
        "noise_sigma": 0.0,
        "privacy_spec_sha256": bytes([5]) * 32,
        "deadlines_unix_s": [1000, 1100, 1200, 1300, 1400],
        "families": list(FAMILIES),
        "task_sha256": b"",
        "digest_id": 1,
    }


def coefficients(label, t):
    numbers = (int.from_bytes(drawn(f"{label}/{k}", 64), "big") % PRIME for k in range(1, t))
    return [number.to_bytes(33, "big") for number in numbers]


def silo(label, name, words, t):
    own = f"{label}/{name}"
    return {
        "signing_key": signing_key(name),
        "mask_seed": drawn(f"{own}/mask", 32),
        "box_seed": drawn(f"{own}/box", 32),
        "self_seed": drawn(f"{own}/self", 32),
        "self_seed_coefficients": coefficients(f"{own}/self", t),
        "mask_seed_coefficients": coefficients(f"{own}/mask", t),
        "vector": drawn(f"{own}/vector", 4 * words),
        "debit": {"seq": 12, "sha256": drawn(f"{own}/debit", 32)},
    }


def declared(label, name, families):
    """What a silo says in R0 beside its keys; the first silo has made no release yet."""
    first = name == NAMES[0]
    return {
        "silo_id": name,
        "ledger_seq": 7,
        "ledger_sha256": drawn(f"{label}/{name}/ledger", 32),
        "families": list(families),
        "debit": {
            "seq": 0 if first else 5,
            "sha256": bytes(32) if first else drawn(f"{label}/{name}/charged", 32),
        },
        "cohort_may_vary": name == "charlie",
    }


def inputs(label, n, c, drops, options):
    """A case with nothing computed yet but the documents' digests."""
    names, t = NAMES[:n], max((n + c) // 2 + 1, c + 2)
    figures = options.get("figures", ("episodes/craft",))
    words = DIMENSION + len(figures)
    case = {
        "n": n,
        "c": c,
        "t": t,
        "n_min": 3,
        "drops": drops,
        "root_signing_key": signing_key("root"),
        "coordinator_signing_key": signing_key("coordinator"),
        "roster": {"roster": roster(names, c)},
        "round_task": {"round_task": round_task(names)},
        "descriptor": {"descriptor": descriptor(names, c, t, figures)},
        "silos": {name: silo(label, name, words, t) for name in names},
        "r0": [
            declared(label, name, options.get("families", {}).get(name, FAMILIES)) for name in names
        ],
        "r1": [],
        "r2": [],
    }
    if "accuses" in options:
        case["accuses"] = options["accuses"]
    for name, dealt in options.get("dealt", {}).items():
        case["silos"][name]["dealt"] = dealt
    case = plain(case)
    digest = sha256(HybridCase(case).roster()[0]).hex()
    case["round_task"]["round_task"]["roster_sha256"] = digest
    case["descriptor"]["descriptor"]["roster_sha256"] = digest
    task = HybridCase(case).round_task()[0]
    case["descriptor"]["descriptor"]["task_sha256"] = sha256(task).hex()
    return case


def plain(value):
    """Bytes are lower-case hexadecimal, tuples are lists."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def encapsulations(case, label):
    """The leaves of R1 with their ciphertexts alone, from the silos that send R1."""
    reference = HybridCase(case)
    names = [item["silo_id"] for item in case["r0"]]
    found = []
    for sender in names:
        if sender in case["drops"].get("share_keys", ()):
            continue
        leaves = []
        for recipient in names:
            if recipient == sender:
                continue
            pair = f"{label}/{sender}/{recipient}"
            _, box_kem = mlkem.encaps(reference.box_keys(recipient).ek, drawn(f"{pair}/box", 32))
            mask_kem = b""
            if sender < recipient:
                ek, m = reference.mask_keys(recipient).ek, drawn(f"{pair}/mask", 32)
                _, mask_kem = mlkem.encaps(ek, m)
            leaves.append({"recipient": recipient, "box_kem": box_kem, "mask_kem": mask_kem})
        found.append({"sender": sender, "leaves": leaves})
    return plain(found)


# What follows from them ---------------------------------------------------------------------------


def signed(computed):
    content, signature = computed
    return {"signature": signature, "signed_bytes": content}


def positive(label, n, c, drops, options):
    """One whole aggregation."""
    case = inputs(label, n, c, drops, options)
    for name in ("roster", "round_task", "descriptor"):
        case[name] |= plain(signed(getattr(HybridCase(case), name)()))
    case["r0"] = plain([bundle(HybridCase(case), item) for item in case["r0"]])
    case["r1"] = encapsulations(case, label)
    shared = [item["sender"] for item in case["r1"]]
    lost = {*drops.get("masked_input", ()), *drops.get("left_out", ())}
    case["r2"] = [{"silo_id": name} for name in shared if name not in lost]
    reference = HybridCase(case)
    case["ctx"] = reference.ctx.hex()
    case["r1"] = plain([share_root(reference, name) for name in shared])
    case["members_sha256"] = reference.members.hex()
    uploads = {name: plain(upload(reference, name)) for name in shared}
    case["r2"] = [uploads[name] for name in reference.alive]
    case["not_summed"] = [uploads[name] for name in reference.lost]
    case["survivors_sha256"] = reference.survivors.hex()
    agreement = reference.agreement()
    case["r3_signed_bytes"] = agreement.hex()
    signers = [name for name in reference.alive if name not in drops.get("consistency_check", ())]
    case["r3"] = plain(
        [{"silo_id": name, "signature": reference.signed(name, agreement)} for name in signers]
    )
    case["r4"] = plain([released(reference, name) for name in signers])
    total, bad_dealers = HybridCase(case).sum_from_shares()
    if total != reference.sum_in_the_open():
        raise AssertionError(label)
    return case | {
        "survivors": reference.alive,
        "bad_dealers": bad_dealers,
        "sum": total.hex(),
    }


def bundle(reference, item):
    name, cipher_key, mask_key, *_ = reference.bundle_fields(item)
    content, signature = reference.bundle(item)
    return item | {
        "cipher_key": cipher_key,
        "mask_key": mask_key,
        "kem_keys": {
            "cipher_key": reference.box_keys(name).ek,
            "mask_key": reference.mask_keys(name).ek,
        },
        "signature": signature,
        "signed_sha256": sha256(content),
    }


LEAF = (
    "recipient", "box_kem", "ciphertext", "mask_kem", "sealed",
    "self_seed_share_sha256", "mask_key_share_sha256", "pair_secret_sha256",
)  # fmt: skip
ROOT = ("sender", "leaf_count", "root", "self_seed_commitment", "own_self_seed_share_sha256")


def share_root(reference, name):
    leaves = [
        dict(zip(LEAF, reference.leaf_fields(name, recipient), strict=True))
        | {"path": reference.path(name, recipient)}
        for recipient in (item["silo_id"] for item in reference.case["r0"])
        if recipient != name
    ]
    return (
        dict(zip(ROOT, reference.root_fields(name), strict=True))
        | signed(reference.share_header(name))
        | {"leaves": leaves}
    )


def upload(reference, name):
    _, length_bytes, root, seq, debit_sha256, rejected = reference.upload_fields(name)
    return {
        "silo_id": name,
        "length_bytes": length_bytes,
        "masked_sha256": root,
        "debit": {"seq": seq, "sha256": debit_sha256},
        "rejected": rejected,
        "masked": reference.masked(name),
    } | signed(reference.upload(name))


def released(reference, name):
    self_shares = [(owner, reference.shares_of(owner, name)[0]) for owner in reference.alive]
    mask_shares = [(owner, reference.shares_of(owner, name)[1]) for owner in reference.lost]
    return {
        "silo_id": name,
        "self_seed_shares": [{"owner": owner, "share": share} for owner, share in self_shares],
        "mask_key_shares": [{"owner": owner, "share": share} for owner, share in mask_shares],
        "pair_secrets": [
            {"silo_id": lost, "secret": secret} for lost, secret in reference.released_secrets(name)
        ],
    } | signed(reference.released(name))


# Halves and trees ---------------------------------------------------------------------------------


def halves(case):
    """The keys of one pair, beside what they would be without one half or without a binding."""
    reference, (low, high) = HybridCase(case), NAMES[:2]
    ctx = reference.ctx
    box_kem, mask_kem = reference.ciphertexts[low, high]
    mask_shared = agreed(reference.mask_keys(low).dh, reference.mask_keys(high).dh_public)
    box_shared = agreed(reference.box_keys(low).dh, reference.box_keys(high).dh_public)
    box_kem_shared = decapsulated(reference.box_keys(high).dk, box_kem)
    mask_kem_shared = decapsulated(reference.mask_keys(high).dk, mask_kem)
    secret = reference.pair_secret(low, high)
    digest = sha256(box_kem)
    return plain(
        {
            "case": next(name for name in CASES),
            "ctx": ctx,
            "pair": [low, high],
            "mask": {
                "x25519": mask_shared,
                "pair_secret": secret,
                "key": pair_mask_key(mask_shared, secret, ctx, low, high),
                "key_without_x25519": derived(secret, "mask", ctx, low, high),
                "key_without_ml_kem": derived(mask_shared, "mask", ctx, low, high),
            },
            "box": {
                "x25519": box_shared,
                "ml_kem": box_kem_shared,
                "ciphertext_sha256": digest,
                "key": box_key(box_shared, box_kem_shared, ctx, (low, high), box_kem),
                "key_without_x25519": derived(box_kem_shared, "box", ctx, low, high, digest),
                "key_without_ml_kem": derived(box_shared, "box", ctx, low, high, digest),
                "key_without_ciphertext": derived(
                    box_shared + box_kem_shared, "box", ctx, low, high
                ),
            },
            "seal": {
                "ml_kem": mask_kem_shared,
                "ciphertext_sha256": sha256(mask_kem),
                "key": seal_key(mask_kem_shared, ctx, low, high, mask_kem),
                "key_without_ciphertext": derived(mask_kem_shared, "seal", ctx, low, high),
            },
        }
    )


SIZES = (1, 64, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 5)


def content_of(size):
    return hashlib.shake_128(b"chorale digest tree").digest(size)


def tree(digest_id, size):
    """The digest tree over the first bytes of one stream."""
    content = content_of(size)
    return {
        "digest_id": digest_id,
        "length_bytes": size,
        "leaves": digest_leaves(content, digest_id).hex(),
        "root": digest_root(content, digest_id).hex(),
    }


# Records ------------------------------------------------------------------------------------------


def part(number, survivors):
    return {
        "part": number,
        "descriptor_sha256": drawn(f"part {number}/descriptor", 32),
        "sum_sha256": drawn(f"part {number}/sum", 32),
        "survivors": list(survivors),
    }


def records():
    """A chain: the first adapter, sums of two groups, a step that released nothing, a rollback."""
    adapters = [drawn(f"adapter {number}", 32) for number in range(2)]
    found = []
    for kind, adapter, own in (
        ("initial", adapters[0], {}),
        ("aggregated", adapters[1], {"parts": [part(0, NAMES[:3]), part(2, NAMES[3:])]}),
        ("skipped", adapters[1], {}),
        ("rollback", adapters[0], {"restored_round": 0}),
    ):
        record = {
            "run_id": "run-1",
            "round": len(found),
            "step": 0,
            "kind": kind,
            "adapter_sha256": adapter,
            "plan_sha256": bytes([1]) * 32,
            "base_model_sha256": bytes([2]) * 32,
            "parent_sha256": found[-1]["adapter_sha256"] if found else "",
            "record_parent_sha256": found[-1]["record_sha256"] if found else "",
            "suite": 2,
            "parts": [],
            "restored_round": None,
        }
        record = plain(record | own)
        content = record_content(record)
        found.append(
            record
            | {
                "signature": signature(signing_key("coordinator").hex(), content).hex(),
                "signed_bytes": content.hex(),
                "record_sha256": record_sha256(record).hex(),
            }
        )
    return found


def written(content):
    return json.dumps(content, indent=1) + "\n"


def all_positive():
    return {name: positive(name, *case) for name, case in CASES.items()}


if __name__ == "__main__":
    from tests.adversary.vectors.hybrid_alterations import all_negative

    found = all_positive()
    POSITIVE.write_text(written(found), encoding="utf-8")
    NEGATIVE.write_text(written(all_negative(found)), encoding="utf-8")
    HALVES.write_text(written(halves(found[next(iter(CASES))])), encoding="utf-8")
    trees = [tree(digest_id, size) for digest_id in (1, 2) for size in SIZES]
    RECORDS.write_text(written(records()), encoding="utf-8")
    TREES.write_text(written(trees), encoding="utf-8")

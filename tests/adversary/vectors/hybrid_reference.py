"""Suite v2 once more, from the README alone, with an ML-KEM of its own (`reference_mlkem`).

Imports nothing of this project. What suite v2 left as it was is taken from `secagg_reference`. It
is slow and keeps its secrets; it is no second client.
"""

import functools
import struct
from functools import cached_property
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.adversary.vectors import reference_mlkem as mlkem
from tests.adversary.vectors.secagg_reference import (
    Case,
    agreed,
    combined,
    encoded,
    keystream,
    public,
    sha256,
    share,
    signature,
)

CHUNK_BYTES = 1 << 20
SUITE = 2
ZERO_NONCE = bytes(12)
decapsulated = functools.cache(mlkem.decaps)


class Keys(NamedTuple):
    """Both private keys of one use, with their public halves."""

    dh: bytes
    dh_public: bytes
    dk: bytes
    ek: bytes


def derived(secret, purpose, bound, *names, length=32):
    info = b"chorale/v2/" + purpose.encode() + bound
    for name in names:
        content = name.encode() if isinstance(name, str) else name
        info += struct.pack(">H", len(content)) + content
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)


@functools.cache
def keys(seed, use, descriptor_sha256, name):
    """The keys for masks or boxes that a silo's seed makes."""
    dh = derived(seed, f"dh-{use}", descriptor_sha256, name)
    kem_seed = derived(seed, f"kem-{use}", descriptor_sha256, name, length=64)
    ek, dk = mlkem.keygen(kem_seed[:32], kem_seed[32:])
    return Keys(dh, public(dh), dk, ek)


# Trees --------------------------------------------------------------------------------------------


def tree_levels(leaf_hashes):
    """From the leaves up to the root; whoever has no sibling goes up as it is."""
    levels = [list(leaf_hashes)]
    while len(levels[-1]) > 1:
        level = levels[-1]
        levels.append(
            [sha256(b"\x01" + b"".join(level[i : i + 2])) for i in range(0, len(level) - 1, 2)]
            + (level[-1:] if len(level) % 2 else [])
        )
    return levels


def tree_root(leaf_hashes):
    return tree_levels(leaf_hashes)[-1][0]


def tree_path(leaf_hashes, index):
    path = []
    for level in tree_levels(leaf_hashes)[:-1]:
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        index //= 2
    return path


def digest(digest_id, content):
    if digest_id == 1:
        return sha256(content)
    from blake3 import blake3

    return blake3(content).digest()


def digest_leaves(content, digest_id):
    """The leaf list of an upload."""
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    return b"".join(
        digest(digest_id, b"\x00" + struct.pack(">QI", index, len(chunk)) + chunk)
        for index, chunk in enumerate(chunks)
    )


def digest_root(content, digest_id):
    leaves = digest_leaves(content, digest_id)
    head = struct.pack(">BIBIQQ", 1, SUITE, digest_id, CHUNK_BYTES, len(leaves) // 32, len(content))
    return digest(digest_id, head + leaves)


# Sealing ------------------------------------------------------------------------------------------


def box_key(shared, kem_shared, ctx, direction, ciphertext):
    return derived(shared + kem_shared, "box", ctx, *direction, sha256(ciphertext))


def seal_key(kem_shared, ctx, low, high, ciphertext):
    return derived(kem_shared, "seal", ctx, low, high, sha256(ciphertext))


def pair_mask_key(shared, secret, ctx, low, high):
    return derived(shared + secret, "mask", ctx, low, high)


def sealed(key, ctx, low, high, secret):
    associated = encoded("chorale/v2/seal", ctx, low, high)
    return ChaCha20Poly1305(key).encrypt(ZERO_NONCE, secret, associated)


def opened(key, ctx, low, high, content):
    """s_ij, or None where the seal does not open."""
    associated = encoded("chorale/v2/seal", ctx, low, high)
    try:
        return ChaCha20Poly1305(key).decrypt(ZERO_NONCE, content, associated)
    except InvalidTag:
        return None


def pair_secret_sha256(ctx, low, high, secret):
    return sha256(encoded("chorale/v2/pair-secret", ctx, low, high, secret))


# What is signed or hashed, of the fields in their order -------------------------------------------


def descriptor_content(d, roster_sha256, task_sha256=None):
    """Of version 1 without a round task's digest."""
    i, m = d["identity"], d["metrics"]
    later = (tuple(d["families"]), task_sha256, d["digest_id"]) if task_sha256 else ()
    return encoded(
        "chorale/v2/descriptor" if later else "chorale/v1/descriptor",
        d["version"],
        d["suite"],
        (i["run_id"], i["round"], i["step"], i["part"], i["attempt"]),
        roster_sha256,
        d["roster_epoch"],
        tuple(d["cohort"]),
        d["colluding"],
        d["threshold"],
        d["n_min"],
        *(bytes.fromhex(d[f"{k}_sha256"]) for k in ("plan", "base_model", "adapter", "layout")),
        d["dimension"],
        d["unit_clip"],
        d["vector_clip"],
        d["max_units"],
        d["scale"],
        (tuple(m["names"]), tuple(m["bounds"]), m["grid"], m["sigma"]),
        d["ring_bits"],
        d["noise_mechanism"],
        d["noise_sigma"],
        bytes.fromhex(d["privacy_spec_sha256"]),
        tuple(d["deadlines_unix_s"]),
        *later,
    )


def record_content(record):
    """What the coordinator signs of a release."""
    parts = tuple(
        (
            part["part"],
            bytes.fromhex(part["descriptor_sha256"]),
            bytes.fromhex(part["sum_sha256"]),
            tuple(part["survivors"]),
        )
        for part in record["parts"]
    )
    restored = (record["restored_round"],) if record["kind"] == "rollback" else ()
    digests = ("adapter", "plan", "base_model", "parent", "record_parent")
    return encoded(
        "chorale/v2/adapter-record",
        record["run_id"],
        record["round"],
        record["step"],
        record["kind"],
        *(bytes.fromhex(record[f"{name}_sha256"]) for name in digests),
        record["suite"],
        parts,
        *restored,
    )


def record_sha256(record):
    """By which the next record names this one."""
    return sha256(encoded("chorale/v1/adapter-record-link", record_content(record)))


def bundle_content(descriptor_sha256, fields):
    return encoded("chorale/v2/key-bundle", descriptor_sha256, *fields)


def leaf_content_sha256(ctx, sender, fields):
    return sha256(b"\x00" + encoded("chorale/v2/r1", ctx, sender, *fields))


def root_content(ctx, fields):
    return encoded("chorale/v2/share-root", ctx, *fields)


def upload_content(ctx, members_sha256, fields):
    return encoded("chorale/v2/masked-input", ctx, members_sha256, *fields)


class HybridCase(Case):
    """One positive case, everything recomputed from its secrets and its KEM ciphertexts."""

    def __init__(self, case):
        self.case = case
        self.silos = {name: _bytes_of(silo) for name, silo in case["silos"].items()}
        self.cohort = case["descriptor"]["descriptor"]["cohort"]
        self.words = len(self.silos[self.cohort[0]]["vector"]) // 4
        self.ciphertexts = {
            (item["sender"], leaf["recipient"]): (
                bytes.fromhex(leaf["box_kem"]),
                bytes.fromhex(leaf["mask_kem"]),
            )
            for item in case["r1"]
            for leaf in item["leaves"]
        }

    # Documents ------------------------------------------------------------------------------------

    def round_task(self):
        """What the coordinator signs before the round, and the signature."""
        task = self.case["round_task"]["round_task"]
        content = encoded(
            "chorale/v2/round-task",
            task["run_id"],
            task["round"],
            task["step"],
            bytes.fromhex(task["plan_sha256"]),
            bytes.fromhex(task["roster_sha256"]),
            task["roster_epoch"],
            bytes.fromhex(task["base_model_sha256"]),
            bytes.fromhex(task["adapter_sha256"]),
            task["ready_deadline_unix_s"],
            tuple(task["invited"]),
        )
        return content, signature(self.case["coordinator_signing_key"], content)

    def descriptor(self):
        roster_sha256, task_sha256 = sha256(self.roster()[0]), sha256(self.round_task()[0])
        document = self.case["descriptor"]["descriptor"]
        content = descriptor_content(document, roster_sha256, task_sha256)
        return content, signature(self.case["coordinator_signing_key"], content)

    @cached_property
    def descriptor_sha256(self):
        return sha256(self.descriptor()[0])

    # R0 -------------------------------------------------------------------------------------------

    def mask_keys(self, name):
        return keys(self.silos[name]["mask_seed"], "mask", self.descriptor_sha256, name)

    def box_keys(self, name):
        return keys(self.silos[name]["box_seed"], "box", self.descriptor_sha256, name)

    def bundle_fields(self, item):
        name = item["silo_id"]
        masks, boxes = self.mask_keys(name), self.box_keys(name)
        return (
            name,
            boxes.dh_public,
            masks.dh_public,
            item["ledger_seq"],
            bytes.fromhex(item["ledger_sha256"]),
            tuple(item["families"]),
            boxes.ek,
            masks.ek,
            *_head(item["debit"]),
            item["cohort_may_vary"],
        )

    def bundle(self, item):
        content = bundle_content(self.descriptor_sha256, self.bundle_fields(item))
        return content, self.signed(item["silo_id"], content)

    # R1 -------------------------------------------------------------------------------------------

    def shares_of(self, owner, holder):
        silo = self.silos[owner]
        return (
            share(silo["self_seed"], silo["self_seed_coefficients"], self.x(holder)),
            share(silo["mask_seed"], silo["mask_seed_coefficients"], self.x(holder)),
        )

    def committed_secret(self, low, high):
        """s_ij whose hash the dealer signs: the derived one unless the case says otherwise."""
        dealt = self.silos[low].get("dealt", {}).get(high, {})
        fair = derived(self.silos[low]["mask_seed"], "pair", self.ctx, low, high)
        return dealt.get("pair_secret", fair)

    def sealed_secret(self, low, high):
        """What the dealer puts under the seal: the same unless the case says otherwise."""
        dealt = self.silos[low].get("dealt", {}).get(high, {})
        return dealt.get("sealed_secret", self.committed_secret(low, high))

    @functools.cache  # noqa: B019 - a case lives as long as its test
    def leaf_fields(self, sender, recipient):
        """A leaf's fields as they are hashed, from the recipient on."""
        ctx, (box_kem, mask_kem) = self.ctx, self.ciphertexts[sender, recipient]
        channel = agreed(self.box_keys(sender).dh, self.box_keys(recipient).dh_public)
        kem_shared = decapsulated(self.box_keys(recipient).dk, box_kem)
        seed_share, key_share = self.shares_of(sender, recipient)
        key = box_key(channel, kem_shared, ctx, (sender, recipient), box_kem)
        associated = encoded("chorale/v1/box", ctx, sender, recipient)
        box = ChaCha20Poly1305(key).encrypt(ZERO_NONCE, seed_share + key_share, associated)
        seal = secret_hash = b""
        if sender < recipient:
            kem_shared = decapsulated(self.mask_keys(recipient).dk, mask_kem)
            seal = sealed(
                seal_key(kem_shared, ctx, sender, recipient, mask_kem),
                ctx,
                sender,
                recipient,
                self.sealed_secret(sender, recipient),
            )
            committed = self.committed_secret(sender, recipient)
            secret_hash = pair_secret_sha256(ctx, sender, recipient, committed)
        seed_hash, key_hash = (
            sha256(encoded("chorale/v1/share", ctx, sender, recipient, kind, content))
            for kind, content in (("self_seed", seed_share), ("mask_key", key_share))
        )
        return (recipient, box_kem, box, mask_kem, seal, seed_hash, key_hash, secret_hash)

    def leaf_hash(self, sender, recipient):
        return leaf_content_sha256(self.ctx, sender, self.leaf_fields(sender, recipient))

    @functools.cache  # noqa: B019 - a case lives as long as its test
    def leaf_hashes(self, sender):
        """In order of recipient."""
        names = [item["silo_id"] for item in self.case["r0"]]
        return [self.leaf_hash(sender, name) for name in names if name != sender]

    def path(self, sender, recipient):
        names = [item["silo_id"] for item in self.case["r0"] if item["silo_id"] != sender]
        return tree_path(self.leaf_hashes(sender), names.index(recipient))

    def share_header(self, sender):
        """What R1 of a silo signs, and the signature."""
        content = root_content(self.ctx, self.root_fields(sender))
        return content, self.signed(sender, content)

    def root_fields(self, sender):
        ctx, seed = self.ctx, self.silos[sender]["self_seed"]
        own_share = self.shares_of(sender, sender)[0]
        leaves = self.leaf_hashes(sender)
        return (
            sender,
            len(leaves),
            tree_root(leaves),
            sha256(encoded("chorale/v1/self-seed", ctx, sender, seed)),
            sha256(encoded("chorale/v1/share", ctx, sender, sender, "self_seed", own_share)),
        )

    @property
    def shared(self):
        """U2."""
        return [item["sender"] for item in self.case["r1"]]

    # R2 -------------------------------------------------------------------------------------------

    def received_secret(self, low, high, dk=None):
        """s_ij as the higher id finds it, or None where it rejects the dealer."""
        mask_kem = self.ciphertexts[low, high][1]
        *_, seal, _, _, secret_hash = self.leaf_fields(low, high)
        shared = decapsulated(dk or self.mask_keys(high).dk, mask_kem)
        found = opened(seal_key(shared, self.ctx, low, high, mask_kem), self.ctx, low, high, seal)
        if found is None or pair_secret_sha256(self.ctx, low, high, found) != secret_hash:
            return None
        return found

    def rejected(self, name):
        """The dealers whose secrets a silo could not use, or says so, in ascending order."""
        accused = self.case.get("accuses", {}).get(name, ())
        dealers = [low for low in self.shared if low < name]
        return [low for low in dealers if low in accused or self.received_secret(low, name) is None]

    def pair_secret(self, name, peer):
        """s_ij as a silo has it."""
        if name < peer:
            return self.committed_secret(name, peer)
        return self.received_secret(peer, name)

    def masks(self, name, peers):
        """(sign, key) of the pairwise masks of a silo."""
        rejected = self.rejected(name)
        for peer in peers:
            if peer != name and peer not in rejected:
                shared = agreed(self.mask_keys(name).dh, self.mask_keys(peer).dh_public)
                secret = self.pair_secret(name, peer)
                key = pair_mask_key(shared, secret, self.ctx, *sorted((name, peer)))
                yield (1 if peer > name else -1), key

    def self_mask(self, seed, name):
        return derived(seed, "self", self.ctx, name)

    def masked(self, name):
        values = list(struct.unpack(f"<{self.words}I", self.silos[name]["vector"]))
        own = self.self_mask(self.silos[name]["self_seed"], name)
        _add(values, [(1, own), *self.masks(name, self.shared)])
        return struct.pack(f"<{self.words}I", *values)

    def upload_fields(self, name):
        masked, digest_id = self.masked(name), self.case["descriptor"]["descriptor"]["digest_id"]
        debit = self.silos[name]["debit"]
        root = digest_root(masked, digest_id)
        rejected = tuple(self.rejected(name))
        return (name, len(masked), root, debit["seq"], debit["sha256"], rejected)

    def upload(self, name):
        content = upload_content(self.ctx, self.members, self.upload_fields(name))
        return content, self.signed(name, content)

    @property
    def alive(self):
        """U3."""
        return [item["silo_id"] for item in self.case["r2"]]

    @property
    def lost(self):
        """U2 without U3."""
        return [name for name in self.shared if name not in self.alive]

    @cached_property
    def survivors(self):
        """H(U3)."""
        headers = tuple(self.upload_fields(name) for name in self.alive)
        return sha256(encoded("chorale/v1/survivors", self.ctx, headers))

    # R4 -------------------------------------------------------------------------------------------

    def released_secrets(self, name):
        """(lost silo, s_ij) of each pair that the survivor did not reject."""
        rejected = self.rejected(name)
        return [(lost, self.pair_secret(name, lost)) for lost in self.lost if lost not in rejected]

    def released(self, name):
        """What R4 of a silo signs, and the signature."""
        content = encoded(
            "chorale/v2/unmasking-shares",
            self.ctx,
            self.survivors,
            name,
            tuple((owner, self.shares_of(owner, name)[0]) for owner in self.alive),
            tuple((owner, self.shares_of(owner, name)[1]) for owner in self.lost),
            tuple(self.released_secrets(name)),
        )
        return content, self.signed(name, content)

    def recovered_secret(self, lost, seed, survivor):
        """(s_ij by the signed leaf, whether the seed of the lost silo gives it too)."""
        low, high = sorted((lost, survivor))
        secret_hash = self.leaf_fields(low, high)[-1]
        if low == lost:
            found = derived(seed, "pair", self.ctx, low, high)
            if pair_secret_sha256(self.ctx, low, high, found) != secret_hash:
                found = None
        else:
            own = keys(seed, "mask", self.descriptor_sha256, lost)
            found = self.received_secret(low, high, own.dk)
        if found is not None:
            return found, True
        released = next(item for item in self.case["r4"] if item["silo_id"] == survivor)
        secrets = {item["silo_id"]: item["secret"] for item in released["pair_secrets"]}
        found = bytes.fromhex(secrets[lost])
        if pair_secret_sha256(self.ctx, low, high, found) != secret_hash:
            raise ValueError(f"no secret of {low} and {high} matches the leaf")
        return found, False

    def sum_from_shares(self):
        """(sum, dealers to name) from the masked inputs, the leaves and t released shares."""
        total, bad_dealers = [0] * self.words, set()
        for item in self.case["r2"]:
            masked = struct.unpack(f"<{self.words}I", bytes.fromhex(item["masked"]))
            total = [(a + b) % 2**32 for a, b in zip(total, masked, strict=True)]
        rejected = {item["silo_id"]: item["rejected"] for item in self.case["r2"]}
        for owner in self.shared:
            if owner in self.alive:
                secret = self._combined("self_seed_shares", owner)
                _add(total, [(-1, self.self_mask(secret, owner))])
                continue
            seed = self._combined("mask_key_shares", owner)
            own = keys(seed, "mask", self.descriptor_sha256, owner)
            if (own.dh_public, own.ek) != self._advertised_mask_keys(owner):
                raise ValueError("the recovered keys are not the advertised ones")
            for peer in self.alive:
                if owner in rejected[peer]:
                    continue
                secret, agrees = self.recovered_secret(owner, seed, peer)
                if not agrees:
                    bad_dealers.add(min(owner, peer))
                shared = agreed(own.dh, self.mask_keys(peer).dh_public)
                key = pair_mask_key(shared, secret, self.ctx, *sorted((owner, peer)))
                # What the survivor added for the lost silo, with the other sign.
                _add(total, [(-1 if peer < owner else 1, key)])
        return struct.pack(f"<{self.words}I", *total), sorted(bad_dealers)

    def _combined(self, kind, owner):
        return combined(
            {
                self.x(item["silo_id"]): bytes.fromhex(part["share"])
                for item in self.case["r4"][: self.case["t"]]
                for part in item[kind]
                if part["owner"] == owner
            }
        )

    def _advertised_mask_keys(self, owner):
        item = next(item for item in self.case["r0"] if item["silo_id"] == owner)
        return bytes.fromhex(item["mask_key"]), bytes.fromhex(item["kem_keys"]["mask_key"])


def _add(values, masks):
    """Add signed keystreams in place."""
    for sign, key in masks:
        for index, word in enumerate(keystream(key, len(values))):
            values[index] = (values[index] + sign * word) % 2**32


def _head(debit):
    return debit["seq"], bytes.fromhex(debit["sha256"])


def _bytes_of(value):
    """Hexadecimal strings as bytes, in whatever holds them."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    if isinstance(value, dict):
        return {key: _bytes_of(item) for key, item in value.items()}
    return [_bytes_of(item) for item in value] if isinstance(value, list) else value

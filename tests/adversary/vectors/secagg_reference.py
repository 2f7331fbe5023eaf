"""Suite v1 once more, from the README alone, to show that the vectors are enough.

Imports nothing of this project: only primitives, big integers and JSON. It is slow and keeps its
secrets; it is no second client.
"""

import hashlib
import struct
from functools import cached_property

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PRIME = 2**256 + 297


def encoded(*values):
    """One tuple: the domain, then the fields."""
    return _encoded(values)


def _encoded(value):
    if isinstance(value, bool):
        tag, payload = b"b", bytes([value])
    elif isinstance(value, int):
        tag, payload = b"i", value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True)
    elif isinstance(value, float):
        tag, payload = b"f", struct.pack(">d", value)
    elif isinstance(value, str):
        tag, payload = b"s", value.encode()
    elif isinstance(value, bytes):
        tag, payload = b"y", value
    else:
        tag, payload = b"t", b"".join(_encoded(item) for item in value)
    return tag + struct.pack(">Q", len(payload)) + payload


def sha256(content):
    return hashlib.sha256(content).digest()


def signature(private_hex, content):
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private_hex)).sign(content)


def public(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private, peer_public):
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(peer_public))


def derived(secret, purpose, ctx, *names):
    info = b"chorale/v1/" + purpose.encode() + ctx
    for name in names:
        info += struct.pack(">H", len(name)) + name.encode()
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def keystream(key, words):
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return struct.unpack(f"<{words}I", encryptor.update(bytes(4 * words)))


def share(secret, coefficients, x):
    terms = [int.from_bytes(term, "big") for term in (secret, *coefficients)]
    value = sum(term * x**power for power, term in enumerate(terms)) % PRIME
    return value.to_bytes(33, "big")


def combined(shares):
    """The secret behind {x: share}."""
    total = 0
    for x, content in shares.items():
        weight = 1
        for other in shares:
            if other != x:
                weight = weight * other * pow(other - x, -1, PRIME) % PRIME
        total += weight * int.from_bytes(content, "big")
    return (total % PRIME).to_bytes(32, "big")


class Case:
    """One positive case, everything recomputed from its secrets."""

    def __init__(self, case):
        self.case = case
        self.silos = {
            name: {
                key: bytes.fromhex(value)
                if isinstance(value, str)
                else [bytes.fromhex(item) for item in value]
                for key, value in silo.items()
            }
            for name, silo in case["silos"].items()
        }
        self.cohort = case["descriptor"]["descriptor"]["cohort"]
        self.words = len(self.silos[self.cohort[0]]["vector"]) // 4

    def x(self, name):
        return self.cohort.index(name) + 1

    def roster(self):
        document = self.case["roster"]["roster"]
        entries = tuple(
            (e["silo_id"], e["spiffe_uri"], bytes.fromhex(e["verification_key"]))
            for e in document["entries"]
        )
        content = encoded(
            "chorale/v1/roster",
            document["federation"],
            document["epoch"],
            document["colluding"],
            bytes.fromhex(document["coordinator_key"]),
            entries,
        )
        return content, signature(self.case["root_signing_key"], content)

    def descriptor(self):
        d = self.case["descriptor"]["descriptor"]
        i, m = d["identity"], d["metrics"]
        content = encoded(
            "chorale/v1/descriptor",
            d["version"],
            d["suite"],
            (i["run_id"], i["round"], i["step"], i["part"], i["attempt"]),
            sha256(self.roster()[0]),
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
        )
        return content, signature(self.case["coordinator_signing_key"], content)

    def bundle_fields(self, item):
        silo = self.silos[item["silo_id"]]
        return (
            item["silo_id"],
            public(silo["cipher_private"]),
            public(silo["mask_private"]),
            item["ledger_seq"],
            bytes.fromhex(item["ledger_sha256"]),
            tuple(item["families"]),
        )

    def bundle(self, item):
        digest = sha256(self.descriptor()[0])
        content = encoded("chorale/v1/key-bundle", digest, *self.bundle_fields(item))
        return content, self.signed(item["silo_id"], content)

    def signed(self, name, content):
        return signature(self.case["silos"][name]["signing_key"], content)

    @cached_property
    def ctx(self):
        bundles = tuple(self.bundle_fields(item) for item in self.case["r0"])
        return sha256(encoded("chorale/v1/ctx", sha256(self.descriptor()[0]), bundles))

    def shares_of(self, owner, holder):
        silo = self.silos[owner]
        return (
            share(silo["self_seed"], silo["self_seed_coefficients"], self.x(holder)),
            share(silo["mask_private"], silo["mask_key_coefficients"], self.x(holder)),
        )

    def box(self, sender, recipient):
        """Ciphertext and the two hashes."""
        ctx, silos = self.ctx, self.silos
        channel = agreed(
            silos[sender]["cipher_private"], public(silos[recipient]["cipher_private"])
        )
        seed_share, key_share = self.shares_of(sender, recipient)
        sealed = ChaCha20Poly1305(derived(channel, "box", ctx, sender, recipient)).encrypt(
            bytes(12), seed_share + key_share, encoded("chorale/v1/box", ctx, sender, recipient)
        )
        return sealed, *(
            sha256(encoded("chorale/v1/share", ctx, sender, recipient, kind, content))
            for kind, content in (("self_seed", seed_share), ("mask_key", key_share))
        )

    def share_header(self, sender):
        """What R1 of a silo signs, and the signature."""
        ctx = self.ctx
        peers = [item["silo_id"] for item in self.case["r0"] if item["silo_id"] != sender]
        boxes = []
        for peer in peers:
            sealed, *hashes_of_shares = self.box(sender, peer)
            boxes.append((peer, sha256(sealed), *hashes_of_shares))
        own_share = self.shares_of(sender, sender)[0]
        seed = self.silos[sender]["self_seed"]
        content = encoded(
            "chorale/v1/share-boxes",
            ctx,
            sender,
            tuple(boxes),
            sha256(encoded("chorale/v1/self-seed", ctx, sender, seed)),
            sha256(encoded("chorale/v1/share", ctx, sender, sender, "self_seed", own_share)),
        )
        return content, self.signed(sender, content)

    @cached_property
    def members(self):
        """H(U2)."""
        signed = tuple(
            (item["sender"], sha256(self.share_header(item["sender"])[0]))
            for item in self.case["r1"]
        )
        return sha256(encoded("chorale/v1/members", self.ctx, signed))

    def masks(self, name, peers):
        """(sign, key) of the pairwise masks of a silo."""
        for peer in peers:
            if peer != name:
                secret = agreed(
                    self.silos[name]["mask_private"], public(self.silos[peer]["mask_private"])
                )
                key = derived(secret, "mask", self.ctx, *sorted((name, peer)))
                yield (1 if peer > name else -1), key

    def masked(self, name):
        members = [item["sender"] for item in self.case["r1"]]
        values = list(struct.unpack(f"<{self.words}I", self.silos[name]["vector"]))
        own = derived(self.silos[name]["self_seed"], "self", self.ctx, name)
        for sign, key in [(1, own), *self.masks(name, members)]:
            values = [
                (v + sign * k) % 2**32
                for v, k in zip(values, keystream(key, self.words), strict=True)
            ]
        return struct.pack(f"<{self.words}I", *values)

    def upload(self, name):
        masked = self.masked(name)
        fields = (name, len(masked), sha256(masked))
        content = encoded("chorale/v1/masked-input", self.ctx, self.members, *fields)
        return content, self.signed(name, content)

    @cached_property
    def survivors(self):
        """H(U3)."""
        headers = tuple(
            (item["silo_id"], item["length_bytes"], sha256(self.masked(item["silo_id"])))
            for item in self.case["r2"]
        )
        return sha256(encoded("chorale/v1/survivors", self.ctx, headers))

    def agreement(self):
        return encoded("chorale/v1/consistency", self.ctx, self.members, self.survivors)

    def released(self, name):
        """What R4 of a silo signs, and the signature."""
        alive = [item["silo_id"] for item in self.case["r2"]]
        lost = [item["sender"] for item in self.case["r1"] if item["sender"] not in alive]
        content = encoded(
            "chorale/v1/unmasking-shares",
            self.ctx,
            self.survivors,
            name,
            tuple((owner, self.shares_of(owner, name)[0]) for owner in alive),
            tuple((owner, self.shares_of(owner, name)[1]) for owner in lost),
        )
        return content, self.signed(name, content)

    def sum_from_shares(self):
        """What a coordinator computes from the masked inputs and t of the released shares."""
        alive = [item["silo_id"] for item in self.case["r2"]]
        total = [0] * self.words
        for item in self.case["r2"]:
            masked = struct.unpack(f"<{self.words}I", bytes.fromhex(item["masked"]))
            total = [a + b for a, b in zip(total, masked, strict=True)]
        released = self.case["r4"][: self.case["t"]]
        for owner in [item["sender"] for item in self.case["r1"]]:
            kind = "self_seed_shares" if owner in alive else "mask_key_shares"
            secret = combined(
                {
                    self.x(item["silo_id"]): bytes.fromhex(part["share"])
                    for item in released
                    for part in item[kind]
                    if part["owner"] == owner
                }
            )
            if owner in alive:
                masks = [(-1, derived(secret, "self", self.ctx, owner))]
            else:
                # What each survivor added for the lost silo, with the other sign.
                masks = [
                    (
                        -1 if peer < owner else 1,
                        derived(
                            agreed(secret, public(self.silos[peer]["mask_private"])),
                            "mask",
                            self.ctx,
                            *sorted((owner, peer)),
                        ),
                    )
                    for peer in alive
                ]
            for sign, key in masks:
                total = [
                    v + sign * k for v, k in zip(total, keystream(key, self.words), strict=True)
                ]
        return struct.pack(f"<{self.words}I", *(value % 2**32 for value in total))

    def sum_in_the_open(self):
        total = [0] * self.words
        for item in self.case["r2"]:
            vector = struct.unpack(f"<{self.words}I", self.silos[item["silo_id"]]["vector"])
            total = [a + b for a, b in zip(total, vector, strict=True)]
        return struct.pack(f"<{self.words}I", *(value % 2**32 for value in total))

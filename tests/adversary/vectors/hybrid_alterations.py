"""Altered messages of suite v2, each with the check at which a silo must refuse it (README.md).

An alteration is kept as what differs from the good message of its case (`difference`), and put back
with `applied`. Liars sign anew where they have the key. Only the reference is used.
"""

import copy

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from tests.adversary.vectors import hybrid_reference as v2
from tests.adversary.vectors import reference_mlkem as mlkem
from tests.adversary.vectors.secagg_reference import PRIME, agreed, encoded, sha256, signature

CASE, DECOY_CASE = "n4-c1-t3-drop0", "n4-c1-t3-decoy"
LOST_CASE = "n4-c1-t3-drop1-r2-highest"
# The receiver; one who deals to it, and one that it deals to; one that is no party.
ME, LOW, HIGH, STRANGER = "bravo-hospital", "alpha", "charlie", "zulu"
STEPS = ("advertise_keys", "share_keys", "masked_input", "consistency_check", "unmask")
MODULUS = 3329
LEAF = (
    "recipient", "box_kem", "ciphertext", "mask_kem", "sealed",
    "self_seed_share_sha256", "mask_key_share_sha256", "pair_secret_sha256",
)  # fmt: skip


# The good messages --------------------------------------------------------------------------------


def good_messages(case, receiver):
    """What an honest coordinator of a case sends to one silo, by the step that it opens."""
    return {
        "advertise_keys": _without(case["descriptor"], "signed_bytes"),
        "share_keys": {"bundles": [_without(item, "signed_sha256") for item in case["r0"]]},
        "masked_input": {
            "roots": [_without(item, "signed_bytes", "leaves") for item in case["r1"]],
            "leaves": {
                item["sender"]: {"leaf": _without(leaf, "path"), "path": leaf["path"]}
                for item in case["r1"]
                for leaf in item["leaves"]
                if leaf["recipient"] == receiver
            },
        },
        "consistency_check": {
            "headers": [_without(item, "signed_bytes", "masked") for item in case["r2"]]
        },
        "unmask": {"signatures": case["r3"]},
    }


def _without(item, *names):
    return copy.deepcopy({key: value for key, value in item.items() if key not in names})


def difference(good, altered, path=""):
    """What to put where: {"path", "value"}, or {"path"} alone for what is taken away."""
    if isinstance(good, dict) and isinstance(altered, dict):
        found = [{"path": f"{path}/{key}"} for key in good if key not in altered]
        for key, value in altered.items():
            if key not in good:
                found.append({"path": f"{path}/{key}", "value": value})
            else:
                found += difference(good[key], value, f"{path}/{key}")
        return found
    if isinstance(good, list) and isinstance(altered, list) and len(good) == len(altered):
        pairs = zip(good, altered, strict=True)
        return [
            change
            for index, (old, new) in enumerate(pairs)
            for change in difference(old, new, f"{path}/{index}")
        ]
    return [] if good == altered else [{"path": path, "value": altered}]


def applied(good, changes):
    """The altered message."""
    message = copy.deepcopy(good)
    for change in changes:
        *parents, last = change["path"].removeprefix("/").split("/")
        place = message
        for name in parents:
            place = place[int(name) if isinstance(place, list) else name]
        key = int(last) if isinstance(place, list) else last
        if "value" in change:
            place[key] = copy.deepcopy(change["value"])
        else:
            del place[key]
    return message


# Signed anew --------------------------------------------------------------------------------------


def signed_bundle(case, item):
    fields = (
        item["silo_id"],
        *(bytes.fromhex(item[name]) for name in ("cipher_key", "mask_key")),
        item["ledger_seq"],
        bytes.fromhex(item["ledger_sha256"]),
        tuple(item["families"]),
        *(bytes.fromhex(item["kem_keys"][name]) for name in ("cipher_key", "mask_key")),
        item["debit"]["seq"],
        bytes.fromhex(item["debit"]["sha256"]),
        item["cohort_may_vary"],
    )
    content = v2.bundle_content(sha256(bytes.fromhex(case["descriptor"]["signed_bytes"])), fields)
    return _signed(case, item, item["silo_id"], content)


def signed_root(case, item):
    fields = (
        item["sender"],
        item["leaf_count"],
        *(
            bytes.fromhex(item[name])
            for name in ("root", "self_seed_commitment", "own_self_seed_share_sha256")
        ),
    )
    content = v2.root_content(bytes.fromhex(case["ctx"]), fields)
    return _signed(case, item, item["sender"], content)


def signed_header(case, item):
    fields = (
        item["silo_id"],
        item["length_bytes"],
        bytes.fromhex(item["masked_sha256"]),
        item["debit"]["seq"],
        bytes.fromhex(item["debit"]["sha256"]),
        tuple(item["rejected"]),
    )
    ctx, members = bytes.fromhex(case["ctx"]), bytes.fromhex(case["members_sha256"])
    return _signed(case, item, item["silo_id"], v2.upload_content(ctx, members, fields))


def _signed(case, item, name, content):
    key = case["silos"].get(name, {}).get("signing_key", bytes(32).hex())
    return item | {"signature": signature(key, content).hex()}


def leaf_sha256(ctx, sender, leaf):
    fields = (leaf["recipient"], *(bytes.fromhex(leaf[name]) for name in LEAF[1:]))
    return v2.leaf_content_sha256(bytes.fromhex(ctx), sender, fields)


class Alterations:
    """Altered messages of one case, each as one silo receives it."""

    def __init__(self, name, case, receiver=ME):
        self.name, self.case, self.receiver = name, case, receiver
        self.reference = v2.HybridCase(case)
        self.good = good_messages(case, receiver)
        self.found = []

    def add(self, name, step, check, altered, silo=None, *, aborts=True):
        self.found.append(
            {
                "name": name,
                "case": self.name,
                "receiver": self.receiver,
                "step": step,
                "check": check,
                "silo": silo,
                "aborts": aborts,
                "changes": difference(self.good[step], altered),
            }
        )

    # D --------------------------------------------------------------------------------------------

    def descriptors(self):
        step, good = "advertise_keys", self.good["advertise_keys"]
        for name, check, changes in (
            ("an unknown version", "descriptor_version", {"version": 3}),
            ("version 2 with suite 1", "descriptor_version", {"suite": 1}),
            ("an unknown digest of uploads", "descriptor_version", {"digest_id": 3}),
            ("another round task", "task", {"task_sha256": bytes(32).hex()}),
            ("a family of the plan left out", "contributors", {"families": ["craft"]}),
            (
                "a family that is not the plan's",
                "contributors",
                {"families": ["craft", "maze", "weave"]},
            ),
            ("another model", "model", {"base_model_sha256": bytes(32).hex()}),
        ):
            altered = copy.deepcopy(good)
            altered["descriptor"] |= changes
            document = altered["descriptor"]
            digests = (bytes.fromhex(document[f"{of}_sha256"]) for of in ("roster", "task"))
            content = v2.descriptor_content(document, *digests)
            key = self.case["coordinator_signing_key"]
            self.add(name, step, check, altered | {"signature": signature(key, content).hex()})
        older = copy.deepcopy(good)
        for name in ("families", "task_sha256", "digest_id"):
            del older["descriptor"][name]
        older["descriptor"] |= {"version": 1, "suite": 1}
        roster_sha256 = bytes.fromhex(older["descriptor"]["roster_sha256"])
        content = v2.descriptor_content(older["descriptor"], roster_sha256)
        older["signature"] = signature(self.case["coordinator_signing_key"], content).hex()
        self.add("suite v1 in place of v2", step, "suite", older)
        forged = copy.deepcopy(good)
        forged["descriptor"]["families"] = ["craft"]
        self.add("families not signed", step, "descriptor_signature", forged)

    # R0 -------------------------------------------------------------------------------------------

    def bundles(self):
        step = "share_keys"
        items = {item["silo_id"]: item for item in self.good[step]["bundles"]}
        me, peer = items[ME], items[HIGH]

        def having(changed):
            return {"bundles": list((items | {changed["silo_id"]: changed}).values())}

        def lying(**changes):
            return having(signed_bundle(self.case, peer | changes))

        def kem(**changes):
            return lying(kem_keys=peer["kem_keys"] | changes)

        mine, theirs = me["kem_keys"], peer["kem_keys"]
        altered = me | {"kem_keys": mine | {"mask_key": theirs["mask_key"]}}
        self.add("own ML-KEM key replaced", step, "own_bundle", having(altered))
        altered = me | {"debit": me["debit"] | {"seq": 4}}
        self.add("own debit head set back", step, "own_bundle", having(altered))
        altered = me | {"cohort_may_vary": True}
        self.add("own word on cohorts turned", step, "own_bundle", having(altered))
        swapped = {"cipher_key": theirs["mask_key"], "mask_key": theirs["cipher_key"]}
        self.add(
            "ML-KEM keys swapped, not signed",
            step,
            "bundle_signature",
            having(peer | {"kem_keys": swapped}),
            HIGH,
        )
        debit = peer | {"debit": peer["debit"] | {"seq": 4}}
        self.add("a debit head not signed", step, "bundle_signature", having(debit), HIGH)
        copied = kem(mask_key=mine["mask_key"])
        self.add("another silo's ML-KEM mask key", step, "key_distinct", copied, HIGH)
        copied = kem(cipher_key=mine["mask_key"])
        self.add("another silo's ML-KEM key for another use", step, "key_distinct", copied, HIGH)
        twice = kem(cipher_key=theirs["mask_key"])
        self.add("one ML-KEM key for both uses", step, "key_distinct", twice, HIGH)
        copied = lying(mask_key=me["cipher_key"])
        self.add("another silo's X25519 key", step, "key_distinct", copied, HIGH)
        low = lying(mask_key=bytes(32).hex())
        self.add("an X25519 key of low order", step, "low_order_key", low, HIGH)
        for name, index, value in (
            ("a first coefficient of q", 0, MODULUS),
            ("a last coefficient of 4095", 767, 4095),
        ):
            for use in ("cipher_key", "mask_key"):
                key = with_coefficient(bytes.fromhex(theirs[use]), index, value).hex()
                self.add(f"{name} in the {use}", step, "kem_key", kem(**{use: key}), HIGH)
        older = signature(
            self.case["silos"][HIGH]["signing_key"],
            encoded(
                "chorale/v1/key-bundle",
                sha256(bytes.fromhex(self.case["descriptor"]["signed_bytes"])),
                HIGH,
                *(bytes.fromhex(peer[name]) for name in ("cipher_key", "mask_key")),
                peer["ledger_seq"],
                bytes.fromhex(peer["ledger_sha256"]),
                tuple(peer["families"]),
            ),
        )
        v1 = _without(peer, "kem_keys", "debit", "cohort_may_vary") | {"signature": older.hex()}
        self.add("a bundle of version 1", step, "suite", having(v1), HIGH)
        fewer = {"bundles": [item for name, item in items.items() if name in (ME, HIGH)]}
        self.add("fewer than t bundles", step, "bundles_size", fewer)

    def too_few_declarers(self):
        """A decoy that declares nothing of the plan takes the place of one that does."""
        bundles = self.good["share_keys"]["bundles"]
        kept = [item for item in bundles if item["silo_id"] != HIGH]
        self.add("a declarer missing in U1", "share_keys", "contributors", {"bundles": kept})
        headers = self.good["consistency_check"]["headers"]
        kept = [item for item in headers if item["silo_id"] != HIGH]
        self.add("a declarer missing in U3", "consistency_check", "contributors", {"headers": kept})

    # R1 -------------------------------------------------------------------------------------------

    def roots(self):
        step, good = "masked_input", self.good["masked_input"]
        items = {item["sender"]: item for item in good["roots"]}

        def having(changed):
            return good | {"roots": list((items | {changed["sender"]: changed}).values())}

        self.add("roots out of order", step, "share_set", good | {"roots": good["roots"][::-1]})
        few = [items[name] for name in (LOW, ME)]
        self.add("fewer than t roots", step, "shares_size", good | {"roots": few})
        without = [item for name, item in items.items() if name != ME]
        self.add("own root missing", step, "own_shares", good | {"roots": without})
        own = signed_root(self.case, items[ME] | {"root": bytes(32).hex()})
        self.add("own root replaced", step, "own_shares", having(own))
        forged = having(items[LOW] | {"root": bytes(32).hex()})
        self.add("a root not signed", step, "share_signature", forged, LOW)
        other = leaves_without(good["leaves"], LOW)
        self.add("a leaf is missing", step, "box_set", good | {"leaves": other})
        for count in (2, 4):
            liar = signed_root(self.case, items[LOW] | {"leaf_count": count})
            self.add(f"{count} leaves where 3 are due", step, "leaf_count", having(liar), LOW)

    def leaves(self):
        step, good = "masked_input", self.good["masked_input"]
        for sender in (LOW, HIGH):
            leaf, path = good["leaves"][sender]["leaf"], good["leaves"][sender]["path"]
            place = "from a lower id" if sender == LOW else "from a higher id"

            def lying(name, leaf, path, sender=sender, place=place):
                entry = {"leaf": leaf, "path": path}
                altered = good | {"leaves": good["leaves"] | {sender: entry}}
                self.add(f"{name} {place}", step, "leaf", altered, sender)

            flipped = _flipped(leaf["ciphertext"])
            lying("a box that was not signed", leaf | {"ciphertext": flipped}, path)
            flipped = _flipped(leaf["box_kem"])
            lying("an encapsulation that was not signed", leaf | {"box_kem": flipped}, path)
            lying("a path with a wrong hash", leaf, [_flipped(path[0]), *path[1:]])
            lying("a path too short", leaf, path[:-1])
            lying("a path too long", leaf, [*path, bytes(32).hex()])
            other = self._leaf_for(sender, "delta-7")
            lying("another silo's leaf", _without(other, "path"), other["path"])
            renamed = _without(other, "path") | {"recipient": ME}
            lying("another silo's leaf with this silo's name", renamed, other["path"])
        self._rebuilt()

    def _rebuilt(self):
        """Trees that their sender signed and that are wrong in themselves."""
        step = "masked_input"
        for sender, name in (
            (LOW, "a lower id that deals no pair secret"),
            (HIGH, "a higher id that deals a pair secret"),
        ):
            leaf = self.good[step]["leaves"][sender]["leaf"]
            if sender == LOW:
                changes = {"mask_kem": "", "sealed": "", "pair_secret_sha256": ""}
            else:
                spare = self.good[step]["leaves"][LOW]["leaf"]
                dealt = ("mask_kem", "sealed", "pair_secret_sha256")
                changes = {key: spare[key] for key in dealt}
            self.add(name, step, "leaf", self.dealt(sender, leaf | changes), sender)
        leaf = self.good[step]["leaves"][LOW]["leaf"]
        moved = self.dealt(LOW, leaf, order=("charlie", ME, "delta-7"))
        self.add("a leaf at another silo's index", step, "leaf", moved, LOW)
        renamed = self.dealt(LOW, leaf | {"recipient": HIGH})
        self.add("a leaf for another silo at this one's index", step, "leaf", renamed, LOW)
        elsewhere = self.dealt(LOW, leaf, ctx=bytes(32).hex())
        self.add("leaves of another aggregation", step, "leaf", elsewhere, LOW)
        self.add("a node in place of a leaf", step, "leaf", self._node_as_leaf(leaf), LOW)

    def _node_as_leaf(self, leaf):
        """The root is signed over a tree whose first leaf's hash is that of a node."""
        own = leaf_sha256(self.case["ctx"], LOW, leaf)
        node = sha256(b"\x01" + own + bytes(32))
        hashes = [node, *(self._hash_for(LOW, name) for name in ("charlie", "delta-7"))]
        path = [bytes(32), *v2.tree_path(hashes, 0)]
        return self._with_tree(LOW, leaf, hashes, path)

    def dealt(self, sender, leaf, *, order=None, ctx=None):
        """A message whose sender dealt another leaf to this silo, and signed the new root."""
        names = order or [item["silo_id"] for item in self.case["r0"] if item["silo_id"] != sender]
        hashes = [
            leaf_sha256(
                ctx or self.case["ctx"],
                sender,
                leaf if name == self.receiver else self._leaf_for(sender, name),
            )
            for name in names
        ]
        path = v2.tree_path(hashes, list(names).index(self.receiver))
        return self._with_tree(sender, leaf, hashes, path)

    def _with_tree(self, sender, leaf, hashes, path):
        good = self.good["masked_input"]
        entry = {"leaf": leaf, "path": [step.hex() for step in path]}
        roots = [
            signed_root(self.case, item | {"root": v2.tree_root(hashes).hex()})
            if item["sender"] == sender
            else item
            for item in good["roots"]
        ]
        return {"roots": roots, "leaves": good["leaves"] | {sender: entry}}

    def _leaf_for(self, sender, recipient):
        item = next(item for item in self.case["r1"] if item["sender"] == sender)
        return next(leaf for leaf in item["leaves"] if leaf["recipient"] == recipient)

    def _hash_for(self, sender, recipient):
        return leaf_sha256(self.case["ctx"], sender, self._leaf_for(sender, recipient))

    # What names a sender and stops nobody ---------------------------------------------------------

    def rejections(self):
        step, good = "masked_input", self.good["masked_input"]

        def lying(name, check, sender, **changes):
            leaf = good["leaves"][sender]["leaf"] | changes
            self.add(name, step, check, self.dealt(sender, leaf), sender, aborts=False)

        leaf = good["leaves"][LOW]["leaf"]
        lying("a box under another key", "box_open", LOW, ciphertext=_flipped(leaf["ciphertext"]))
        lying("a box encapsulation altered", "box_open", LOW, box_kem=_flipped(leaf["box_kem"]))
        for field in ("self_seed_share_sha256", "mask_key_share_sha256"):
            lying(f"another {field}", "share_hash", LOW, **{field: bytes(32).hex()})
        above = PRIME.to_bytes(33, "big")
        lying("a share above the prime", "share_range", LOW, **self._box(LOW, above))
        lying(
            "a mask encapsulation altered", "pair_secret", LOW, mask_kem=_flipped(leaf["mask_kem"])
        )
        lying("a seal altered", "pair_secret", LOW, sealed=_flipped(leaf["sealed"]))
        spare = self._leaf_for(LOW, HIGH)
        lying("another pair's seal", "pair_secret", LOW, sealed=spare["sealed"])
        another = {key: spare[key] for key in ("mask_kem", "sealed")}
        lying("another pair's seal and encapsulation", "pair_secret", LOW, **another)
        lying("another hash of the secret", "pair_secret", LOW, pair_secret_sha256=bytes(32).hex())
        lying("the seal of another aggregation", "pair_secret", LOW, **self._seal(bytes(32)))

    def _box(self, sender, seed_share):
        """A good box with another share in it, and its hash."""
        reference, ctx = self.reference, self.reference.ctx
        channel = agreed(reference.box_keys(sender).dh, reference.box_keys(self.receiver).dh_public)
        box_kem = reference.ciphertexts[sender, self.receiver][0]
        shared = v2.decapsulated(reference.box_keys(self.receiver).dk, box_kem)
        key = v2.box_key(channel, shared, ctx, (sender, self.receiver), box_kem)
        content = seed_share + reference.shares_of(sender, self.receiver)[1]
        associated = encoded("chorale/v1/box", ctx, sender, self.receiver)
        hashed = encoded("chorale/v1/share", ctx, sender, self.receiver, "self_seed", seed_share)
        return {
            "ciphertext": ChaCha20Poly1305(key).encrypt(v2.ZERO_NONCE, content, associated).hex(),
            "self_seed_share_sha256": sha256(hashed).hex(),
        }

    def _seal(self, ctx):
        """A pair secret sealed under the keys of another ctx."""
        ek = self.reference.mask_keys(self.receiver).ek
        shared, mask_kem = mlkem.encaps(ek, bytes(32))
        secret = self.reference.pair_secret(LOW, self.receiver)
        key = v2.seal_key(shared, ctx, LOW, self.receiver, mask_kem)
        return {
            "mask_kem": mask_kem.hex(),
            "sealed": v2.sealed(key, ctx, LOW, self.receiver, secret).hex(),
        }

    # R2 and R3 ------------------------------------------------------------------------------------

    def headers(self):
        step, good = "consistency_check", self.good["consistency_check"]
        items = {item["silo_id"]: item for item in good["headers"]}
        peer = items[HIGH]

        def having(changed):
            return {"headers": list((items | {changed["silo_id"]: changed}).values())}

        def lying(**changes):
            return having(signed_header(self.case, peer | changes))

        without = {"headers": [item for name, item in items.items() if name != ME]}
        self.add("this silo listed as lost", step, "survivors_self", without)
        reversed_headers = {"headers": good["headers"][::-1]}
        self.add("survivors out of order", step, "survivors_order", reversed_headers)
        stranger = signed_header(self.case, peer | {"silo_id": STRANGER})
        self.add("a stranger survives", step, "survivors_subset", having(stranger), STRANGER)
        debit = {"seq": 13, "sha256": peer["debit"]["sha256"]}
        altered = signed_header(self.case, items[ME] | {"debit": debit})
        self.add("own debit altered", step, "own_upload", having(altered))
        altered = signed_header(self.case, items[ME] | {"rejected": [LOW]})
        self.add("own rejections altered", step, "own_upload", having(altered))
        few = {"headers": [items[LOW], items[ME]]}
        self.add("fewer than t survivors", step, "survivors_size", few)
        forged = having(peer | {"debit": debit})
        self.add("a charge not signed", step, "upload_signature", forged, HIGH)
        forged = having(peer | {"rejected": [LOW]})
        self.add("rejections not signed", step, "upload_signature", forged, HIGH)
        longer = lying(length_bytes=peer["length_bytes"] + 4)
        self.add("an upload of another length", step, "masked_length", longer, HIGH)
        for seq in (6, 7):
            behind = lying(debit=peer["debit"] | {"seq": seq})
            self.add(f"a debit head of {seq} after 7 in R0", step, "debit_head", behind, HIGH)
        self.add("a rejected pair survives", step, "rejected_pair", lying(rejected=[LOW]), LOW)
        mine = lying(rejected=[ME])
        self.add("this silo accused by a survivor", step, "rejected_pair", mine, ME)
        stranger = lying(rejected=["aaron"])
        self.add("a stranger is rejected", step, "rejected_pair", stranger, HIGH)
        older = signature(
            self.case["silos"][HIGH]["signing_key"],
            encoded(
                "chorale/v1/masked-input",
                bytes.fromhex(self.case["ctx"]),
                bytes.fromhex(self.case["members_sha256"]),
                HIGH,
                peer["length_bytes"],
                bytes.fromhex(peer["masked_sha256"]),
            ),
        )
        v1 = _without(peer, "debit", "rejected") | {"signature": older.hex()}
        self.add("a header of version 1", step, "suite", having(v1), HIGH)
        craft = {"headers": [item for name, item in items.items() if name != HIGH]}
        self.add("a family of figures with too few", step, "metrics_families", craft)

    def rejecting_a_higher_id(self, lost):
        """Only lower ids deal, so nobody else can be rejected, lost or not."""
        good = self.good["consistency_check"]["headers"]
        altered = [
            signed_header(self.case, item | {"rejected": [lost]})
            if item["silo_id"] == HIGH
            else item
            for item in good
        ]
        self.add(
            "a rejected silo that deals nothing",
            "consistency_check",
            "rejected_pair",
            {"headers": altered},
            HIGH,
        )

    def agreements(self):
        step, items = "unmask", self.good["unmask"]["signatures"]
        self.add("signers out of order", step, "agreement_set", {"signatures": items[::-1]})
        self.add("t - 1 signatures", step, "agreement_size", {"signatures": items[:2]})
        content = encoded(
            "chorale/v1/consistency",
            bytes.fromhex(self.case["ctx"]),
            bytes(32),
            bytes.fromhex(self.case["survivors_sha256"]),
        )
        key = self.case["silos"][HIGH]["signing_key"]
        forked = {"silo_id": HIGH, "signature": signature(key, content).hex()}
        altered = [forked if item["silo_id"] == HIGH else item for item in items]
        self.add(
            "a signature on other roots",
            step,
            "agreement_signatures",
            {"signatures": altered},
            HIGH,
        )


def with_coefficient(ek, index, value):
    """An ML-KEM key with one of its 768 coefficients replaced."""
    number = int.from_bytes(ek[:1152], "little")
    number += (value - (number >> (12 * index) & 0xFFF)) << (12 * index)
    return number.to_bytes(1152, "little") + ek[1152:]


def leaves_without(leaves, sender):
    return {name: entry for name, entry in leaves.items() if name != sender}


def _flipped(content):
    changed = bytes.fromhex(content)
    return bytes([changed[0] ^ 1, *changed[1:]]).hex()


def all_negative(positive):
    """Every alteration, in the order of the steps."""
    alterations = Alterations(CASE, positive[CASE])
    alterations.descriptors()
    alterations.bundles()
    alterations.roots()
    alterations.leaves()
    alterations.rejections()
    alterations.headers()
    alterations.agreements()
    decoys = Alterations(DECOY_CASE, positive[DECOY_CASE])
    decoys.too_few_declarers()
    lost = Alterations(LOST_CASE, positive[LOST_CASE])
    lost.rejecting_a_higher_id("delta-7")
    return alterations.found + decoys.found + lost.found

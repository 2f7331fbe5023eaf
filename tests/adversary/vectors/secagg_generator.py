"""``python -m tests.adversary.vectors.secagg_generator`` writes the protocol vectors (README.md).

Positive: whole aggregations with every secret, so that each byte can be computed by another
implementation. Negative: one altered message each, with the check at which a silo must refuse it.
"""

import json
from dataclasses import replace
from pathlib import Path

from secagg import suite, transcript
from secagg.descriptor import sign_descriptor
from secagg.messages import agreement_bytes
from secagg.shamir import PRIME, SHARE_BYTES
from tests.adversary.vectors.secagg_documents import plain
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, ROOT_KEY, signing_key
from tests.kit.simulation.secagg_cohort import Cohort, deterministic_entropy

HERE = Path(__file__).parent
POSITIVE, NEGATIVE = HERE / "secagg_protocol.json", HERE / "secagg_negative.json"
CASES = {
    "n3-c1-t3-drop0": (3, 1, {}),
    "n4-c1-t3-drop1-r1": (4, 1, {"share_keys": ["silo-001"]}),
    "n4-c1-t3-drop1-r2": (4, 1, {"masked_input": ["silo-002"]}),
    "n4-c1-t3-drop1-r3": (4, 1, {"consistency_check": ["silo-003"]}),
    "n5-c1-t4-drop1-r1": (5, 1, {"share_keys": ["silo-000"]}),
    "n5-c1-t4-drop1-r2": (5, 1, {"masked_input": ["silo-004"]}),
    "n5-c1-t4-drop1-r3": (5, 1, {"consistency_check": ["silo-002"]}),
    "n10-c3-t7-drop3": (
        10,
        3,
        {
            "share_keys": ["silo-009"],
            "masked_input": ["silo-001"],
            "consistency_check": ["silo-004"],
        },
    ),
}
NEGATIVE_CASE, ME, PEER = "n5-c1-t4-drop1-r2", "silo-001", "silo-003"
DIMENSION = 15


class RecordedCohort(Cohort):
    """A cohort that keeps what each silo drew."""

    def __init__(self, n, c):
        self.drawn = {}
        super().__init__(n, c, dimension=DIMENSION, seed="protocol-vectors")

    def setup(self, name):
        source = deterministic_entropy(f"{self.seed}/{name}")
        draws = self.drawn[name] = []

        def entropy(size):
            draws.append(source(size))
            return draws[-1]

        return replace(super().setup(name), entropy=entropy)

    def secrets(self, name):
        """What the draws became: two keys, the seed, and two polynomials if R1 was reached."""
        draws = list(self.drawn[name])
        found = {"cipher_private": draws.pop(0), "mask_private": draws.pop(0)}
        if draws:
            t = self.descriptor.descriptor.threshold
            found["self_seed"] = draws.pop(0)
            elements = [int.from_bytes(draw, "big") & (2**257 - 1) for draw in draws]
            kept = [e.to_bytes(SHARE_BYTES, "big") for e in elements if e < PRIME]
            found["self_seed_coefficients"] = kept[: t - 1]
            found["mask_key_coefficients"] = kept[t - 1 :]
        return found


def private(key):
    return key.private_bytes_raw().hex()


def positive(n, c, drops):
    """One whole aggregation."""
    cohort = RecordedCohort(n, c)
    descriptor, roster = cohort.descriptor, cohort.roster
    r1 = {}
    bundles = cohort.advertise(drops.get("advertise_keys", ()))
    states = dict(cohort.states)
    for name in sorted(cohort.names):
        if name not in drops.get("share_keys", ()):
            state, boxes = states[name].handle(bundles)
            cohort.states[name] = state
            cohort.server.receive(boxes)
            r1[name] = boxes
    cohort.server, deliveries = cohort.server.close()
    survivors = cohort.upload(deliveries, drops.get("masked_input", ()))
    signatures = cohort.agree(survivors, drops.get("consistency_check", ()))
    unmasking = cohort.unmask(signatures, drops.get("unmask", ()))
    unmasking.apply(cohort.accumulator)
    ctx = transcript.context(descriptor.descriptor, bundles.bundles)
    members = transcript.members(ctx, next(iter(deliveries.values())).headers)
    u3 = transcript.survivors_sha256(ctx, survivors.headers)
    return {
        "n": n,
        "c": c,
        "t": descriptor.descriptor.threshold,
        "n_min": descriptor.descriptor.n_min,
        "drops": drops,
        "root_signing_key": private(ROOT_KEY),
        "coordinator_signing_key": private(COORDINATOR_KEY),
        "roster": plain(roster) | {"signed_bytes": roster.roster.signed_bytes().hex()},
        "descriptor": plain(descriptor)
        | {"signed_bytes": descriptor.descriptor.signed_bytes().hex()},
        "silos": {
            name: {
                "signing_key": private(signing_key(name)),
                **plain(cohort.secrets(name)),
                "vector": (cohort.plain(name) % 2**32).astype("<u4").tobytes().hex(),
            }
            for name in cohort.names
        },
        "r0": [
            plain(bundle)
            | {"signed_bytes": bundle.signed_bytes(descriptor.descriptor.sha256).hex()}
            for bundle in bundles.bundles
        ],
        "ctx": ctx.hex(),
        "r1": [
            plain(boxes) | {"signed_bytes": boxes.header().signed_bytes(ctx).hex()}
            for boxes in r1.values()
        ],
        "members_sha256": members.sha256.hex(),
        "r2": [
            plain(header)
            | {
                "masked": cohort.vectors[header.silo_id].tobytes().hex(),
                "signed_bytes": header.signed_bytes(ctx, members.sha256).hex(),
            }
            for header in survivors.headers
        ],
        "survivors_sha256": u3.hex(),
        "r3_signed_bytes": agreement_bytes(ctx, members.sha256, u3).hex(),
        "r3": [plain(signature) for signature in signatures.signatures],
        "r4": [
            plain(shares) | {"signed_bytes": shares.signed_bytes(ctx, u3).hex()}
            for _, shares in sorted(cohort.sent.items())
        ],
        "survivors": list(unmasking.survivors),
        "sum": cohort.accumulator.tobytes().hex(),
    }


# Negative ----------------------------------------------------------------------------------------


class Alterations:
    """Altered messages of one aggregation, each as one silo receives it."""

    def __init__(self):
        n, c, self.drops = CASES[NEGATIVE_CASE]
        cohort = RecordedCohort(n, c)
        self.descriptor = cohort.descriptor
        self.bundles = cohort.advertise()
        self.delivery = self._shared(cohort)
        self.survivors = cohort.upload(self.deliveries, self.drops["masked_input"])
        self.signatures = cohort.agree(self.survivors)
        self.ctx = transcript.context(self.descriptor.descriptor, self.bundles.bundles)
        self.members = transcript.members(self.ctx, self.delivery.headers)
        self.found = []

    def _shared(self, cohort):
        self.deliveries = cohort.share(self.bundles)
        return self.deliveries[ME]

    def add(self, name, step, check, message, silo=None):
        self.found.append(
            {
                "name": name,
                "case": NEGATIVE_CASE,
                "receiver": ME,
                "step": step,
                "check": check,
                "silo": silo,
                "message": plain(message),
            }
        )

    def all(self):
        """Every alteration, in the order of the steps."""
        self.descriptors()
        self.r0()
        self.r1()
        self.r2()
        self.r3()
        return self.found

    def descriptors(self):
        good = self.descriptor.descriptor
        for name, check, changes in (
            ("another version", "descriptor_version", {"version": 0}),
            ("another suite", "descriptor_version", {"suite": 2}),
            ("another roster", "descriptor_roster", {"roster_sha256": bytes(32)}),
            ("an older roster", "descriptor_roster", {"roster_epoch": 2}),
            ("cohort out of order", "cohort", {"cohort": good.cohort[::-1]}),
            ("a stranger in the cohort", "cohort", {"cohort": (*good.cohort, "silo-999")}),
            ("cohort below n_min", "cohort_size", {"cohort": good.cohort[:2]}),
            ("c lowered", "policy_threshold", {"colluding": 2}),
            ("t lowered", "policy_threshold", {"threshold": 3}),
            ("another ring", "ring", {"ring_bits": 64}),
            ("an unknown noise", "noise", {"noise_mechanism": "laplace"}),
            (
                "noise below four units",
                "noise",
                {"noise_mechanism": "discrete_gaussian", "noise_sigma": 3.5},
            ),
            ("a sum that wraps", "no_wrap", {"scale": 2.0**30}),
            ("deadlines that do not grow", "deadlines", {"deadlines_unix_s": (5, 4, 3, 2, 1)}),
            (
                "this silo is not in the cohort",
                "membership",
                # Four silos are left, for which t is 3.
                {"cohort": _without_me(good.cohort), "threshold": 3},
            ),
            ("another base model", "model", {"base_model_sha256": bytes(32)}),
            ("another adapter", "model", {"adapter_sha256": bytes(32)}),
        ):
            changed = replace(good, **changes)
            self.add(name, "advertise_keys", check, sign_descriptor(changed, COORDINATOR_KEY))
        unsigned = replace(self.descriptor, signature=bytes(64))
        self.add("D not signed", "advertise_keys", "descriptor_signature", unsigned)

    def r0(self):
        step, bundles = "share_keys", self.bundles.bundles
        own = next(bundle for bundle in bundles if bundle.silo_id == ME)
        peer = next(bundle for bundle in bundles if bundle.silo_id == PEER)

        def having(bundle):
            items = (bundle if item.silo_id == bundle.silo_id else item for item in bundles)
            return replace(self.bundles, bundles=tuple(items))

        def signed(**changes):
            bundle = replace(peer, **changes)
            content = bundle.signed_bytes(self.descriptor.descriptor.sha256)
            return replace(bundle, signature=suite.sign(signing_key(PEER), content))

        def of(items):
            return replace(self.bundles, bundles=tuple(items))

        self.add("bundles out of order", step, "bundle_set", of(bundles[::-1]))
        self.add("a bundle twice", step, "bundle_set", of((bundles[0], *bundles)))
        self.add("fewer than t bundles", step, "bundles_size", of(bundles[:3]))
        self.add("own bundle missing", step, "own_bundle", of(b for b in bundles if b != own))
        self.add("own bundle altered", step, "own_bundle", having(replace(own, ledger_seq=8)))
        forged = having(replace(peer, ledger_seq=8))
        self.add("a forged bundle", step, "bundle_signature", forged, PEER)
        copied = having(signed(cipher_key=own.cipher_key))
        self.add("another silo's key", step, "key_distinct", copied, PEER)
        disguised = bytes([*own.mask_key[:31], own.mask_key[31] ^ 0x80])
        self.add(
            "another silo's key with its top bit set",
            step,
            "key_distinct",
            having(signed(mask_key=disguised)),
            PEER,
        )
        low = having(signed(mask_key=bytes(32)))
        self.add("a key of low order", step, "low_order_key", low, PEER)

    def r1(self):
        step, good = "masked_input", self.delivery
        headers, boxes = good.headers, good.ciphertexts
        peer = next(header for header in headers if header.sender == PEER)

        def having(header):
            items = (header if item.sender == header.sender else item for item in headers)
            return replace(good, headers=tuple(items))

        def signed(**changes):
            header = replace(peer, **changes)
            content = header.signed_bytes(self.ctx)
            return replace(header, signature=suite.sign(signing_key(PEER), content))

        self.add("R1 headers out of order", step, "share_set", replace(good, headers=headers[::-1]))
        few = replace(good, headers=headers[:3])
        self.add("fewer than t silos shared", step, "shares_size", few)
        without = tuple(header for header in headers if header.sender != ME)
        self.add("own header missing", step, "own_shares", replace(good, headers=without))
        fewer = {sender: boxes[sender] for sender in boxes if sender != PEER}
        self.add("a box is missing", step, "box_set", replace(good, ciphertexts=fewer))
        forged = having(replace(peer, self_seed_commitment=bytes(32)))
        self.add("a forged R1 header", step, "share_signature", forged, PEER)
        short = having(signed(boxes=peer.boxes[:-1]))
        self.add("a silo left out of the boxes", step, "share_recipients", short, PEER)
        altered = dict(boxes) | {PEER: bytes([boxes[PEER][0] ^ 1]) + boxes[PEER][1:]}
        self.add(
            "another ciphertext than signed",
            step,
            "box_digest",
            replace(good, ciphertexts=altered),
            PEER,
        )

    def r2(self):
        step, headers = "consistency_check", self.survivors.headers
        own = next(header for header in headers if header.silo_id == ME)
        peer = next(header for header in headers if header.silo_id == PEER)

        def of(items):
            return replace(self.survivors, headers=tuple(items))

        def having(header):
            return of(header if item.silo_id == header.silo_id else item for item in headers)

        def signed(name, **changes):
            header = replace(peer, silo_id=name, **changes)
            content = header.signed_bytes(self.ctx, self.members.sha256)
            return replace(header, signature=suite.sign(signing_key(name), content))

        self.add("survivors out of order", step, "survivors_order", of(headers[::-1]))
        self.add("a survivor twice", step, "survivors_order", of((headers[0], *headers)))
        stranger = of((*headers, signed("silo-999")))
        self.add("a stranger survives", step, "survivors_subset", stranger, "silo-999")
        self.add(
            "this silo listed as lost", step, "survivors_self", of(h for h in headers if h != own)
        )
        altered = having(replace(own, masked_sha256=bytes(32)))
        self.add("own upload altered", step, "own_upload", altered)
        self.add("fewer than t survivors", step, "survivors_size", of(headers[:3]))
        forged = having(replace(peer, masked_sha256=bytes(32)))
        self.add("a forged upload header", step, "upload_signature", forged, PEER)
        longer = having(signed(PEER, length_bytes=own.length_bytes + 4))
        self.add("an upload of another length", step, "masked_length", longer, PEER)

    def r3(self):
        step, items = "unmask", self.signatures.signatures
        peer = next(item for item in items if item.silo_id == PEER)

        def of(signatures):
            return replace(self.signatures, signatures=tuple(signatures))

        self.add("signers out of order", step, "agreement_set", of(items[::-1]))
        lost = replace(peer, silo_id=self.drops["masked_input"][0])
        self.add("a lost silo signs", step, "agreement_set", of((*items, lost)), lost.silo_id)
        self.add("t - 1 signatures", step, "agreement_size", of(items[:-1]))
        other = agreement_bytes(self.ctx, self.members.sha256, bytes(32))
        forked = replace(peer, signature=suite.sign(signing_key(PEER), other))
        self.add(
            "a signature on other survivors",
            step,
            "agreement_signatures",
            of(forked if item == peer else item for item in items),
            PEER,
        )


def _without_me(cohort):
    return tuple(name for name in cohort if name != ME)


def written(content):
    return json.dumps(content, indent=1) + "\n"


def all_positive():
    return {name: positive(*case) for name, case in CASES.items()}


if __name__ == "__main__":
    POSITIVE.write_text(written(all_positive()), encoding="utf-8")
    NEGATIVE.write_text(written(Alterations().all()), encoding="utf-8")

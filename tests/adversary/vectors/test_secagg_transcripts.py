"""Whole aggregations with fixed keys, byte for byte.

The file beside this one pins every message of suite v1: a change in any encoding, derivation,
signature or mask shows here. Printed anew by
``python -m tests.adversary.vectors.test_secagg_transcripts``.
"""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from secagg import canonical
from tests.kit.simulation.secagg_cohort import Cohort

_FILE = Path(__file__).with_name("secagg_transcripts.json")
_CASES = {
    "n3-t3-drop0": (3, 1, {}),
    "n4-t3-drop1": (4, 1, {"masked_input": ["silo-002"]}),
    "n5-t4-drop1-before-r1": (5, 1, {"share_keys": ["silo-000"]}),
    "n10-t7-drop3": (10, 3, {"masked_input": ["silo-001", "silo-004"], "unmask": ["silo-009"]}),
}


def _transcript(n, c, drops, seed="vectors"):
    cohort = Cohort(n, c, dimension=64, seed=seed)
    descriptor = cohort.descriptor
    lines = {
        "descriptor": descriptor.descriptor.sha256.hex(),
        "descriptor_signature": descriptor.signature.hex(),
    }
    bundles = cohort.advertise(drops.get("advertise_keys", ()))
    for bundle in bundles.bundles:
        keys = bundle.cipher_key + bundle.mask_key
        lines[f"r0/{bundle.silo_id}"] = (keys + bundle.signature).hex()
    deliveries = cohort.share(bundles, drops.get("share_keys", ()))
    lines["ctx"] = cohort.server.members.ctx.hex()
    lines["members"] = cohort.server.members.sha256.hex()
    for header in next(iter(deliveries.values())).headers:
        lines[f"r1/{header.sender}"] = header.signature.hex()
    survivors = cohort.upload(deliveries, drops.get("masked_input", ()))
    for header in survivors.headers:
        lines[f"r2/{header.silo_id}"] = header.masked_sha256.hex()
    signatures = cohort.agree(survivors, drops.get("consistency_check", ()))
    for signature in signatures.signatures:
        lines[f"r3/{signature.silo_id}"] = signature.signature.hex()
    unmasking = cohort.unmask(signatures, drops.get("unmask", ()))
    for name, shares in cohort.sent.items():
        fields = canonical.encode(
            "test", tuple(s.fields() for s in shares.self_seed_shares + shares.mask_key_shares)
        )
        lines[f"r4/{name}"] = hashlib.sha256(fields + shares.signature).hexdigest()
    unmasking.apply(cohort.accumulator)
    lines["sum"] = cohort.accumulator.tobytes().hex()
    return lines


@pytest.mark.parametrize("case", sorted(_CASES))
def test_transcripts_are_the_same_byte_for_byte(case):
    recorded = json.loads(_FILE.read_text(encoding="utf-8"))
    assert _transcript(*_CASES[case]) == recorded[case]


def test_another_seed_gives_another_transcript_and_the_same_sum():
    recorded = json.loads(_FILE.read_text(encoding="utf-8"))["n4-t3-drop1"]
    other = _transcript(*_CASES["n4-t3-drop1"], seed="other")
    same = {name for name in recorded if recorded[name] == other.get(name)}
    assert same == {"descriptor", "descriptor_signature", "sum"}


def test_the_file_holds_these_cases_alone():
    assert set(json.loads(_FILE.read_text(encoding="utf-8"))) == set(_CASES)


if __name__ == "__main__":
    json.dump({name: _transcript(*case) for name, case in _CASES.items()}, sys.stdout, indent=1)
    sys.stdout.write("\n")

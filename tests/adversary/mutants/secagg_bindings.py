"""Mutants of what the keys of suite v2 are bound to, and of the form of a release."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

HYBRID = "secagg/hybrid.py"
UNMASKING = "secagg/server/collect_unmasking.py"

_A = "tests/adversary/simulation/"
# Derives every key a second time.
_RECORDED = (
    _A + "test_malicious_recordings.py::"
    "test_a23a_either_primitive_alone_keeps_every_vector_and_box",
)

MUTANTS = (
    Mutant(
        name="binding-box-encapsulation",
        disables="the encapsulation in a box's key",
        file=HYBRID,
        old='"box", ctx, *direction, digest)',
        new='"box", ctx, *direction)',
        tests=_RECORDED,
    ),
    Mutant(
        name="binding-seal-encapsulation",
        disables="the encapsulation in the key that seals a pair's secret",
        file=HYBRID,
        old='"seal", ctx, low, high, hashlib.sha256(ciphertext).digest())',
        new='"seal", ctx, low, high)',
        tests=_RECORDED,
    ),
    Mutant(
        name="binding-pair-context",
        disables="the aggregation in a pair's secret",
        file=HYBRID,
        old='return derive(mask_seed, "pair", ctx, low, high)',
        new='return derive(mask_seed, "pair", bytes(32), low, high)',
        tests=_RECORDED,
    ),
    Mutant(
        name="binding-mask-context",
        disables="the aggregation in a pair's mask",
        file=HYBRID,
        old='"mask", ctx, low, high)',
        new='"mask", bytes(32), low, high)',
        tests=_RECORDED,
    ),
    Mutant(
        name="hybrid-release-form",
        disables="the form of the suite in R4",
        file=UNMASKING,
        old="            is_hybrid=pairs is not None,\n"
        "            expected=self._aggregation.descriptor.is_hybrid,\n",
        new="            is_hybrid=True,\n            expected=True,\n",
        tests=(
            _A + "test_malicious_coordinator_suites.py::"
            "test_a20j_a_release_of_the_other_version_is_refused",
        ),
    ),
)

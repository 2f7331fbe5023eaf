"""Mutants of what a silo verifies and does between R0 and R4."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

ADVERTISE = "secagg/client/advertise_keys.py"
SHARE = "secagg/client/share_keys.py"
CONSISTENCY = "secagg/client/consistency_check.py"
UNMASK = "secagg/client/unmask.py"
STATE = "secagg/client/state.py"
MASKED = "secagg/client/masked_input.py"
BOTH = "secagg/verification.py"

_KEYS = "tests/adversary/simulation/test_secagg_refused_keys.py::"
_SURVIVORS = "tests/adversary/simulation/test_secagg_refused_survivors.py::"
_COORDINATOR = "tests/adversary/simulation/test_secagg_coordinator.py::"
_BINDING = "tests/adversary/simulation/test_secagg_binding.py::"
_BUNDLES = (_KEYS + "test_tampered_bundles",)
_DELIVERIES = (_KEYS + "test_tampered_deliveries",)
_CORRUPT = (_KEYS + "test_a_corrupt_sender_is_named_and_none_of_its_shares_kept",)
_HEADERS = (_SURVIVORS + "test_tampered_survivors",)
_AGREEMENTS = (_SURVIVORS + "test_tampered_agreements",)

MUTANTS = (
    Mutant(
        name="bundle-signature",
        disables="each silo's signature on its key bundle",
        file=BOTH,
        old="""    check_signature(
        roster,
        bundle.silo_id,
        bundle.signature,
        bundle.signed_bytes(descriptor_sha256),
        Check.BUNDLE_SIGNATURE,
    )
""",
        new="",
        tests=_BUNDLES,
    ),
    Mutant(
        name="any-signature",
        disables="the comparison inside every check of a silo's signature",
        file=BOTH,
        old="if entry is None or not suite.verify("
        "entry.verification_key, signature, signed_bytes):",
        new="if entry is None:",
        tests=_BUNDLES,
    ),
    Mutant(
        name="keys-distinct",
        disables="no key twice among the bundles",
        file=BOTH,
        old=" or keys & seen:",
        new=":",
        tests=_BUNDLES,
    ),
    Mutant(
        name="keys-of-one-bundle-distinct",
        disables="two different keys in a bundle",
        file=BOTH,
        old="if len(keys) != len(points) + len(encapsulation_keys) or keys & seen:",
        new="if keys & seen:",
        tests=_BUNDLES,
    ),
    Mutant(
        name="low-order-key",
        disables="refusal of low-order keys in bundles",
        file=BOTH,
        old="if any(suite.is_low_order(key) for key in (bundle.cipher_key, bundle.mask_key)):",
        new="if not bundle.mask_key:",
        tests=(_COORDINATOR + "test_the_coordinator_refuses_bad_bundles_by_name_and_goes_on",),
    ),
    Mutant(
        name="families-count",
        disables="enough silos behind each family's coordinates",
        file=BOTH,
        old="        if silos < least:\n",
        new="        if silos < 1:\n",
        tests=(
            "tests/adversary/simulation/test_secagg_families.py::test_figures_of_too_few_silos_are_refused",
        ),
    ),
    Mutant(
        name="own-bundle",
        disables="this silo's own bundle, verbatim, in U1",
        file=ADVERTISE,
        old="if self._bundle not in message.bundles:",
        new="if not message.bundles:",
        tests=(_KEYS + "test_tampered_bundles[own replaced-2]",),
    ),
    Mutant(
        name="bundles-size",
        disables="|U1| ≥ max(t, n_min)",
        file=ADVERTISE,
        old="if len(members) < self._membership.parameters.least_survivors:",
        new="if not members:",
        tests=_BUNDLES,
    ),
    Mutant(
        name="own-key-kept",
        disables="erasure of both private keys once shares are out",
        file=ADVERTISE,
        old='        vault.wipe("cipher_private", "mask_private")\n',
        new="",
        tests=(_BINDING + "test_private_keys_do_not_outlive_the_sharing",),
    ),
    Mutant(
        name="set-order",
        disables="ascending order without repeats in U1, U2, U3 and among signers",
        file=BOTH,
        old="if not bounds.is_strictly_sorted(names):",
        new="if not names:",
        tests=_AGREEMENTS,
    ),
    Mutant(
        name="share-signature",
        disables="the sender's signature on its boxes",
        file=BOTH,
        old="""    check_signature(
        roster, header.sender, header.signature, header.signed_bytes(ctx), Check.SHARE_SIGNATURE
    )
""",
        new="",
        tests=_DELIVERIES,
    ),
    Mutant(
        name="share-recipients",
        disables="one box for each other silo of U1",
        file=BOTH,
        old="if tuple(box.recipient for box in header.boxes) != expected:",
        new="if not expected:",
        tests=_DELIVERIES,
    ),
    Mutant(
        name="own-shares",
        disables="this silo's own R1 header, verbatim, in U2",
        file=SHARE,
        old="if self._header not in headers:",
        new="if not headers:",
        tests=_DELIVERIES,
    ),
    Mutant(
        name="shares-size",
        disables="|U2| ≥ max(t, n_min)",
        file=SHARE,
        old="if len(senders) < self._membership.parameters.least_survivors:",
        new="if not senders:",
        tests=_DELIVERIES,
    ),
    Mutant(
        name="box-set",
        disables="exactly one ciphertext from each other member",
        file=SHARE,
        old="if set(delivered) != set(senders) - {self.silo_id}:",
        new="if not set(delivered) >= set(senders) - {self.silo_id}:",
        tests=_DELIVERIES,
    ),
    Mutant(
        name="box-digest",
        disables="the digest of each box that its sender signed",
        file=SHARE,
        old="if box is None or not equal(box.ciphertext_sha256, ciphertext_sha256):",
        new="if box is None or not ciphertext_sha256:",
        tests=_DELIVERIES,
    ),
    Mutant(
        name="share-hash",
        disables="the hash of each share that its dealer signed",
        file=SHARE,
        old="            if not equal(found, sha256):\n",
        new="            if not found:\n",
        tests=_CORRUPT,
    ),
    Mutant(
        name="share-range",
        disables="shares are field elements",
        file=SHARE,
        old="if not shamir.is_share(share):",
        new="if not share:",
        tests=_CORRUPT,
    ),
    Mutant(
        name="upload-signature",
        disables="each survivor's signature on its upload and U2",
        file=BOTH,
        old="""    check_signature(
        roster,
        header.silo_id,
        header.signature,
        header.signed_bytes(members.ctx, members.sha256),
        Check.UPLOAD_SIGNATURE,
    )
""",
        new="",
        tests=_HEADERS,
    ),
    Mutant(
        name="upload-length",
        disables="the exact length of each upload",
        file=BOTH,
        old="if header.length_bytes != descriptor.length_bytes:",
        new="if header.length_bytes < 1:",
        tests=_HEADERS,
    ),
    Mutant(
        name="masked-twice",
        disables="erasure of the mask keys once a vector is masked",
        file=MASKED,
        old='            self._vault.wipe("own_seed", "mask")\n',
        new="",
        tests=(_SURVIVORS + "test_a_vector_is_masked_once",),
    ),
    Mutant(
        name="survivors-subset",
        disables="U3 ⊆ U2",
        file=BOTH,
        old="        if name not in whole:\n",
        new="        if not name:\n",
        tests=(_SURVIVORS + "test_a_survivor_outside_the_members_is_refused_though_in_the_cohort",),
    ),
    Mutant(
        name="survivors-self",
        disables="this silo is not listed as dropped",
        file=CONSISTENCY,
        old="if self.silo_id not in survivors:",
        new="if not survivors:",
        tests=_HEADERS,
    ),
    Mutant(
        name="own-upload",
        disables="this silo's own upload header, verbatim, in U3",
        file=CONSISTENCY,
        old="if self._header not in message.headers:",
        new="if not message.headers:",
        tests=_HEADERS,
    ),
    Mutant(
        name="survivors-size",
        disables="|U3| ≥ max(t, n_min)",
        file=CONSISTENCY,
        old="if len(survivors) < parameters.least_survivors or honest < 2:",
        new="if honest < 2:",
        tests=_HEADERS,
    ),
    Mutant(
        name="survivors-honest",
        disables="|U3| - c ≥ 2, should t ever be too low",
        file=CONSISTENCY,
        old="if len(survivors) < parameters.least_survivors or honest < 2:",
        new="if len(survivors) < parameters.least_survivors:",
        tests=(_BINDING + "test_a_sum_over_one_honest_silo_is_refused_even_if_t_allowed_it",),
    ),
    Mutant(
        name="survivors-signed-twice",
        disables="one R3 signature per state",
        file=CONSISTENCY,
        old="        self._require_live(message)\n        if not isinstance(message, Survivors):",
        new="        if not isinstance(message, Survivors):",
        tests=(_SURVIVORS + "test_survivors_are_signed_once",),
    ),
    Mutant(
        name="agreement-set",
        disables="signers are survivors",
        file=UNMASK,
        old="            self._survivors,\n            Check.AGREEMENT_SET,\n",
        new="            self._membership.descriptor.cohort,\n            Check.AGREEMENT_SET,\n",
        tests=(_SURVIVORS + "test_a_dropped_silo_cannot_agree",),
    ),
    Mutant(
        name="agreement-signatures",
        disables="signatures over the very survivor set this silo signed",
        file=UNMASK,
        old="                Check.AGREEMENT_SIGNATURES,\n            )\n",
        new="                Check.AGREEMENT_SIGNATURES,\n            ) if not agreed else None\n",
        tests=_AGREEMENTS,
    ),
    Mutant(
        name="agreement-t-minus-one",
        disables="t signatures on the survivor set",
        file=UNMASK,
        old="if len(signers) < self._membership.parameters.t:",
        new="if len(signers) < self._membership.parameters.t - 1:",
        tests=_AGREEMENTS,
    ),
    Mutant(
        name="both-shares-of-survivors",
        disables="no mask-key share of a survivor",
        file=UNMASK,
        old="dropped = [silo for silo in self._members.silo_ids if silo not in self._survivors]",
        new="dropped = [silo for silo in self._members.silo_ids if silo != self.silo_id]",
        tests=(_SURVIVORS + "test_exactly_one_kind_of_share_leaves_for_each_peer",),
    ),
    Mutant(
        name="both-shares-of-dropped",
        disables="no self-seed share of a dropped silo",
        file=UNMASK,
        old="alive = [silo for silo in self._members.silo_ids if silo in self._survivors]",
        new="alive = list(self._members.silo_ids)",
        tests=(_SURVIVORS + "test_exactly_one_kind_of_share_leaves_for_each_peer",),
    ),
    Mutant(
        name="unmask-wipe",
        disables="erasure of all secrets once shares are released",
        file=UNMASK,
        old="            self._vault.wipe()\n",
        new="",
        tests=(_SURVIVORS + "test_shares_are_released_once",),
    ),
    Mutant(
        name="abort-wipe",
        disables="erasure of all secrets when a check fails",
        file=STATE,
        old="        self._vault.wipe()\n        self._spent = True\n",
        new="        self._spent = True\n",
        tests=_BUNDLES,
    ),
    Mutant(
        name="abort-ends",
        disables="an aborted or used state takes no message",
        file=STATE,
        old="if self._aborted is not None or self._spent:",
        new="if message is None:",
        tests=(_SURVIVORS + "test_survivors_are_signed_once",),
    ),
)

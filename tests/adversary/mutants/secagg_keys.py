"""Mutants of keys and bindings: suite, ctx, hashes, what each signature covers, masks, shares."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

SUITE = "secagg/suite.py"
TRANSCRIPT = "secagg/transcript.py"
MESSAGES = "secagg/messages.py"
SHARING = "secagg/client/advertise_keys.py"
MASKING = "secagg/client/masked_input.py"
SHAMIR = "secagg/shamir.py"
PRG = "secagg/prg.py"

_PRIMITIVES = "tests/adversary/vectors/test_secagg_primitives.py::"
_BINDING = "tests/adversary/simulation/test_secagg_binding.py::"
_SHAMIR_TESTS = "tests/secagg/test_shamir.py::"
_DESCRIPTOR = "tests/secagg/test_descriptor.py::"
_DROPOUTS = "tests/adversary/simulation/test_secagg_dropouts.py::"
_KEY_TESTS = "tests/adversary/simulation/test_secagg_refused_keys.py::"
_SIGNED = (_BINDING + "test_every_signature_is_bound_to_all_it_speaks_of",)

MUTANTS = (
    Mutant(
        name="low-order-point",
        disables="recognition of low-order keys",
        file=SUITE,
        old="    return same_point(public_key) in _LOW_ORDER\n",
        new="    return False\n",
        tests=(_PRIMITIVES + "test_low_order_points_are_refused",),
    ),
    Mutant(
        name="low-order-encoding",
        disables="recognition of low-order keys in every encoding",
        file=SUITE,
        old="    return same_point(public_key) in _LOW_ORDER\n",
        new="    return public_key in _LOW_ORDER\n",
        tests=(_PRIMITIVES + "test_low_order_points_are_refused",),
    ),
    Mutant(
        name="dh-zero",
        disables="refusal of an all-zero shared secret",
        file=SUITE,
        old='        raise LowOrderError("the peer\'s key has low order") from error\n'
        "    if not any(shared):\n",
        new="        shared = str(error).encode()\n    if not any(shared):\n",
        tests=(_PRIMITIVES + "test_low_order_points_are_refused",),
    ),
    Mutant(
        name="same-point",
        disables="comparison of keys as points, not as bytes",
        file=SUITE,
        old='return (value % _FIELD_PRIME).to_bytes(32, "little")',
        new="return public_key if value >= 0 else b''",
        tests=(_KEY_TESTS + "test_tampered_bundles",),
    ),
    Mutant(
        name="derivation-ctx",
        disables="ctx in every derived key (mask and box keys repeat between attempts)",
        file=SUITE,
        old="info = _PREFIX + purpose.encode() + ctx\n",
        new="info = _PREFIX + purpose.encode()\n",
        tests=(_DROPOUTS + "test_no_mask_key_repeats_between_aggregations_or_silos",),
    ),
    Mutant(
        name="derivation-purpose",
        disables="separation of box, pair-mask and self-mask keys",
        file=SUITE,
        old="info = _PREFIX + purpose.encode() + ctx\n",
        new="info = _PREFIX + ctx\n",
        tests=(_PRIMITIVES + "test_derivation_is_hkdf_with_the_specified_info",),
    ),
    Mutant(
        name="derivation-name-length",
        disables="the length of each name in a derivation",
        file=SUITE,
        old='info += len(encoded).to_bytes(2, "big") + encoded',
        new="info += encoded",
        tests=(_PRIMITIVES + "test_derivation_is_hkdf_with_the_specified_info",),
    ),
    Mutant(
        name="box-associated-data",
        disables="the associated data of a box",
        file=SUITE,
        old="return ChaCha20Poly1305(key).decrypt(_ZERO_NONCE, ciphertext, associated)",
        new="return ChaCha20Poly1305(key).decrypt(_ZERO_NONCE, ciphertext, None)",
        tests=(_PRIMITIVES + "test_boxes_open_only_under_their_key_and_associated_data",),
    ),
    Mutant(
        name="box-recipient",
        disables="sender and recipient in the associated data of a box",
        file=TRANSCRIPT,
        old='return canonical.encode("chorale/v1/box", ctx, sender, recipient)',
        new='return canonical.encode("chorale/v1/box", ctx)',
        tests=(_KEY_TESTS + "test_a_corrupt_sender_is_named_and_none_of_its_shares_kept",),
    ),
    Mutant(
        name="box-ctx",
        disables="ctx in the associated data of a box",
        file=TRANSCRIPT,
        old='return canonical.encode("chorale/v1/box", ctx, sender, recipient)',
        new='return canonical.encode("chorale/v1/box", sender, recipient)',
        tests=(_BINDING + "test_every_digest_depends_on_all_it_names",),
    ),
    Mutant(
        name="ctx-bundles",
        disables="the key bundles in ctx",
        file=TRANSCRIPT,
        old="descriptor.sha256, tuple(bundle.fields() for bundle in bundles)",
        new="descriptor.sha256, tuple(bundle.silo_id for bundle in bundles)",
        tests=(_BINDING + "test_ctx_depends_on_every_field_of_every_bundle",),
    ),
    Mutant(
        name="ctx-descriptor",
        disables="D in ctx",
        file=TRANSCRIPT,
        old="descriptor.sha256, tuple(bundle.fields() for bundle in bundles)",
        new="b'', tuple(bundle.fields() for bundle in bundles)",
        tests=(
            _DESCRIPTOR
            + "test_flipping_any_field_changes_the_digest_the_ctx_and_breaks_the_signature",
        ),
    ),
    Mutant(
        name="bundle-ledger-unsigned",
        disables="the ledger head in a signed bundle",
        file=MESSAGES,
        old="            self.ledger_seq,\n            self.ledger_sha256,\n"
        "            self.families,\n",
        new="            self.families,\n",
        tests=(_BINDING + "test_ctx_depends_on_every_field_of_every_bundle",),
    ),
    Mutant(
        name="members-contents",
        disables="the R1 headers in H(U2)",
        file=TRANSCRIPT,
        old="tuple((sender, hashlib.sha256(content).digest()) for sender, content in signed),",
        new="tuple(sender for sender, content in signed),",
        tests=(_BINDING + "test_agreement_on_a_set_is_agreement_on_what_its_members_sent",),
    ),
    Mutant(
        name="survivors-contents",
        disables="the upload headers in H(U3)",
        file=TRANSCRIPT,
        old='"chorale/v1/survivors", ctx, tuple(header.fields() for header in headers)',
        new='"chorale/v1/survivors", ctx, tuple(header.silo_id for header in headers)',
        tests=(_BINDING + "test_agreement_on_a_set_is_agreement_on_what_its_members_sent",),
    ),
    Mutant(
        name="share-hash-recipient",
        disables="sender and recipient in a share's hash",
        file=TRANSCRIPT,
        old='"chorale/v1/share", ctx, sender, recipient, kind.value, bytes(share)',
        new='"chorale/v1/share", ctx, kind.value, bytes(share)',
        tests=(_BINDING + "test_every_digest_depends_on_all_it_names",),
    ),
    Mutant(
        name="share-hash-kind",
        disables="the kind of secret in a share's hash",
        file=TRANSCRIPT,
        old='"chorale/v1/share", ctx, sender, recipient, kind.value, bytes(share)',
        new='"chorale/v1/share", ctx, sender, recipient, bytes(share)',
        tests=(_BINDING + "test_every_digest_depends_on_all_it_names",),
    ),
    Mutant(
        name="seed-commitment-ctx",
        disables="ctx in the commitment to b_i",
        file=TRANSCRIPT,
        old='return canonical.digest("chorale/v1/self-seed", ctx, silo_id, bytes(self_seed))',
        new='return canonical.digest("chorale/v1/self-seed", silo_id, bytes(self_seed))',
        tests=(_BINDING + "test_every_digest_depends_on_all_it_names",),
    ),
    Mutant(
        name="bundle-signature-descriptor",
        disables="D in the signature of R0",
        file=MESSAGES,
        old="return canonical.encode(domain, descriptor_sha256, *self.fields())",
        new="return canonical.encode(domain, *self.fields())",
        tests=_SIGNED,
    ),
    Mutant(
        name="boxes-signature-ctx",
        disables="ctx in the signature of R1",
        file=MESSAGES,
        old='            "chorale/v1/share-boxes",\n            ctx,\n',
        new='            "chorale/v1/share-boxes",\n',
        tests=_SIGNED,
    ),
    Mutant(
        name="upload-signature-members",
        disables="H(U2) in the signature of R2",
        file=MESSAGES,
        old="canonical.encode(domain, ctx, members_sha256, *self.fields())",
        new="canonical.encode(domain, ctx, *self.fields())",
        tests=_SIGNED,
    ),
    Mutant(
        name="agreement-members",
        disables="H(U2) in the signature of R3",
        file=MESSAGES,
        old='canonical.encode("chorale/v1/consistency", ctx, members_sha256, survivors_sha256)',
        new='canonical.encode("chorale/v1/consistency", ctx, survivors_sha256)',
        tests=_SIGNED,
    ),
    Mutant(
        name="agreement-survivors",
        disables="H(U3) in the signature of R3",
        file=MESSAGES,
        old='canonical.encode("chorale/v1/consistency", ctx, members_sha256, survivors_sha256)',
        new='canonical.encode("chorale/v1/consistency", ctx, members_sha256)',
        tests=_SIGNED,
    ),
    Mutant(
        name="agreement-ctx",
        disables="ctx in the signature of R3",
        file=MESSAGES,
        old='canonical.encode("chorale/v1/consistency", ctx, members_sha256, survivors_sha256)',
        new='canonical.encode("chorale/v1/consistency", members_sha256, survivors_sha256)',
        tests=_SIGNED,
    ),
    Mutant(
        name="unmask-signature-survivors",
        disables="H(U3) in the signature of R4",
        file=MESSAGES,
        old="            domain,\n            ctx,\n            survivors_sha256,\n",
        new="            domain,\n            ctx,\n",
        tests=_SIGNED,
    ),
    Mutant(
        name="pair-key-names",
        disables="both silo ids in a pairwise mask key",
        file=SHARING,
        old='suite.derive_key(pair, "mask", ctx, low, high)',
        new='suite.derive_key(pair, "mask", ctx)',
        tests=(_BINDING + "test_keys_are_derived_as_specified",),
    ),
    Mutant(
        name="box-key-direction",
        disables="one box key per direction (a zero nonce would seal two boxes)",
        file=SHARING,
        old='suite.derive_key(channel, "box", ctx, own, peer),',
        new='suite.derive_key(channel, "box", ctx, *sorted((own, peer))),',
        tests=(_BINDING + "test_keys_are_derived_as_specified",),
    ),
    Mutant(
        name="mask-key-is-cipher-key",
        disables="separate key pairs for boxes and masks",
        file=SHARING,
        old="pair = suite.agree(mask_agreement, bundle.mask_key)",
        new="pair = suite.agree(cipher_private, bundle.cipher_key)",
        tests=(_BINDING + "test_keys_are_derived_as_specified",),
    ),
    Mutant(
        name="self-mask-purpose",
        disables="the self mask's own purpose",
        file=MASKING,
        old='suite.derive_key(seed, "self", ctx, own)',
        new='suite.derive_key(seed, "mask", ctx, own)',
        tests=(_DROPOUTS + "test_nothing_but_the_survivors_sum_is_left_of_a_dropped_silo",),
    ),
    Mutant(
        name="pair-mask-sign",
        disables="opposite signs of the two ends of a pairwise mask",
        file=MASKING,
        old="sign=1 if peer > own else -1",
        new="sign=1",
        tests=(_DROPOUTS + "test_nothing_but_the_survivors_sum_is_left_of_a_dropped_silo",),
    ),
    Mutant(
        name="two-masks-one-key",
        disables="refusal of two masks under one key",
        file=MASKING,
        old="if len({mask.key for mask in masks}) != len(masks):",
        new="if not masks:",
        tests=(_BINDING + "test_two_masks_under_one_key_are_refused",),
    ),
    Mutant(
        name="keystream-seek",
        disables="a new counter for each tile (the same keystream for every tile)",
        file=PRG,
        old='cipher.reset_nonce(counter.to_bytes(_AES_BLOCK_BYTES, "big"))',
        new="cipher.reset_nonce(_ZERO_IV)",
        tests=(_BINDING + "test_a_keystream_is_one_counter_from_zero_and_never_repeats",),
    ),
    Mutant(
        name="keystream-sign",
        disables="subtraction of a keystream",
        file=PRG,
        old="                np.subtract(tile, keystream, out=tile)\n",
        new="                np.add(tile, keystream, out=tile)\n",
        tests=(_DROPOUTS + "test_nothing_but_the_survivors_sum_is_left_of_a_dropped_silo",),
    ),
    Mutant(
        name="shamir-degree",
        disables="the last coefficient of the sharing polynomial (degree t-2)",
        file=SHAMIR,
        old="coefficients += [_draw_element(entropy) for _ in range(t - 1)]",
        new="coefficients += [_draw_element(entropy) for _ in range(t - 2)]",
        tests=(_BINDING + "test_fewer_than_t_shares_do_not_give_the_secret",),
    ),
    Mutant(
        name="shamir-same-polynomial",
        disables="a fresh polynomial per secret",
        file=SHAMIR,
        old="coefficients += [_draw_element(entropy) for _ in range(t - 1)]",
        new="coefficients += [_draw_element(lambda size: b'7' * size) for _ in range(t - 1)]",
        tests=(_SHAMIR_TESTS + "test_every_call_draws_a_fresh_polynomial",),
    ),
)

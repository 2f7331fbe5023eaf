"""Mutants of what suite v2 added: leaves, dealt secrets, contributors, charges, both halves."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

SETUP = "secagg/client/setup.py"
ADVERTISE = "secagg/client/advertise_keys.py"
DEAL = "secagg/client/hybrid_advertise_keys.py"
OPEN = "secagg/client/hybrid_share_keys.py"
BOXES_AT_SILO = "secagg/client/share_keys.py"
MASK = "secagg/client/masked_input.py"
CONSISTENCY = "secagg/client/consistency_check.py"
RELEASE = "secagg/client/unmask.py"
BOTH = "secagg/verification.py"
HYBRID = "secagg/hybrid.py"
MERKLE = "secagg/merkle.py"
BUNDLES = "secagg/server/collect_bundles.py"
LEAVES = "secagg/server/leaves.py"
BOXES = "secagg/server/boxes.py"
UPLOADS = "secagg/server/collect_masked_inputs.py"
UNMASKING = "secagg/server/collect_unmasking.py"
PAIRS = "secagg/server/pairs.py"

_A = "tests/adversary/simulation/"
_DELIVERY = _A + "test_malicious_coordinator_leaves.py::test_a_forged_delivery_ends_at_its_check"
_TREES = _A + "test_malicious_coordinator_leaves.py::test_an_honest_coordinator_takes_one_tree"
_WHOLE_TREE = (_TREES + "_of_a_silo_and_only_a_whole_one",)
_EQUIVOCATED = (
    _A + "test_malicious_coordinator_leaves.py::"
    "test_a21z_two_trees_of_one_silo_end_at_the_upload_signatures",
)
_SUITES = _A + "test_malicious_coordinator_suites.py::"
_SETUP = _SUITES + "test_no_key_is_made_for_what_the_silo_does_not_accept"
_OTHER_FORM = (_SUITES + "test_a20h_shares_dealt_in_the_other_form_are_not_taken",)
_KEYS = (
    _A + "test_malicious_hybrid_keys.py::"
    "test_a_bad_kem_key_ends_the_attempt_before_any_share_is_dealt",
)
_RECOVERED = (
    _A + "test_malicious_hybrid_keys.py::"
    "test_a02al_keys_that_do_not_follow_from_the_shared_seed_are_found_after_a_drop",
)
_C = _A + "test_malicious_coordinator_contributors.py::"
_DECOYS = (_C + "test_a18d_decoys_that_do_not_declare_are_not_counted_in_the_keys",)
_DROPPED = (_C + "test_a18a_declarers_dropped_after_the_first_count",)
_FIGURES = (_C + "test_a18f_figures_of_silos_that_were_dropped_are_counted_again",)
_D = _A + "test_malicious_silo_debits.py::"
_DEBITS = (_D + "test_a19a_a_debit_that_does_not_rise_is_not_counted",)
_DEBITS_AT_SILO = (_D + "test_a19b_no_silo_signs_survivors_with_a_debit_that_does_not_rise",)
_P = _A + "test_malicious_silo_pairs.py::"
_BAD_SECRET = (_P + "test_a22a_a_bad_pair_secret_costs_its_dealer_its_place",)
_STRANGER = (_P + "test_a22o_a_rejection_of_a_silo_outside_the_members_is_refused",)
_OTHER_PAIR = (_P + "test_a22q_a_release_of_any_other_pair_is_refused",)
_BROKEN = (
    _A
    + "test_malicious_recordings.py::test_a23a_either_primitive_alone_keeps_every_vector_and_box",
)
_ERASED = (
    _A + "test_secagg_hybrid.py::test_seeds_end_with_the_leaves_and_mask_keys_with_the_mask",
)
_LEFT_OUT = "tests/secagg/server/test_pairs.py::"


def _leaf(*ids: str) -> tuple[str, ...]:
    return tuple(f"{_DELIVERY}[{one}]" for one in ids)


_FAMILIES = "tests/adversary/simulation/test_secagg_families.py::"

MUTANTS = (
    # Before R0.
    Mutant(
        name="hybrid-suites",
        disables="the suites that the site accepts",
        file=SETUP,
        old="if descriptor.suite not in setup.suites:",
        new="if not setup.suites:",
        tests=(
            _SETUP + "[A20a-the-first-suite-for-a-hybrid-only-silo]",
            _SETUP + "[A20b-the-hybrid-suite-for-a-silo-without-it]",
        ),
    ),
    Mutant(
        name="hybrid-task",
        disables="the round task that the silo verified",
        file=SETUP,
        old="if descriptor.is_hybrid and descriptor.task_sha256 != setup.task_sha256:",
        new="if descriptor.is_hybrid and not setup.task_sha256:",
        tests=(_SETUP + "[A20c-another-task]",),
    ),
    Mutant(
        name="hybrid-families-of-plan",
        disables="the plan's own families",
        file=SETUP,
        old="if descriptor.is_hybrid and descriptor.families != setup.families_of_plan:",
        new="if descriptor.is_hybrid and not setup.families_of_plan:",
        tests=(
            _SETUP + "[A20e-fewer-families-than-the-plans]",
            _SETUP + "[A20f-more-families-than-the-plans]",
        ),
    ),
    # R0.
    Mutant(
        name="hybrid-form",
        disables="one form of message in an aggregation",
        file=BOTH,
        old="    if is_hybrid != expected:\n",
        new="    if is_hybrid is None:\n",
        tests=(
            _SUITES + "test_a20g_a_bundle_of_the_other_version_is_refused",
            _SUITES + "test_a20i_an_upload_of_the_other_version_is_refused",
        ),
    ),
    Mutant(
        name="hybrid-kem-keys-distinct",
        disables="no KEM key twice",
        file=BOTH,
        old="keys = {*points, *encapsulation_keys}",
        new="keys = {*points, *(bundle.silo_id.encode() + k for k in encapsulation_keys)}",
        tests=_KEYS,
    ),
    Mutant(
        name="hybrid-kem-key-range",
        disables="the modulus check of FIPS 203",
        file=BOTH,
        old="if not all(hybrid.is_kem_key(key) for key in encapsulation_keys):",
        new="if not all(encapsulation_keys):",
        tests=_KEYS,
    ),
    Mutant(
        name="hybrid-kem-key-high",
        disables="the modulus check of every other coefficient",
        file=HYBRID,
        old="(low | (middle & 15) << 8, middle >> 4 | high << 4)",
        new="(low | (middle & 15) << 8,)",
        tests=(*_KEYS, "tests/secagg/test_hybrid.py::test_every_coefficient_is_below_the_modulus"),
    ),
    Mutant(
        name="hybrid-contributors",
        disables="enough contributors before shares are dealt",
        file=ADVERTISE,
        old="        if descriptor.is_hybrid:\n            declared",
        new="        if descriptor.is_hybrid is None:\n            declared",
        tests=_DECOYS,
    ),
    Mutant(
        name="hybrid-contributors-at-coordinator",
        disables="enough contributors before the coordinator hands out bundles",
        file=BUNDLES,
        old="        if descriptor.is_hybrid:\n",
        new="        if descriptor.is_hybrid is None:\n",
        tests=_DECOYS,
    ),
    Mutant(
        name="hybrid-contributors-count",
        disables="who declares no family of the plan is not counted",
        file=BOTH,
        old="if not plan.isdisjoint(declared[silo_id]))",
        new="if plan)",
        tests=_DECOYS,
    ),
    Mutant(
        name="hybrid-contributors-left",
        disables="two contributors beyond those that may collude",
        file=BOTH,
        old="or (after_upload and count - parameters.c < LEAST_HONEST)",
        new="",
        tests=("tests/secagg/test_contributors.py::test_two_remain_beyond_those_that_may_collude",),
    ),
    # R1.
    Mutant(
        name="hybrid-silo-other-form",
        disables="a silo of suite v2 takes leaves alone",
        file=OPEN,
        old='raise VerificationError(Check.SUITE, "a delivery of another suite")',
        new="raise TypeError",
        tests=_OTHER_FORM,
    ),
    Mutant(
        name="hybrid-silo-other-form-first",
        disables="a silo of suite v1 takes boxes alone",
        file=BOXES_AT_SILO,
        old='raise VerificationError(Check.SUITE, "a delivery of another suite")',
        new="raise TypeError",
        tests=_OTHER_FORM,
    ),
    Mutant(
        name="hybrid-root-signature",
        disables="signature of each root",
        file=BOTH,
        old="    check_signature(\n        roster, root.sender",
        new="    _ = (\n        roster, root.sender",
        tests=_leaf("A21a-a-root-rewritten", "A21b-a-commitment-rewritten"),
    ),
    Mutant(
        name="hybrid-leaf-count",
        disables="one leaf for each other silo",
        file=BOTH,
        old="if root.leaf_count != len(members) - 1:",
        new="if not root.leaf_count:",
        tests=_leaf("A21s-one-leaf-fewer-signed", "A21t-one-leaf-more-signed"),
    ),
    Mutant(
        name="hybrid-leaf-recipient",
        disables="the recipient that the leaf names",
        file=OPEN,
        old="            leaf.recipient != own\n            or leaf.deals",
        new="            leaf.deals",
        tests=_leaf("A21l-another-recipients-leaf-in-my-place"),
    ),
    Mutant(
        name="hybrid-leaf-deals",
        disables="the lower id deals, and it alone",
        file=OPEN,
        old="            or leaf.deals != (sender < own)\n",
        new="",
        tests=_leaf("A21v-the-higher-id-deals", "A21w-the-lower-id-does-not-deal"),
    ),
    Mutant(
        name="hybrid-leaf-path",
        disables="the path from a leaf to the signed root",
        file=OPEN,
        old="            or not merkle.leads_to(\n",
        new="            or not (\n",
        tests=_leaf("A21g-a-box-replaced", "A21r-a-path-rewritten"),
    ),
    Mutant(
        name="hybrid-leaf-index",
        disables="this silo's own index",
        file=OPEN,
        old="                self._index_at(sender),\n",
        new="                next(\n"
        "                    (i for i in range(root.leaf_count)\n"
        "                     if merkle.leads_to(root.root, merkle.leaf_hash(content), i,\n"
        "                                        root.leaf_count, delivered.path)), 0),\n",
        tests=_leaf("A21m-my-leaf-at-another-index"),
    ),
    Mutant(
        name="hybrid-leaf-context",
        disables="ctx in a leaf",
        file="secagg/messages.py",
        old='            "chorale/v2/r1",\n            ctx,\n',
        new='            "chorale/v2/r1",\n            bytes(32),\n',
        tests=_leaf("A21n-a-tree-of-another-ctx"),
    ),
    Mutant(
        name="hybrid-leaf-or-node",
        disables="leaves and nodes are hashed apart",
        file=MERKLE,
        old='return hashlib.sha256(b"\\x01" + left + right).digest()',
        new='return hashlib.sha256(b"\\x00" + left + right).digest()',
        tests=("tests/secagg/test_merkle.py::test_a_node_is_no_leaf",),
    ),
    Mutant(
        name="hybrid-path-length",
        disables="the exact length of a path",
        file=MERKLE,
        old="        return leaf if not siblings else None\n",
        new="        return leaf\n",
        tests=("tests/secagg/test_merkle.py::test_no_other_path_leads_to_the_root",),
    ),
    Mutant(
        name="hybrid-members",
        disables="H(U2) over the signed roots",
        file="secagg/transcript.py",
        old="tuple((sender, hashlib.sha256(content).digest()) for sender, content in signed),",
        new="tuple((sender, bytes(32)) for sender, content in signed),",
        tests=_EQUIVOCATED,
    ),
    Mutant(
        name="hybrid-pair-secret-hash",
        disables="the dealt secret is the signed one",
        file=OPEN,
        old="            if secret is None or not equal(",
        new='            if secret is None or equal(bytes(32), b"") and equal(',
        tests=_BAD_SECRET,
    ),
    Mutant(
        name="hybrid-seeds-erased",
        disables="both seeds end when the leaves are open",
        file=OPEN,
        old="        self._vault.wipe(*_SEEDS)\n",
        new="",
        tests=_ERASED,
    ),
    Mutant(
        name="hybrid-coordinator-other-form",
        disables="the coordinator of suite v2 takes leaves alone",
        file=LEAVES,
        old='raise VerificationError(Check.SUITE, "boxes of another suite", silo=sender)',
        new="raise TypeError",
        tests=_OTHER_FORM,
    ),
    Mutant(
        name="hybrid-coordinator-recipients",
        disables="a leaf for each other silo at the coordinator",
        file=LEAVES,
        old="if tuple(leaf.recipient for leaf in message.leaves) != due:",
        new="if not due:",
        tests=_WHOLE_TREE,
    ),
    Mutant(
        name="hybrid-coordinator-root",
        disables="the coordinator builds every root again",
        file=LEAVES,
        old="if not equal(self._tree(message).root, message.root.root):",
        new="if not message.leaves:",
        tests=_WHOLE_TREE,
    ),
    # R2 and R3.
    Mutant(
        name="hybrid-debit-at-silo",
        disables="a charge newer than the ledger of R0",
        file=BOTH,
        old="header.debit.seq <= bundle.ledger_seq:",
        new="header.debit.seq < 0:",
        tests=(*_DEBITS, *_DEBITS_AT_SILO),
    ),
    Mutant(
        name="hybrid-debit-at-coordinator",
        disables="the coordinator's look at charges",
        file=UPLOADS,
        old="            check_debit(self._dealt.bundles[header.silo_id], header)\n",
        new="            pass\n",
        tests=_DEBITS,
    ),
    Mutant(
        name="hybrid-survivors",
        disables="all that suite v2 asks of survivors",
        file=CONSISTENCY,
        old="        if self._peers is not None:\n            check_survivors(",
        new="        if self._peers is None:\n            check_survivors(",
        tests=(*_DROPPED, *_DEBITS_AT_SILO),
    ),
    Mutant(
        name="hybrid-rejected-pairs",
        disables="no two survivors of which one masked without the other",
        file=BOTH,
        old="    for dealer, accuser in rejected_pairs(headers):\n",
        new="    for dealer, accuser in ():\n",
        tests=(_P + "test_a22d_no_survivors_of_which_one_rejected_another_are_signed",),
    ),
    Mutant(
        name="hybrid-rejected-stranger",
        disables="only a member that deals can be rejected",
        file=BOTH,
        old="    if any(one > header.silo_id or one not in members.silo_ids "
        "for one in header.rejected):",
        new="    if any(one == header.silo_id for one in header.rejected):",
        tests=_STRANGER,
    ),
    Mutant(
        name="hybrid-contributors-after-upload",
        disables="contributors counted again among survivors",
        file=BOTH,
        old="    check_contributors(descriptor, declared, alive, parameters, after_upload=True)\n",
        new="",
        tests=_DROPPED,
    ),
    Mutant(
        name="hybrid-other-filled-by-decoys",
        disables="that only families of the plan are counted for other",
        file=BOTH,
        old="    return declared.intersection(descriptor.families) if descriptor.is_hybrid else "
        "declared\n",
        new="    return declared\n",
        tests=(_FAMILIES + "test_families_that_the_plan_lacks_do_not_fill_other",),
    ),
    Mutant(
        name="hybrid-families-after-upload",
        disables="figures counted again among survivors",
        file=BOTH,
        old="    check_families(descriptor, [bundles[silo_id] for silo_id in alive], "
        "parameters.least_survivors)\n",
        new="",
        tests=_FIGURES,
    ),
    Mutant(
        name="hybrid-survivors-at-coordinator",
        disables="the coordinator asks for no signature that silos must refuse",
        file=UPLOADS,
        old="            check_survivors(\n",
        new="            _ = (\n",
        tests=(
            _A + "test_secagg_hybrid.py::"
            "test_the_coordinator_declares_no_survivors_that_silos_would_refuse",
        ),
    ),
    Mutant(
        name="hybrid-left-out",
        disables="one of a rejected pair is left out",
        file=UPLOADS,
        old="            del self._received[silo_id]\n",
        new="            pass\n",
        tests=_BAD_SECRET,
    ),
    Mutant(
        name="hybrid-left-out-most",
        disables="no more than c are left out",
        file=PAIRS,
        old="        if _disjoint(left) > most:\n",
        new="        if _disjoint(left) < 0:\n",
        tests=(_P + "test_a22m_more_than_c_liars_end_the_attempt",),
    ),
    Mutant(
        name="hybrid-accused-first",
        disables="the accused go first",
        file=PAIRS,
        old="        for silo in left[0]:\n",
        new="        for silo in left[0][::-1]:\n",
        tests=(_LEFT_OUT + "test_the_accused_goes_where_either_would_do",),
    ),
    Mutant(
        name="hybrid-search-ends",
        disables="the end of a search that takes too long",
        file=PAIRS,
        old="        if steps > _MOST_STEPS:\n",
        new="        if steps < 0:\n",
        tests=(_LEFT_OUT + "test_a_search_that_is_made_too_long_ends",),
    ),
    Mutant(
        name="hybrid-masked-without",
        disables="a rejected pair is left out of the mask",
        file=MASK,
        old="if peer != own and peer not in rejected",
        new="if peer != own",
        tests=_BAD_SECRET,
    ),
    # R4.
    Mutant(
        name="hybrid-pairs-released",
        disables="secrets leave for pairs with a lost silo alone",
        file=RELEASE,
        old="            pair_secrets=self._pair_secrets(dropped),\n",
        new="            pair_secrets=self._pair_secrets([*dropped, *alive][:1]),\n",
        tests=(
            _P + "test_a22p_secrets_leave_for_pairs_with_a_lost_silo_alone",
            _A + "test_secagg_hybrid.py::test_nothing_of_a_pair_leaves_when_nobody_is_lost",
        ),
    ),
    Mutant(
        name="hybrid-pair-of-survivors",
        disables="the coordinator takes no secret of another pair",
        file=UNMASKING,
        old=" or not self._paired(sender).issuperset(named):",
        new=":",
        tests=_OTHER_PAIR,
    ),
    Mutant(
        name="hybrid-recovered-dh",
        disables="the recovered X25519 key is the advertised one",
        file=LEAVES,
        old="            or not equal(masks.agreement_public, advertised.mask_key)\n",
        new="",
        tests=_RECOVERED,
    ),
    Mutant(
        name="hybrid-recovered-kem",
        disables="the recovered ML-KEM key is the advertised one",
        file=LEAVES,
        old="            or not equal(masks.kem_public, advertised.kem_keys.mask_key)\n",
        new="",
        tests=_RECOVERED,
    ),
    Mutant(
        name="hybrid-released-secret",
        disables="a released secret is the signed one",
        file=UNMASKING,
        old="if not self._dealt.is_pair_secret(sender, pair.silo_id, pair.secret):",
        new="if not pair.secret:",
        tests=(_P + "test_a22j_dealer_and_recipient_lie_together_and_there_is_no_sum",),
    ),
    Mutant(
        name="hybrid-recovered-secret",
        disables="a recovered secret is the signed one",
        file=LEAVES,
        old="if found is None or not self.is_pair_secret(low, high, found):",
        new="if found is None:",
        tests=(_P + "test_a22f_the_dealer_drops_and_is_named",),
    ),
    Mutant(
        name="hybrid-bad-dealer-named",
        disables="a dealer whose own side fails is named",
        file=LEAVES,
        old="                bad.add(low)\n",
        new="",
        tests=(_P + "test_a22f_the_dealer_drops_and_is_named",),
    ),
    # Each half of the hybrid.
    Mutant(
        name="hybrid-mask-without-secret",
        disables="the dealt secret in a pair's mask",
        file=HYBRID,
        old='derive(bytes(shared) + bytes(secret), "mask", ctx, low, high)',
        new='derive(bytes(shared), "mask", ctx, low, high)',
        tests=_BROKEN,
    ),
    Mutant(
        name="hybrid-mask-without-x25519",
        disables="X25519 in a pair's mask",
        file=HYBRID,
        old='derive(bytes(shared) + bytes(secret), "mask", ctx, low, high)',
        new='derive(bytes(secret), "mask", ctx, low, high)',
        tests=_BROKEN,
    ),
    Mutant(
        name="hybrid-box-without-kem",
        disables="ML-KEM in a box's key",
        file=HYBRID,
        old='derive(bytes(shared) + bytes(kem_shared), "box", ctx, *direction, digest)',
        new='derive(bytes(shared), "box", ctx, *direction, digest)',
        tests=_BROKEN,
    ),
    Mutant(
        name="hybrid-box-without-x25519",
        disables="X25519 in a box's key",
        file=HYBRID,
        old='derive(bytes(shared) + bytes(kem_shared), "box", ctx, *direction, digest)',
        new='derive(bytes(kem_shared), "box", ctx, *direction, digest)',
        tests=_BROKEN,
    ),
)

"""Mutants of what the coordinator verifies: so that one silo can neither stop nor spoil a sum."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

STATE = "secagg/server/state.py"
BUNDLES = "secagg/server/collect_bundles.py"
SHARES = "secagg/server/collect_shares.py"
BOXES = "secagg/server/boxes.py"
UPLOADS = "secagg/server/collect_masked_inputs.py"
CONSISTENCY = "secagg/server/collect_consistency.py"
UNMASKING = "secagg/server/collect_unmasking.py"
SHAMIR = "secagg/shamir.py"
SUM = "server/run/aggregation.py"
RUN = "server/run/driver.py"
ACCUMULATOR = "server/attempt/accumulator.py"
RECORD = "federation/chain/record.py"
VERIFY = "federation/chain/verify.py"

_T = "tests/adversary/simulation/test_secagg_coordinator.py::"
_KEYS = "tests/adversary/simulation/test_secagg_refused_keys.py::"
_FAMILIES = "tests/adversary/simulation/test_secagg_families.py::"
_BINDING = "tests/adversary/simulation/test_secagg_binding.py::"
_SUMS = "tests/server/run/test_aggregation.py::"
_QUARANTINE = "tests/server/run/test_quarantine.py::"
_ACCUMULATED = "tests/server/attempt/test_accumulator.py::"
_FLUSHED = "tests/server/attempt/test_accumulator_flush.py::"
_PAGES = "tests/silo_agent/follow/test_chain_pages.py::"
_CHAIN = "tests/federation/chain/test_record.py::"
_UPDATE = "tests/federation/chain/test_verify.py::"
_DROPOUTS = "tests/adversary/simulation/test_secagg_dropouts.py::"
_BAD_BUNDLES = (_T + "test_the_coordinator_refuses_bad_bundles_by_name_and_goes_on",)
_BAD_UPLOADS = (_T + "test_the_coordinator_takes_each_upload_once_and_none_late",)
_BAD_AGREEMENTS = (_T + "test_the_coordinator_refuses_bad_agreements_by_name",)
_BAD_RELEASES = (_T + "test_the_coordinator_refuses_bad_releases_by_name",)
_ONE_TOO_MANY = (_DROPOUTS + "test_one_drop_too_many_stops_at_that_step",)

MUTANTS = (
    Mutant(
        name="coordinator-stranger",
        disables="messages of silos that are not expected",
        file=STATE,
        old="if silo_id not in self._expected:",
        new="if not silo_id:",
        tests=_BAD_BUNDLES,
    ),
    Mutant(
        name="coordinator-duplicate",
        disables="refusal of a second, different message",
        file=STATE,
        old="if self._received[silo_id] != message:",
        new="if message is None:",
        tests=_BAD_BUNDLES,
    ),
    Mutant(
        name="coordinator-late",
        disables="a closed step takes nothing, late uploads included",
        file=STATE,
        old="        if self._closed:\n",
        new="        if self._closed is None:\n",
        tests=_BAD_UPLOADS,
    ),
    Mutant(
        name="coordinator-late-bytes",
        disables="refusal of bytes that end after survivors were declared",
        file=UPLOADS,
        old="        self._require_open()\n        header = self._announced.get(silo_id)\n",
        new="        header = self._announced.get(silo_id)\n",
        tests=_BAD_UPLOADS,
    ),
    Mutant(
        name="coordinator-too-few",
        disables="enough silos at each step",
        file=STATE,
        old="        if not self.ready:\n",
        new="        if not self._received:\n",
        tests=_ONE_TOO_MANY,
    ),
    Mutant(
        name="coordinator-descriptor",
        disables="the coordinator's own check of D before it opens R0",
        file=BUNDLES,
        old="parameters = verify_descriptor(descriptor, roster.roster)",
        new="parameters = __import__('secagg.descriptor').descriptor.check_descriptor(\n"
        "        descriptor.descriptor, roster.roster\n    )",
        tests=(_KEYS + "test_begin_refuses_a_descriptor_the_coordinator_did_not_sign",),
    ),
    Mutant(
        name="coordinator-bundle",
        disables="signature and keys of each bundle at the coordinator",
        file=BUNDLES,
        old="        check_bundle(\n"
        "            self._aggregation.roster,\n"
        "            self._descriptor_sha256,\n"
        "            message,\n"
        "            self._seen_keys,\n"
        "            is_hybrid=self._aggregation.descriptor.is_hybrid,\n"
        "        )\n",
        new="",
        tests=_BAD_BUNDLES,
    ),
    Mutant(
        name="coordinator-families",
        disables="the count of declarations before bundles go out",
        file=BUNDLES,
        old="        check_families(descriptor, bundles, self._needed)\n",
        new="",
        tests=(
            _FAMILIES
            + "test_an_honest_coordinator_ends_such_an_attempt_before_it_hands_out_bundles",
        ),
    ),
    Mutant(
        name="coordinator-boxes",
        disables="signature and recipients of R1 at the coordinator",
        file=SHARES,
        old="        self._dealt.check(message)\n",
        new="",
        tests=(_T + "test_the_coordinator_refuses_bad_boxes_by_name",),
    ),
    Mutant(
        name="coordinator-upload-header",
        disables="signature and length of R2 at the coordinator",
        file=UPLOADS,
        old="        check_upload_header(\n            self._aggregation.roster, "
        "self._aggregation.descriptor, self._members, header\n        )\n",
        new="",
        tests=_BAD_UPLOADS,
    ),
    Mutant(
        name="coordinator-second-upload",
        disables="refusal of a second, different upload",
        file=UPLOADS,
        old="            if known != header:\n",
        new="            if known is None:\n",
        tests=_BAD_UPLOADS,
    ),
    Mutant(
        name="masked-digest",
        disables="uploaded bytes are the signed ones",
        file=UPLOADS,
        old="if not equal(header.masked_sha256, masked_sha256):",
        new="if not masked_sha256:",
        tests=_BAD_UPLOADS,
    ),
    Mutant(
        name="coordinator-agreement",
        disables="signatures of R3 at the coordinator",
        file=CONSISTENCY,
        old="            Check.AGREEMENT_SIGNATURES,\n        )\n",
        new="            Check.AGREEMENT_SIGNATURES,\n        ) if not agreed else None\n",
        tests=_BAD_AGREEMENTS,
    ),
    Mutant(
        name="unmask-signature",
        disables="the silo's signature on the shares it releases",
        file=UNMASKING,
        old="            Check.UNMASK_SIGNATURE,\n        )\n",
        new="            Check.UNMASK_SIGNATURE,\n        ) if not sender else None\n",
        tests=_BAD_RELEASES,
    ),
    Mutant(
        name="unmask-kind",
        disables="refusal of the wrong kind of share",
        file=UNMASKING,
        old="owners = [owner for wanted, owner in self._shares if wanted is kind]",
        new="owners = [owner for _, owner in self._shares]",
        tests=_BAD_RELEASES,
    ),
    Mutant(
        name="unmask-share-hash",
        disables="the signed hash of each released share",
        file=UNMASKING,
        old="if not equal(found, signed) or not shamir.is_share(share.share):",
        new="if not shamir.is_share(share.share):",
        tests=(_T + "test_corrupt_shares_are_discarded_and_their_senders_named",),
    ),
    Mutant(
        name="seed-commitment",
        disables="the commitment to b_j",
        file=UNMASKING,
        old="if not equal(found, committed):",
        new="if not committed:",
        tests=(_T + "test_a_dealer_whose_shares_do_not_hide_its_seed_is_named",),
    ),
    Mutant(
        name="mask-key",
        disables="the recovered mask key is the advertised one",
        file=BOXES,
        old="if not equal(suite.agreement_public_key(secret), self.bundles[lost].mask_key):",
        new="if not secret:",
        tests=(_T + "test_a_dealer_whose_shares_do_not_hide_its_key_is_named",),
    ),
    Mutant(
        name="spare-shares",
        disables="naming of dealers whose spare shares disagree",
        file=UNMASKING,
        old="            if not opened.spares_agree:\n",
        new="            if not opened.secret:\n",
        tests=(_T + "test_a_dealer_of_inconsistent_spare_shares_is_named_and_the_sum_stands",),
    ),
    Mutant(
        name="share-count",
        disables="t good shares of every secret",
        file=UNMASKING,
        old="return all(len(shares) >= self._needed for shares in self._shares.values())",
        new="return all(self._shares.values())",
        tests=(_BINDING + "test_the_coordinator_waits_for_t_good_shares_of_every_secret",),
    ),
    Mutant(
        name="dropped-mask-sign",
        disables="the sign under which a dropped silo's masks are taken off",
        file=UNMASKING,
        old="sign=-1 if owner > survivor else 1",
        new="sign=1 if owner > survivor else -1",
        tests=(_DROPOUTS + "test_nothing_but_the_survivors_sum_is_left_of_a_dropped_silo",),
    ),
    Mutant(
        name="secret-range",
        disables="recovered values are 32-byte secrets",
        file=SHAMIR,
        old="if secret.bit_length() > 8 * SECRET_BYTES:",
        new="if secret < 0:",
        tests=("tests/secagg/test_shamir.py::test_a_value_above_32_bytes_is_no_secret",),
    ),
    Mutant(
        name="quarantine",
        disables="quarantine of sums that clipped silos cannot reach",
        file=SUM,
        old="    if norm > bound:\n",
        new="    if norm > bound * 1e9:\n",
        tests=(_SUMS + "test_all_clipped_silos_in_one_direction_are_possible_and_one_more_is_not",),
    ),
    Mutant(
        name="quarantine-noise-room",
        disables="the bound on how long noise may make a vector: twelve times its length passes",
        file=SUM,
        old="noise = sigma * (math.sqrt(descriptor.dimension) + NOISE_TAIL)",
        new="noise = sigma * math.sqrt(descriptor.dimension) * NOISE_TAIL",
        tests=(_SUMS + "test_under_noise_a_silo_has_the_noises_own_room_and_not_twelve_times_it",),
    ),
    Mutant(
        name="quarantine-figures",
        disables="the upper end of what silos and their noise can say in the metrics block",
        file=SUM,
        old="        if not -tail <= figure <= most + tail:\n",
        new="        if not -tail <= figure:\n",
        tests=(
            _SUMS + "test_figures_that_no_honest_silos_have_are_not_applied",
            _SUMS + "test_the_noise_of_honest_silos_is_possible_at_both_ends",
        ),
    ),
    Mutant(
        name="quarantine-negative-figures",
        disables="the lower end of it",
        file=SUM,
        old="        if not -tail <= figure <= most + tail:\n",
        new="        if not figure <= most + tail:\n",
        tests=(
            _SUMS + "test_figures_that_no_honest_silos_have_are_not_applied",
            _SUMS + "test_the_noise_of_honest_silos_is_possible_at_both_ends",
        ),
    ),
    Mutant(
        name="quarantine-successes",
        disables="no more successes than episodes in a family",
        file=SUM,
        old="        if successes - episodes > math.sqrt(2.0) * tail:\n",
        new="        if not episodes and successes < 0:\n",
        tests=(
            _SUMS + "test_figures_that_no_honest_silos_have_are_not_applied",
            _SUMS + "test_successes_exceed_episodes_by_no_more_than_both_noises",
        ),
    ),
    Mutant(
        name="quarantined-in-a-row",
        disables="the end of a run whose sums are quarantined one after the other",
        file=SUM,
        old="    if len(in_a_row) >= plan.rounds.max_quarantined:\n",
        new="    if len(in_a_row) > 10_000:\n",
        tests=(_QUARANTINE + "test_a_run_whose_sums_are_not_applied_fails_and_charges_no_more",),
    ),
    Mutant(
        name="quarantined-in-memory",
        disables="the durable name of a quarantined release: a restart begins the count again",
        file=RUN,
        old="closed.outcome, closed.to_json())",
        new="closed.outcome, replace(closed, outcome=record.kind).to_json())",
        tests=(
            _QUARANTINE + "test_a_restart_in_the_next_round_forgets_no_quarantined_sum",
            _QUARANTINE + "test_a_restart_right_after_the_last_allowed_one_opens_no_further_round",
        ),
    ),
    Mutant(
        name="upload-bytes",
        disables="the signed digest of the bytes that are folded into the sum",
        file=ACCUMULATOR,
        old="signed = digest is None or hmac.compare_digest(digest, upload.sha256)",
        new="signed = bool(upload.sha256)",
        tests=(
            _ACCUMULATED + "test_corrupt_bytes_never_enter_the_sum_and_the_silo_may_start_again",
        ),
    ),
    Mutant(
        name="sum-flush",
        disables="the flush of the sum before the store counts an upload as folded",
        file=ACCUMULATOR,
        old="                os.fsync(target.fileno())\n",
        new="                target.fileno()\n",
        tests=(_FLUSHED + "test_a_generation_is_flushed_before_it_is_committed",),
    ),
    Mutant(
        name="record-signature",
        disables="the coordinator's signature on each link of the chain",
        file=RECORD,
        old="        record.verify(coordinator_public_key)\n        if head is None:\n",
        new="        if head is None:\n",
        tests=(_CHAIN + "test_a_record_of_a_stranger_is_refused",),
    ),
    Mutant(
        name="record-links",
        disables="each record's links to the one before it",
        file=RECORD,
        old="            require_link(head, record, sums_per_round=sums_per_round)\n",
        new="            pass\n",
        tests=(_CHAIN + "test_missing_repeated_and_reordered_records_break_the_chain",),
    ),
    Mutant(
        name="chain-without-end",
        disables="no more records in a chain than its plan has releases",
        file="silo_agent/follow/chain.py",
        old="            if position > plan.releases + 1:\n",
        new="            if position < 0:\n",
        tests=(_PAGES + "test_a_coordinator_that_pages_for_ever_is_left_at_the_plans_end",),
    ),
    Mutant(
        name="record-step-unsigned",
        disables="the step of a round in the coordinator's signature on a record",
        file=RECORD,
        old="            self.round,\n            self.step,\n            self.kind,\n",
        new="            self.round,\n            self.kind,\n",
        tests=(_CHAIN + "test_every_field_of_a_record_is_signed",),
    ),
    Mutant(
        name="record-step-order",
        disables="one record for each step, in order",
        file=RECORD,
        old="        follows = record.place == next_place(parent.place, sums_per_round)\n",
        new="        follows = record.place > parent.place\n",
        tests=(_CHAIN + "test_a_step_cannot_be_left_out_or_added",),
    ),
    Mutant(
        name="published-digests",
        disables="the digests of sum and adapters in the signed record",
        file=VERIFY,
        old="        if digest != expected:\n",
        new="        if not digest:\n",
        tests=(_UPDATE + "test_each_digest_must_be_the_records",),
    ),
    Mutant(
        name="published-update",
        disables="the published adapter follows from the published sum",
        file=VERIFY,
        old="if not np.array_equal(expected.view(np.uint32), published.view(np.uint32)):",
        new="if not expected.size:",
        tests=(_UPDATE + "test_one_flipped_bit_without_gauge_is_found",),
    ),
    Mutant(
        name="published-update-gauge",
        disables="the published product follows from the published sum, under a gauge",
        file=VERIFY,
        old="    if not difference <= max(TOLERANCE * norm, floor) * math.sqrt(PROBES):\n",
        new="    if not difference >= 0:\n",
        tests=(_UPDATE + "test_a_changed_product_under_the_gauge_is_found",),
    ),
)

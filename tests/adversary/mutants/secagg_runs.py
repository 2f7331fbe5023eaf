"""Mutants of what a coordinator's runs owe suite v2: records, tasks, cohorts, charges."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

RECORD = "federation/chain/record.py"
WIRE = "federation/wire.py"
TRANSCRIPT = "federation/transcript/transcript.py"
KEPT = "server/run/kept_cohort.py"
COHORTS = "server/run/cohorts.py"
SELECTION = "server/run/selection.py"
POLICY = "silo_agent/policy/plan.py"
PLAN_RULES = "federation/plan/rules.py"
QUEUE = "server/conductor/queue.py"
HEADS = "server/members/ledger_heads.py"
ATTEMPT = "server/attempt/attempt.py"

_RECORD = "tests/federation/chain/test_record.py::"
_SUITES = "tests/federation/transcript/test_transcript_suites.py::"
_KEPT = "tests/server/run/test_kept_cohort.py::"
_INVITED = "tests/server/run/test_invitations.py::"
_CHOSEN = "tests/server/run/test_selected_rounds.py::"
_PLANS = "tests/federation/plan/test_selection.py::"
_MODES = "tests/silo_agent/policy/test_policy_modes.py::"
_RUNS = "tests/server/conductor/test_suites.py::"
_FAULT = "tests/server/run/test_silos_at_fault.py::"
_OPENED = "tests/server/conductor/test_opened_sums.py::"
_PAIRS = "tests/server/run/test_rejected_pairs.py::"
_HEADS = "tests/server/members/test_ledger_heads.py::"

MUTANTS = (
    Mutant(
        name="record-parts-unsigned",
        disables="the signature on a record's parts",
        file=RECORD,
        old="            summed = (self.suite, tuple(part.fields() for part in self.parts))\n",
        new="            summed = (self.suite,)\n",
        tests=(_RECORD + "test_every_field_of_every_part_is_signed",),
    ),
    Mutant(
        name="record-suite-changes",
        disables="that all records of a run are of one suite",
        file=RECORD,
        old='    for field in ("run_id", "suite", "plan_sha256", "base_model_sha256"):\n',
        new='    for field in ("run_id", "plan_sha256", "base_model_sha256"):\n',
        tests=(_RECORD + "test_a_run_keeps_its_suite",),
    ),
    Mutant(
        name="record-form-of-another-suite",
        disables="that a record names its sums in the form of its suite",
        file=WIRE,
        old="    if any(first) if hybrid else proto.parts:\n",
        new="    if False:\n",
        tests=(_RECORD + "test_a_record_of_one_suite_is_refused_in_the_form_of_the_other",),
    ),
    Mutant(
        name="transcript-roots-unchecked",
        disables="the auditor's check of signed roots",
        file=TRANSCRIPT,
        old="            check_share_root(roster, ctx, root, u1)\n",
        new="            pass\n",
        tests=(_SUITES + "test_a_lie_ends_at_its_check",),
    ),
    Mutant(
        name="transcript-contributors",
        disables="the auditor's count of contributors in U1",
        file=TRANSCRIPT,
        old=(
            "            check_contributors("
            "descriptor, declared, u1, parameters, after_upload=False)\n"
        ),
        new="            pass\n",
        tests=(_SUITES + "test_too_few_declarers_of_the_plans_families_end_it",),
    ),
    Mutant(
        name="kept-cohort-grows",
        disables="that a run without noise asks nobody who was not in the last sum",
        file=KEPT,
        old="            return everyone & kept\n",
        new="            return everyone\n",
        tests=(_KEPT + "test_a_silo_that_was_lost_is_asked_again_only_under_noise",),
    ),
    Mutant(
        name="kept-cohort-r0",
        disables="that R0 goes on with others only if all of U1 says so",
        file=KEPT,
        old="        if strangers and not all(bundle.cohort_may_vary for bundle in bundles):\n",
        new="        if False:\n",
        tests=(_KEPT + "test_r0_goes_on_with_others_only_if_all_of_u1_says_so",),
    ),
    Mutant(
        name="task-not-sent-again",
        disables="that a coordinator that restarts sends the task that was out",
        file=COHORTS,
        old="(self._suspects), self._unanswered_task(attempt_number)\n",
        new="(self._suspects), None\n",
        tests=(_INVITED + "test_a_coordinator_that_restarts_in_training_sends_the_same_task",),
    ),
    Mutant(
        name="choice-made-again",
        disables="that a round keeps the choice that was stored",
        file=SELECTION,
        old="        if made is not None:\n",
        new="        if False:\n",
        tests=(_CHOSEN + "test_a_stored_choice_outlives_another_policy_object",),
    ),
    Mutant(
        name="choice-too-small",
        disables="that a choice has as many silos as a round needs",
        file=SELECTION,
        old="        if len(silos) < self.at_least:\n",
        new="        if False:\n",
        tests=(
            _CHOSEN
            + "test_a_policy_that_fails_or_is_late_asks_everybody_and_the_audit_log_says_so",
        ),
    ),
    Mutant(
        name="choice-not-invited-heard",
        disables="that who is not invited has no say",
        file=COHORTS,
        old="        if not self._is_invited(silo_id):\n",
        new="        if False:\n",
        tests=(_CHOSEN + "test_who_is_not_invited_has_no_say_and_is_not_waited_for",),
    ),
    Mutant(
        name="choice-bisected",
        disables="that a round that is chosen for is not bisected",
        file="server/run/driver.py",
        old="        if self.cohorts.chosen(number):\n",
        new="        if False:\n",
        tests=(
            _CHOSEN
            + "test_a_bisected_round_asks_everybody_and_none_that_is_chosen_for_is_bisected",
        ),
    ),
    Mutant(
        name="choice-without-noise-planned",
        disables="refusal of a plan without noise that asks other silos each round",
        file=PLAN_RULES,
        old="    if noiseless and section.varies and not section.cohort_may_vary:\n",
        new="    if False:\n",
        tests=(_PLANS + "test_without_noise_a_plan_needs_its_own_word",),
    ),
    Mutant(
        name="choice-of-fewer",
        disables="that a round asks everybody where its plan does not let it choose",
        file=SELECTION,
        old="        if len(silos) < len(live) and not self._plan.selection.varies:\n",
        new="        if False:\n",
        tests=(_CHOSEN + "test_a_plan_without_a_count_never_asks_fewer",),
    ),
    Mutant(
        name="task-epochs",
        disables="refusal of a task that moves local epochs out of its plan's range",
        file=POLICY,
        old="    if asked and not least <= asked <= most:\n",
        new="    if False:\n",
        tests=(_MODES + "test_a_task_that_moves_local_epochs_stays_in_its_plans_range",),
    ),
    Mutant(
        name="choice-without-noise-at-site",
        disables="the guardian's refusal of it without the site's own word",
        file=POLICY,
        old="    if case.policy.privacy.cohort_may_vary or case.cohort_may_vary:\n",
        new="    if True:\n",
        tests=(_MODES + "test_other_silos_in_each_round_need_the_sites_own_word_without_noise",),
    ),
    Mutant(
        name="suite-too-old",
        disables="refusal of a run of suite v2 that a silo is too old for",
        file=QUEUE,
        old="            if version is not None and version.newest < HYBRID\n",
        new="            if False\n",
        tests=(_RUNS + "test_a_silo_that_is_known_to_be_too_old_is_named",),
    ),
    Mutant(
        name="charge-behind",
        disables="refusal of a bundle whose newest charge is behind one that was signed",
        file=HEADS,
        old="    if bundle.debit.seq < newest.seq:\n",
        new="    if False:\n",
        tests=(_HEADS + "test_a_ledger_that_was_restored_and_grew_is_behind_by_its_newest_charge",),
    ),
    Mutant(
        name="charge-not-echoed",
        disables="the echo of a charge whose upload came to nothing",
        file=ATTEMPT,
        old="                self._journal.charged(header, state.members)\n",
        new="                pass\n",
        tests=(_HEADS + "test_an_upload_that_came_to_nothing_is_echoed_at_the_next_task",),
    ),
    Mutant(
        name="rejected-pairs-forgotten",
        disables="that who accuses a second silo is left out itself",
        file=COHORTS,
        old="        self._rejected = self._rejected.union(pairs)\n",
        new="        self._rejected = frozenset(pairs)\n",
        tests=(_PAIRS + "test_who_accuses_a_second_silo_goes_itself_and_both_come_back",),
    ),
    Mutant(
        name="rejected-pairs-in-sum",
        disables="that a silo of a rejected pair is left out of the next attempt",
        file=COHORTS,
        old="        kept = self._kept.of(self._silos) - self._left_out()\n",
        new="        kept = self._kept.of(self._silos)\n",
        tests=(_PAIRS + "test_the_next_attempt_is_made_without_the_accused_and_its_sum_is_exact",),
    ),
    Mutant(
        name="kept-cohort-signed",
        disables="that declared survivors count though no signature came back",
        file=KEPT,
        old="newest_declared(Phase.MASKED_INPUT.value, runs)\n",
        new="newest_declared(Phase.CONSISTENCY_CHECK.value, runs)\n",
        tests=(_KEPT + "test_survivors_that_were_declared_count_though_no_signature_came_back",),
    ),
    Mutant(
        name="at-fault-unsaid",
        disables="that silos which unmasking catches are named",
        file="server/run/attempts.py",
        old="        self._note_at_fault(attempt)\n",
        new="        pass\n",
        tests=(_FAULT + "test_a_lost_dealer_of_another_pair_secret_is_named",),
    ),
    Mutant(
        name="opened-sums-unsaid",
        disables="that the rank counts sums that were opened and not used",
        file="server/conductor/status.py",
        old="        if status is not None and row.phases_closed == len(STEPS):\n",
        new="        if status is not None and row.outcome == 'released':\n",
        tests=(_OPENED + "test_a_step_that_is_skipped_after_its_sum_was_unmasked_tells_of_it",),
    ),
)

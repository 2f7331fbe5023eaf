"""Mutants of suites, round tasks, debits and cohorts that only shrink, at the silo."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

SESSION = "silo_agent/attempt/session.py"
PEER_HEADS = "silo_agent/books/peer_heads.py"
BOOKS = "silo_agent/books/ledger.py"
LEDGER = "dp/ledger/ledger.py"
SPENT = "silo_agent/books/spent.py"
TASKS = "silo_agent/books/round_tasks.py"
DESCRIPTOR = "silo_agent/policy/descriptor.py"
DOCUMENT = "silo_agent/policy/document.py"
DAEMON = "silo_agent/daemon/daemon.py"
PUBLISHED = "silo_agent/follow/published.py"

_PEERS = "tests/silo_agent/books/test_peer_heads.py::"
_ECHO = "tests/silo_agent/books/test_ledger_echo.py::"
_TASKS = "tests/silo_agent/books/test_round_tasks.py::"
_DEBITS = "tests/dp/ledger/test_debits.py::"
_POLICY = "tests/silo_agent/policy/test_policy.py::"
_SPENT = "tests/silo_agent/books/test_spent.py::"
_STEPS = "tests/silo_agent/daemon/test_daemon_steps.py::"
_ADMISSION = "tests/silo_agent/daemon/test_admission.py::"
_COHORTS = "tests/silo_agent/attempt/test_session_cohorts.py::"

MUTANTS = (
    Mutant(
        name="cohort-grows",
        disables="the refusal of silos that were not in the newest sum without noise",
        file=SESSION,
        old="                    self._require_shrinking(message)\n",
        new="                    pass\n",
        tests=(_COHORTS + "test_without_noise_nobody_signs_for_a_silo_that_was_not_there_before",),
    ),
    Mutant(
        name="cohort-one-word-is-enough",
        disables="the need of every silo's word for cohorts that vary",
        file=SESSION,
        old="self._all_may_vary = all(",
        new="self._all_may_vary = any(",
        tests=(_COHORTS + "test_one_silos_word_is_not_everybodys",),
    ),
    Mutant(
        name="cohort-not-durable",
        disables="whose the newest sum without noise is, on disk",
        file=LEDGER,
        old="                    self._agree(identity, members)\n",
        new="                    self._agree(identity, None)\n",
        tests=(_DEBITS + "test_whose_a_sum_is_survives_and_noise_forgets_nothing",),
    ),
    Mutant(
        name="cohort-forgotten-by-a-rejoin",
        disables="the cohort of the ledger before, where a silo leaves and joins anew",
        file=LEDGER,
        old="                self._cohort = frozenset(opening.cohort)\n",
        new="                _ = opening.cohort\n",
        tests=(
            _SPENT + "test_a_silo_that_leaves_and_joins_anew_signs_for_nobody_who_was_not_there",
        ),
    ),
    Mutant(
        name="cohort-not-in-the-file",
        disables="whose the newest sum without noise was, in the file of a silo that leaves",
        file=LEDGER,
        old="cohort=None if self._cohort is None else tuple(sorted(self._cohort)),\n",
        new="cohort=None,\n",
        tests=(
            _SPENT + "test_a_silo_that_leaves_and_joins_anew_signs_for_nobody_who_was_not_there",
        ),
    ),
    Mutant(
        name="cohort-of-the-older-file",
        disables="that the newer of two files of one federation decides",
        file=SPENT,
        old="key=lambda one: (one.at_unix_s, one.ledger_id)):\n",
        new="key=lambda one: (-one.at_unix_s, one.ledger_id)):\n",
        tests=(_SPENT + "test_of_two_files_the_newer_says_whose_the_sum_was",),
    ),
    Mutant(
        name="cohort-before-keys",
        disables="the refusal of a grown cohort before any key is made",
        file=BOOKS,
        old="    if strangers := grown_cohort(ledger, cohort):\n        raise cohort_grew(",
        new="    if strangers := ():\n        raise cohort_grew(",
        tests=(_COHORTS + "test_a_cohort_that_cannot_be_agreed_on_is_refused_before_any_key",),
    ),
    Mutant(
        name="any-part-after-agreement",
        disables="one sum a round and step for each silo, whatever its part",
        file=SESSION,
        old="if self._ledger.has_agreed(mine.run_id, mine.round, mine.step):",
        new="if self._ledger.has_agreed(mine.run_id, mine.round, mine.step, mine.part):",
        tests=(_COHORTS + "test_after_one_part_was_signed_no_other_part_is_joined",),
    ),
    Mutant(
        name="debits-not-remembered",
        disables="the survivors' debits on disk before R3 is signed",
        file=SESSION,
        old="                self._peers.remember(message, self._roster, identity)\n",
        new="",
        tests=(_COHORTS + "test_the_survivors_debits_are_known_before_the_signature_leaves",),
    ),
    Mutant(
        name="debits-not-durable",
        disables="the debits of a sum on disk",
        file=PEER_HEADS,
        old="        self._store.set_peer_heads(debits)\n",
        new="",
        tests=(_PEERS + "test_another_debit_under_the_same_number_is_a_proof",),
    ),
    Mutant(
        name="debit-behind",
        disables="the comparison of a peer's newest debit with the highest seen",
        file=PEER_HEADS,
        old="    if bundle.debit is not None and _is_behind(bundle.debit, before.debit):\n",
        new="    if bundle.debit is not None and bundle.debit.seq < 0:\n",
        tests=(
            _PEERS + "test_a_ledger_that_grew_past_its_own_rollback_still_lacks_the_debit_that_"
            "was_seen",
        ),
    ),
    Mutant(
        name="debit-outside-its-ledger",
        disables="the refusal of a debit that is not in the ledger signed beside it",
        file=PEER_HEADS,
        old="            if not _holds_its_debit(bundle):\n",
        new="            if bundle.ledger_seq < 0:\n",
        tests=(_PEERS + "test_a_debit_outside_the_ledger_that_is_signed_beside_it_is_refused",),
    ),
    Mutant(
        name="upload-charged-before",
        disables="the refusal of an upload whose charge is not above those seen",
        file=PEER_HEADS,
        old="            if before is not None and _is_behind(debit, before.debit):\n",
        new="            if before is not None and debit.seq < 0:\n",
        tests=(_PEERS + "test_an_upload_charged_before_what_was_seen_is_not_signed_for",),
    ),
    Mutant(
        name="echoed-upload-believed",
        disables="the silo's own signature on an echoed upload",
        file=BOOKS,
        old="    if debit is None or not mine:\n",
        new="    if debit is None:\n",
        tests=(_ECHO + "test_an_upload_that_this_silo_did_not_sign_says_nothing",),
    ),
    Mutant(
        name="echoed-upload-not-looked-up",
        disables="the comparison of an echoed debit with the ledger",
        file=BOOKS,
        old="    _require_signed(ledger, debit.seq, debit.sha256, identity=echo.identity)\n",
        new="",
        tests=(
            _ECHO + "test_the_echo_of_an_upload_that_is_in_no_sum_shows_the_debit_that_is_gone",
        ),
    ),
    Mutant(
        name="round-asked-of-others",
        disables="the refusal of a task that invites others than the first of its round",
        file=TASKS,
        old="            if not all(_is_part_of(task, before) for before in kept_of_round):\n",
        new="            if not task.run_id:\n",
        tests=(_TASKS + "test_a_round_is_not_asked_of_others_than_at_first",),
    ),
    Mutant(
        name="task-of-another-step-grows",
        disables="that a later step of a round is asked of no more silos than an earlier one",
        file=TASKS,
        old="for one in known.values() if one.round == task.round]",
        new="for one in known.values() if (one.round, one.step) == (task.round, task.step)]",
        tests=(_TASKS + "test_no_step_of_a_round_is_asked_of_others_than_the_steps_before",),
    ),
    Mutant(
        name="task-heard-before-judged",
        disables="that a task is remembered only after it was judged and follows the head",
        file=DAEMON,
        old="        self._task, self._asked = task, (task.run_id, Place(task.round, task.step))\n",
        new="        self.tasks.hear(task)\n"
        "        self._task, self._asked = task, (task.run_id, Place(task.round, task.step))\n",
        tests=(
            _STEPS + "test_a_task_of_another_step_than_the_next_is_not_remembered",
            _STEPS + "test_a_task_that_the_site_refuses_is_not_remembered",
        ),
    ),
    Mutant(
        name="task-differs",
        disables="that a descriptor agrees with the task that it names",
        file=DESCRIPTOR,
        old="    if differing := _task_differs(task, case.descriptor):\n",
        new='    if differing := "":\n',
        tests=(_POLICY + "test_a_descriptor_agrees_with_the_task_that_it_names",),
    ),
    Mutant(
        name="parts-without-groups",
        disables="that a plan without groups has one sum a step",
        file=DESCRIPTOR,
        old="    if case.plan.groups > 1:\n",
        new="    if case.plan.groups:\n",
        tests=(_POLICY + "test_a_plan_without_groups_has_no_parts",),
    ),
    Mutant(
        name="task-of-another-suite",
        disables="that a task is of the suite of its run",
        file=PUBLISHED,
        old="    if bool(task.invited) != (head.suite == hybrid.SUITE):\n",
        new="    if not head.suite:\n",
        tests=(_ADMISSION + "test_a_run_keeps_its_suite_whatever_the_site_accepts",),
    ),
    Mutant(
        name="descriptor-of-another-suite",
        disables="that a descriptor is of the suite of its run",
        file=PUBLISHED,
        old="    if descriptor.suite != head.suite:\n",
        new="    if not head.suite:\n",
        tests=(_ADMISSION + "test_a_run_keeps_its_suite_whatever_the_site_accepts",),
    ),
    Mutant(
        name="task-not-named",
        disables="that a descriptor names the task that this silo verified",
        file=DESCRIPTOR,
        old="    if task is None or task.sha256 != case.descriptor.task_sha256:\n",
        new="    if task is None:\n",
        tests=(
            _POLICY + "test_a_descriptor_belongs_to_the_task_that_was_verified_and_to_whom_it_"
            "invites",
        ),
    ),
    Mutant(
        name="cohort-not-invited",
        disables="that a cohort holds whom the task invites alone",
        file=DESCRIPTOR,
        old="    strangers = set(case.descriptor.cohort) - set(task.invited)\n",
        new="    strangers: set[str] = set()\n",
        tests=(
            _POLICY + "test_a_descriptor_belongs_to_the_task_that_was_verified_and_to_whom_it_"
            "invites",
        ),
    ),
    Mutant(
        name="families-of-the-coordinator",
        disables="the plan's families as this silo derives them",
        file=DESCRIPTOR,
        old="    if stated == families:\n",
        new="    if stated:\n",
        tests=(_POLICY + "test_each_descriptor_rule_fires_alone",),
    ),
    Mutant(
        name="suite-v1-without-the-word",
        disables="the sentence beside the name of suite v1",
        file=DOCUMENT,
        old="named if self.accept_v1 else named - {suite.SUITE}",
        new="named",
        tests=(_POLICY + "test_listing_the_old_suite_is_not_enough",),
    ),
    Mutant(
        name="suite-downgrade-in-a-round",
        disables="the refusal of suite v1 after a task of suite v2",
        file=DESCRIPTOR,
        old="        invited = task is not None and task.invited\n",
        new="        invited = ()\n",
        tests=(_POLICY + "test_a_round_that_began_in_suite_v2_does_not_go_on_in_v1",),
    ),
)

"""Mutants of rosters that members approve instead of the root."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

ROSTER = "secagg/roster.py"

_TESTS = "tests/secagg/test_roster_approvals.py::"

MUTANTS = (
    Mutant(
        name="roster-approvals-count",
        disables="how many members must approve a roster",
        file=ROSTER,
        old="    if len(signed.approvals) < needed:\n",
        new="    if len(signed.approvals) < needed - 1:\n",
        tests=(_TESTS + "test_fewer_than_k_are_refused",),
    ),
    Mutant(
        name="roster-approval-signature",
        disables="the signature of an approval, and that a member made it",
        file=ROSTER,
        old="        if not is_approval(previous, roster, approval):\n",
        new="        if not approval.signature:\n",
        tests=(
            _TESTS + "test_the_coordinator_and_its_colluders_are_refused",
            _TESTS + "test_a_member_that_the_very_roster_adds_has_no_say",
        ),
    ),
    Mutant(
        name="roster-approval-of-whom",
        disables="that the approving key is the one of the roster before",
        file=ROSTER,
        old="    entry = previous.entry(approval.silo_id)\n",
        new="    entry = roster.entry(approval.silo_id)\n",
        tests=(
            _TESTS + "test_a_member_that_the_very_roster_adds_has_no_say",
            _TESTS + "test_a_member_under_the_key_that_the_very_roster_brings_has_no_say",
        ),
    ),
    Mutant(
        name="roster-approval-previous",
        disables="the roster before in what a member signs",
        file=ROSTER,
        old="roster.federation, roster.epoch, previous.sha256, roster.sha256\n",
        new="roster.federation, roster.epoch, roster.sha256, roster.sha256\n",
        tests=(_TESTS + "test_approvals_of_the_same_change_to_another_roster_are_refused",),
    ),
    Mutant(
        name="roster-approval-twice",
        disables="that a member counts once",
        file=ROSTER,
        old="not bounds.is_strictly_sorted(approval.silo_id for approval in self.approvals)",
        new="not self.approvals and not bounds",
        tests=(_TESTS + "test_one_member_counts_once",),
    ),
    Mutant(
        name="roster-approvals-of-held",
        disables="that approvals count only after the roster this silo accepted last",
        file=ROSTER,
        old="previous is None or (previous.epoch, previous.sha256) != (last_epoch, last_sha256):",
        new="previous is None:",
        tests=(_TESTS + "test_approvals_of_the_same_change_to_another_roster_are_refused",),
    ),
    Mutant(
        name="roster-approved-c",
        disables="that only the root changes c",
        file=ROSTER,
        old='        ("c", previous.colluding, roster.colluding),\n',
        new="",
        tests=(
            _TESTS + "test_only_the_root_changes_c_the_coordinator_and_the_name",
            _TESTS + "test_only_the_root_lowers_c",
        ),
    ),
    Mutant(
        name="roster-approved-coordinator",
        disables="that only the root changes the coordinator's key",
        file=ROSTER,
        old='key", previous.coordinator_key, roster.coordinator_key),',
        new='key", roster.coordinator_key, roster.coordinator_key),',
        tests=(_TESTS + "test_only_the_root_changes_c_the_coordinator_and_the_name",),
    ),
    Mutant(
        name="roster-approved-epoch",
        disables="that an approved roster is of the very next epoch",
        file=ROSTER,
        old="    if roster.epoch != previous.epoch + 1:\n",
        new="    if roster.epoch <= previous.epoch:\n",
        tests=(_TESTS + "test_approvals_of_another_epoch_are_refused",),
    ),
    Mutant(
        name="roster-approved-small",
        disables="that the silos of an approved roster withstand c",
        file=ROSTER,
        old="    approvals_needed(previous)\n    approvals_needed(roster)\n",
        new="    approvals_needed(previous)\n",
        tests=(_TESTS + "test_only_the_root_shrinks_below_what_withstands_c",),
    ),
)

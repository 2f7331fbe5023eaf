"""Mutants of who is asked for work: silos that stall again and again, and runs nobody can fill."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

ATTEMPTS = "server/run/attempts.py"
COHORTS = "server/run/cohorts.py"
DROPOUTS = "server/run/dropouts.py"
DRIVER = "server/run/driver.py"
LIVENESS = "server/context.py"
PRESENCE = "server/members/presence.py"
QUEUE = "server/conductor/queue.py"
TABLE = "server/store/dropouts.py"

_LOST = "tests/server/run/test_dropouts.py::"
_THERE = "tests/server/members/test_presence.py::"
_ABSENT = "tests/system/integration/faults/test_absent_silos.py::"
_SEEN = "tests/server/test_liveness.py::"

MUTANTS = (
    Mutant(
        name="dropout-sits-out",
        disables="that a silo lost time after time sits out",
        file=DROPOUTS,
        old="            if 0 < self._plan.rounds.sit_out_after <= in_a_row:\n",
        new="            if in_a_row < 0:\n",
        tests=(_LOST + "test_a_silo_that_stalls_every_round_is_named_and_sits_out[unmask]",),
    ),
    Mutant(
        name="dropout-training",
        disables="that a silo which never says ready counts as lost",
        file=COHORTS,
        old="attempt_number, self._late())",
        new="attempt_number, ())",
        tests=(_LOST + "test_a_silo_that_never_says_ready_is_named_too",),
    ),
    Mutant(
        name="dropout-none-for-good",
        disables="that without noise it sits out the rest of the run",
        file=DROPOUTS,
        old="        if self._plan.privacy.mode == Mode.NONE.value:\n",
        new="        if until < 0:\n",
        tests=(_LOST + "test_without_noise_it_sits_out_the_rest_of_the_run",),
    ),
    Mutant(
        name="dropout-whole-round",
        disables="that a round in which it was lost does not end the count",
        file=TABLE,
        old="                    dropouts.c.last_round != round_number,\n",
        new="",
        tests=(
            _LOST + "test_who_loses_the_first_attempt_of_each_round_is_not_excused_by_the_second",
        ),
    ),
    Mutant(
        name="dropout-last-step",
        disables="that only the round's last step ends the count",
        file=ATTEMPTS,
        old=" and self._plan.is_last_step(identity.step):\n",
        new=":\n",
        tests=(_LOST + "test_a_stall_at_the_last_step_of_each_round_is_as_good_as_any",),
    ),
    Mutant(
        name="dropout-own",
        disables="that only those are blamed whom the phase waited for",
        file=ATTEMPTS,
        old="late = attempt.waiting_for if fair",
        new="late = attempt.cohort if fair",
        tests=(_LOST + "test_nobody_is_blamed_for_an_attempt_that_another_ended",),
    ),
    Mutant(
        name="dropout-barred",
        disables="that a silo which may take no part is not blamed",
        file=ATTEMPTS,
        old="if not barred(silo)}",
        new="}",
        tests=(_LOST + "test_who_is_suspended_meanwhile_is_not_blamed",),
    ),
    Mutant(
        name="dropout-restart-forgets",
        disables="that a restart remembers whom the open attempt had lost",
        file="server/attempt/attempt.py",
        old="            self.lost = dict(self.dropped)\n",
        new="",
        tests=(_LOST + "test_a_restart_neither_forgets_nor_counts_twice[masked_input]",),
    ),
    Mutant(
        name="dropout-quorum",
        disables="that sitting out never costs a round its quorum",
        file=COHORTS,
        old="            everyone = bool(self._may_be_called_back())\n",
        new="            everyone = False\n",
        tests=(
            _LOST + "test_sitting_out_never_costs_the_quorum",
            _LOST + "test_who_sits_out_is_asked_before_a_round_stalls_or_a_run_ends",
        ),
    ),
    Mutant(
        name="dropout-quorum-there",
        disables="that silence of the others calls back who sits out",
        file=COHORTS,
        old="        return bool(self._may_be_called_back()) and not self._suffices(there)\n",
        new="        return bool(self._may_be_called_back()) and not there\n",
        tests=(_LOST + "test_who_sits_out_is_asked_as_soon_as_too_few_others_are_there",),
    ),
    Mutant(
        name="dropout-no-task",
        disables="that who sits out is told of no task",
        file=DRIVER,
        old="return self.training.task if self.cohorts.is_told(silo_id) else None\n",
        new="return self.training.task\n",
        tests=(_LOST + "test_who_sits_out_does_no_work_and_is_charged_nothing",),
    ),
    Mutant(
        name="dropout-no-word",
        disables="that the word of a silo that sits out does not count",
        file=COHORTS,
        old="        if silo_id in self.sitting_out:\n",
        new="        if silo_id in ():\n",
        tests=(_LOST + "test_who_answers_though_it_sits_out_is_refused",),
    ),
    Mutant(
        name="roster-fills-the-run",
        disables="that too few members who may take part start no run",
        file=QUEUE,
        old="        require_members(plan, roster, self._store.silos.list())\n",
        new="",
        tests=(
            _THERE + "test_a_run_that_revoked_silos_leave_below_its_quorum_is_not_started",
            _THERE + "test_a_run_whose_silos_go_while_it_waits_is_turned_away_at_its_turn",
        ),
    ),
    Mutant(
        name="roster-silence-counted",
        disables="that who may take no part is not there, though it calls",
        file="server/members/silence.py",
        old="    counted = [member for member in members if member.state not in OUT]\n",
        new="    counted = list(members)\n",
        tests=(_THERE + "test_silence_is_counted_against_those_who_may_take_part",),
    ),
    Mutant(
        name="start-without-silos",
        disables="that a start is refused while too few silos are heard of",
        file="server/cli/run.py",
        old="            if not await_silos:\n",
        new="            if stub is None:\n",
        tests=(
            _ABSENT + "test_a_start_without_silos_is_refused_until_they_call_or_the_admin_waits",
        ),
    ),
    Mutant(
        name="last-seen-kept",
        disables="that a restart knows when each silo was last heard of",
        file=LIVENESS,
        old="            store.silos.touch(fresh)\n",
        new="",
        tests=(_SEEN + "test_a_silo_that_died_before_a_restart_is_silent_after_it",),
    ),
)

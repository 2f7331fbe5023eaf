"""Mutants of what keeps the sums of groups and halves apart, and of what becomes of gross ones."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

GROUPS = "federation/chain/groups.py"
DESCRIPTOR = "silo_agent/policy/descriptor.py"
ATTEMPTS = "server/run/attempts.py"
DRIVER = "server/run/driver.py"
RESTING = "server/run/resting.py"
BISECTION = "server/conductor/bisection.py"

_DRAWN = "tests/federation/chain/test_groups.py::"
_POLICY = "tests/silo_agent/policy/test_policy.py::"
_RUNS = "tests/server/run/test_groups.py::"
_HALVES = "tests/server/run/test_bisections.py::"
_VETOES = "tests/server/run/test_vetoes.py::"

MUTANTS = (
    Mutant(
        name="group-of-strangers",
        disables="the silo's look at who else is in its group",
        file=DESCRIPTOR,
        old="    strangers = set(descriptor.cohort) - set(groups[part])\n",
        new="    strangers = set(descriptor.cohort) - set(task.invited)\n",
        tests=(_POLICY + "test_a_part_is_a_group_of_the_round_and_nobody_else_is_in_it",),
    ),
    Mutant(
        name="group-beyond-the-plan",
        disables="the refusal of a part that is no group of the plan",
        file=DESCRIPTOR,
        old='        return f"part {part} of a plan with {count} groups"\n',
        new="        return None\n",
        tests=(_POLICY + "test_a_part_is_a_group_of_the_round_and_nobody_else_is_in_it",),
    ),
    Mutant(
        name="group-of-every-round",
        disables="the round in what draws its groups and halves",
        file=GROUPS,
        old="canonical.digest(domain, run_id, round_number, roster_sha256, silo_id)",
        new="canonical.digest(domain, run_id, roster_sha256, silo_id)",
        tests=(_DRAWN + "test_the_groups_are_those_of_the_documented_digest",),
    ),
    Mutant(
        name="group-gross-and-used",
        disables="the quarantine of a group's or a half's sum",
        file=ATTEMPTS,
        old="""        found = await asyncio.to_thread(
            require_possible, total, attempt.descriptor.descriptor, attempt.survivors
        )
""",
        new="""        found = GroupSum(
            total=total,
            descriptor=attempt.descriptor.descriptor,
            survivors=attempt.survivors,
        )
""",
        tests=(
            _RUNS + "test_a_quarantined_group_is_left_out_and_nothing_of_it_is_adopted",
            _HALVES + "test_who_ruins_sums_is_found_and_nothing_of_the_halves_is_adopted",
        ),
    ),
    Mutant(
        name="bisected-without-noise",
        disables="the refusal of halves that nothing but masks hides",
        file=BISECTION,
        old="        _require_noise(row, plan)\n",
        new="",
        tests=(_HALVES + "test_what_has_no_place_is_refused_with_what_would_be_needed",),
    ),
    Mutant(
        name="bisected-too-small",
        disables="the refusal of halves that cannot be sums of their own",
        file=BISECTION,
        old="    if len(members) < 2 * least:\n",
        new="    if len(members) < least:\n",
        tests=(_HALVES + "test_what_has_no_place_is_refused_with_what_would_be_needed",),
    ),
    Mutant(
        name="bisected-and-gone-on",
        disables="the pause after a round whose halves nobody has read",
        file=DRIVER,
        old="        self.pausing |= self._rests_after(figures)\n",
        new="",
        tests=(_HALVES + "test_who_ruins_sums_is_found_and_nothing_of_the_halves_is_adopted",),
    ),
    Mutant(
        name="vetoed-and-gone-on",
        disables="the pause after a round in which most silos' guards refused the adapter",
        file=RESTING,
        old=" or vetoes.stops(closed, plan):\n",
        new=":\n",
        tests=(_VETOES + "test_the_run_pauses_proposes_and_goes_back_when_an_admin_says_so",),
    ),
)

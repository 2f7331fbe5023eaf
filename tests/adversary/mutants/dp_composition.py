"""Mutants of what the units inside pay, of what is counted beside ε, and of openings."""

from __future__ import annotations

from tests.adversary.mutants.mutant import Mutant

CHARGE = "dp/accounting/charge.py"
COMPOSE = "dp/accounting/compose.py"
LEDGER = "dp/ledger/ledger.py"
RDP = "dp/accounting/rdp.py"

_COMPOSE_TESTS = "tests/dp/accounting/test_compose.py::"
_KINDS = "tests/dp/ledger/test_kinds.py::"
_OPENING = "tests/dp/ledger/test_opening.py::"
_ADMISSION = "tests/silo_agent/daemon/test_admission.py::"

_INSIDE = _COMPOSE_TESTS + "test_a_silo_release_costs_the_units_inside_at_their_own_sensitivity"
_COUNTED = _COMPOSE_TESTS + "test_what_no_epsilon_speaks_of_is_counted"

MUTANTS = (
    Mutant(
        name="smaller-unit-free",
        disables="the charge of a release to the units inside the one it protects",
        file=COMPOSE,
        old="    around = reversed(_INWARDS[: _INWARDS.index(kind) + 1])\n",
        new="    around = (kind,)\n",
        tests=(_INSIDE,),
    ),
    Mutant(
        name="largest-unit-pays",
        disables="the charge of a task's own training where noise for the silo is on top",
        file=COMPOSE,
        old="    around = reversed(_INWARDS[: _INWARDS.index(kind) + 1])\n",
        new="    around = _INWARDS[: _INWARDS.index(kind) + 1]\n",
        tests=(_COMPOSE_TESTS + "test_silo_noise_over_a_protected_delta_costs_its_own_unit_once",),
    ),
    Mutant(
        name="inside-at-own-noise",
        disables="the sensitivity of a unit inside: it pays what the protected unit pays",
        file=COMPOSE,
        old="(divergences if bearer == kind else charge.rdp_inside)",
        new="divergences",
        tests=(_INSIDE,),
    ),
    Mutant(
        name="noise-not-halved",
        disables="the two clips between two contributions: one is charged",
        file=RDP,
        old="    shared = 4.0 * rdp_gaussian(z, 1)\n",
        new="    shared = rdp_gaussian(z, 1)\n",
        tests=(_INSIDE,),
    ),
    Mutant(
        name="inside-metrics-at-own-noise",
        disables="the √2 between two blocks of figures",
        file=CHARGE,
        old="_divergences(1.0, self.z / math.sqrt(2.0), self.steps)",
        new="_divergences(1.0, self.z, self.steps)",
        tests=(_INSIDE,),
    ),
    Mutant(
        name="half-way-to-null",
        disables="the way back from the null contribution in a sampled step",
        file=RDP,
        old=") + rdp_subsampled(q, z, 1, _BELOW_DOUBLED)\n",
        new=") + 0.0 * rdp_subsampled(q, z, 1, _BELOW_DOUBLED)\n",
        tests=(
            _COMPOSE_TESTS + "test_a_sampled_release_costs_the_units_inside_by_the_lesser_bound",
        ),
    ),
    Mutant(
        name="inside-failure-free",
        disables="the failure probability of a user's training in a task's delta",
        file=COMPOSE,
        old="                    failure += charge.delta\n",
        new="                    failure += charge.delta if bearer == kind else 0.0\n",
        tests=(_COMPOSE_TESTS + "test_a_user_release_costs_its_tasks_failures_included",),
    ),
    Mutant(
        name="partial-not-counted",
        disables="the count of releases protected for a smaller unit only",
        file=COMPOSE,
        old="                partial[kind] = releases\n",
        new="                partial[kind] = 0\n",
        tests=(_COUNTED,),
    ),
    Mutant(
        name="none-not-counted",
        disables="the count of releases in mode none",
        file=COMPOSE,
        old="        return cls._of(kinds, 0 if made else releases, partial)\n",
        new="        return cls._of(kinds, 0, partial)\n",
        tests=(_COUNTED,),
    ),
    Mutant(
        name="flag-not-shown",
        disables="the words beside epsilon about what it leaves out",
        file=COMPOSE,
        old='        return f"{self.epsilon:.4g}" + (f" and {exceptions}" if exceptions else "")\n',
        new='        return f"{self.epsilon:.4g}" + (exceptions and "")\n',
        tests=(_COMPOSE_TESTS + "test_an_epsilon_is_never_shown_without_what_it_leaves_out",),
    ),
    Mutant(
        name="named-kind-not-capped",
        disables="the cap of a kind that pays for a unit around it",
        file=COMPOSE,
        old="if kind in own or caps.get(kind, 0.0) > 0.0)",
        new="if kind in own)",
        tests=(_KINDS + "test_a_smaller_kind_that_is_named_refuses_the_release",),
    ),
    Mutant(
        name="after-none-ignored",
        disables="the refusal of noise after an upload without any",
        file="silo_agent/books/ledger.py",
        old="and done and not privacy.after_none:\n",
        new="and not done and not privacy.after_none:\n",
        tests=(_ADMISSION + "test_noise_after_an_upload_without_any_needs_the_policys_word",),
    ),
    Mutant(
        name="opening-not-counted",
        disables="what was spent before the ledger began",
        file=LEDGER,
        old="            self._totals.carry(opening)\n",
        new="            _ = self._totals\n",
        tests=(_OPENING + "test_a_new_ledger_goes_on_where_the_old_one_ended",),
    ),
    Mutant(
        name="opening-said-twice",
        disables="the refusal of another opening",
        file=LEDGER,
        old="        if held is None or carried_fields(held) != carried_fields(opening):\n",
        new="        if held is None and carried_fields(opening):\n",
        tests=(_OPENING + "test_an_opening_is_said_once",),
    ),
)

"""Attack 18: silos that have something to add are dropped, and decoys that add zeros are kept.

From version 2 on a silo counts who declared a family of the plan, before it deals shares and again
before it signs survivors. A failure: a signature on survivors of which fewer than max(t, n_min), or
no two beyond c, declared; figures of a family that too few survivors declared. Not a failure: a
declarer that adds zeros, which nobody can see (`test_a18g`).
"""

import numpy as np
import pytest

from secagg.client import ConsistencyCheck, Unmask
from secagg.errors import Check, VerificationError
from secagg.messages import Survivors
from tests.kit.secagg.secagg_samples import FAMILIES_OF_PLAN, silo_names
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import assert_refused

# Of six silos with c = 1, t = 4 is what must declare; two may be lost.
NAMES = silo_names(6)
ELSEWHERE = ("chess",)
NO_FIGURES = {"figures": ()}


def with_decoys(*decoys, families=ELSEWHERE, **changes):
    """A cohort in which all but these silos declare the plan's families."""
    declared = {name: families if name in decoys else FAMILIES_OF_PLAN for name in NAMES}
    return Cohort(6, suite=2, families=declared, **{**NO_FIGURES, **changes})


def with_plan(plan, **changes):
    """A cohort under a plan with these families alone."""
    return Cohort(6, suite=2, figures=(), plan_families=plan, **changes)


def gone_by(cohort, step, lost):
    """What a coordinator that checks nothing shows: these silos answered until before a step."""
    deliveries = cohort.share(cohort.advertise(), lost if step == "share_keys" else ())
    headers = []
    for name in sorted(deliveries):
        cohort.states[name], _ = cohort.states[name].handle(deliveries[name])
        header = cohort.masked(name)
        if name not in lost:
            headers.append(header)
    return Survivors(headers=tuple(headers))


@pytest.mark.parametrize("step", ["share_keys", "masked_input"])
def test_a18a_declarers_dropped_after_the_first_count(step):
    """Attack 18: lost after U1, or after U2: four survive, as t asks, and only three declared."""
    cohort = with_decoys("silo-005")
    survivors = gone_by(cohort, step, ("silo-000", "silo-001"))
    assert len(survivors.headers) == cohort.descriptor.descriptor.threshold
    for header in survivors.headers:
        assert_refused(cohort.states[header.silo_id], survivors, Check.CONTRIBUTORS)


@pytest.mark.parametrize("step", ["share_keys", "masked_input"])
def test_a18b_an_honest_coordinator_does_not_ask_for_it(step):
    """Attack 18: it ends such an attempt before it declares survivors that nobody signs."""
    cohort = with_decoys("silo-005")
    with pytest.raises(VerificationError) as caught:
        cohort.until("unmask", {step: ("silo-000", "silo-001")})
    assert caught.value.check is Check.CONTRIBUTORS


@pytest.mark.parametrize("lost", ["silo-000", "silo-005"])
def test_a18c_as_many_declarers_as_must_be_are_enough(lost):
    cohort = with_decoys("silo-005")
    outcome = cohort.run({"masked_input": (lost,)})
    np.testing.assert_array_equal(outcome.delta, cohort.expected(outcome.survivors))
    assert len(outcome.survivors) == 5


@pytest.mark.parametrize(
    ("decoys", "changes"),
    [
        (("silo-003", "silo-004", "silo-005"), {}),
        (("silo-004", "silo-005"), {"n_min": 5}),
        (NAMES, {}),
    ],
    ids=["below t", "below n_min", "nobody"],
)
def test_a18d_decoys_that_do_not_declare_are_not_counted_in_the_keys(decoys, changes):
    """Attack 18: before any share is dealt, by every silo and by an honest coordinator."""
    cohort = with_decoys(*decoys, **changes)
    with pytest.raises(VerificationError) as caught:
        cohort.advertise()
    assert caught.value.check is Check.CONTRIBUTORS
    cohort = with_decoys(*decoys, **changes)
    bundles = cohort.bundles_of_all()
    for name in NAMES:
        assert_refused(cohort.states[name], bundles, Check.CONTRIBUTORS)


def test_a18e_a_family_of_the_plan_is_enough_and_another_is_not():
    """Attack 18: whoever declares one of several families of the plan contributes."""
    declared = dict(zip(NAMES, (("craft",), ("maze",)) * 3, strict=True))
    cohort = Cohort(6, suite=2, families=declared, figures=())
    assert len(cohort.run().survivors) == 6
    with pytest.raises(VerificationError) as caught:
        with_plan(("craft",), families=declared).run()
    assert caught.value.check is Check.CONTRIBUTORS


FIGURES = {
    "a family": (("episodes/maze",), ("craft", "maze"), ("craft",)),
    "other": (("episodes/craft", "episodes/other"), ("craft", "maze"), ("craft",)),
}


@pytest.mark.parametrize("case", sorted(FIGURES))
def test_a18f_figures_of_silos_that_were_dropped_are_counted_again(case):
    """Attack 18: four of six declare what fills a coordinate; one of the four is lost."""
    figures, many, few = FIGURES[case]
    families = {name: many if name in NAMES[:4] else few for name in NAMES}
    cohort = Cohort(6, suite=2, families=families, figures=figures)
    survivors = gone_by(cohort, "masked_input", ("silo-000",))
    for header in survivors.headers:
        assert_refused(cohort.states[header.silo_id], survivors, Check.METRICS_FAMILIES)
    cohort = Cohort(6, suite=2, families=families, figures=figures)
    with pytest.raises(VerificationError) as caught:
        cohort.run({"masked_input": ("silo-000",)})
    assert caught.value.check is Check.METRICS_FAMILIES
    cohort = Cohort(6, suite=2, families=families, figures=figures)
    assert len(cohort.run({"masked_input": ("silo-005",)}).survivors) == 5


def test_a18g_a_declarer_that_adds_zeros_is_not_seen_and_the_sum_may_be_one_silos():
    """Attack 18, NOT prevented: a declaration is a word. SECURITY.md and claim (a) say so.

    Every silo but one declares and has nothing to add: a failure, a gate, nothing solved, or a
    lie. Without noise the sum is the delta of the one.
    """
    cohort = Cohort(6, suite=2, figures=())
    contributor = NAMES[2]
    cohort.silent = frozenset(NAMES) - {contributor}
    outcome = cohort.run({"masked_input": ("silo-005",)})
    np.testing.assert_array_equal(outcome.delta, cohort.plain(contributor))


def test_version_one_counts_silos_and_not_declarers():
    """A run of suite v1 is served as before: it has no families in its descriptor."""
    cohort = Cohort(6, families=dict.fromkeys(NAMES[:4], ELSEWHERE), figures=())
    assert len(cohort.run({"masked_input": ("silo-004", "silo-005")}).survivors) == 4


def test_survivors_are_signed_where_enough_declared():
    """The control of the refusals above."""
    cohort = with_decoys("silo-005")
    survivors = gone_by(cohort, "masked_input", ("silo-005",))
    state = cohort.states["silo-001"]
    assert isinstance(state, ConsistencyCheck)
    state, _ = state.handle(survivors)
    assert isinstance(state, Unmask)

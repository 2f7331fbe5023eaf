"""A silo counts who declares a family before it adds to figures of that family.

The coordinator chooses the coordinates of the metrics block. It must not be able to choose figures
of one silo: every family shown needs max(t, n_min) declarations, each signed in R0.
"""

import pytest

from secagg import client
from secagg.errors import Check, MalformedMessageError, VerificationError
from secagg.messages import KeyBundles
from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import (
    ME,
    PEER,
    assert_refused,
    signed_bundle,
    with_bundle,
)

pytestmark = pytest.mark.parametrize("suite", [1, 2])

# Of five silos with c = 1, four must remain.
NAMES = silo_names(5)
LEAST = 4


def declaring(silos, families, others=("craft",)):
    return {name: families if name in silos else others for name in NAMES}


def collected(cohort) -> KeyBundles:
    """The bundles as a coordinator hands them out that makes no check of its own."""
    bundles = []
    for name in cohort.names:
        cohort.states[name], bundle = client.begin(cohort.setup(name))
        bundles.append(bundle)
    return KeyBundles(bundles=tuple(bundles))


REFUSED = {
    "one silo's family": (
        ("update_norm_sq", "episodes/rare", "successes/rare"),
        declaring((ME,), ("rare",)),
    ),
    "another silo's family": (("episodes/rare",), declaring((PEER,), ("craft", "rare"))),
    "successes alone": (("episodes/craft", "successes/rare"), declaring((ME,), ("craft", "rare"))),
    "one too few": (("episodes/rare",), declaring(NAMES[: LEAST - 1], ("craft", "rare"))),
    "a family nobody declares": (("episodes/none",), declaring((), ())),
    "a family without a name": (("episodes/",), declaring((), ())),
    "other filled by one silo": (
        ("episodes/craft", "successes/craft", "episodes/other", "successes/other"),
        declaring((ME,), ("craft", "rare")),
    ),
    "other filled by too few": (
        ("episodes/craft", "episodes/other"),
        declaring(NAMES[: LEAST - 1], ("craft", "rare")),
    ),
    "other that nothing is left for": (("episodes/craft", "episodes/other"), declaring((), ())),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_figures_of_too_few_silos_are_refused(case, suite):
    figures, families = REFUSED[case]
    cohort = Cohort(5, figures=figures, families=families, suite=suite)
    message = collected(cohort)
    for name in cohort.names:
        assert_refused(cohort.states[name], message, Check.METRICS_FAMILIES)


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_an_honest_coordinator_ends_such_an_attempt_before_it_hands_out_bundles(case, suite):
    figures, families = REFUSED[case]
    cohort = Cohort(5, figures=figures, families=families, suite=suite)
    with pytest.raises(VerificationError) as caught:
        cohort.advertise()
    assert caught.value.check is Check.METRICS_FAMILIES


@pytest.mark.parametrize(
    ("figures", "families"),
    [
        (("episodes/craft", "successes/craft"), declaring((), ())),
        (("episodes/rare",), declaring(NAMES[:LEAST], ("craft", "rare"))),
        (("episodes/craft", "episodes/other"), declaring(NAMES[:LEAST], ("craft", "rare"))),
        # Each silo has a family of its own: together they are enough for ``other``.
        (("episodes/other",), {name: (f"own-{name}",) for name in NAMES}),
        # The reserved name gives no right to coordinates, but its silo has something to put there.
        (("episodes/other",), declaring(NAMES, ("other",))),
    ],
)
def test_figures_of_enough_silos_are_accepted(figures, families, suite):
    plan = None
    if suite == 2:
        # With every family that is declared, so that all contribute.
        plan = tuple(sorted({family for declared in families.values() for family in declared}))
    cohort = Cohort(5, figures=figures, families=families, suite=suite, plan_families=plan)
    message = cohort.advertise()
    for name in cohort.names:
        cohort.states[name], _ = cohort.states[name].handle(message)
        assert isinstance(cohort.states[name], client.ShareKeys)


def test_families_that_the_plan_lacks_do_not_fill_other(suite):
    """One silo has episodes for ``other``; that all declare something more hides it from nobody."""
    families = {name: ("craft", f"own-{name}") for name in NAMES} | {ME: ("craft", "maze")}
    cohort = Cohort(
        5,
        figures=("episodes/craft", "episodes/other"),
        families=families,
        suite=suite,
        plan_families=("craft", "maze") if suite == 2 else None,
    )
    message = collected(cohort)
    for name in cohort.names:
        if suite == 2:
            assert_refused(cohort.states[name], message, Check.METRICS_FAMILIES)
        else:
            # A descriptor of suite v1 does not name the plan's families.
            state, _ = cohort.states[name].handle(message)
            assert isinstance(state, client.ShareKeys)


@pytest.mark.parametrize(
    ("lost", "accepted"), [("silo-000", True), ("silo-001", False), ("silo-003", False)]
)
def test_declarations_are_counted_over_who_sent_keys(lost, accepted, suite):
    # n = 4, t = n_min = 3. Three silos declare the family; silo-000 does not.
    families = {"silo-000": ("craft",)}
    cohort = Cohort(4, figures=("episodes/maze",), families=families, suite=suite)
    every = collected(cohort).bundles
    left = KeyBundles(bundles=tuple(bundle for bundle in every if bundle.silo_id != lost))
    me = cohort.states["silo-002"]
    if not accepted:
        assert_refused(me, left, Check.METRICS_FAMILIES)
        return
    state, _ = me.handle(left)
    assert isinstance(state, client.ShareKeys)


def test_one_of_four_may_be_lost_where_all_declare(suite):
    cohort = Cohort(4, figures=("episodes/maze",), suite=suite)
    outcome = cohort.run({"advertise_keys": ("silo-003",)})
    assert outcome.survivors == ("silo-000", "silo-001", "silo-002")
    assert outcome.metrics.tolist() == [1 + 2 + 4]


def test_declarations_cannot_be_forged_to_lift_the_count(suite):
    families = declaring((ME,), ("rare",))
    cohort = Cohort(5, figures=("episodes/rare",), families=families, suite=suite)
    lying = message = collected(cohort)
    for bundle in message.bundles:
        if bundle.silo_id != ME:
            # The declaration of one more silo, signed by it for another aggregation.
            other = Cohort(5, figures=("episodes/craft",), suite=suite)
            forged = signed_bundle(other, bundle.silo_id, families=("craft", "rare"))
            lying = with_bundle(lying, bundle.silo_id, forged)
    assert_refused(cohort.states[ME], lying, Check.BUNDLE_SIGNATURE)


@pytest.mark.parametrize(
    "families",
    [("b", "a"), ("a", "a"), ("a b",), ("x" * 65,), tuple(f"n{k:02}" for k in range(65)), ["a"]],
    ids=["order", "twice", "space", "long", "many", "list"],
)
def test_a_malformed_declaration_is_refused_before_any_key_is_made(families, suite):
    cohort = Cohort(5, families={ME: families}, suite=suite)
    with pytest.raises(MalformedMessageError):
        cohort.setup(ME)

"""Attacks 2, 5, 7, 8, 9, 11 and 14: what a coordinator signs that it should not.

The descriptor and the roster are checked before a silo makes a key; the guardian then derives the
rest from the plan. A failure: a session opened for such a descriptor, or a silo that cannot take
part again. Not a failure: a refusal that everybody can see.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dp.errors import PrivacyError
from secagg.client import begin
from secagg.descriptor import MetricsLayout, sign_descriptor
from secagg.errors import Check, MalformedMessageError, VerificationError
from secagg.messages import KeyBundles
from secagg.roster import Roster, RosterEntry, sign_roster, verify_roster
from silo_agent.policy.policy import check_descriptor
from tests.kit.secagg.secagg_samples import (
    COORDINATOR_KEY,
    HYBRID_FIELDS,
    ROOT_KEY,
    make_descriptor,
    make_roster,
    signing_key,
)
from tests.kit.silo_agent import policy_samples
from tests.kit.simulation.secagg_tampering import ME, PEER
from tests.kit.simulation.session_federation import (
    CLIP,
    ROUND,
    Attempt,
    Federation,
    assert_not_joined,
    assert_refused,
    assert_usable,
    client_threshold,
    identity_of,
    nothing_leaves,
)

ROOT = ROOT_KEY.public_key().public_bytes_raw()
OTHER = bytes([9]) * 32
TWO, FOUR = ("silo-000", ME), ("silo-000", ME, "silo-002", PEER)
NO_METRICS = MetricsLayout(names=(), bounds=(), grid=0, sigma=0.0)

DESCRIPTORS = (
    ("A05a-another-adapter", {"adapter_sha256": OTHER}, Check.MODEL),
    ("A05b-another-base-model", {"base_model_sha256": OTHER}, Check.MODEL),
    ("A02v-another-roster", {"roster_sha256": OTHER}, Check.DESCRIPTOR_ROSTER),
    ("A14a-another-roster-epoch", {"roster_epoch": 2}, Check.DESCRIPTOR_ROSTER),
    ("A07e-a-sybil-outside-the-roster", {"cohort": (*FOUR, "sybil")}, Check.COHORT),
    ("A07f-one-silo-counted-twice", {"cohort": (*FOUR, PEER)}, Check.COHORT),
    ("A07g-cohort-of-two", {"cohort": TWO, "threshold": 3, "n_min": 2}, Check.POLICY_THRESHOLD),
    ("A07h-cohort-below-n_min", {"cohort": FOUR, "threshold": 3, "n_min": 5}, Check.COHORT_SIZE),
    ("A07i-n_min-of-zero", {"n_min": 0}, Check.POLICY_THRESHOLD),
    ("A14b-t-lowered", {"threshold": 3}, Check.POLICY_THRESHOLD),
    ("A14c-t-of-one", {"threshold": 1}, Check.POLICY_THRESHOLD),
    ("A14d-t-raised", {"threshold": 5}, Check.POLICY_THRESHOLD),
    ("A14e-c-of-zero", {"colluding": 0, "threshold": 3}, Check.POLICY_THRESHOLD),
    ("A14f-c-raised", {"colluding": 2}, Check.POLICY_THRESHOLD),
    ("A14g-sigma-below-four-units",
     {"noise_mechanism": "discrete_gaussian", "noise_sigma": 3.99, "metrics": NO_METRICS},
     Check.NOISE),
    ("A14h-noise-without-sigma",
     {"noise_mechanism": "discrete_gaussian", "noise_sigma": 0.0, "metrics": NO_METRICS},
     Check.NOISE),
    ("A14i-unknown-noise", {"noise_mechanism": "laplace"}, Check.NOISE),
    ("A08a-scale-that-wraps", {"scale": 2.0**31 / CLIP}, Check.NO_WRAP),
    ("A08b-clip-that-wraps", {"vector_clip": 2.0**13}, Check.NO_WRAP),
    ("A08c-units-that-wrap", {"max_units": 2**11}, Check.NO_WRAP),
    ("A08d-noise-that-wraps",
     {"noise_mechanism": "discrete_gaussian", "noise_sigma": 1e8, "metrics": NO_METRICS},
     Check.NO_WRAP),
    ("A08e-metrics-that-wrap",
     {"metrics": MetricsLayout(
         names=("episodes/craft",), bounds=(1.0,), grid=2**29, sigma=0.0)},
     Check.NO_WRAP),
    ("A08f-a-smaller-ring", {"ring_bits": 16}, Check.RING),
    ("A03n-another-version", {**HYBRID_FIELDS, "version": 3}, Check.DESCRIPTOR_VERSION),
    ("A03o-another-suite", {"suite": 0}, Check.DESCRIPTOR_VERSION),
    ("A03q-the-hybrid-suite-in-the-first-version", {"suite": 2}, Check.DESCRIPTOR_VERSION),
    ("A03r-the-first-suite-in-the-hybrid-version", {**HYBRID_FIELDS, "suite": 1},
     Check.DESCRIPTOR_VERSION),
    ("A03s-an-unknown-digest-of-uploads", {**HYBRID_FIELDS, "digest_id": 3},
     Check.DESCRIPTOR_VERSION),
    ("A15c-deadlines-that-run-backwards", {"deadlines_unix_s": (5, 4, 3, 2, 1)}, Check.DEADLINES),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "check"), [row[1:] for row in DESCRIPTORS], ids=[row[0] for row in DESCRIPTORS]
)
def test_no_key_is_made_for_a_wrong_descriptor(tmp_path, changes, check):
    """Attacks 5, 7, 8, 14: the coordinator signs it properly; that is not enough."""
    federation = Federation(tmp_path)
    honest = federation.describe(identity_of())
    signed = sign_descriptor(replace(honest, **changes), COORDINATOR_KEY)
    member = federation[ME]
    setup = replace(Attempt(federation, honest).setup(ME), descriptor=signed)
    with pytest.raises(VerificationError) as caught:
        begin(setup)
    assert caught.value.check is check
    # The daemon's session says no as well; it may find a field unusable even before.
    with nothing_leaves(member), pytest.raises((VerificationError, PrivacyError)):
        member.open(signed)
    assert_usable(federation, identity_of())
    federation.close()


@pytest.mark.parametrize("key", ["root", ME, "stranger"])
def test_a14j_a_descriptor_of_anybody_else_is_refused(tmp_path, key):
    """Attack 14: not even the root signs descriptors."""
    federation = Federation(tmp_path)
    signed = sign_descriptor(federation.describe(identity_of()), signing_key(key))
    assert_not_joined(federation[ME], signed, Check.DESCRIPTOR_SIGNATURE)
    assert_usable(federation, identity_of())
    federation.close()


def test_a08g_the_largest_scale_is_exact_and_one_step_more_is_refused(tmp_path):
    """Attack 8: n·B_max·(Δ+1) may reach 2^31 - 1 and no more; at the bound the sum is exact."""
    n = 5
    federation = Federation(tmp_path, silos=n)
    largest = (2**31 - 1) // n - 1
    honest = federation.describe(identity_of())
    assert_not_joined(
        federation[ME],
        sign_descriptor(
            replace(honest, vector_clip=float(largest + 1), scale=1.0), COORDINATOR_KEY
        ),
        Check.NO_WRAP,
    )
    Attempt(federation, replace(honest, vector_clip=float(largest), scale=1.0))
    # All silos at their bound in one coordinate: the centred sum is n·Δ without wrapping.
    reached = np.full(n, largest, dtype=np.uint32).sum(dtype=np.uint32)
    assert int(reached.view(np.int32)) == n * largest < 2**31
    past = np.full(n, largest + 2, dtype=np.uint32).sum(dtype=np.uint32)
    assert int(past.view(np.int32)) < 0
    federation.close()


# Attack 5: half of the silos hold one model, half another ----------------------------------------


@pytest.mark.parametrize("told", ["adapters", "plans"])
def test_a05c_forked_descriptors_share_no_keys(tmp_path, told):
    """Attack 5: each half accepts its own descriptor; the other half's bundles do not fit it."""
    federation = Federation(tmp_path)
    forks = []
    for number in (1, 2):
        field = "adapter_sha256" if told == "adapters" else "plan_sha256"
        forks.append(federation.attempt(**{field: bytes([number]) * 32}))
    bundles = []
    for position, name in enumerate(federation.names):
        fork = forks[position % 2]
        member = federation[name]
        member.open(fork.descriptor, adapter_sha256=fork.descriptor.descriptor.adapter_sha256)
        bundles.append(member.last("advertise_keys"))
    message = KeyBundles(bundles=tuple(bundles))
    for member in federation.members.values():
        assert_refused(member, message, Check.BUNDLE_SIGNATURE)
    assert_usable(federation, identity_of(attempt=2))
    federation.close()


def test_a05d_a_silo_that_adopted_another_head_takes_no_part_until_the_head_is_its_own(tmp_path):
    """Attack 5: one silo was shown a forked chain; it is the only one that refuses."""
    federation = Federation(tmp_path)
    attempt = federation.attempt()
    member = federation[PEER]
    with pytest.raises(VerificationError) as caught:
        member.open(attempt.descriptor, adapter_sha256=OTHER)
    assert caught.value.check is Check.MODEL
    assert member.sent == []
    others = tuple(name for name in federation.names if name != PEER)
    total = federation.attempt(identity_of(attempt=2), cohort=others).sum()
    np.testing.assert_array_equal(total, federation.expected(others))
    assert_usable(federation, identity_of(ROUND + 1, 1))
    federation.close()


# Attacks 2, 7 and 14: rosters --------------------------------------------------------------------


def test_a02w_a_roster_of_the_coordinators_own_is_refused():
    """Attacks 2 and 7: the coordinator signs a roster with sybils, or with its own keys."""
    roster = make_roster()
    mine = replace(roster.entries[0], verification_key=signing_key("mine").public_key()
                   .public_bytes_raw())  # fmt: skip
    for changed in (
        replace(roster, entries=(mine, *roster.entries[1:]), epoch=4),
        replace(roster, colluding=2, epoch=4),
    ):
        with pytest.raises(VerificationError) as caught:
            verify_roster(sign_roster(changed, COORDINATOR_KEY), ROOT, 3, roster.sha256)
        assert caught.value.check is Check.ROSTER_SIGNATURE


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a14k_an_older_roster_is_refused(epoch):
    """Attack 14: a properly signed roster from before, or another one of the same epoch."""
    newest = make_roster(epoch=3)
    old = make_roster(4, epoch=epoch)
    with pytest.raises(VerificationError) as caught:
        verify_roster(sign_roster(old, ROOT_KEY), ROOT, 3, newest.sha256)
    assert caught.value.check is Check.ROSTER_EPOCH
    assert verify_roster(sign_roster(newest, ROOT_KEY), ROOT, 3, newest.sha256) == newest


def test_a07j_one_site_cannot_be_in_the_roster_twice():
    """Attack 7: no two members share a key or a certificate name, whoever signed the roster."""
    roster = make_roster()
    first = roster.entries[0]
    for twin in (
        RosterEntry(
            silo_id="zz", spiffe_uri="spiffe://example.org/silo/zz",
            verification_key=first.verification_key,
        ),
        RosterEntry(
            silo_id="zz", spiffe_uri=first.spiffe_uri,
            verification_key=signing_key("zz").public_key().public_bytes_raw(),
        ),
    ):  # fmt: skip
        with pytest.raises(MalformedMessageError):
            Roster(
                federation="example", epoch=1, colluding=1,
                coordinator_key=roster.coordinator_key, entries=(*roster.entries, twin),
            )  # fmt: skip


# The guardian: what follows from the plan --------------------------------------------------------

_GUARDED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("A14l-sigma-lowered", {"noise_sigma": 0.99}, "noise"),
    ("A14m-metrics-sigma-lowered", {"metrics_sigma": 0.99}, "metrics_noise"),
    ("A14n-no-noise", {"noise_mechanism": "none", "noise_sigma": 0.0}, "noise"),
    ("A14o-n_min-lowered", {"n_min": 2}, "descriptor_survivors"),
    ("A09a-clip-lowered", {"unit_clip": 1.0, "vector_clip": 1.0}, "descriptor_clip"),
    ("A09b-clip-raised", {"vector_clip": 4.0}, "descriptor_clip"),
    ("A09c-coarser-grid", {"scale": 0.5}, "scale"),
    ("A09d-finer-grid", {"scale": 2.0}, "scale"),
    ("A09e-several-units", {"max_units": 2}, "descriptor_clip"),
    ("A09f-another-layout", {"layout_sha256": OTHER}, "layout"),
    ("A09g-a-coordinate-less", {"dimension": 127}, "layout"),
    ("A11a-a-figure-more", {"metric": "losses"}, "metrics_layout"),
    ("A07k-unknown-partner",
     {"cohort": ("silo-a", "silo-b", "silo-c", "silo-e"),
      "invited": ("silo-a", "silo-b", "silo-c", "silo-e")}, "partners"),
    ("A07l-cohort-below-the-sites-floor",
     {"cohort": ("silo-a", "silo-b", "silo-c")}, "cohort_size"),
    ("A14p-c-below-the-sites-floor", {"floor": ("min_colluding = 1", "min_colluding = 2")},
     "colluding"),
    ("A14q-t-below-the-sites-floor", {"floor": ("min_threshold = 3", "min_threshold = 4")},
     "threshold"),
    ("A10c-a-second-step-of-the-round", {"step": 1}, "sums"),
    ("A10d-a-part-of-a-round-without-groups", {"part": 2}, "sums"),
    ("A03p-more-attempts-than-allowed", {"attempt": 3}, "attempts"),
    ("A05e-another-base-model", {"base_model_sha256": OTHER}, "descriptor_base_model"),
    ("A15d-a-deadline-far-away", {"later_s": 10_000}, "deadlines"),
    ("A20m-the-first-suite", policy_samples.OLD_SUITE, "suite"),
    ("A20n-another-task", {"task_sha256": OTHER}, "round_task"),
    ("A20o-a-family-less-than-the-plans", {"families": ("craft",)}, "plan_families"),
    ("A20p-a-digest-that-the-site-does-not-list", {"digest_id": 2}, "digest"),
    ("A20q-a-cohort-beyond-the-invited", {"invited": ("silo-a", "silo-b", "silo-c")},
     "round_task"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("lie", "rule"), [row[1:] for row in _GUARDED], ids=[row[0] for row in _GUARDED]
)
def test_the_guardian_refuses_what_does_not_follow_from_the_plan(lie, rule):
    """Attacks 7, 9, 11, 14: self-consistent descriptors that the plan or the site does not give."""
    plan = policy_samples.make_plan()
    honest = policy_samples.make_descriptor(plan)
    lie = dict(lie)
    policy = policy_samples.make_policy(*([lie.pop("floor")] if "floor" in lie else []))
    metrics = honest.metrics
    if "metrics_sigma" in lie:
        lie["metrics"] = replace(metrics, sigma=metrics.sigma * lie.pop("metrics_sigma"))
    if "metric" in lie:
        lie["metrics"] = replace(
            metrics, names=(*metrics.names, lie.pop("metric")), bounds=(*metrics.bounds, 1.0)
        )
    for name in ("scale", "noise_sigma"):
        if name in lie:
            lie[name] *= getattr(honest, name)
    for name in ("attempt", "step", "part"):
        if name in lie:
            lie["identity"] = replace(honest.identity, **{name: lie.pop(name)})
    task = policy_samples.make_task()
    if "invited" in lie:
        task = policy_samples.make_task(invited=lie.pop("invited"))
        lie["task_sha256"] = task.sha256
    if "later_s" in lie:
        later_s = lie.pop("later_s")
        lie["deadlines_unix_s"] = tuple(at + later_s for at in honest.deadlines_unix_s)

    def decide(descriptor: Any, site: Any, task: Any) -> Any:
        return check_descriptor(
            site, descriptor=descriptor, silo_id="silo-a", plan=plan,
            site=policy_samples.SITE, layout=policy_samples.LAYOUT,
            now_unix_s=policy_samples.NOW_UNIX_S, task=task,
        )  # fmt: skip

    own = policy_samples.make_task()
    assert decide(honest, policy_samples.make_policy(), own).accepted
    decision = decide(replace(honest, **lie), policy, task)
    assert (decision.accepted, decision.rule) == (False, rule)


def test_the_samples_are_accepted_as_they_are(tmp_path):
    """The tables above can fail: the unaltered descriptors open sessions."""
    federation = Federation(tmp_path, silos=10, colluding=3)
    assert federation.describe(identity_of()).threshold == client_threshold(10, 3) == 7
    assert make_descriptor(make_roster()).threshold == client_threshold(5, 1)
    assert_usable(federation, identity_of())
    federation.close()

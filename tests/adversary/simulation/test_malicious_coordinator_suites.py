"""Attack 20: the older suite offered, messages of one form inside the other, and another task.

A failure: a key made for a suite that the site does not accept, or for a task, families or a cohort
other than those that the silo knows; a message of one version taken in an aggregation of the other.
"""

from dataclasses import replace

import pytest

from secagg import client
from secagg.errors import Check, MalformedMessageError, VerificationError
from secagg.messages import NO_DEBIT, KemKeys, Survivors
from silo_agent.books.round_tasks import RoundTasks
from tests.kit.silo_agent import policy_samples
from tests.kit.simulation.secagg_cohort import Cohort
from tests.kit.simulation.secagg_tampering import (
    ME,
    PEER,
    assert_refused,
    bundle_of,
    resigned_upload,
    signed_bundle,
    with_bundle,
)
from tests.kit.simulation.spoiled import resigned

HYBRID_ONLY, FIRST_ONLY = frozenset({2}), frozenset({1})

SETUPS = (
    ("A20a-the-first-suite-for-a-hybrid-only-silo", 1, {"suites": HYBRID_ONLY}, Check.SUITE),
    ("A20b-the-hybrid-suite-for-a-silo-without-it", 2, {"suites": FIRST_ONLY}, Check.SUITE),
    ("A20c-another-task", 2, {"task_sha256": bytes([7]) * 32}, Check.TASK),
    ("A20d-no-task-was-shown", 2, {"task_sha256": b""}, Check.TASK),
    ("A20e-fewer-families-than-the-plans", 2, {"families_of_plan": ("chess", "craft", "maze")},
     Check.CONTRIBUTORS),
    ("A20f-more-families-than-the-plans", 2, {"families_of_plan": ("craft",)},
     Check.CONTRIBUTORS),
)  # fmt: skip


@pytest.mark.parametrize(
    ("suite", "changes", "check"), [row[1:] for row in SETUPS], ids=[row[0] for row in SETUPS]
)
def test_no_key_is_made_for_what_the_silo_does_not_accept(suite, changes, check):
    """Attack 20: the coordinator signs it properly; that is not enough."""
    cohort = Cohort(5, suite=suite, setups={ME: changes})
    with pytest.raises(VerificationError) as caught:
        client.begin(cohort.setup(ME))
    assert caught.value.check is check
    client.begin(cohort.setup(PEER))[0].wipe()


@pytest.mark.parametrize("suite", [1, 2])
@pytest.mark.parametrize("at", ["silo", "coordinator"])
def test_a20g_a_bundle_of_the_other_version_is_refused(suite, at):
    """Attack 20: a colluder without ML-KEM keys would leave its pairs to X25519 alone."""
    cohort = Cohort(5, suite=suite)
    bundles = cohort.bundles_of_all()
    other = {"kem_keys": None, "debit": None}
    if suite == 1:
        lent = Cohort(5, suite=2).bundles_of_all()
        other = {"kem_keys": bundle_of(lent, PEER).kem_keys, "debit": NO_DEBIT}
    bad = signed_bundle(cohort, PEER, **other)
    if at == "silo":
        message = with_bundle(bundles, PEER, bad)
        assert_refused(cohort.states[ME], message, Check.SUITE, PEER)
        return
    with pytest.raises(VerificationError) as caught:
        cohort.server.receive(bad)
    assert (caught.value.check, caught.value.silo) == (Check.SUITE, PEER)


@pytest.mark.parametrize("suite", [1, 2])
def test_a20h_shares_dealt_in_the_other_form_are_not_taken(suite):
    """Attack 20: each role, in R1 and after it."""
    cohort, other = Cohort(5, suite=suite), Cohort(5, suite=3 - suite)
    bundles = other.advertise()
    _, dealt = other.states[PEER].handle(bundles)
    told = cohort.advertise()
    with pytest.raises(VerificationError) as caught:
        cohort.server.receive(dealt)
    assert caught.value.check is Check.SUITE
    cohort.share(told)
    foreign = Cohort(5, suite=3 - suite).until("masked_input")[ME]
    assert_refused(cohort.states[ME], foreign, Check.SUITE)


@pytest.mark.parametrize("suite", [1, 2])
def test_a20i_an_upload_of_the_other_version_is_refused(suite):
    """Attack 20: by the coordinator, and by silos that are shown it as a survivor's."""
    cohort = Cohort(5, suite=suite)
    deliveries = cohort.share(cohort.advertise())
    headers = []
    for name in cohort.names:
        cohort.states[name], _ = cohort.states[name].handle(deliveries[name])
        headers.append(cohort.masked(name))
    position = cohort.names.index(PEER)
    debit = None if suite == 2 else NO_DEBIT
    bad = resigned_upload(cohort, headers[position], cohort.members, debit=debit)
    with pytest.raises(VerificationError) as caught:
        cohort.server.expect(bad)
    assert (caught.value.check, caught.value.silo) == (Check.SUITE, PEER)
    headers[position] = bad
    assert_refused(cohort.states[ME], Survivors(headers=tuple(headers)), Check.SUITE, PEER)


@pytest.mark.parametrize("suite", [1, 2])
def test_a20j_a_release_of_the_other_version_is_refused(suite):
    """Attack 20: no release without the pair secrets in the hybrid suite, none with before it."""
    cohort = Cohort(5, suite=suite)
    signatures = cohort.until("unmask")
    cohort.states[PEER], shares = cohort.states[PEER].handle(signatures)
    bad = resigned(cohort, shares, pair_secrets=() if suite == 1 else None)
    with pytest.raises(VerificationError) as caught:
        cohort.server.receive(bad)
    assert (caught.value.check, caught.value.silo) == (Check.SUITE, PEER)
    assert cohort.server.receive(shares)


def test_a20k_half_a_hybrid_bundle_is_malformed():
    """Attack 20: KEM keys without a debit head, or a head without keys, are no bundle at all."""
    bundles = Cohort(5, suite=2).bundles_of_all()
    for half in ({"kem_keys": None}, {"debit": None}):
        with pytest.raises(MalformedMessageError):
            replace(bundle_of(bundles, PEER), **half)
    with pytest.raises(MalformedMessageError):
        KemKeys(cipher_key=bytes(1184), mask_key=bytes(1183))


def test_a20l_two_versions_of_one_aggregation_share_no_key():
    """Attack 20: the same silos, round and entropy; the seeds give other keys under another D."""
    first, second = Cohort(5, suite=1).bundles_of_all(), Cohort(5, suite=2).bundles_of_all()
    keys = [
        key
        for bundles in (first, second)
        for bundle in bundles.bundles
        for key in (bundle.cipher_key, bundle.mask_key)
    ]
    assert len(set(keys)) == len(keys) == 20


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("invited", [("silo-a", "silo-b", "silo-d"), policy_samples.COHORT, ()])
def test_a20r_a_round_is_not_asked_of_others_after_it_was_asked(tmp_path, restarted, invited):
    """Attack 20: else a coordinator tries one cohort after the other under one round."""
    first = policy_samples.make_task(invited=("silo-a", "silo-b", "silo-c"))
    tasks = RoundTasks(tmp_path)
    tasks.hear(first)
    tasks.hear(policy_samples.make_task(invited=("silo-a", "silo-b")))
    if restarted:
        tasks = RoundTasks(tmp_path)
    with pytest.raises(VerificationError) as caught:
        tasks.hear(policy_samples.make_task(invited=invited))
    assert caught.value.check is Check.TASK
    tasks.hear(policy_samples.make_task(invited=policy_samples.COHORT, round=first.round + 1))

"""Without noise a cohort only shrinks, over rounds, runs and rollbacks; time is simulated.

A failure: a silo that was not in the last sum is asked, so that the others do not sign and the
round is lost; or a run with noise leaves somebody out.
"""

import asyncio
from dataclasses import replace

import pytest

from secagg.errors import Check, VerificationError
from secagg.hybrid import KEM_KEY_BYTES
from secagg.messages import NO_DEBIT, KemKeys
from server.run.kept_cohort import KeptCohort
from server.states import RunState
from server.store.heads import HeadRow
from tests.kit.server import world as sw
from tests.kit.server.world_bundle import make_bundle

NONE, NOISE = {"mode": "none"}, {"mode": "silo", "noise": 1.0}


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path, silos=5) as made:
        yield made


def lost_in_round_one(world, plan, *, back=True):
    """Silo 4 is lost after R1 in the first round, and comes back."""
    silo = world.silos[sorted(world.silos)[4]]
    silo.die_at = ("upload", 1)

    def before_wait():
        if back and silo.dead and world.driver.head.round == 1:
            silo.come_back()

    world.before_wait = before_wait
    return asyncio.run(world.run(plan))


def cohorts(world, run_id):
    rows = world.store.aggregations.list(run_id)
    return [len(row.descriptor.descriptor.cohort) for row in rows]


@pytest.mark.parametrize(("settings", "sizes"), [(NONE, [5, 4, 4]), (NOISE, [5, 5, 5])])
def test_a_silo_that_was_lost_is_asked_again_only_under_noise(world, settings, sizes):
    run_id = lost_in_round_one(world, sw.plan_toml(rounds=3, **settings))
    assert cohorts(world, run_id) == sizes
    assert world.store.runs.get(run_id).state is RunState.FINISHED
    names = tuple(sorted(world.silos))
    assert world.driver.cohorts.kept_out == (names[4:] if settings is NONE else ())


def test_the_next_run_without_noise_leaves_it_out_too_and_one_with_noise_does_not(world):
    lost_in_round_one(world, sw.plan_toml(rounds=1, **NONE), back=False)
    world.silos[sorted(world.silos)[4]].come_back()
    for token, settings, size in (("b", NOISE, 5), ("c", NONE, 4)):
        run_id = asyncio.run(world.run(sw.plan_toml(rounds=1, **settings), token))
        assert cohorts(world, run_id) == [size]


def test_a_run_that_has_too_few_silos_left_says_why(world):
    lost_in_round_one(world, sw.plan_toml(rounds=1, **NONE), back=False)
    world.silos[sorted(world.silos)[4]].come_back()
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=1, quorum=5, **NONE), "b"))
    row = world.store.runs.get(run_id)
    assert row.state is RunState.FAILED
    assert f"{sorted(world.silos)[4]} stay out: without noise" in row.error


def test_survivors_that_were_declared_count_though_no_signature_came_back(world):
    """Silos remember whom they signed for before they say so; the last message may be lost."""
    signs = [silo for name, silo in sorted(world.silos.items())][:4]

    def heard(silo, real):
        def check_consistency(identity, message):
            if identity.round > 1:
                real(identity, message)

        silo.check_consistency = check_consistency

    for silo in signs:
        heard(silo, silo.check_consistency)

    def before_wait():
        lost = world.silos[sorted(world.silos)[4]]
        if lost.dead and world.driver.head.round == 1:
            lost.come_back()

    world.silos[sorted(world.silos)[4]].die_at = ("upload", 1)
    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2, **NONE)))
    assert cohorts(world, run_id) == [5, 4]
    assert world.driver.head.survivors == tuple(sorted(world.silos))[:4]


def said(silo_id, may_vary):
    keys = KemKeys(cipher_key=bytes(KEM_KEY_BYTES), mask_key=bytes(KEM_KEY_BYTES))
    bundle = make_bundle(silo_id, ledger_seq=1)
    return replace(bundle, kem_keys=keys, debit=NO_DEBIT, cohort_may_vary=may_vary)


def test_others_are_asked_again_where_every_member_says_so(world):
    run_id = lost_in_round_one(world, sw.plan_toml(rounds=1, **NONE), back=False)
    names = tuple(sorted(world.silos))
    kept = KeptCohort(run_id, world.driver.plan, world.store)
    newest = world.store.aggregations.newest(run_id, 1, 0)

    def say(silo_id, may_vary):
        row = HeadRow(
            identity=newest.identity, bundle=said(silo_id, may_vary), descriptor_sha256=bytes(32)
        )
        world.store.heads.put(row)

    say(names[4], True)
    for name in names[:4]:
        assert kept.of(names) == frozenset(names[:4])
        say(name, True)
    assert kept.of(names) == frozenset(names)
    say(names[4], False)
    assert kept.of(names) == frozenset(names[:4])


def test_r0_goes_on_with_others_only_if_all_of_u1_says_so(world):
    run_id = lost_in_round_one(world, sw.plan_toml(rounds=1, **NONE), back=False)
    names = tuple(sorted(world.silos))
    kept = KeptCohort(run_id, world.driver.plan, world.store)
    kept.require([said(name, False) for name in names[:4]])
    kept.require([said(name, True) for name in names])
    for reluctant in (names[0], names[4]):
        with pytest.raises(VerificationError) as caught:
            kept.require([said(name, name != reluctant) for name in names])
        assert caught.value.check is Check.COHORT_GREW

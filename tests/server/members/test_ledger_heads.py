"""A silo whose ledger went back takes no part, whatever it says and however often it comes."""

import asyncio
import json
import shutil
from dataclasses import replace

import pytest

import secagg.wire as secagg_wire
from secagg import suite
from server.errors import LedgerBehindError, LedgerForkedError, Reason, RoundError
from server.figures import Phase
from server.members.ledger_heads import ledger_echo, require_newer_head
from server.rpc.catalogue import describe
from server.store.heads import HeadRow
from tests.kit.secagg.secagg_samples import make_descriptor, make_roster, signing_key, silo_names
from tests.kit.server import world as sw
from tests.kit.server.world_bundle import make_bundle, sign_again

NAMES = silo_names(4)
NAME = NAMES[0]
ROSTER = make_roster(4, 1)


@pytest.fixture
def world(tmp_path):
    with sw.World(tmp_path) as made:
        yield made


def keep(store, bundle):
    identity = make_descriptor(ROSTER).identity
    store.heads.put(HeadRow(identity=identity, bundle=bundle, descriptor_sha256=b"\x05" * 32))


def test_only_the_newest_head_and_what_is_above_it_are_accepted(world):
    store = world.store
    require_newer_head(store, ROSTER, make_bundle(NAME, ledger_seq=0))
    keep(store, make_bundle(NAME, ledger_seq=7))
    for fine in (make_bundle(NAME, ledger_seq=7), make_bundle(NAME, ledger_seq=8)):
        require_newer_head(store, ROSTER, fine)
    # Another silo's head is its own.
    require_newer_head(store, ROSTER, make_bundle(NAMES[1], ledger_seq=1))
    with pytest.raises(LedgerBehindError, match=r"behind: entry 6.*entry 7.*restore the newer"):
        require_newer_head(store, ROSTER, make_bundle(NAME, ledger_seq=6))
    forked = make_bundle(NAME, ledger_seq=7, ledger_sha256=b"\x08" * 32)
    with pytest.raises(LedgerForkedError, match=r"forks: entry 7.*remove the silo"):
        require_newer_head(store, ROSTER, forked)


def test_a_silo_is_told_why_in_words_and_by_a_reason(world):
    for error in (LedgerBehindError("behind"), LedgerForkedError("forks")):
        assert isinstance(error, RoundError)
        answer = describe(error)
        assert (answer.reason, answer.public) == (Reason.LEDGER_ROLLED_BACK, True)
        assert "restore the newer ledger" in answer.hint


def test_a_head_belongs_to_the_key_that_signed_it(world):
    """A silo that the root put on the roster with another key begins a new ledger."""
    other = signing_key("another machine")
    keep(world.store, make_bundle(NAME, ledger_seq=7))
    entries = tuple(
        replace(entry, verification_key=suite.verification_key(other))
        if entry.silo_id == NAME
        else entry
        for entry in ROSTER.entries
    )
    renewed = replace(ROSTER, entries=entries)
    require_newer_head(world.store, renewed, make_bundle(NAME, ledger_seq=0, key=other))
    assert ledger_echo(world.store, renewed, NAME) is None
    assert ledger_echo(world.store, ROSTER, NAME) is not None
    assert ledger_echo(world.store, ROSTER, "stranger") is None


def test_the_echo_is_the_bundle_that_the_silo_signed(world):
    echoes = []

    def before_wait():
        for name in NAMES:
            _, response = sw.told(world.conductor, name)
            if response.WhichOneof("instruction") == "round_task":
                has = response.HasField("ledger_echo")
                echoes.append((name, response.round_task.round, has and response.ledger_echo))
            else:
                assert not response.HasField("ledger_echo")

    world.before_wait = before_wait
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2)))
    assert {(name, number) for name, number, _ in echoes} == {
        (name, number) for name in NAMES for number in (1, 2)
    }
    for name, number, echo in echoes:
        assert bool(echo) == (number == 2)
        if not echo:
            continue
        bundle = secagg_wire.key_bundle_from_proto(echo.bundle)
        identity = secagg_wire.identity_from_proto(echo.identity)
        assert (identity.run_id, identity.round, bundle.silo_id) == (run_id, 1, name)
        # Signed by the silo itself: the coordinator cannot make one up.
        key = suite.verification_key(signing_key(name))
        assert suite.verify(key, bundle.signature, bundle.signed_bytes(echo.descriptor_sha256))
        silo = world.silos[name]
        silo.ledger.require_contains(bundle.ledger_seq, bundle.ledger_sha256)


def copy_of(silo, suffix):
    """The ledger as it is now, for somebody to put back."""
    return shutil.copy(silo.ledger_path, silo.ledger_path.with_suffix(suffix))


def put_back(silo, copy):
    silo.end_session()
    silo.ledger.close()
    shutil.copy(copy, silo.ledger_path)
    silo.open_ledger()


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_ledger_that_was_put_back_is_left_out_until_the_newer_one_is_there(world, restarts):
    """Also by a coordinator that was restarted meanwhile.

    A head is signed before its attempt is charged, so it takes two attempts to show.
    """
    silo, done, left = world.silos[NAMES[3]], [], [None] * restarts
    old = copy_of(silo, ".old")

    def before_wait():
        current = world.driver.current
        if (current.round, current.phase) == (3, Phase.TRAINING) and not done:
            done.append(copy_of(silo, ".newest"))
            put_back(silo, old)
            if left:
                left.pop()
                raise sw.PowerCut
        if (current.round, current.phase) == (4, Phase.TRAINING) and len(done) == 1:
            put_back(silo, done[0])
            done.append(old)

    world.before_wait = before_wait
    refusals = refusals_of(world, silo)
    run_id = asyncio.run(world.run_over_power_cuts(sw.plan_toml(rounds=4), cuts=restarts))
    survivors = [record.survivors for record in world.store.records.list(run_id)[1:]]
    assert survivors == [NAMES, NAMES, NAMES[:3], NAMES]
    assert [type(error) for error in refusals] == [LedgerBehindError] * 2
    (event,) = [json.loads(x) for x in world.audit.tail(99) if "ledger_rolled_back" in x]
    assert event["details"]["silo"] == silo.silo_id
    assert (event["details"]["round"], event["details"]["step"]) == (3, 0)
    assert "is behind" in event["details"]["reason"]
    assert world.value("chorale_ledger_rollbacks_total") == 1


def refusals_of(world, silo):
    """What the silo's bundles are refused with; it asks twice and then leaves the attempt."""
    refused = []
    honest = silo.advertise_keys

    def advertise(identity, bundle):
        for _ in range(2):
            try:
                world.conductor.receive_bundle(identity, bundle)
            except (LedgerBehindError, LedgerForkedError) as error:
                refused.append(error)
            else:
                return

    assert honest is not None
    silo.advertise_keys = advertise
    return refused


def test_a_fork_of_the_ledger_is_refused(world):
    silo = world.silos[NAMES[3]]
    refused = []

    def advertise(identity, bundle):
        descriptor = world.conductor.attempt().descriptor.descriptor
        if identity.round == 2:
            newest = world.store.heads.get(silo.silo_id).bundle
            bundle = replace(bundle, ledger_seq=newest.ledger_seq, ledger_sha256=b"\x01" * 32)
            bundle = sign_again(bundle, descriptor.sha256, signing_key(silo.silo_id))
        try:
            world.conductor.receive_bundle(identity, bundle)
        except LedgerForkedError as error:
            refused.append(error)

    silo.advertise_keys = advertise
    run_id = asyncio.run(world.run(sw.plan_toml(rounds=2)))
    assert len(refused) == 1
    assert [r.survivors for r in world.store.records.list(run_id)[1:]] == [NAMES, NAMES[:3]]


def test_a_late_repeat_for_an_attempt_that_is_over_is_no_rollback(world):
    late = []
    silo = world.silos[NAME]
    honest = silo.advertise_keys

    def advertise(identity, bundle):
        honest(identity, bundle)
        if late:
            with pytest.raises(RoundError) as caught:
                world.conductor.receive_bundle(*late[0])
            assert not isinstance(caught.value, LedgerBehindError | LedgerForkedError)
        late.append((identity, bundle))
        # The very same once more is the answer that was lost.
        world.conductor.receive_bundle(identity, bundle)

    silo.advertise_keys = advertise
    asyncio.run(world.run(sw.plan_toml(rounds=2)))
    assert len(late) == 2
    assert "ledger_rolled_back" not in world.events()


def test_a_bundle_without_its_silos_signature_moves_no_head(world):
    """Or anyone who gets hold of a certificate could lock its silo out with a head of 2^64 - 1."""
    silo, tried = world.silos[NAME], []
    honest = silo.advertise_keys

    def advertise(identity, bundle):
        forged = replace(bundle, ledger_seq=2**64 - 1)
        with pytest.raises(Exception, match="sign"):
            world.conductor.receive_bundle(identity, forged)
        tried.append(forged)
        honest(identity, bundle)

    silo.advertise_keys = advertise
    run_id = asyncio.run(world.run(sw.plan_toml()))
    assert tried
    assert world.store.records.list(run_id)[-1].survivors == NAMES
    assert world.store.heads.get(NAME).bundle.ledger_seq < 2**63

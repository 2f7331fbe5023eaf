"""A silo whose ledger went back takes no part, whatever it says and however often it comes."""

import asyncio
import json
import shutil
from dataclasses import replace

import pytest

import secagg.wire as secagg_wire
from secagg import suite
from secagg.hybrid import KEM_KEY_BYTES
from secagg.messages import DebitHead, KemKeys, MaskedInputHeader
from server.errors import LedgerBehindError, LedgerForkedError, Reason, RoundError
from server.figures import Phase
from server.members.ledger_heads import ledger_echo, require_newer_head
from server.rpc.catalogue import describe
from server.store.heads import DebitRow, HeadRow
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


def charged(seq, debit_seq, debit_sha256=b"\x0d" * 32):
    """A bundle of suite v2: the ledger's head, and the newest charge."""
    bundle = replace(
        make_bundle(NAME, ledger_seq=seq),
        kem_keys=KemKeys(cipher_key=bytes(KEM_KEY_BYTES), mask_key=bytes(KEM_KEY_BYTES)),
        debit=DebitHead(seq=debit_seq, sha256=debit_sha256),
    )
    return sign_again(bundle, b"\x05" * 32, signing_key(NAME))


def uploaded(store, seq, sha256=b"\x0d" * 32):
    """The coordinator has taken the header of an upload that this record charged."""
    ctx, members_sha256 = b"\x11" * 32, b"\x12" * 32
    header = MaskedInputHeader(
        silo_id=NAME,
        length_bytes=4,
        masked_sha256=bytes(32),
        signature=bytes(64),
        debit=DebitHead(seq=seq, sha256=sha256),
    )
    signature = suite.sign(signing_key(NAME), header.signed_bytes(ctx, members_sha256))
    header = replace(header, signature=signature)
    store.debit_heads.put(DebitRow(header=header, ctx=ctx, members_sha256=members_sha256))
    return header


def test_a_ledger_that_was_restored_and_grew_is_behind_by_its_newest_charge(world):
    store = world.store
    keep(store, charged(7, 5))
    require_newer_head(store, ROSTER, charged(9, 5))
    require_newer_head(store, ROSTER, charged(9, 8))
    with pytest.raises(LedgerBehindError, match=r"charge of silo-000 is behind: entry 4.*entry 5"):
        require_newer_head(store, ROSTER, charged(9, 4))
    with pytest.raises(LedgerForkedError, match="charge of silo-000 forks: entry 5"):
        require_newer_head(store, ROSTER, charged(9, 5, b"\x0e" * 32))
    # An upload that came to nothing was charged all the same.
    uploaded(store, 8)
    with pytest.raises(LedgerBehindError, match="entry 5, and entry 8"):
        require_newer_head(store, ROSTER, charged(9, 5))
    require_newer_head(store, ROSTER, charged(9, 8))


def test_a_later_charge_goes_back_to_its_silo_with_what_its_signature_covers(world):
    store = world.store
    keep(store, charged(7, 5))
    uploaded(store, 5)
    assert not ledger_echo(store, ROSTER, NAME).HasField("header")
    header = uploaded(store, 8)
    echo = ledger_echo(store, ROSTER, NAME)
    assert secagg_wire.masked_input_header_from_proto(echo.header) == header
    signed = header.signed_bytes(echo.ctx, echo.members_sha256)
    assert suite.verify(ROSTER.entry(NAME).verification_key, header.signature, signed)
    # What another key signed, before the silo enrolled anew, is not its own.
    forged = replace(header, signature=bytes(64))
    store.debit_heads.put(DebitRow(header=forged, ctx=echo.ctx, members_sha256=bytes(32)))
    assert not ledger_echo(store, ROSTER, NAME).HasField("header")


def test_an_upload_that_came_to_nothing_is_echoed_at_the_next_task(world):
    """The attempt that every other silo leaves after one upload is aborted, and was charged."""
    alone = NAMES[0]
    for name in NAMES[1:]:
        world.silos[name].die_at = ("upload", 1)

    def before_wait():
        if "round_stalled" in world.events() and world.silos[NAMES[1]].dead:
            told.append(ledger_echo(world.store, world.roster.roster, alone))
            for name in NAMES[1:]:
                world.silos[name].come_back()

    told = []
    world.before_wait = before_wait
    asyncio.run(world.run(sw.plan_toml(mode="silo", noise=1.0)))
    (echo,) = told
    assert echo.header.debit.seq > echo.bundle.debit.seq
    assert world.driver.head.survivors == NAMES


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
    # Without noise a silo that was left out stays out.
    plan = sw.plan_toml(rounds=4, mode="silo", noise=1.0)
    run_id = asyncio.run(world.run_over_power_cuts(plan, cuts=restarts))
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

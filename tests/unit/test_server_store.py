"""The store: durable, transactional, and the schema that its migrations make."""

import threading
from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

from federation.record import AdapterRecord
from secagg.descriptor import AggregationId
from secagg.roster import Roster, RosterEntry, sign_roster
from server.errors import RosterError, StoreError, UnknownRunError
from server.store import Store
from server.store.aggregations import AggregationOutcome
from server.store.messages import StoredMessage
from server.store.rounds import AttemptPlace
from server.store.runs import RunState
from server.store.schema import METADATA
from server.store.silos import SiloRow
from tests.unit.secagg_samples import make_descriptor, make_roster, signed_descriptor

NAMED = ("silo-001", "silo-003")
FAMILIES = {"silo-001": ("maze",), "silo-003": ()}


@pytest.fixture
def store(tmp_path):
    opened = Store(f"sqlite:///{tmp_path / 'coordinator.db'}")
    yield opened
    opened.close()


def make_run(store, token="t", run_id="run-1"):
    return store.runs.create(
        run_id=run_id,
        name="demo",
        plan=b"plan",
        plan_sha256=b"\x05" * 32,
        submit_token=token,
        state=RunState.RUNNING,
    )


def silo(silo_id="hospital-a", **changes):
    values = {
        "silo_id": silo_id,
        "spiffe_uri": f"spiffe://oncology/silo/{silo_id}",
        "verification_key": b"\x01" * 32,
        "certificate_sha256": b"\x02" * 32,
        "certificate_expiry_unix_s": 10,
        "enrolled_unix_s": 5,
    }
    return SiloRow(**{**values, **changes})


def test_migrations_make_the_schema_and_run_once(store, tmp_path):
    with store.transaction() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, METADATA) == []
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert connection.execute(text("PRAGMA secure_delete")).scalar() == 1
    make_run(store)
    again = Store(f"sqlite:///{tmp_path / 'coordinator.db'}")
    assert again.runs.get("run-1").name == "demo"
    again.close()


def test_a_transaction_is_all_or_nothing_across_nouns(store):
    class BoomError(Exception):
        pass

    def fail():
        with store.transaction():
            store.silos.enrol(silo())
            make_run(store)
            raise BoomError

    with pytest.raises(BoomError):
        fail()
    assert store.silos.list() == ()
    assert store.runs.list() == ()


def test_database_failures_are_typed(store, tmp_path):
    with pytest.raises(StoreError):
        store.rounds.set_phase(at(1, 1, run_id="no-such-run"), "training", 1.0)
    with pytest.raises(StoreError):
        Store(f"sqlite:///{tmp_path / 'no' / 'such' / 'directory.db'}")
    with pytest.raises(StoreError) as caught:
        Store("nonsense://user:password@host/db")
    assert "password" not in str(caught.value)
    store.check_writable()


def test_an_invite_is_spent_once_even_in_a_race(store):
    store.invites.create(secret=b"s" * 32, silo_id="a", created_unix_s=1, expires_unix_s=9)
    invite = store.invites.find(secret=b"s" * 32, silo_id="a")
    assert store.invites.find(secret=b"x" * 32, silo_id="a") is None
    assert store.invites.find(secret=b"s" * 32, silo_id="b") is None
    wins = []

    def redeem(at):
        wins.append(store.invites.spend(invite, at_unix_s=at))

    threads = [threading.Thread(target=redeem, args=(at,)) for at in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == [False, False, False, True]
    assert store.invites.find(secret=b"s" * 32, silo_id="a").spent_unix_s is not None
    assert store.invites.open() == ()


def test_silos_round_trip_and_change(store):
    store.silos.enrol(silo())
    store.silos.touch("hospital-a", 12.5)
    store.silos.set_families("hospital-a", ("craft", "maze"))
    store.silos.revoke("hospital-a")
    assert store.silos.get("hospital-a") == silo(
        last_seen_unix_s=12.5, families=("craft", "maze"), revoked=True
    )
    store.silos.enrol(silo(certificate_sha256=b"\x03" * 32))
    assert not store.silos.get("hospital-a").revoked
    assert store.silos.get("stranger") is None


def test_a_token_starts_one_run(store):
    first = make_run(store, token="t", run_id="run-1")
    assert make_run(store, token="t", run_id="run-2") == first
    assert make_run(store, token="u", run_id="run-2").run_id == "run-2"
    assert [row.run_id for row in store.runs.list()] == ["run-1", "run-2"]
    store.runs.set_state("run-1", RunState.FAILED, "why")
    assert store.runs.get("run-1").state is RunState.FAILED
    assert store.runs.get("run-1").error == "why"
    assert store.runs.by_plan(b"\x05" * 32).run_id == "run-2"
    assert store.runs.by_plan(b"\x06" * 32) is None
    with pytest.raises(UnknownRunError):
        store.runs.get("run-3")
    with pytest.raises(UnknownRunError):
        store.runs.set_state("run-3", RunState.FAILED)


def at(round_number, attempt, step=0, run_id="run-1"):
    return AttemptPlace(run_id=run_id, round=round_number, step=step, attempt=attempt)


def test_rounds_keep_phases_and_count_releases(store):
    make_run(store)
    for second, phase in enumerate(("training", "advertise_keys", "masked_input")):
        store.rounds.set_phase(at(1, 1), phase, float(second))
    store.rounds.set_phase(at(1, 1), "training", 99.0)
    store.rounds.set_phase(at(1, 2), "training", 5.0)
    store.rounds.finish(at(1, 2), "aggregated", "{}")
    first, second = store.rounds.list("run-1")
    assert [(t.phase, t.at_unix_s) for t in first.phases] == [
        ("training", 0.0),
        ("advertise_keys", 1.0),
        ("masked_input", 2.0),
    ]
    assert (second.outcome, second.figures_json) == ("aggregated", "{}")
    assert store.rounds.finished("run-1") == (second,)
    assert store.rounds.charged("run-1") == (1, 1, 1)
    # A round whose task is out is begun; one that is skipped without a task is not.
    store.rounds.set_phase(at(2, 1), "training", 6.0)
    store.rounds.finish(at(3, 1), "skipped", "{}")
    assert store.rounds.charged("run-1") == (1, 1, 2)


def test_the_steps_of_a_round_are_kept_apart_and_in_order(store):
    make_run(store)
    for step, attempt in ((1, 1), (0, 2), (0, 1), (2, 1)):
        store.rounds.set_phase(at(1, attempt, step), "masked_input", 1.0)
        store.rounds.finish(at(1, attempt, step), f"{step}.{attempt}", "{}")
    store.rounds.set_phase(at(2, 1), "masked_input", 1.0)
    rows = store.rounds.list("run-1")
    assert [(row.round, row.step, row.attempt) for row in rows] == [
        (1, 0, 1),
        (1, 0, 2),
        (1, 1, 1),
        (1, 2, 1),
        (2, 0, 1),
    ]
    assert [row.outcome for row in rows] == ["0.1", "0.2", "1.1", "2.1", ""]
    assert store.rounds.charged("run-1") == (5, 3, 2)
    assert store.rounds.charged("other") == (0, 0, 0)


def record(number, step=0, **changes):
    values = {
        "run_id": "run-1",
        "round": number,
        "step": step,
        "kind": "skipped" if number else "initial",
        "adapter_sha256": b"\x07" * 32,
        "plan_sha256": b"\x05" * 32,
        "base_model_sha256": b"\x06" * 32,
        "parent_sha256": b"\x07" * 32 if number else b"",
        "record_parent_sha256": b"\x08" * 32 if number else b"",
    }
    return AdapterRecord(**{**values, **changes}).sign(Ed25519PrivateKey.generate())


def signed_roster(epoch, silos=("a", "b", "c")):
    entries = tuple(
        RosterEntry(
            silo_id=name,
            spiffe_uri=f"spiffe://f/silo/{name}",
            verification_key=bytes([index + 1]) * 32,
        )
        for index, name in enumerate(silos)
    )
    roster = Roster(
        federation="f", epoch=epoch, colluding=1, coordinator_key=b"\x63" * 32, entries=entries
    )
    return sign_roster(roster, Ed25519PrivateKey.from_private_bytes(b"\x01" * 32))


def test_rosters_only_grow(store):
    assert store.rosters.current() is None
    store.rosters.publish(signed_roster(1), at_unix_s=1)
    store.rosters.publish(signed_roster(1), at_unix_s=2)
    store.rosters.publish(signed_roster(3), at_unix_s=3)
    assert store.rosters.current() == signed_roster(3)
    for refused in (signed_roster(2), signed_roster(3, ("a", "b", "d"))):
        with pytest.raises(RosterError, match="not newer"):
            store.rosters.publish(refused, at_unix_s=4)
    assert store.rosters.current() == signed_roster(3)


# Aggregations and their messages -----------------------------------------------------------------


def signed(attempt=1, round_number=1, step=0):
    base = signed_descriptor(make_descriptor(make_roster(4, 1)))
    identity = AggregationId(run_id="run-1", round=round_number, step=step, part=0, attempt=attempt)
    return signed_descriptor(replace(base.descriptor, identity=identity))


@pytest.fixture
def opened(store):
    make_run(store)
    descriptor = signed()
    store.aggregations.open(descriptor, FAMILIES)
    return descriptor


def message(phase="advertise_keys", silo_id="silo-000", body=b"public", sealed=None):
    return StoredMessage(phase=phase, silo_id=silo_id, body=body, sealed=sealed)


def test_an_aggregation_keeps_its_descriptor_and_goes_one_way(store, opened):
    identity = opened.descriptor.identity
    (row,) = store.aggregations.unfinished()
    assert (row.descriptor, row.phases_closed, row.outcome) == (opened, 0, "")
    with pytest.raises(StoreError, match="before"):
        store.aggregations.open(opened, FAMILIES)
    store.aggregations.close_phase(identity, 1, NAMED)
    store.aggregations.close_phase(identity, 1, NAMED)
    for wrong in (0, 3):
        with pytest.raises(StoreError, match="1 phases"):
            store.aggregations.close_phase(identity, wrong, NAMED)
    store.aggregations.end(identity, AggregationOutcome.ABORTED)
    assert store.aggregations.unfinished() == ()
    for over in (
        lambda: store.aggregations.end(identity, AggregationOutcome.RELEASED),
        lambda: store.aggregations.close_phase(identity, 2, NAMED),
        lambda: store.aggregations.fold(identity, "silo-000", 1),
    ):
        with pytest.raises(StoreError, match="not open"):
            over()
    with pytest.raises(StoreError, match="not open"):
        store.aggregations.end(signed(attempt=2).descriptor.identity, AggregationOutcome.ABORTED)


def test_folds_follow_each_other_and_only_while_uploads_are_collected(store, opened):
    identity, aggregations = opened.descriptor.identity, store.aggregations
    with pytest.raises(StoreError, match="not collected"):
        aggregations.fold(identity, "silo-000", 1)
    aggregations.close_phase(identity, 1, NAMED)
    aggregations.close_phase(identity, 2, NAMED)
    aggregations.fold(identity, "silo-003", 1)
    aggregations.fold(identity, "silo-003", 1)
    for silo_id, generation in (("silo-003", 2), ("silo-001", 1), ("silo-001", 3)):
        with pytest.raises(StoreError, match="does not follow"):
            aggregations.fold(identity, silo_id, generation)
    aggregations.fold(identity, "silo-001", 2)
    (row,) = aggregations.list("run-1")
    assert row.folded == ("silo-003", "silo-001")
    assert row.survivors == ()
    aggregations.close_phase(identity, 3, NAMED)
    with pytest.raises(StoreError, match="not collected"):
        aggregations.fold(identity, "silo-002", 3)
    (row,) = aggregations.list("run-1")
    assert row.survivors_declared
    assert row.survivors == ("silo-001", "silo-003")


def test_aggregations_are_found_by_round_and_by_outcome(store):
    make_run(store)
    for round_number, attempt, outcome in (
        (1, 1, AggregationOutcome.ABORTED),
        (1, 2, AggregationOutcome.RELEASED),
        (2, 1, AggregationOutcome.SKIPPED),
    ):
        descriptor = signed(attempt, round_number)
        store.aggregations.open(descriptor, FAMILIES)
        store.aggregations.end(descriptor.descriptor.identity, outcome)
    (row,) = store.aggregations.released("run-1", 1)
    assert row.identity.attempt == 2
    assert store.aggregations.released("run-1", 2) == ()
    assert [store.aggregations.newest_attempt("run-1", n, 0) for n in (1, 2, 3)] == [2, 1, 0]
    assert [row.identity.round for row in store.aggregations.list("run-1")] == [1, 1, 2]
    assert store.aggregations.list("other") == ()


def test_a_message_is_kept_once_and_in_order(store, opened):
    identity = opened.descriptor.identity
    for name in ("silo-002", "silo-000", "silo-001"):
        store.messages.put(identity, message(silo_id=name))
        store.messages.put(identity, message(silo_id=name))
    with pytest.raises(StoreError, match="another message"):
        store.messages.put(identity, message(body=b"other"))
    assert [row.silo_id for row in store.messages.list(identity)] == [
        "silo-002",
        "silo-000",
        "silo-001",
    ]
    assert store.messages.list(signed(attempt=2).descriptor.identity) == ()


def test_secrets_are_forgotten_and_what_is_public_stays(store, opened, tmp_path):
    identity, secret = opened.descriptor.identity, b"a secret share" * 40
    store.messages.put(identity, message("share_keys", sealed=secret))
    store.messages.put(identity, message("unmask", body=b"", sealed=secret))
    assert secret.decode() not in repr(store.messages.with_secrets(identity))
    assert [row.sealed for row in store.messages.with_secrets(identity)] == [secret, secret]
    assert store.messages.list(identity) == (message("share_keys"),)
    store.messages.forget_secrets(identity)
    assert store.messages.with_secrets(identity) == (message("share_keys"),)
    store.scrub()
    files = list(tmp_path.glob("coordinator.db*"))
    assert files
    assert all(secret not in path.read_bytes() for path in files)


def test_a_roster_is_found_by_its_digest(store):
    first, second = signed_roster(1), signed_roster(2)
    for roster in (first, second):
        store.rosters.publish(roster, at_unix_s=1)
    assert store.rosters.get(first.roster.sha256) == first
    assert store.rosters.get(bytes(32)) is None

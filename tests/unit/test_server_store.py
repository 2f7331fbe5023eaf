"""The store: durable, transactional, and the schema that its migrations make."""

import threading

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

from federation.record import AdapterRecord
from secagg.roster import Roster, RosterEntry, sign_roster
from server.errors import RosterError, StoreError, UnknownRunError
from server.store import Store
from server.store.runs import RunState
from server.store.schema import METADATA
from server.store.silos import SiloRow


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
        store.rounds.set_phase("no-such-run", 1, 1, "training", 1.0)
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


def test_rounds_keep_phases_and_count_releases(store):
    make_run(store)
    store.rounds.open("run-1", 1, 1)
    for at, phase in enumerate(("training", "advertise_keys", "masked_input")):
        store.rounds.set_phase("run-1", 1, 1, phase, float(at))
    store.rounds.set_phase("run-1", 1, 1, "training", 99.0)
    store.rounds.set_phase("run-1", 1, 2, "training", 5.0)
    store.rounds.set_descriptor("run-1", 1, 2, b"D")
    store.rounds.finish("run-1", 1, 2, "aggregated", "{}")
    first, second = store.rounds.list("run-1")
    assert [(t.phase, t.at_unix_s) for t in first.phases] == [
        ("training", 0.0),
        ("advertise_keys", 1.0),
        ("masked_input", 2.0),
    ]
    assert (second.descriptor, second.outcome, second.figures_json) == (b"D", "aggregated", "{}")
    assert store.rounds.finished("run-1") == (second,)
    assert store.rounds.attempts("run-1", 1) == 2
    assert store.rounds.attempts("run-1", 2) == 0
    assert store.rounds.releases("run-1") == 1


def record(number, **changes):
    values = {
        "run_id": "run-1",
        "round": number,
        "kind": "skipped" if number else "initial",
        "adapter_sha256": b"\x07" * 32,
        "plan_sha256": b"\x05" * 32,
        "base_model_sha256": b"\x06" * 32,
        "parent_sha256": b"\x07" * 32 if number else b"",
        "record_parent_sha256": b"\x08" * 32 if number else b"",
    }
    return AdapterRecord(**{**values, **changes}).sign(Ed25519PrivateKey.generate())


def test_records_are_a_chain_without_gaps_or_replacements(store):
    make_run(store)
    first, second = record(0), record(1)
    store.records.append(first)
    with pytest.raises(StoreError):
        store.records.append(record(2))
    store.records.append(second)
    with pytest.raises(StoreError):
        store.records.append(record(1))
    assert store.records.list("run-1") == (first, second)
    assert store.records.list("other") == ()


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

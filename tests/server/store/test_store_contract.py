"""Every noun of the store, on SQLite and on a real PostgreSQL: what one promises, both do.

What only one of them has is in ``tests/server/store/test_store.py`` and
``tests/system/integration/faults/test_postgresql.py``.
"""

import threading
import time
from contextlib import closing, contextmanager

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, select

from secagg.descriptor import AggregationId
from server.errors import (
    FederationExistsError,
    Reason,
    RosterError,
    RunError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    StoreUnwritableError,
    UnknownRunError,
)
from server.rpc.catalogue import describe
from server.states import RunState
from server.store import Store
from server.store.database import BUSY_TIMEOUT_S
from server.store.federation import FederationRow
from server.store.heads import AuditHeadRow, HeadRow
from server.store.schema import METADATA, runs, silos
from tests.kit.server.store_samples import at, make_run, record, signed_roster, silo_row
from tests.kit.server.world_bundle import make_bundle


def test_the_migrations_make_the_schema_and_run_once(store, store_url):
    with store.transaction() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    make_run(store)
    again = Store(store_url)
    assert again.runs.get("run-1").name == "demo"
    again.close()


def test_a_transaction_is_all_or_nothing_across_nouns(store):
    class BoomError(Exception):
        pass

    def fail():
        with store.transaction():
            store.silos.enrol(silo_row())
            make_run(store)
            raise BoomError

    with pytest.raises(BoomError):
        fail()
    assert store.silos.list() == ()
    assert store.runs.list() == ()


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
    store.silos.enrol(silo_row())
    store.silos.touch({"hospital-a": 12.5, "stranger": 13.5})
    store.silos.set_families("hospital-a", ("craft", "maze"))
    store.silos.revoke("hospital-a")
    assert store.silos.get("hospital-a") == silo_row(
        last_seen_unix_s=12.5, families=("craft", "maze"), revoked=True
    )
    store.silos.enrol(silo_row(certificate_sha256=b"\x03" * 32))
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


def test_a_roster_is_found_by_its_digest(store):
    first, second = signed_roster(1), signed_roster(2)
    for roster in (first, second):
        store.rosters.publish(roster, at_unix_s=1)
    assert store.rosters.get(first.roster.sha256) == first
    assert store.rosters.get(bytes(32)) is None


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


def test_a_rounds_steps_follow_each_other_and_nothing_is_left_out(store):
    make_run(store)
    store.records.append(record(0))
    chain = [record(1), record(1, 1), record(1, 2), record(2), record(2, 1)]
    refused = {
        (1, 0): [(1, 1), (2, 0), (0, 0)],
        (1, 1): [(1, 0), (1, 2), (2, 1), (3, 0)],
        (2, 0): [(1, 2), (2, 1), (3, 0)],
    }
    for expected in chain:
        for place in refused.get((expected.round, expected.step), ()):
            with pytest.raises(StoreError, match="not the next"):
                store.records.append(record(*place))
        store.records.append(expected)
    assert [(r.round, r.step) for r in store.records.list("run-1")] == [
        (0, 0),
        *((r.round, r.step) for r in chain),
    ]


def test_a_silo_has_one_newest_head(store):
    def head(seq, attempt):
        return HeadRow(
            identity=AggregationId(run_id="r", round=1, step=2, part=0, attempt=attempt),
            bundle=make_bundle("silo-001", ledger_seq=seq),
            descriptor_sha256=b"\x05" * 32,
        )

    assert store.heads.get("silo-001") is None
    # Heights are unsigned 64-bit numbers on the wire.
    for row in (head(3, 1), head(2**64 - 1, 2)):
        store.heads.put(row)
        assert store.heads.get("silo-001") == row
    assert store.heads.list() == (head(2**64 - 1, 2),)


def test_a_coordinator_has_one_federation(store):
    terms = FederationRow(name="oncology", epsilon_cap=8.0, created_unix_s=5)
    store.federation.create(terms)
    store.federation.create(FederationRow(name="oncology", epsilon_cap=8.0, created_unix_s=9))
    assert store.federation.current() == terms
    with pytest.raises(FederationExistsError):
        store.federation.create(FederationRow(name="oncology", epsilon_cap=9.0))


def test_a_silo_has_one_newest_audit_head(store):
    def head(index):
        return AuditHeadRow(
            silo_id="hospital-a", index=index, sha256=b"\x01" * 32, at_unix_s=7, signature=b"s" * 64
        )

    for row in (head(1), head(2**63 - 1)):
        store.audit_heads.put(row)
        assert store.audit_heads.list() == (row,)
    assert store.audit_heads.get("hospital-b") is None


def test_a_queue_keeps_its_order(store):
    for name in ("a", "b", "c"):
        make_run(store, token=name, run_id=name)
        store.runs.set_state(name, RunState.PAUSED)
    for name, first in (("a", False), ("b", False), ("c", True)):
        store.runs.set_state(name, RunState.QUEUED, first=first)
    assert [row.run_id for row in store.runs.queued()] == ["c", "a", "b"]
    store.runs.set_state("a", RunState.FINISHED)
    with pytest.raises(RunError, match="over"):
        store.runs.set_state("a", RunState.RUNNING)


# What comes from a network ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["run\0", "\0", "x" * 5000, "'; DROP TABLE runs; --", "\U0001f40d"]
)
def test_a_hostile_name_finds_nothing_and_breaks_nothing(store, name):
    make_run(store)
    with pytest.raises(UnknownRunError):
        store.runs.get(name)
    assert store.runs.by_submit_token(name) is None
    assert store.silos.get(name) is None
    assert store.records.page(name, 0, 5) == ()
    # A silo's own words become the reason why a run failed.
    store.runs.set_state("run-1", RunState.FAILED, f"refused: {name}")
    shown = store.runs.get("run-1").error
    assert shown.replace("\ufffd", "\0") == f"refused: {name}"
    store.check_writable()


def version(store):
    """Changes with each commit of others to the row that a probe writes."""
    with store.transaction() as connection:
        postgresql = connection.dialect.name == "postgresql"
        asked = "SELECT xmin::text FROM alembic_version" if postgresql else "PRAGMA data_version"
        return connection.exec_driver_sql(asked).scalar()


def test_whether_it_can_be_written_is_found_out_by_writing(store, store_url):
    with closing(Store(store_url)) as another:
        seen = version(another)
        store.check_writable()
        assert version(another) != seen


def test_a_probe_does_not_wait_as_long_as_a_writer(store, store_url):
    with closing(Store(store_url)) as another, another.transaction() as connection:
        connection.exec_driver_sql("SELECT 1")
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            store.check_writable()
        assert time.monotonic() - began < BUSY_TIMEOUT_S / 2
    store.check_writable()


def full(store):
    with store.transaction() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
            store.silos.enrol(silo_row(families=("x" * 100_000,)))
        else:
            connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE='53100'; END $$")


def read_only(store):
    with store.transaction() as connection:
        sqlite = connection.dialect.name == "sqlite"
        connection.exec_driver_sql(
            "PRAGMA query_only = ON" if sqlite else "SET TRANSACTION READ ONLY"
        )
        store.silos.enrol(silo_row())


@pytest.mark.parametrize(("spoil", "why"), [(full, "disk is full"), (read_only, "read-only")])
def test_a_database_that_takes_no_write_says_so(store, spoil, why):
    with pytest.raises(StoreUnwritableError, match=why) as caught:
        spoil(store)
    assert describe(caught.value).reason is Reason.STORAGE_FULL


def test_numbers_of_the_wire_fit(store):
    make_run(store)
    store.records.append(record(0))
    widest = 2**32 - 1
    identity = AggregationId(run_id="run-1", round=widest, step=widest, part=widest, attempt=widest)
    assert store.records.page("run-1", widest, 5) == ()
    assert store.aggregations.newest("run-1", widest, widest) is None
    assert store.messages.list(identity) == ()
    store.rounds.set_phase(at(widest, widest, widest), "training", 1.0)
    assert store.rounds.list("run-1")[0].round == widest
    # No column holds a number of 64 bits without a sign: typed, and the next call works.
    with pytest.raises(StoreError):
        store.records.page("run-1", 2**64 - 1, 5)
    assert len(store.records.page("run-1", 0, 5)) == 1


# Several at once ----------------------------------------------------------------------------------


def in_threads(count, work):
    """Run ``work(number)`` in as many threads, all let go at once; what each returned or raised."""
    gate, done = threading.Barrier(count), [None] * count

    def one(number):
        gate.wait()
        try:
            done[number] = work(number)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            done[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def test_what_a_transaction_read_holds_when_it_writes(store):
    """Each reads a number and writes the next one: a lost update would leave a smaller one."""
    store.silos.enrol(silo_row(enrolled_unix_s=0))

    def add(_):
        for _ in range(5):
            with store.transaction():
                seen = store.silos.get("hospital-a")
                store.silos.touch({"hospital-a": seen.last_seen_unix_s + 1})

    assert in_threads(4, add) == [None] * 4
    assert store.silos.get("hospital-a").last_seen_unix_s == 20


def test_one_of_several_wins_and_the_others_are_told(store):
    def start(number):
        return make_run(store, token="t", run_id=f"run-{number}").run_id

    (started,) = set(in_threads(4, start))
    assert [row.run_id for row in store.runs.list()] == [started]
    for number in range(4):
        store.runs.create(
            run_id=f"q{number}",
            name="q",
            plan=b"",
            plan_sha256=b"\x05" * 32,
            submit_token=f"q{number}",
            state=RunState.PAUSED,
        )
    in_threads(4, lambda number: store.runs.set_state(f"q{number}", RunState.QUEUED))
    with store.transaction() as connection:
        places = connection.execute(select(runs.c.queue_place).where(runs.c.name == "q")).scalars()
        assert sorted(places) == [0, 1, 2, 3]

    def publish(number):
        store.rosters.publish(signed_roster(1, ("a", "b", f"c{number}")), at_unix_s=number)

    told = in_threads(4, publish)
    assert sum(error is None for error in told) == 1
    assert sum(isinstance(error, RosterError) for error in told) == 3

    def append(number):
        store.records.append(record(0, run_id=started, adapter_sha256=bytes([number]) * 32))

    told = in_threads(4, append)
    assert sum(error is None for error in told) == 1
    assert sum(isinstance(error, StoreError) for error in told) == 3


def test_a_snapshot_shows_one_instant_and_stops_nobody(store):
    store.silos.enrol(silo_row("hospital-a"))
    with store.snapshot() as connection:
        store.silos.enrol(silo_row("hospital-b"))
        assert len(store.silos.list()) == 2
        assert connection.execute(select(func.count()).select_from(silos)).scalar() == 1


def test_a_look_waits_for_no_writer_and_sees_one_instant(store):
    store.silos.enrol(silo_row("hospital-a"))
    with held(store):
        began = time.monotonic()
        with store.reading():
            assert [silo.silo_id for silo in store.silos.list()] == ["hospital-a"]
            assert store.federation.current() is None
            assert store.runs.list() == ()
        # Who is admitted is looked up by itself, too.
        assert store.silos.get("hospital-a") is not None
        assert time.monotonic() - began < 2
        with pytest.raises(StoreBusyError, match="another transaction holds it"):
            store.check_writable()


def test_nothing_is_written_in_a_look(store):
    with pytest.raises(StoreError), store.reading():
        store.silos.enrol(silo_row("hospital-a"))
    # And the connection that was read with writes again.
    store.silos.enrol(silo_row("hospital-b"))
    assert [silo.silo_id for silo in store.silos.list()] == ["hospital-b"]
    with store.transaction():
        store.silos.enrol(silo_row("hospital-c"))
        with store.reading():
            assert len(store.silos.list()) == 2


@contextmanager
def held(store):
    """Somebody writes and does not come to an end."""
    taken, over = threading.Event(), threading.Event()

    def hold():
        with store.transaction():
            taken.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    try:
        yield
    finally:
        over.set()
        thread.join()

"""What runs leave: bounded over thousands of them, and nothing real displaced by what is invented.

Runs that a coordinator makes up alone are those in which this silo was never charged an upload.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import time

import pytest

from silo_agent.books import local_store
from silo_agent.books.kept_runs import KeptRuns
from silo_agent.books.local_store import MAX_HEADS, ChainHead, LocalStore
from silo_agent.errors import LocalStoreError
from tests.kit.dp.ledgers import entry, opened
from tests.kit.silo_agent.working_silo import WorkingSilo, head_of, plan_of, task_of

HEAD = ChainHead(
    round=1, step=0, position=1, adapter_sha256=bytes([1]) * 32, record_sha256=bytes([2]) * 32
)
INVENTED = 2000


def name_of(run):
    return hashlib.sha256(run.encode()).hexdigest()[:16]


@pytest.fixture
def ledger(tmp_path):
    with opened(tmp_path / "privacy.ledger", cap=1e9) as held:
        yield held


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def kept(tmp_path, store, ledger, most=8):
    return KeptRuns(tmp_path, store=store, ledger_of=lambda: ledger, most=most)


def explored(tmp_path, run, *, used_s, content=b"trajectory"):
    directory = tmp_path / "evolve" / name_of(run)
    directory.mkdir(parents=True)
    if content:
        (directory / "successes.sqlite").write_bytes(content)
    os.utime(directory, (used_s, used_s))
    return directory


def there(tmp_path):
    return {path.name for path in (tmp_path / "evolve").iterdir()}


def test_invented_runs_displace_one_another_and_no_run_that_was_uploaded_to(
    tmp_path, store, ledger
):
    for run in ("real-1", "real-2"):
        store.set_chain_head(run, HEAD)
        ledger.reserve(entry(run=run))
        explored(tmp_path, run, used_s=10)
    # More than the bound, as a release without one left them.
    for number in range(INVENTED):
        explored(tmp_path, f"invented-{number}", used_s=1000 + number, content=b"")
    runs = kept(tmp_path, store, ledger)
    newest = {name_of(f"invented-{INVENTED - 1 - number}") for number in range(6)}
    assert there(tmp_path) == newest | {name_of("real-1"), name_of("real-2")}
    for number in range(40):
        directory = runs.directory(f"later-{number}")
        assert directory.name == name_of(f"later-{number}")
        directory.mkdir()
        assert len(there(tmp_path)) == 8
    assert {name_of("real-1"), name_of("real-2")} < there(tmp_path)
    assert (tmp_path / "evolve" / name_of("real-1") / "successes.sqlite").read_bytes()


def test_of_real_runs_the_one_used_longest_ago_goes_and_the_one_at_hand_stays(
    tmp_path, store, ledger
):
    for number in range(8):
        store.set_chain_head(f"real-{number}", HEAD)
        ledger.reserve(entry(run=f"real-{number}"))
        explored(tmp_path, f"real-{number}", used_s=1000 + number)
    runs = kept(tmp_path, store, ledger)
    assert len(there(tmp_path)) == 8
    # It was the oldest until now: being asked for is being used.
    assert runs.directory("real-0").is_dir()
    runs.directory("new").mkdir()
    assert there(tmp_path) == {name_of(f"real-{n}") for n in (0, 2, 3, 4, 5, 6, 7)} | {
        name_of("new")
    }
    # A run that was never uploaded to keeps its stores while it is the one at hand.
    assert runs.directory("new").is_dir()


def test_what_the_operator_put_there_stays_and_is_not_counted(tmp_path, store, ledger):
    elsewhere = tmp_path / "disk"
    elsewhere.mkdir()
    (elsewhere / "successes.sqlite").write_bytes(b"x")
    evolve = tmp_path / "evolve"
    (evolve / "my-copy").mkdir(parents=True)
    (evolve / "0123456789abcdef").symlink_to(elsewhere)
    (evolve / "fedcba9876543210").write_bytes(b"a file")
    for number in range(5):
        explored(tmp_path, f"run-{number}", used_s=1000 + number)
    kept(tmp_path, store, ledger, most=2)
    assert there(tmp_path) == {
        "my-copy",
        "0123456789abcdef",
        "fedcba9876543210",
        name_of("run-3"),
        name_of("run-4"),
    }
    assert (elsewhere / "successes.sqlite").exists()


def test_a_crash_while_deleting_leaves_no_half_of_a_run(tmp_path, store, ledger, monkeypatch):
    for number in range(3):
        explored(tmp_path, f"run-{number}", used_s=1000 + number)

    def fails(path):
        raise OSError(5, "the disk ended", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fails)
        runs = kept(tmp_path, store, ledger, most=2)
    # Nothing was lost but the run that was to go, and the daemon began all the same.
    assert there(tmp_path) == {f".{name_of('run-0')}.going", name_of("run-1"), name_of("run-2")}
    assert not runs.directory("run-0").exists()
    assert there(tmp_path) == {name_of("run-2")}


def test_unfinished_files_of_a_crash_go_and_those_being_written_stay(tmp_path, store, ledger):
    place = tmp_path / "runs" / "0a"
    place.mkdir(parents=True)
    old = [tmp_path / ".state.json.aa.partial", place / ".plan.toml.bb.partial"]
    new = tmp_path / ".spent.json.cc.partial"
    for path in (*old, new):
        path.write_bytes(b"x")
    for path in old:
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    kept(tmp_path, store, ledger)
    assert [path.exists() for path in (*old, new)] == [False, False, True]


def test_invented_heads_push_out_no_head_of_a_run_that_was_uploaded_to(tmp_path, ledger):
    """As the release before left them: there was no bound, and no order."""
    store = LocalStore(tmp_path)
    store.set_chain_head("a-real-run", HEAD)
    ledger.reserve(entry(run="a-real-run"))
    state = json.loads((tmp_path / "state.json").read_text())
    (told,) = state["heads"].values()
    state["heads"] |= {f"invented-{number}": told for number in range(INVENTED)}
    (tmp_path / "state.json").write_text(json.dumps(state))
    store = LocalStore(tmp_path)
    runs = kept(tmp_path, store, ledger)
    runs.limit_heads()
    assert len(store.chain_heads()) == MAX_HEADS
    assert store.chain_head("a-real-run") == HEAD
    for number in range(20):
        store.set_chain_head(f"later-{number}", HEAD)
        runs.limit_heads()
    again = LocalStore(tmp_path)
    assert again.chain_heads() == store.chain_heads()
    assert len(again.chain_heads()) == MAX_HEADS
    assert again.chain_head("a-real-run") == HEAD
    # The newest are there, in the order in which they moved.
    assert list(again.chain_heads())[-20:] == [f"later-{number}" for number in range(20)]


def test_a_run_that_is_followed_now_is_remembered_among_real_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(local_store, "MAX_HEADS", 70)
    store = LocalStore(tmp_path)
    for number in range(70):
        store.set_chain_head(f"real-{number}", HEAD)
    moved = dataclasses.replace(HEAD, round=2)
    store.set_chain_head("real-0", moved)
    store.set_chain_head("new", HEAD)
    store.limit_heads(lambda run: run != "new")
    assert store.chain_head("new") == HEAD
    assert store.chain_head("real-0") == moved
    assert store.chain_head("real-1") is None
    assert len(store.chain_heads()) == 70


def test_a_head_is_forgotten_on_disk_first(tmp_path, monkeypatch):
    monkeypatch.setattr(local_store, "MAX_HEADS", 64)
    store = LocalStore(tmp_path)
    for number in range(65):
        store.set_chain_head(f"run-{number}", HEAD)

    def full(*_):
        raise OSError(28, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(local_store, "replace_file", full)
        with pytest.raises(LocalStoreError, match="no space"):
            store.limit_heads(lambda _: False)
    assert len(store.chain_heads()) == len(LocalStore(tmp_path).chain_heads()) == 65


def test_reports_keep_their_newer_half(tmp_path, monkeypatch):
    monkeypatch.setattr(local_store, "MAX_REPORT_BYTES", 1000)
    store = LocalStore(tmp_path)
    for number in range(200):
        store.append_round({"run": "run-1", "round": number})
        assert (tmp_path / "rounds.jsonl").stat().st_size <= 1000
    rounds = [entry["round"] for entry in store.rounds()]
    assert rounds == list(range(rounds[0], 200))
    assert len(rounds) > 10


def test_local_work_keeps_to_the_bound(tmp_path):
    """The stores of older runs go when the work of another one begins."""
    for number in range(100):
        explored(tmp_path / "silo", f"run-old-{number}", used_s=1000 + number)
    silo = WorkingSilo(tmp_path / "silo")
    try:
        assert len(there(tmp_path / "silo")) == 64
        for number in range(MAX_HEADS + 5):
            silo.store._heads[f"invented-{number}"] = HEAD
        silo.work.adopted(head_of(), plan_of())
        assert len(silo.store.chain_heads()) == MAX_HEADS
        silo.work.start(task=task_of(), plan=plan_of(), head=head_of())
        silo.reports.wait()
        assert len(there(tmp_path / "silo")) == 63
        assert name_of("run-old-36") not in there(tmp_path / "silo")
        assert name_of("run-old-37") in there(tmp_path / "silo")
    finally:
        silo.work.close()
        silo.ledger.close()

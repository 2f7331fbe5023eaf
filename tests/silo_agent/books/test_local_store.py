"""What a silo remembers: durable, never older, damage stops it, reports stay readable."""

import hashlib
import json
import math
import os
from pathlib import Path

import pytest

from secagg.descriptor import AggregationId
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.books.peer_heads import PeerHead
from silo_agent.errors import LocalStoreError

HEAD = ChainHead(
    round=3, step=1, position=6, adapter_sha256=bytes([1]) * 32, record_sha256=bytes([2]) * 32
)


PEER = PeerHead(
    verification_key=bytes(32),
    seq=3,
    sha256=bytes([3]) * 32,
    identity=AggregationId(run_id="run-1", round=2, step=1, part=0, attempt=4),
)


def test_a_new_silo_remembers_nothing(tmp_path: Path):
    store = LocalStore(tmp_path)
    assert store.newest_roster_epoch() == 0
    assert store.newest_roster_sha256() is None
    assert store.chain_head("run-1") is None
    assert store.rounds() == store.evaluations() == []


def test_state_survives_a_restart(tmp_path: Path):
    store = LocalStore(tmp_path)
    store.set_newest_roster_epoch(4, bytes([9]) * 32)
    store.set_chain_head("run-1", HEAD)
    again = LocalStore(tmp_path)
    assert again.newest_roster_epoch() == 4
    assert again.newest_roster_sha256() == bytes([9]) * 32
    assert again.chain_head("run-1") == HEAD
    assert again.chain_heads() == {"run-1": HEAD}


def test_the_roster_epoch_never_goes_down(tmp_path: Path):
    store = LocalStore(tmp_path)
    store.set_newest_roster_epoch(4)
    store.set_newest_roster_epoch(4)
    with pytest.raises(LocalStoreError, match="older"):
        store.set_newest_roster_epoch(3)
    assert LocalStore(tmp_path).newest_roster_epoch() == 4


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"format": 1}',
        b'{"format": 2}',
        b'{"format": 1, "roster": {"epoch": 1, "sha256": "aa"}, "heads": {}}',
    ],
)
def test_damaged_state_stops_the_silo(tmp_path: Path, content: bytes):
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(LocalStoreError):
        LocalStore(tmp_path)


def test_a_crash_before_the_rename_keeps_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = LocalStore(tmp_path)
    store.set_newest_roster_epoch(1)

    def crash(_self: Path, _target: Path) -> None:
        raise OSError(5, "crash")

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(LocalStoreError, match="crash"):
        store.set_newest_roster_epoch(2)
    assert LocalStore(tmp_path).newest_roster_epoch() == 1


def keep(store: LocalStore, content: bytes) -> bytes:
    with store.incoming() as incoming:
        incoming.file.write(content)
        assert incoming.content() == content
        incoming.keep()
    return hashlib.sha256(content).digest()


def test_adapters_are_kept_by_the_digest_of_their_bytes(tmp_path: Path):
    store = LocalStore(tmp_path)
    digest = keep(store, b"adapter")
    found = LocalStore(tmp_path).adapter(digest)
    assert found == b"adapter"
    assert found.readonly
    assert store.adapter(bytes(32)) is None
    assert [path.name for path in (tmp_path / "adapters").iterdir()] == [digest.hex()]
    assert (tmp_path / "adapters" / digest.hex()).stat().st_mode & 0o777 == 0o600


def head_of(digest: bytes) -> ChainHead:
    return ChainHead(round=1, step=0, position=1, adapter_sha256=digest, record_sha256=bytes(32))


def test_an_adapter_that_is_no_head_any_more_is_deleted(tmp_path: Path):
    store = LocalStore(tmp_path)
    first, second, other = (keep(store, content) for content in (b"one", b"two", b"three"))
    store.set_chain_head("run-1", head_of(first))
    # What no head names goes with the next move of any head.
    assert store.adapter(second) is None
    assert store.adapter(other) is None
    keep(store, b"two")
    store.set_chain_head("run-2", head_of(second))
    assert store.adapter(first) == b"one"
    keep(store, b"three")
    with store.incoming() as incoming:
        incoming.file.write(b"on its way")
        store.set_chain_head("run-1", head_of(other))
        assert incoming.content() == b"on its way"
        incoming.keep()
    assert store.adapter(first) is None
    assert store.adapter(second) == b"two"
    assert store.adapter(other) == b"three"


def test_any_number_of_runs_keeps_a_bounded_number_of_adapters(tmp_path: Path):
    store = LocalStore(tmp_path)
    digests = []
    for number in range(20):
        digests.append(keep(store, b"adapter %d" % number))
        path = tmp_path / "adapters" / digests[-1].hex()
        os.utime(path, ns=(number, number))
        store.set_chain_head(f"run-{number}", head_of(digests[-1]))
    assert [digest for digest in digests if store.adapter(digest)] == digests[-8:]
    # The run at hand keeps its own, however old the file is.
    oldest = keep(store, b"adapter 0")
    os.utime(tmp_path / "adapters" / oldest.hex(), ns=(0, 0))
    store.set_chain_head("run-0", head_of(oldest))
    assert store.adapter(oldest) == b"adapter 0"
    assert len(store.chain_heads()) == 20


def test_a_damaged_adapter_counts_as_missing_and_can_be_stored_again(tmp_path: Path):
    store = LocalStore(tmp_path)
    digest = keep(store, b"adapter")
    for damaged in (b"adaptor", b""):
        (tmp_path / "adapters" / digest.hex()).write_bytes(damaged)
        assert store.adapter(digest) is None
    keep(store, b"adapter")
    assert store.adapter(digest) == b"adapter"


def test_what_was_fetched_and_not_kept_is_deleted_and_stays_readable(tmp_path: Path):
    store = LocalStore(tmp_path)
    with store.incoming() as incoming:
        incoming.file.write(b"a sum")
        content = incoming.content()
    assert list((tmp_path / "adapters").iterdir()) == []
    assert content == b"a sum"

    def interrupted() -> None:
        with store.incoming() as incoming:
            incoming.file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert list((tmp_path / "adapters").iterdir()) == []
    # A crash leaves the file behind; the next daemon discards it, another process does not.
    left_over = tmp_path / "adapters" / ".0123456789abcdef.partial"
    left_over.write_bytes(b"half")
    again = LocalStore(tmp_path)
    assert left_over.exists()
    again.discard_incoming()
    assert not left_over.exists()


def test_a_disk_that_refuses_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LocalStore(tmp_path)

    def refuse(_self: Path, _target: Path) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(LocalStoreError, match="full"):
        keep(store, b"adapter")
    assert list((tmp_path / "adapters").iterdir()) == []


def test_reports_are_appended_in_order(tmp_path: Path):
    store = LocalStore(tmp_path)
    store.append_round({"run": "run-1", "round": 1, "metrics": {"last_loss": 0.5}})
    store.append_round({"run": "run-1", "round": 2, "metrics": {"last_loss": math.nan}})
    store.append_evaluation(
        run_id="run-1",
        round_number=2,
        adapter_sha256="ab" * 32,
        rows=[{"label": "plank", "successes": 3}, {"label": "stick", "successes": 0}],
    )
    again = LocalStore(tmp_path)
    assert [entry["round"] for entry in again.rounds()] == [1, 2]
    assert again.rounds()[1]["metrics"] == {"last_loss": "nan"}
    assert again.evaluations() == [
        {
            "run": "run-1", "round": 2, "adapter_sha256": "ab" * 32, "personal": False,
            "label": label, "successes": n,
        }
        for label, n in (("plank", 3), ("stick", 0))
    ]  # fmt: skip


def test_rows_say_whose_adapter_they_are_of_and_older_ones_are_of_the_global_one(tmp_path: Path):
    (tmp_path / "evaluation.jsonl").write_text('{"run":"run-1","round":1,"label":"plank"}\n')
    store = LocalStore(tmp_path)
    store.append_evaluation(
        run_id="run-1", round_number=2, adapter_sha256="ab" * 32, rows=[{}], personal=True
    )
    assert [(row["round"], row["personal"]) for row in store.evaluations()] == [
        (1, False),
        (2, True),
    ]


@pytest.mark.parametrize("line", ["7", "[]", "null"])
def test_a_line_that_is_no_row_is_damage(tmp_path: Path, line: str):
    (tmp_path / "evaluation.jsonl").write_text(line + "\n")
    with pytest.raises(LocalStoreError, match="line 1"):
        LocalStore(tmp_path).evaluations()


@pytest.mark.parametrize("torn", [b'{"round"', b"x" * 10_000])
def test_a_torn_last_line_is_dropped_and_the_next_one_is_whole(tmp_path: Path, torn: bytes):
    store = LocalStore(tmp_path)
    store.append_round({"round": 1})
    with (tmp_path / "rounds.jsonl").open("ab") as file:
        file.write(torn)
    assert store.rounds() == [{"round": 1}]
    store.append_round({"round": 2})
    assert store.rounds() == [{"round": 1}, {"round": 2}]


def test_damage_inside_a_report_is_named(tmp_path: Path):
    (tmp_path / "rounds.jsonl").write_text(json.dumps({"round": 1}) + "\nnonsense\n")
    with pytest.raises(LocalStoreError, match="line 2"):
        LocalStore(tmp_path).rounds()


# Ledger heads ------------------------------------------------------------------------------------


def test_the_own_ledgers_head_never_goes_down(tmp_path):
    """Two threads report it, and the later word may be of the earlier record."""
    store = LocalStore(tmp_path)
    store.set_ledger_head(5, bytes([5]) * 32)
    store.set_ledger_head(4, bytes([4]) * 32)
    assert LocalStore(tmp_path).ledger_head() == (5, bytes([5]) * 32)


def test_peer_heads_survive_a_restart_and_a_failed_write_is_not_believed(tmp_path, monkeypatch):
    store = LocalStore(tmp_path)
    first = {"silo-b": PEER}
    store.set_peer_heads(first)
    assert LocalStore(tmp_path).peer_heads() == first

    def full(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("silo_agent.books.local_store.replace_file", full)
        with pytest.raises(LocalStoreError):
            store.set_peer_heads({})
    assert store.peer_heads() == first
    store.set_peer_heads({})
    assert LocalStore(tmp_path).peer_heads() == {}


@pytest.mark.parametrize(
    "damage", ['"peers": {}', '"verification_key": ""', '"round": -1', '"seq": "x"']
)
def test_damaged_peer_heads_stop_the_silo(tmp_path, damage):
    """Guessing what a peer had signed would let it go back in time."""
    store = LocalStore(tmp_path)
    store.set_peer_heads({"silo-b": PEER})
    file = tmp_path / "state.json"
    state = json.loads(file.read_text())
    match damage:
        case '"peers": {}':
            del state["peers"]
        case '"verification_key": ""':
            state["peers"]["silo-b"]["verification_key"] = ""
        case '"round": -1':
            state["peers"]["silo-b"]["identity"]["round"] = -1
        case _:
            state["peers"]["silo-b"]["seq"] = "x"
    file.write_text(json.dumps(state))
    with pytest.raises(LocalStoreError, match="damaged"):
        LocalStore(tmp_path)


def test_a_state_of_another_version_says_so(tmp_path):
    LocalStore(tmp_path).set_newest_roster_epoch(1)
    file = tmp_path / "state.json"
    file.write_text(file.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(LocalStoreError, match="another version"):
        LocalStore(tmp_path)

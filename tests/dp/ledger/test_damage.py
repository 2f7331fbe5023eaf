"""Damage to the ledger: torn tails are repaired and reported, everything else is refused."""

from __future__ import annotations

import copy
import itertools
import json
import os
import struct
import zlib

import pytest

from dp.errors import LedgerCorruptError, LedgerFormatError, LedgerRolledBackError, Reason
from dp.ledger import journal as journal_module
from dp.ledger.journal import HEADER_BYTES, Journal
from tests.kit.dp.ledgers import charge, entry, frames, none_entry, opened, small_ledger, trained


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_failed_write_closes_the_ledger_for_good(path, monkeypatch, failing):
    with opened(path) as ledger:
        ledger.reserve(none_entry(0))

        def fail(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, failing, fail)
            with pytest.raises(LedgerCorruptError, match="No space"):
                ledger.reserve(none_entry(1))
        with pytest.raises(LedgerCorruptError, match="open it again"):
            ledger.reserve(none_entry(2))
    with opened(path) as ledger:
        # Bytes that reached the file count as spent: a debit without a release is safe.
        assert ledger.has_spent(none_entry(1).identity) == (failing == "fsync")
        ledger.reserve(none_entry(2))


def test_short_writes_are_continued(path, monkeypatch):
    real = os.write
    monkeypatch.setattr(journal_module.os, "write", lambda fd, data: real(fd, data[:7]))
    data, head = small_ledger(path)
    monkeypatch.undo()
    with opened(path) as ledger:
        assert ledger.head() == head
    assert path.read_bytes() == data


def test_every_bit_flip_is_refused(path):
    data, _ = small_ledger(path)
    headers = {start + i for start in frames(data)[:-1] for i in range(HEADER_BYTES)}
    for index in range(len(data)):
        bits = range(8) if index in headers else [index % 8]
        for bit in bits:
            damaged = bytearray(data)
            damaged[index] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(LedgerCorruptError) as caught:
                opened(path)
            assert caught.value.reason is Reason.LEDGER_CORRUPT
    path.write_bytes(data)
    opened(path).close()


def test_every_truncation_is_repaired_reported_and_caught_by_a_peer(path):
    data, head = small_ledger(path)
    boundaries = frames(data)
    near = {
        boundary + offset
        for boundary in boundaries
        for offset in range(-HEADER_BYTES - 2, HEADER_BYTES + 3)
    }
    lengths = sorted((near | set(range(0, len(data), 61))) & set(range(len(data))))
    assert len(lengths) > 100
    for length in lengths:
        path.write_bytes(data[:length])
        with opened(path) as ledger:
            assert ledger.torn_tail_repaired == (length not in boundaries)
            complete = sum(end <= length for end in boundaries[1:])
            assert ledger.head()[0] == max(complete, 1) - 1
            assert ledger.has_spent(none_entry(1).identity) == (complete >= 3)
            assert ledger.has_agreed("run", 1, 0, 0) == (complete >= 4)
            with pytest.raises(LedgerRolledBackError):
                ledger.require_contains(*head)
        if complete:
            assert path.read_bytes() == data[: boundaries[complete]]


def test_repaired_ledger_goes_on(path):
    data, _ = small_ledger(path)
    path.write_bytes(data[:-1])
    with opened(path) as ledger:
        assert ledger.torn_tail_repaired
        ledger.reserve(none_entry(2))
        head = ledger.head()
    with opened(path) as ledger:
        assert not ledger.torn_tail_repaired
        assert ledger.head() == head


def test_data_behind_a_torn_record_are_refused(path):
    data, _ = small_ledger(path)
    boundaries = frames(data)
    start, end, last = boundaries[1], boundaries[2], boundaries[3]
    for cut in range(start + 1, end, 3):
        path.write_bytes(data[:cut] + data[end:last])
        with pytest.raises(LedgerCorruptError):
            opened(path)
        path.write_bytes(data[:cut] + data[last:])
        with pytest.raises(LedgerCorruptError):
            opened(path)


def rewrite(records):
    """A file whose frames and chain are right, whatever the records say."""
    out, previous = b"", bytes(32)
    for seq, record in enumerate(records):
        full = {**record, "seq": seq, "prev_sha256": previous.hex()}
        payload = journal_module._canonical(full)
        head = struct.pack(">II", len(payload), zlib.crc32(payload))
        out += head + struct.pack(">I", zlib.crc32(head)) + payload
        previous = journal_module.hashlib.sha256(payload).digest()
    return out


def test_removed_swapped_and_impossible_records_are_refused(path):
    data, _ = small_ledger(path)
    boundaries = frames(data)
    parts = [data[a:b] for a, b in itertools.pairwise(boundaries)]
    for order in ((0, 2, 3), (0, 2, 1, 3), (1, 2, 3), (0, 1, 1), (0, 1, 3)):
        path.write_bytes(b"".join(parts[i] for i in order))
        with pytest.raises(LedgerCorruptError):
            opened(path)

    records = [json.loads(part[HEADER_BYTES:]) for part in parts]
    path.write_bytes(rewrite(records))
    opened(path).close()
    genesis, spent = records[0], records[1]
    for bad in (
        [spent],
        [genesis, genesis],
        [{**genesis, "format": True}],
        [{**genesis, "id": "00"}],
        [{**genesis, "id": 7}],
        [{**genesis, "note": 1}],
        [{**genesis, "opening": 7}],
        [{key: genesis[key] for key in genesis if key != "opening"}],
        [{**genesis, "format": 2}],
        [genesis, spent, spent],
        [genesis, {**spent, "kind": "refund"}],
        [genesis, {**spent, "kind": None}],
        [genesis, {**spent, "kind": ["spent"]}],
        [genesis, records[3]],
    ):
        path.write_bytes(rewrite(bad))
        with pytest.raises(LedgerCorruptError):
            opened(path)
    path.write_bytes(rewrite([{**genesis, "format": 4}, spent]))
    with pytest.raises(LedgerFormatError):
        opened(path)


def changed(record, path, value):
    """A deep copy with one field replaced or taken out."""
    out = copy.deepcopy(record)
    *way, last = path
    holder = out
    for key in way:
        holder = holder[key]
    if value is REMOVED:
        del holder[last]
    else:
        holder[last] = value
    return out


REMOVED = object()
"""Marks a field that is taken out."""
NUMBERS = (-1, 1 << 32, True, 1.0, "1", None, REMOVED)
TEXTS = ("", 7, None, ["x"], REMOVED)
DIGESTS = ("zz" * 32, "00", "AA" * 32, " " + "00" * 32, 0, None, REMOVED)
FIGURES = {
    "block": ("metrics ", "joint", 1, None),
    "unit": ("row", "silo ", 1, None, REMOVED),
    "q": (0.0, 1.5, -0.5, 1, True, "1", None, REMOVED, 0.04),
    "z": (0.0, -1.0, 1, 1e-170, True, None, REMOVED, 1.5),
    "steps": (0, -1, 1 << 60, True, 20.0, None, REMOVED, 19),
    "delta": (-1e-9, 1.0, 0, True, None, REMOVED),
    "rdp": (None, "none", {}, [], [0.0], REMOVED),
}


def test_every_field_of_every_record_is_verified(path):
    """Frames, chain and canonical form are right; one field is not what is ever written."""
    with opened(path) as ledger:
        ledger.mark_joined(entry(1).identity, bytes(32))
        trained(ledger, 1)
        ledger.reserve(entry(1, charges=(charge(z=3.0),)))
        ledger.mark_agreed(entry(1).identity)
    data = path.read_bytes()
    records = [json.loads(data[a + HEADER_BYTES : b]) for a, b in itertools.pairwise(frames(data))]
    wrong = {
        "joined": {"descriptor_sha256": DIGESTS},
        "trained": {"adapter_sha256": DIGESTS, "spec_sha256": DIGESTS},
        "spent": {"descriptor_sha256": DIGESTS, "d": (0, -5, 1.0, True, "1", None, REMOVED)},
        "signed_r3": {},
    }
    identity = dict.fromkeys(("round", "step", "part", "attempt"), NUMBERS)
    checked = 0
    for index, record in enumerate(records[1:], 1):
        kind = record["kind"]
        fields = {"run": (*TEXTS, "x" * 257), **identity, **wrong[kind], "note": (1,)}
        if kind == "trained":
            fields = {
                name: values
                for name, values in fields.items()
                if name not in ("step", "part", "attempt")
            }
        if kind in ("trained", "spent"):
            fields |= {"mode": ("laplace", "none", "record_distributed", 1, None, REMOVED)}
            fields |= {"charges": (None, {}, (), [None], [[]], REMOVED)}
        cases = [((name,), value) for name, values in fields.items() for value in values]
        if kind in ("trained", "spent"):
            cases += [
                (("charges", 0, name), value)
                for name, values in FIGURES.items()
                for value in values
            ]
            figure = record["charges"][0]["rdp"][7]
            cases += [(("charges", 0, "note"), 1)]
            cases += [
                (("charges", 0, "rdp", 7), value)
                for value in (0.0, -figure, 1, None, figure * (1 + 3e-12), figure * (1 - 3e-12))
            ]
        for way, value in cases:
            bad = [*records[:index], changed(record, way, value), *records[index + 1 :]]
            path.write_bytes(rewrite(bad))
            with pytest.raises(LedgerCorruptError):
                opened(path)
            checked += 1
    assert checked > 150
    # A delta without its training is not what was charged.
    bare = {**records[3], "mode": "record_local"}
    bare["charges"] = [{**bare["charges"][0], "unit": "task"}]
    path.write_bytes(rewrite([*records[:3], bare]))
    opened(path).close()
    path.write_bytes(rewrite([records[0], records[1], bare]))
    with pytest.raises(LedgerCorruptError):
        opened(path)
    # The rewriting itself is not what is refused, and neither is a logarithm's last digit.
    figure = records[3]["charges"][0]["rdp"][7]
    records[3]["charges"][0]["rdp"][7] = figure * (1 + 1e-13)
    path.write_bytes(rewrite(records))
    opened(path).close()


def test_a_number_of_the_chain_is_no_truth_value(path):
    data, _ = small_ledger(path)
    start, end = frames(data)[1:3]
    payload = data[start + HEADER_BYTES : end].replace(b'"seq":1', b'"seq":true')
    head = struct.pack(">II", len(payload), zlib.crc32(payload))
    path.write_bytes(data[:start] + head + struct.pack(">I", zlib.crc32(head)) + payload)
    with pytest.raises(LedgerCorruptError, match="chain breaks"):
        opened(path)


@pytest.mark.parametrize(
    "payload",
    [b"[]", b"{", b'{"seq": 0}', b"\xff", b"1", b"NaN", b'{"a":NaN}', b"[" * 99_999],
)
def test_well_framed_nonsense_is_refused(path, payload):
    head = struct.pack(">II", len(payload), zlib.crc32(payload))
    path.write_bytes(head + struct.pack(">I", zlib.crc32(head)) + payload)
    with pytest.raises(LedgerCorruptError):
        opened(path)


def test_rollback_and_fork_are_caught_by_heads(path, tmp_path):
    with opened(path) as ledger:
        ledger.reserve(none_entry(0))
        old_bytes, old_head = path.read_bytes(), ledger.head()
        ledger.reserve(none_entry(1))
        new_head = ledger.head()
        for head in (old_head, new_head):
            ledger.require_contains(*head)
    path.write_bytes(old_bytes)
    with opened(path) as ledger:
        ledger.require_contains(*old_head)
        with pytest.raises(LedgerRolledBackError) as caught:
            ledger.require_contains(*new_head)
        assert caught.value.reason is Reason.LEDGER_ROLLED_BACK
        ledger.reserve(none_entry(2))
        with pytest.raises(LedgerRolledBackError):
            ledger.require_contains(*new_head)
        with pytest.raises(LedgerRolledBackError):
            ledger.require_contains(-1, new_head[1])
    with opened(tmp_path / "fresh") as ledger, pytest.raises(LedgerRolledBackError):
        ledger.require_contains(0, bytes(32))


def test_replaced_removed_or_touched_file_is_noticed(path, tmp_path):
    with opened(path) as ledger:
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(LedgerCorruptError, match="removed"):
            ledger.reserve(none_entry(0))
        path.write_bytes(b"")
        with pytest.raises(LedgerCorruptError, match="replaced"):
            ledger.reserve(none_entry(0))
    path.unlink()
    with opened(path) as ledger:
        with path.open("ab") as stranger:
            stranger.write(b"x")
        with pytest.raises(LedgerCorruptError, match="somebody else"):
            ledger.reserve(none_entry(0))


def test_oversized_record_is_refused(path):
    journal = Journal(path)
    journal.load()
    with pytest.raises(LedgerCorruptError, match="too large"):
        journal.append({"kind": "x" * (1 << 20)})
    journal.close()

"""The spooled upload: durable, identical on every read, once per identity, damage found."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from secagg.descriptor import AggregationId
from silo_agent.errors import SpoolError
from silo_agent.spool import Spool

IDENTITY = AggregationId(run_id="run/1", round=3, step=0, part=0, attempt=1)
VECTOR = (np.arange(700_000, dtype=np.uint64) * 2_654_435_761 % 2**32).astype(np.uint32)
CONTENT = VECTOR.astype("<u4").tobytes()


def test_a_spool_survives_and_gives_back_the_same_bytes(tmp_path: Path):
    written = Spool.write(tmp_path / "spool", IDENTITY, VECTOR)
    found = Spool.open(tmp_path / "spool", IDENTITY)
    for spool in (written, found):
        assert spool.length_bytes == len(CONTENT)
        assert spool.sha256 == hashlib.sha256(CONTENT).digest()
        chunks = list(spool.chunks())
        assert [len(chunk) for chunk in chunks] == [1 << 20, 1 << 20, len(CONTENT) - (2 << 20)]
        assert b"".join(chunks) == CONTENT


@pytest.mark.parametrize("offset", [0, 1, (1 << 20) - 1, 1 << 20, len(CONTENT) - 1, len(CONTENT)])
def test_reading_resumes_at_any_offset(tmp_path: Path, offset: int):
    spool = Spool.write(tmp_path, IDENTITY, VECTOR)
    assert b"".join(spool.chunks(offset, 1000)) == CONTENT[offset:]


@pytest.mark.parametrize("offset", [-1, len(CONTENT) + 1])
def test_an_offset_outside_is_refused(tmp_path: Path, offset: int):
    with pytest.raises(SpoolError, match="outside"):
        Spool.write(tmp_path, IDENTITY, VECTOR).chunks(offset)


def test_one_identity_is_written_once(tmp_path: Path):
    Spool.write(tmp_path, IDENTITY, VECTOR)
    with pytest.raises(SpoolError, match="already"):
        Spool.write(tmp_path, IDENTITY, VECTOR[::-1].copy())
    assert b"".join(Spool.open(tmp_path, IDENTITY).chunks()) == CONTENT


def test_other_attempts_parts_and_runs_have_spools_of_their_own(tmp_path: Path):
    others = [
        replace(IDENTITY, attempt=2),
        replace(IDENTITY, part=1),
        replace(IDENTITY, step=1),
        replace(IDENTITY, run_id="run/2", round=9),
    ]
    Spool.write(tmp_path, IDENTITY, VECTOR[:10])
    for number, identity in enumerate(others, start=11):
        Spool.write(tmp_path, identity, VECTOR[:number])
    lengths = [Spool.open(tmp_path, identity).length_bytes for identity in (IDENTITY, *others)]
    assert lengths == [4 * n for n in (10, 11, 12, 13, 14)]


def test_a_later_round_deletes_what_a_crash_left_behind(tmp_path: Path):
    Spool.write(tmp_path, IDENTITY, VECTOR[:10])
    Spool.write(tmp_path, replace(IDENTITY, run_id="other"), VECTOR[:10])
    Spool.write(tmp_path, replace(IDENTITY, round=4), VECTOR[:10])
    with pytest.raises(SpoolError, match="cannot read"):
        Spool.open(tmp_path, IDENTITY)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("where", [0, 30, -1, -400_000])
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, where: int):
    path = Spool.write(tmp_path, IDENTITY, VECTOR).path
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(SpoolError):
        Spool.open(tmp_path, IDENTITY)


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c + b"\0", lambda c: b""])
def test_a_cut_or_longer_file_is_found(tmp_path: Path, change):
    path = Spool.write(tmp_path, IDENTITY, VECTOR).path
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SpoolError):
        Spool.open(tmp_path, IDENTITY)


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_short_upload(tmp_path: Path):
    spool = Spool.write(tmp_path, IDENTITY, VECTOR)
    chunks = spool.chunks()
    next(chunks)
    with spool.path.open("r+b") as file:
        file.truncate(1 << 20)
    with pytest.raises(SpoolError, match="shorter"):
        list(chunks)


def test_a_spool_moved_under_another_identity_is_refused(tmp_path: Path):
    spool = Spool.write(tmp_path, IDENTITY, VECTOR[:10])
    other = replace(IDENTITY, attempt=2)
    spool.path.rename(spool.path.with_name(spool.path.name.replace(".1.spool", ".2.spool")))
    with pytest.raises(SpoolError, match="another aggregation"):
        Spool.open(tmp_path, other)


@pytest.mark.parametrize(
    "vector", [np.zeros(3, np.int32), np.zeros((2, 2), np.uint32), np.zeros(0, np.uint32)]
)
def test_only_flat_ring_elements_are_spooled(tmp_path: Path, vector: np.ndarray):
    with pytest.raises(SpoolError, match="uint32"):
        Spool.write(tmp_path, IDENTITY, vector)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(_descriptor: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(SpoolError, match="no space left"):
        Spool.write(tmp_path, IDENTITY, VECTOR)
    assert not list(tmp_path.iterdir())


def test_the_file_and_its_directory_are_flushed_before_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import os

    flushed = []
    real = os.fsync

    def record(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().is_dir())
        real(descriptor)

    monkeypatch.setattr("os.fsync", record)
    Spool.write(tmp_path, IDENTITY, VECTOR)
    assert flushed == [False, True]


def test_only_the_owner_can_read_it(tmp_path: Path):
    assert Spool.write(tmp_path, IDENTITY, VECTOR[:4]).path.stat().st_mode & 0o777 == 0o600


def test_deleting_twice_is_allowed(tmp_path: Path):
    spool = Spool.write(tmp_path, IDENTITY, VECTOR[:4])
    spool.delete()
    spool.delete()
    assert not list(tmp_path.iterdir())

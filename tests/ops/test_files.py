"""Durable files: the old one or the new one, with the mode that was asked for."""

import os

import pytest

from ops.files import is_partial, replace_file


def test_modes_hold_against_the_umask(tmp_path):
    before = os.umask(0)
    try:
        replace_file(tmp_path / "secret", (b"x",))
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, (b"old",))
    monkeypatch.setattr("ops.files.os.fsync", _fail)
    with pytest.raises(OSError, match="disk full"):
        replace_file(path, (b"new",))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_of_two_writers_each_writes_a_whole_file(tmp_path):
    path = tmp_path / "file"
    seen = []

    def slowly():
        yield b"one "
        replace_file(path, (b"other",))
        seen.append(path.read_bytes())
        assert len([entry for entry in tmp_path.iterdir() if is_partial(entry)]) == 1
        yield b"writer"

    replace_file(path, slowly())
    assert [*seen, path.read_bytes()] == [b"other", b"one writer"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def _fail(_descriptor):
    raise OSError("disk full")

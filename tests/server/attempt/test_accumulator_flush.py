"""The coordinator's sum is on the disk before the store says so."""

import hashlib
import os

import numpy as np

from server.attempt.accumulator import Accumulator


def test_a_generation_is_flushed_before_it_is_committed(tmp_path, monkeypatch):
    accumulator = Accumulator(tmp_path / "sum", length=5)
    flushed, committed = [], []
    fsync = os.fsync

    def noted(descriptor):
        fsync(descriptor)
        flushed.append((os.fstat(descriptor).st_ino, os.pread(descriptor, 20, 0)))

    monkeypatch.setattr(os, "fsync", noted)

    def commit(generation):
        # What is read back after the flush is the sum that is being committed: 1 + … + generation.
        inode = accumulator._path(generation).stat().st_ino
        expected = np.full(5, generation * (generation + 1) // 2, dtype="<u4").tobytes()
        assert (inode, expected) in flushed
        committed.append(generation)

    for number in (1, 2, 3):
        content = np.full(5, number, dtype="<u4").tobytes()
        upload = accumulator.open_upload(
            f"silo-{number}", length_bytes=20, sha256=hashlib.sha256(content).digest()
        )
        upload.append(0, content)
        flushed.clear()
        accumulator.fold(upload, commit)
    assert committed == [1, 2, 3]
    accumulator.close()

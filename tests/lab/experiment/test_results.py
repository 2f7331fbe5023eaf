import errno
import json
import os

import pytest

from lab.experiment.config import load_experiment
from lab.experiment.errors import (
    ChangedExperimentError,
    DirectoryInUseError,
    ExperimentError,
)
from lab.experiment.results import Results
from lab.experiment.rows import run_row
from tests.kit.lab.experiment_samples import HEAD, SILOS, setting, write


def runs_of(tmp_path, text=None):
    path = write(tmp_path, text or HEAD + SILOS + setting("one", "fedse"))
    return load_experiment(path).runs(base_dir=tmp_path, base_sha256="0" * 64)


def rows_of(run):
    first = {"kind": "round", "setting": run.setting, "seed": run.seed, "round": 1}
    last = run_row(run, wall_s=1.0, episodes=4, adapter_sha256="a", versions={}, panels={})
    return [first, last]


def lines(directory):
    return (directory / "results.jsonl").read_bytes().splitlines()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_a_finished_run_is_known_when_the_directory_is_opened_again(tmp_path, out):
    (run,) = runs_of(tmp_path)
    with Results(out) as results:
        assert not results.done
        results.append(rows_of(run))
    with Results(out) as results:
        assert results.done == {("one", 0)}
        results.require_same([run])
        with pytest.raises(ExperimentError, match="one new run"):
            results.append(rows_of(run))
    assert len(lines(out)) == 2


def test_a_disk_that_refuses_leaves_no_half_line_for_the_next_run(tmp_path, out, monkeypatch):
    (run,) = runs_of(tmp_path)
    rows, real = rows_of(run), os.write

    def full(descriptor, content):
        if len(content) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, bytes(content)[: len(content) // 2])

    with Results(out) as results:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            results.append(rows)
        monkeypatch.undo()
        assert not results.done
        results.append(rows)
    with Results(out) as results:
        assert results.done == {("one", 0)}


def test_what_a_crash_left_is_removed_and_finished_runs_stay_as_they_are(tmp_path, out):
    (run,) = runs_of(tmp_path)
    with Results(out) as results:
        results.append(rows_of(run))
    whole = (out / "results.jsonl").read_bytes()
    cut = json.dumps({"kind": "round", "setting": "two", "seed": 0, "round": 1}).encode()
    for tail in (cut + b"\n", cut + b"\n" + cut[:9], cut[:9]):
        (out / "results.jsonl").write_bytes(whole + tail)
        with Results(out) as results:
            assert results.done == {("one", 0)}
        assert (out / "results.jsonl").read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_an_error_and_nothing_is_touched(tmp_path, out):
    (run,) = runs_of(tmp_path)
    with Results(out) as results:
        results.append(rows_of(run))
    damaged = b"not json\n" + (out / "results.jsonl").read_bytes()
    (out / "results.jsonl").write_bytes(damaged)
    with pytest.raises(ExperimentError, match="no result"), Results(out):
        pass
    assert (out / "results.jsonl").read_bytes() == damaged


def test_finished_runs_with_other_values_are_refused_naming_the_keys(tmp_path, out):
    (run,) = runs_of(tmp_path)
    with Results(out) as results:
        results.append(rows_of(run))
    text = HEAD.replace("episodes = 8", "episodes = 12") + SILOS + setting("one", "fedse")
    (changed,) = runs_of(tmp_path, text)
    with Results(out) as results:
        with pytest.raises(ChangedExperimentError, match=r"one, seed 0: evolve.episodes\)"):
            results.require_same([changed])
        aside = results.set_aside()
        results.require_same([changed])
        assert not results.done
    assert aside is not None
    assert aside.name == "results.1.jsonl"
    assert not (out / "results.jsonl").exists()


def test_a_changed_silo_is_named(tmp_path, out):
    (run,) = runs_of(tmp_path)
    with Results(out) as results:
        results.append(rows_of(run))
        few = SILOS.replace("demonstrations = 3", "demonstrations = 4")
        (changed,) = runs_of(tmp_path, HEAD + few + setting("one", "fedse"))
        with pytest.raises(ChangedExperimentError, match=r"seed 0: silo\)"):
            results.require_same([changed])


def test_settings_and_seeds_may_be_added(tmp_path, out):
    (run,) = runs_of(tmp_path)
    with Results(out) as results:
        results.append(rows_of(run))
    text = HEAD.replace("seeds = [0]", "seeds = [0, 1]") + SILOS + setting("one", "fedse")
    more = runs_of(tmp_path, text + setting("two", "fedit"))
    with Results(out) as results:
        results.require_same(more)
        assert results.done == {("one", 0)}


def test_one_process_writes_at_a_time(out):
    with Results(out), pytest.raises(DirectoryInUseError, match="another process"), Results(out):
        pass
    with Results(out):
        pass


def test_rows_of_several_runs_or_of_none_are_refused(tmp_path, out):
    (run,) = runs_of(tmp_path)
    first, last = rows_of(run)
    with Results(out) as results:
        for rows in ([], [first], [{**first, "seed": 9}, last]):
            with pytest.raises(ExperimentError):
                results.append(rows)
    assert not (out / "results.jsonl").exists()

"""Finished work on disk: read back bit for bit, or deleted; never anything else."""

import hashlib
import json
import os
import stat
import time
from dataclasses import replace

import numpy as np
import pytest

from dp.ledger.ledger import Ledger
from federation.adapter.layout import Layout
from silo_agent.books.local_store import ChainHead, LocalStore
from silo_agent.errors import LocalStoreError
from silo_agent.local_work.result import MAX_RUNS, Result
from silo_agent.local_work.result_file import ResultFiles, delete_results
from tests.kit.server import world_plan as sw
from tests.kit.silo_agent.record_plans import local_plan, stepped_plan
from tests.kit.silo_agent.working_silo import CAPS, plan_of, task_of

LAYOUT = Layout.from_tensors(sw.initial_tensors())
LOCAL, PLAIN = local_plan(), plan_of()
DELTA = np.random.default_rng(7).standard_normal(LAYOUT.dimension).astype(np.float32)
DELTA[:3] = np.nan, -0.0, 1e-42


class Silo:
    def __init__(self, directory):
        self.directory = directory
        self.store = LocalStore(directory)
        self.ledger = Ledger.open(directory / "ledger", delta=1e-5, caps=CAPS)
        self.open()

    def open(self):
        self.files = ResultFiles(self.directory, self.store)

    def train(self, task):
        self.ledger.reserve_training(
            run=task.run_id, round=task.round, spec=LOCAL.spec, adapter_sha256=task.adapter_sha256
        )
        return self.ledger.head()

    def keep(self, task=None, plan=PLAIN, *, charged=None, delta=DELTA):
        task = task or task_of()
        result = Result(
            run_id=task.run_id,
            round=task.round,
            plan=plan,
            layout=LAYOUT,
            delta=delta,
            episodes={"craft": 8},
            successes={"craft": 3},
        )
        self.files.keep(result, task, charged)
        return self.paths()[-1]

    def find(self, task=None, plan=PLAIN, layout=LAYOUT):
        return self.files.find(task or task_of(), plan, layout, self.ledger)

    def paths(self):
        found = (self.directory / "results").glob("*")
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def silo(tmp_path):
    made = Silo(tmp_path)
    yield made
    made.ledger.close()


def head(round_number, step=0):
    return ChainHead(
        round=round_number, step=step, position=1, adapter_sha256=bytes(32), record_sha256=bytes(32)
    )


def test_what_is_read_back_is_what_was_trained_to_the_last_bit(silo):
    path = silo.keep()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    silo.open()
    # A task that is given out again has another deadline.
    found = silo.find(replace(task_of(), ready_deadline_unix_s=99))
    assert found.delta.tobytes() == DELTA.tobytes()
    assert found.delta.dtype == np.float32
    assert (found.episodes, found.successes) == ({"craft": 8}, {"craft": 3})
    # It may be asked for again, and the vector is one that can be used up.
    found.delta[:] = 0
    assert silo.find().delta.tobytes() == DELTA.tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 2},
        {"plan_sha256": bytes([1]) * 32},
        {"base_model_sha256": bytes([1]) * 32},
        {"adapter_sha256": bytes([1]) * 32},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_of_another_task_it_is_deleted_with_a_line(silo, capsys, changes):
    silo.keep()
    assert silo.find(replace(task_of(), **changes)) is None
    assert silo.paths() == []
    assert "it is of another task" in capsys.readouterr().out


def test_another_runs_is_left_alone(silo):
    silo.keep()
    assert silo.find(replace(task_of(), run_id="run-2")) is None
    assert silo.find() is not None


def rewritten(path, change):
    """The file with another first line, whose checksum is right."""
    line, _, vector = path.read_bytes().partition(b"\n")
    said = json.loads(line.partition(b" ")[2])
    change(said)
    text = json.dumps(said).encode()
    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n" + vector)


HOSTILE = {
    "a field more": lambda said: said.update(more=1),
    "a field less": lambda said: said.pop("delta"),
    "another format": lambda said: said.update(format=2),
    "a negative round": lambda said: said.update(round=-1),
    "a round that is true": lambda said: said.update(round=True),
    "an endless count": lambda said: said.update(episodes={"craft": 1 << 60}),
    "a fraction": lambda said: said.update(episodes={"craft": 0.5}),
    "a long family": lambda said: said.update(episodes={"x" * 1000: 1}),
    "many families": lambda said: said.update(successes={str(k): 1 for k in range(300)}),
    "no digest": lambda said: said.update(delta="zz"),
    "a charge that is none": lambda said: said.update(reservation=[1]),
    "a charge of a mode without": lambda said: said.update(reservation=[0, "0" * 64]),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_line_of_another_form_is_deleted(silo, change):
    rewritten(silo.keep(), change)
    assert silo.find() is None
    assert silo.paths() == []


def spoil(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "no line": lambda path: path.write_bytes(b"x" * (1 << 20)),
    "a bit of the line": lambda path: spoil(path, 100),
    "a bit of the vector": lambda path: spoil(path, -1),
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "a byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_deleted_and_never_half_read(silo, damage):
    damage(silo.keep())
    assert silo.find() is None
    assert silo.paths() == []


def test_a_link_is_not_followed_and_a_pipe_does_not_hold_up_the_silo(silo, tmp_path):
    path = silo.keep()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert silo.find() is None
    assert (tmp_path / "elsewhere").exists()
    os.mkfifo(path)
    assert silo.find() is None
    assert silo.paths() == []


def test_another_length_than_the_plans_vector_is_not_read(silo):
    tensors = dict(sw.initial_tensors())
    tensors.pop(min(tensors))
    silo.keep()
    assert silo.find(layout=Layout.from_tensors(tensors)) is None
    assert silo.paths() == []


# Under record_local -------------------------------------------------------------------------------


def test_a_delta_is_released_under_the_charge_it_was_trained_with(silo):
    silo.keep(plan=LOCAL, charged=silo.train(task_of()))
    silo.open()
    assert silo.find(plan=LOCAL).delta.tobytes() == DELTA.tobytes()


def test_without_its_charge_in_this_ledger_it_is_deleted(silo, tmp_path, capsys):
    """A ledger that was put back to an older copy, and has grown again since."""
    silo.keep(plan=LOCAL, charged=silo.train(task_of()))
    (tmp_path / "older").mkdir()
    with Ledger.open(tmp_path / "older" / "ledger", delta=1e-5, caps=CAPS) as other:
        other.reserve_training(
            run="run-1", round=1, spec=LOCAL.spec, adapter_sha256=task_of().adapter_sha256
        )
        assert silo.files.find(task_of(), LOCAL, LAYOUT, other) is None
    assert silo.paths() == []
    assert "the ledger does not hold its charge" in capsys.readouterr().out


def test_after_a_training_of_another_round_it_is_deleted(silo):
    silo.keep(plan=LOCAL, charged=silo.train(task_of()))
    silo.train(task_of(2))
    assert silo.find(plan=LOCAL) is None


def test_a_delta_without_a_charge_is_not_released_under_record_local(silo):
    silo.keep(plan=LOCAL)
    assert silo.find(plan=LOCAL) is None


def test_under_record_distributed_only_that_it_was_explored_is_kept(silo):
    path = silo.keep(plan=stepped_plan(), delta=np.zeros(0, np.float32))
    assert path.read_bytes().endswith(b"\n")
    assert silo.find(plan=stepped_plan()).delta.size == 0
    # With a vector behind it, it is not one of ours.
    path.write_bytes(path.read_bytes() + bytes(4 * LAYOUT.dimension))
    assert silo.find(plan=stepped_plan()) is None


# How long it stays --------------------------------------------------------------------------------


def test_a_later_round_takes_the_place_of_the_one_before(silo):
    first = silo.keep()
    assert silo.keep(task_of(2)) == first
    assert silo.find(task_of(2)) is not None


def test_it_goes_when_its_round_is_closed_or_its_run_is_over(silo):
    silo.keep(task_of(2))
    silo.files.end_round("run-1", 1)
    assert len(silo.paths()) == 1
    silo.files.end_round("run-1", 2)
    assert silo.paths() == []
    silo.keep(task_of(2))
    silo.files.end_runs({"run-7"})
    assert len(silo.paths()) == 1
    silo.files.end_runs({"run-1", "run-7"})
    assert silo.paths() == []


def test_a_round_that_closed_while_it_was_written_leaves_nothing(silo):
    silo.store.set_chain_head("run-1", head(1))
    result = Result(run_id="run-1", round=1, plan=PLAIN, layout=LAYOUT, delta=DELTA)
    silo.files.keep(result, task_of(), None)
    assert silo.paths() == []


def test_at_the_start_only_what_may_be_used_stays(silo, capsys):
    for run, number in (("run-1", 1), ("run-2", 3), ("run-3", 2)):
        silo.keep(replace(task_of(number), run_id=run))
    silo.store.set_chain_head("run-1", head(1))
    silo.store.set_chain_head("run-2", head(2))
    results = silo.directory / "results"
    (results / ".x.result.00.partial").write_bytes(b"half")
    silo.keep(replace(task_of(), run_id="run-4")).rename(results / f"{'1' * 32}.result")
    (results / f"{'0' * 32}.result").write_bytes(b"not ours")
    silo.open()
    assert len(silo.paths()) == 2
    for run, number in (("run-2", 3), ("run-3", 2)):
        assert silo.find(replace(task_of(number), run_id=run)) is not None
    said = capsys.readouterr().out
    assert "its round is closed" in said
    assert "it is not of the run that it is named by" in said


def test_of_many_runs_the_newest_are_kept(silo):
    runs = [f"run-{number}" for number in range(MAX_RUNS + 2)]
    for run in runs:
        silo.keep(replace(task_of(), run_id=run))
    assert len(silo.paths()) == MAX_RUNS
    kept = [run for run in runs if silo.find(replace(task_of(), run_id=run)) is not None]
    assert kept == runs[-MAX_RUNS:]


def test_a_clock_that_was_set_back_costs_no_new_result(silo):
    for number in range(MAX_RUNS):
        silo.keep(replace(task_of(), run_id=f"run-{number}"))
    ahead_s = time.time() + 86_400
    for path in silo.paths():
        os.utime(path, (ahead_s, ahead_s))
    silo.keep(replace(task_of(), run_id="run-new"))
    assert silo.find(replace(task_of(), run_id="run-new")) is not None
    assert len(silo.paths()) == MAX_RUNS


def test_deletion_takes_all_and_what_a_crash_left(silo):
    silo.keep()
    (silo.directory / "results" / ".x.result.00.partial").write_bytes(b"half")
    assert delete_results(silo.directory) == 1
    assert silo.paths() == []
    assert delete_results(silo.directory / "nowhere") == 0


def test_a_disk_that_refuses_is_a_typed_error_and_keeps_what_was_there(silo, monkeypatch):
    silo.keep()

    def full(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("ops.files.os.fsync", full)
        with pytest.raises(LocalStoreError, match="disk full"):
            silo.keep(task_of(2))
    assert silo.find() is not None
    assert len(silo.paths()) == 1

"""Workers under torchrun against the trainer in this process, on two real processes with gloo.

Equal means: no entry of the adapter, of the mean gradient or of a loss is further apart than
``ROUNDING``; entries move by more than 1e-3 in these runs, and what was measured is near 1e-7.

A launch imports torch in three processes, so each test that starts workers asks them for all it
can. ``long`` runs the other combinations of the memory options.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from evolution.errors import (
    EvolverSetupError,
    LocalTimeError,
    NotWantedError,
    TrainingJobError,
    TrainingWorkerError,
)
from evolution.local_time import local_time, while_wanted
from evolution.model.lora import initial_adapter
from evolution.part import Part
from evolution.train import launched, launched_job
from evolution.train import worker as train_worker
from evolution.train.launched import LaunchedTrainer
from evolution.train.launched_job import Job, read_job, read_result, write_job
from evolution.train.rows import Row, in_order
from evolution.train.trainer import SftReport, TrainerSpec
from evolution.train.trainers import make_trainer
from evolution.trajectory import Step, Task, Trajectory
from federation.plan.methods import Normaliser
from tests.kit.evolution.sft import ALPHA, EPISODES, NLL, PLAN, RANK, ROUNDING, apart

# The last of the batches of five holds one row: a process has none of it.
ROWS = [Row.of(one) for one in EPISODES[:11]]


@pytest.fixture(scope="module")
def adapter(tiny_base) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    first = initial_adapter(tiny_base, RANK, ALPHA, 0)
    return {k: (v + rng.normal(0, 0.02, v.shape)).astype("f4") for k, v in first.items()}


def made(base, state_dir, *, dtype="float32", target="all-linear", **spec):
    return make_trainer(
        base,
        rank=RANK,
        alpha=ALPHA,
        dtype=dtype,
        target=target,
        state_dir=state_dir,
        spec=TrainerSpec(device="cpu", **spec),
    )


def trained(trainer, adapter, *, names=None, rows=ROWS, **changes):
    rng = np.random.default_rng(2)
    shift = {k: rng.normal(0, 0.01, v.shape).astype("f4") for k, v in adapter.items()}
    anchor = {k: v + np.float32(0.01) for k, v in adapter.items()}
    trainer.reset(adapter)
    plan = replace(PLAN, **{"proximal_mu": 0.5, "schedule": "cosine", **changes})
    names = frozenset(adapter) if names is None else names
    report = trainer.train(rows, NLL, plan, trainable=names, anchor=anchor, correction=shift)
    return trainer.adapter(), report


def require_equal(base, tmp_path, adapter, **spec):
    state_dir = tmp_path / "state"
    only_b = frozenset(name for name in adapter if "lora_B" in name)
    trainer = made(base, state_dir, processes=2, **spec)
    assert isinstance(trainer, LaunchedTrainer)
    here, expected = trained(made(base, state_dir), adapter, names=only_b)
    there, report = trained(trainer, adapter, names=only_b)
    # Each row's log-probabilities at its own place, though workers had every other one, sorted.
    one, two = made(base, state_dir), trainer
    for by in (one, two):
        by.reset(adapter)
    for row, mine, theirs in zip(ROWS, one.logprobs(ROWS), two.logprobs(ROWS), strict=True):
        assert len(mine) == len(theirs) == len(row)
        assert mine.any()
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert apart(here, adapter) > 1e-3
    assert apart(here, there) < ROUNDING
    assert apart(expected.mean_gradient, report.mean_gradient) < ROUNDING
    assert report.mean_gradient.keys() == only_b
    assert all(there[k].tobytes() == adapter[k].tobytes() for k in adapter if k not in only_b)
    assert (report.optimiser_steps, report.agent_tokens) == (
        expected.optimiser_steps,
        expected.agent_tokens,
    )
    assert abs(report.first_loss - expected.first_loss) < ROUNDING
    assert abs(report.last_loss - expected.last_loss) < ROUNDING
    assert list((state_dir / "training").iterdir()) == []


@pytest.mark.long
def test_workers_adapt_the_targets_layers_alone(tiny_base, tmp_path):
    adapter = initial_adapter(tiny_base, RANK, ALPHA, 0, ("v_proj",))
    here, there = (
        trained(made(tiny_base, tmp_path / name, target=("v_proj",), **spec), adapter)[0]
        for name, spec in (("here", {}), ("there", {"processes": 2}))
    )
    assert apart(here, adapter) > 1e-3
    assert apart(here, there) < ROUNDING
    trainer = made(tiny_base, tmp_path / "wrong", target=("w_proj",), processes=2)
    trainer.reset(adapter)
    with pytest.raises(TrainingWorkerError, match=r"names 'w_proj'.*v_proj"):
        trainer.train(ROWS, NLL, PLAN, trainable=frozenset(adapter))


@pytest.mark.long
def test_workers_tell_an_objective_how_far_the_training_is(tiny_base, tmp_path, adapter):
    def held(last, name, **spec):
        trainer = made(tiny_base, tmp_path / name, **spec)
        trainer.reset(adapter)
        objective, plan = Part.own("anchored", last=last), replace(PLAN, epochs=3)
        report = trainer.train(ROWS, objective, plan, trainable=frozenset(adapter))
        return trainer.adapter(), report.figures["anchor_kl"]

    (here, mine), (there, theirs) = held(9.0, "here"), held(9.0, "there", processes=2)
    assert apart(here, there) < ROUNDING
    assert mine == pytest.approx(theirs, rel=1e-3)
    # Told of no progress the pull would be what it is at the first step: none.
    assert apart(here, held(0.0, "free")[0]) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_ratio_of_policies_is_the_same_in_several_processes(
    tiny_base, tmp_path, adapter, sharding
):
    """With the base as reference, a temperature, and the figures of all processes together."""
    rng = np.random.default_rng(4)
    said = made(tiny_base, tmp_path / "said")
    said.reset(adapter)
    credited = [
        replace(
            row,
            weights=np.full(len(row), rng.normal(), dtype=np.float32),
            logprobs=value + rng.normal(0, 0.1, len(row)).astype("f4"),
        )
        for row, value in zip(ROWS, said.logprobs(ROWS, temperature=0.7), strict=True)
    ]
    objective = Part.own("clipped", kl="k3", kl_to="base", kl_beta=0.1, mask_mismatch=True)
    plan = replace(PLAN, temperature=0.7, normaliser=Normaliser.CONSTANT, constant=20.0)
    found = []
    for name, spec in (("here", {}), ("there", {"processes": 2, "sharding": sharding})):
        trainer = made(tiny_base, tmp_path / name, **spec)
        trainer.reset(adapter)
        with local_time(0.1):
            report = trainer.train(credited, objective, plan, trainable=frozenset(adapter))
        found.append((trainer.adapter(), report.figures))
    (here, figures), (there, other) = found
    assert apart(here, adapter) > 1e-3
    assert apart(here, there) < ROUNDING
    assert figures.keys() == other.keys() == set(objective.load().watches)
    assert dict(other) == pytest.approx(dict(figures), rel=1e-3, abs=1e-6)
    assert figures["ratio_min"] < 1 < figures["ratio_max"]


def workers(directory: Path) -> list[int]:
    """Processes that train below a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_text().split("\0")
            if "evolution.train.worker" in words and "torch.distributed.run" not in words:
                found += [int(entry.name)] if str(directory) in " ".join(words) else []
    return found


def trained_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def listening(root: int) -> tuple[set[str], int]:
    """Addresses on which descendants of a process listen, as /proc has them; how many there are."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(status[1])
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    inodes = set()
    for pid in family - {root}:
        with contextlib.suppress(OSError):
            inodes |= {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found, len(family) - 1


def test_workers_end_with_the_sites_time_and_change_nothing(
    tiny_base, tmp_path, adapter, monkeypatch
):
    started, begin = [], subprocess.Popen

    def noted(*arguments, **options):
        started.append(begin(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(launched.subprocess, "Popen", noted)
    trainer = made(tiny_base, tmp_path, processes=2)
    with local_time(0.0), pytest.raises(LocalTimeError):
        trained(trainer, adapter)
    # By the signal, or by its own answer to it if it had come so far.
    assert len(started) == 1
    assert started[0].poll() in {-signal.SIGTERM, 1}
    assert all(np.array_equal(value, adapter[name]) for name, value in trainer.adapter().items())
    assert list((tmp_path / "training").iterdir()) == []


def test_no_worker_is_waited_for_that_nobody_wants(tiny_base, tmp_path, adapter):
    trainer = made(tiny_base, tmp_path, processes=2)
    with while_wanted(lambda: False), pytest.raises(NotWantedError):
        trained(trainer, adapter)
    assert list((tmp_path / "training").iterdir()) == []


@pytest.mark.long
def test_workers_that_are_ended_say_where_they_were(tiny_base, tmp_path, adapter):
    trainer = made(tiny_base, tmp_path, processes=2)
    with local_time(0.02), pytest.raises(LocalTimeError) as ended:
        trained(trainer, adapter, epochs=10**6)
    (note,) = ended.value.__notes__
    assert note.count("/evolution/train/loop.py") >= 2
    assert list((tmp_path / "training").iterdir()) == []


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_torch_ends_says_where_it_was(tiny_base, tmp_path, adapter):
    trainer = made(tiny_base, tmp_path, processes=2)

    def abort_when_training():
        # One that has used so much CPU is past its imports.
        while not (busy := [pid for pid in workers(tmp_path) if trained_s(pid) > 25]):
            time.sleep(0.2)
        os.kill(busy[0], signal.SIGABRT)

    threading.Thread(target=abort_when_training, daemon=True).start()
    with local_time(0.1), pytest.raises(TrainingWorkerError) as ended:
        trained(trainer, adapter, epochs=10**6)
    (note,) = ended.value.__notes__
    assert "Fatal Python error: Aborted" in note
    assert "/evolution/train/loop.py" in note


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ddp_equals_one_process_and_nobody_listens_beyond_loopback(tiny_base, tmp_path, adapter):
    seen, most, done = set(), [0], threading.Event()

    def look():
        while not done.wait(0.1):
            with contextlib.suppress(OSError):
                addresses, processes = listening(os.getpid())
                seen.update(addresses)
                most[0] = max(most[0], processes)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        require_equal(tiny_base, tmp_path, adapter, micro_batch_tokens=48)
    finally:
        done.set()
        watcher.join()
    # 127.0.0.1 in the byte order of /proc; gloo listens there.
    assert most[0] >= 3
    assert seen <= {"0100007F"}


@pytest.mark.long
def test_fsdp_trains_beside_16_bit_weights_and_recomputes_them(tiny_base, tmp_path, adapter):
    """Other shapes round otherwise in 16 bits, so the way taken is compared, not its end."""
    options = {"sharding": "fsdp", "gradient_checkpointing": True}
    ways = []
    for spec in ({}, {"processes": 2, **options}):
        trainer = made(tiny_base, tmp_path / "state", dtype="bfloat16", **spec)
        after, report = trained(trainer, adapter)
        moved = np.concatenate([(after[name] - adapter[name]).ravel() for name in adapter])
        ways.append((moved, np.concatenate([report.mean_gradient[n].ravel() for n in adapter])))
    for one, other in zip(*ways, strict=True):
        lengths = np.linalg.norm(one), np.linalg.norm(other)
        assert one @ other > 0.98 * lengths[0] * lengths[1]
        assert lengths[0] == pytest.approx(lengths[1], rel=0.05)


@pytest.mark.long
def test_fsdp_equals_one_process(tiny_base, tmp_path, adapter):
    require_equal(
        tiny_base,
        tmp_path,
        adapter,
        sharding="fsdp",
        micro_batch_tokens=48,
        gradient_checkpointing=True,
    )


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "options",
    [{}, {"micro_batch_tokens": 24}, {"gradient_checkpointing": True}],
    ids=str,
)
def test_each_option_equals_one_process(tiny_base, tmp_path, adapter, sharding, options):
    require_equal(tiny_base, tmp_path, adapter, sharding=sharding, **options)


@pytest.mark.long
def test_a_failing_worker_is_told_without_data_and_changes_nothing(tiny_base, tmp_path, adapter):
    trainer = made(tiny_base, tmp_path, processes=2)
    wrong = {name: value[:, :1].copy() for name, value in adapter.items()}
    trainer.reset(wrong)
    with pytest.raises(
        TrainingWorkerError, match=r"process \d: AdapterMismatchError: .* shape"
    ) as failure:
        trainer.train(ROWS, NLL, PLAN, trainable=frozenset(wrong))
    assert apart(trainer.adapter(), wrong) == 0.0
    assert list((tmp_path / "training").iterdir()) == []
    text = str(failure.value)
    assert "evolution.train.worker FAILED" in text
    assert len(text) < 5000
    text += "".join(failure.value.__notes__)
    tokens = ", ".join(map(str, EPISODES[0].token_ids[:3]))
    assert tokens not in text


def test_what_is_written_for_workers_is_private_and_holds_no_text(
    tiny_base, tmp_path, adapter, monkeypatch
):
    seen = {}

    def launch(directory, *, processes):
        seen["modes"] = [p.stat().st_mode & 0o777 for p in (directory, directory.parent)]
        seen["bytes"] = b"".join(p.read_bytes() for p in directory.iterdir())
        seen["arrays"] = load_file(directory / "rows.safetensors")
        seen["settings"] = json.loads((directory / "settings.json").read_text())
        assert processes == 2
        launched_job.write_result(directory, adapter, NO_STEPS)

    monkeypatch.setattr(launched, "_launch", launch)
    trainer = made(tiny_base, tmp_path, processes=2)
    trainer.reset(adapter)
    secret = "patient"
    marked = Trajectory(
        task=Task(environment=secret, task_id=1, subject=secret),
        steps=(
            Step(
                observation=secret,
                action=secret,
                context_ids=(7, 8),
                action_ids=(9,),
                action_logprobs=(-1.0,),
            ),
        ),
        final_observation=secret,
        success=True,
        adapter_sha256="",
        round=0,
    )
    trainer.train([Row.of(marked)], NLL, PLAN, trainable=frozenset(adapter))
    assert seen["modes"] == [0o700, 0o700]
    assert secret.encode() not in seen["bytes"]
    assert seen["arrays"]["token_ids"].tolist() == [7, 8, 9]
    assert seen["settings"]["trainable"] == sorted(adapter)


NO_STEPS = SftReport(optimiser_steps=0, agent_tokens=0, first_loss=0.0, last_loss=0.0)


def test_a_result_of_another_shape_or_half_a_file_is_refused(
    tiny_base, tmp_path, adapter, monkeypatch
):
    def result(write):
        monkeypatch.setattr(launched, "_launch", lambda directory, **_: write(directory))
        trainer = made(tiny_base, tmp_path, processes=2)
        trainer.reset(adapter)
        with pytest.raises(TrainingJobError):
            trainer.train(ROWS, NLL, PLAN, trainable=frozenset(adapter))
        assert apart(trainer.adapter(), adapter) == 0.0

    def half(directory):
        launched_job.write_result(directory, adapter, NO_STEPS)
        path = directory / "result.safetensors"
        path.write_bytes(path.read_bytes()[:-10])

    result(lambda _directory: None)
    result(half)
    result(lambda d: launched_job.write_result(d, {"x": np.zeros(1)}, NO_STEPS))
    cropped = {name: value[:1] for name, value in adapter.items()}
    result(lambda d: launched_job.write_result(d, cropped, NO_STEPS))


def test_a_job_comes_back_as_it_was_written_and_rows_must_add_up(tmp_path, adapter):
    rows = in_order(Row.of(one, weight=-0.5) for one in EPISODES[:10])
    rows = [row.knowing({"old": row.logprobs - 1, "reference": row.logprobs}) for row in rows]
    job = Job(
        base_dir="base",
        rank=RANK,
        alpha=ALPHA,
        dtype="float32",
        target=("q_proj", "v_proj"),
        device="cpu",
        micro_batch_tokens=3,
        gradient_checkpointing=True,
        sharding="fsdp",
        trainable=tuple(sorted(adapter)),
        settings=replace(PLAN, schedule="cosine", proximal_mu=0.5, normaliser=Normaliser.CONSTANT),
        objective=NLL.as_json(),
    )
    write_job(tmp_path, job, rows, adapter=adapter, anchor=None, correction=adapter)
    found, found_rows, start, anchor, correction = read_job(tmp_path)
    assert found == job
    assert anchor is None
    assert apart(start, adapter) == apart(correction, adapter) == 0.0
    for one, two in zip(rows, found_rows, strict=True):
        assert (one.token_ids == two.token_ids).all()
        # What it is called and whose it is are numbers there.
        assert replace(two, name=one.name, unit=one.unit) == one
    settings = json.loads((tmp_path / "settings.json").read_text())
    for wrong in ({"more": 1}, {"settings": {"more": 1}}, {"settings": 3}, {"target": ["*"]}):
        (tmp_path / "settings.json").write_text(json.dumps({**settings, **wrong}))
        with pytest.raises(TrainingJobError):
            read_job(tmp_path)
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    packed = load_file(tmp_path / "rows.safetensors")
    launched_job.save_file(
        {**packed, "lengths": packed["lengths"] + 1}, tmp_path / "rows.safetensors"
    )
    with pytest.raises(TrainingJobError):
        read_job(tmp_path)
    with pytest.raises(TrainingJobError):
        read_result(tmp_path, adapter=adapter, gradients_of=None)


def test_no_worker_starts_for_nothing(tiny_base, tmp_path, adapter, monkeypatch):
    monkeypatch.setattr(launched, "_launch", lambda *_a, **_k: pytest.fail("a worker was started"))
    trainer = made(tiny_base, tmp_path, processes=2)
    silent = [replace(row, mask=np.zeros_like(row.mask)) for row in ROWS]
    after, report = trained(trainer, adapter, rows=silent)
    assert apart(after, adapter) == 0.0
    assert report.optimiser_steps == 0
    assert not any(value.any() for value in report.mean_gradient.values())
    assert report.mean_gradient.keys() == adapter.keys()


def test_record_level_gradients_are_refused_with_what_to_do(tiny_base, tmp_path, adapter):
    trainer = made(tiny_base, tmp_path, processes=2)
    with pytest.raises(EvolverSetupError, match="processes to 1"):
        trainer.gradients(sorted(adapter), NLL, backend="loop")
    with pytest.raises(EvolverSetupError, match="processes to 1"):
        trainer.descend(sorted(adapter), lambda: np.zeros(1), steps=1, learning_rate=0.1)


def test_jobs_of_a_daemon_that_was_killed_are_removed(tiny_base, tmp_path):
    left = tmp_path / "training" / "job-left"
    left.mkdir(parents=True)
    (left / "rows.safetensors").write_bytes(b"tokens")
    made(tiny_base, tmp_path, processes=2)
    assert not left.exists()


def test_workers_are_ended_when_waiting_is_interrupted(tmp_path, monkeypatch):
    """The real process group of a stand-in for torchrun."""
    started = []

    def popen(_command, **options):
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        process = real(sleeper, **options)
        started.append(process)
        wait, first = process.wait, threading.Event()

        def interrupted(timeout=None):
            if not first.is_set():
                first.set()
                raise KeyboardInterrupt
            return wait(timeout)

        process.wait = interrupted
        return process

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", popen)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launched._launch(tmp_path, processes=2)
    assert started[0].poll() is not None
    assert time.monotonic() - begun < 60


HANGS_WHEN_TAKEN_DOWN = """
import time
import accelerate, torch.distributed

def hang(*_):
    time.sleep(600)

accelerate.Accelerator.__del__ = hang
accelerate.Accelerator.end_training = hang
torch.distributed.destroy_process_group = hang
"""


@pytest.mark.long
def test_workers_end_though_what_torch_takes_down_would_hang(
    tiny_base, tmp_path, adapter, monkeypatch
):
    (tmp_path / "sitecustomize.py").write_text(HANGS_WHEN_TAKEN_DOWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    trainer = made(tiny_base, tmp_path / "state", processes=2)
    after, _ = trained(trainer, adapter)
    assert apart(after, adapter) > 0


def test_a_worker_ends_once_its_daemon_is_gone(monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    def end(status):
        raise SystemExit(status)

    monkeypatch.setattr(train_worker.os, "_exit", end)
    monkeypatch.setattr(train_worker.time, "sleep", lambda _s: pytest.fail("it waits"))
    with pytest.raises(SystemExit, match="1"):
        train_worker._end_with(gone.pid, os.getppid())
    with pytest.raises(SystemExit, match="1"):
        train_worker._end_with(os.getpid(), gone.pid)
    with pytest.raises(pytest.fail.Exception, match="waits"):
        train_worker._end_with(os.getpid(), os.getppid())

"""Kill −9 at every system call of keeping a result: it is used for its round, or charged again.

The driver runs in a process of its own and forks one child per kill point. A child charges the
training of round 2, makes its vector, and keeps it where that of round 1 was. Before its k-th
system call (and, for the flush, also with half of the file written) it kills itself. The driver
then opens everything as a silo's start does, and asks for round 2.

Failure: a vector that is not the charged training's, bit for bit; a file that is half read, or left
beside; a directory that cannot be opened or written again; more trainings than debits.
Not a failure: a vector that was lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.kit.paths import ROOT

DRIVER = """
import json, os, shutil, signal, stat, sys, traceback
from pathlib import Path
import numpy as np
from dataclasses import replace
from dp.ledger.ledger import Ledger
from federation.adapter.layout import Layout
from silo_agent.books.local_store import LocalStore
from silo_agent.local_work.result import Result
from silo_agent.local_work.result_file import ResultFiles
from tests.kit.server import world_plan as sw
from tests.kit.silo_agent.record_plans import local_plan
from tests.kit.silo_agent.working_silo import CAPS, task_of

folder = Path(sys.argv[1])
LAYOUT, PLAN = Layout.from_tensors(sw.initial_tensors()), local_plan()

def vector(seed):
    return np.random.default_rng(seed).standard_normal(LAYOUT.dimension).astype(np.float32)

def opened(directory):
    directory.mkdir(exist_ok=True)
    ledger = Ledger.open(directory / "ledger", delta=1e-5, caps=CAPS)
    return ledger, ResultFiles(directory, LocalStore(directory))

def train(ledger, files, round_, seed):
    ledger.reserve_training(run="run-1", round=round_, spec=PLAN.spec,
                            adapter_sha256=task_of().adapter_sha256)
    result = Result(run_id="run-1", round=round_, plan=PLAN, layout=LAYOUT, delta=vector(seed))
    return lambda: files.keep(result, task_of(round_), ledger.head())

def arm(kill_at, inside):
    calls = [0]
    def wrap(name):
        real = getattr(os, name)
        def call(*arguments, **options):
            calls[0] += 1
            if calls[0] == kill_at:
                if inside and name == "fsync" and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        setattr(os, name, call)
    for name in ("open", "mkdir", "chmod", "fchmod", "fsync", "replace", "unlink", "close"):
        wrap(name)

def child(directory, kill_at, inside):
    ledger, files = opened(directory)
    keep = train(ledger, files, 2, seed=2)
    arm(kill_at, inside)
    keep()
    os._exit(0)

template = folder / "template"
ledger, files = opened(template)
train(ledger, files, 1, seed=1)()
ledger.close()
report = {"kills": 0, "finished": 0, "found": 0, "lost": 0, "faults": []}
for inside in (False, True):
    kill_at, done = 0, False
    while not done:
        kill_at += 1
        directory = folder / f"{inside}-{kill_at}"
        shutil.copytree(template, directory)
        pid = os.fork()
        if pid == 0:
            try:
                child(directory, kill_at, inside)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(9)
        status = os.waitpid(pid, 0)[1]
        done = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        report["finished" if done else "kills"] += 1
        if not done and not os.WIFSIGNALED(status):
            report["faults"].append(f"{kill_at}: ended with {status}")
            break
        ledger, files = opened(directory)
        left = [p.name for p in (directory / "results").iterdir() if p.name.startswith(".")]
        found = files.find(task_of(2), PLAN, LAYOUT, ledger)
        trained = 2
        if found is None:
            report["lost"] += 1
            train(ledger, files, 2, seed=3)()
            trained += 1
            found = files.find(task_of(2), PLAN, LAYOUT, ledger)
        else:
            report["found"] += 1
        expected = vector(trained).tobytes()
        if found is None or found.delta.tobytes() != expected:
            report["faults"].append(f"{inside} {kill_at}: another vector")
        if ledger.debits_of_run("run-1").trainings != trained:
            report["faults"].append(f"{inside} {kill_at}: charged otherwise than trained")
        if left:
            report["faults"].append(f"{inside} {kill_at}: {left}")
        ledger.close()
print(json.dumps(report))
"""


def test_after_any_kill_a_result_is_used_for_its_round_or_charged_again(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["faults"] == [], done.stderr[-2000:]
    assert report["finished"] == 2
    assert report["kills"] >= 10
    # Both sides of the moment at which the new file takes the old one's place.
    assert report["found"] >= 2
    assert report["lost"] >= 2

"""Kill −9 at every system call of the ledger: released ≤ debited, always.

The driver runs in its own single-threaded process and forks one child per kill point. A child
opens a ledger, joins and charges attempts, writes each join and release to a second file, and
agrees. Before its k-th system call (and, for writes, also in the middle of it) it kills itself. The
driver then opens the ledger again and compares.

Failure: a join, a release or an agreement that the reopened ledger does not know; more than one
debit without a release; a ledger that cannot be opened or charged again.
Not a failure: a debit whose release was lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import fcntl, json, os, signal, sys
from dp.config import Mode
from dp.ledger import Ledger, LedgerEntry

folder, start = sys.argv[1], sys.argv[2]
ROUNDS = 3
real_write = os.write

def entry(round_, attempt=0):
    return LedgerEntry(run="run", round=round_, attempt=attempt, step=0, part=0, mode=Mode.SILO,
                       q=1.0, z=4.0, steps=1, dimension=8, descriptor_sha256=bytes(32))

def opened(path):
    return Ledger.open(path, delta=1e-5, epsilon_cap=50.0)

def arm(kill_at, inside):
    calls = [0]
    def wrap(module, name):
        real = getattr(module, name)
        def call(*arguments, **options):
            calls[0] += 1
            if calls[0] == kill_at:
                if inside and name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        setattr(module, name, call)
    for name in ("open", "write", "fsync", "ftruncate", "pread", "close"):
        wrap(os, name)
    wrap(fcntl, "flock")

def child(path, log, kill_at, inside):
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    arm(kill_at, inside)
    ledger = opened(path)
    for round_ in range(1, ROUNDS + 1):
        ledger.mark_joined(entry(round_).identity, bytes(32))
        real_write(out, b"joined %d\\n" % round_)
        ledger.reserve(entry(round_))
        real_write(out, b"released %d\\n" % round_)
        ledger.mark_agreed(entry(round_).identity)
        real_write(out, b"agreed %d\\n" % round_)
    ledger.close()
    os._exit(0)

def prepare(path):
    if start == "new":
        return
    with opened(path) as ledger:
        ledger.reserve(entry(0))
    if start == "torn":
        with opened(path) as ledger:
            ledger.reserve(entry(0, 1))
        os.truncate(path, os.path.getsize(path) - 100)

report = {"kills": 0, "finished": 0, "repaired": 0, "lost_debits": 0, "faults": []}
for inside in (False, True):
    kill_at, done = 0, False
    while not done:
        kill_at += 1
        path = os.path.join(folder, "%s-%d-%d" % (start, inside, kill_at))
        log = path + ".log"
        prepare(path)
        pid = os.fork()
        if pid == 0:
            try:
                child(path, log, kill_at, inside)
            finally:
                os._exit(3)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            report["kills"] += 1
        else:
            done = True
            report["finished"] += os.waitstatus_to_exitcode(status) == 0
        lines = open(log).read().split("\\n")[:-1] if os.path.exists(log) else []
        released = {int(l.split()[1]) for l in lines if l.startswith("released")}
        shown = {int(l.split()[1]) for l in lines if l.startswith("joined")}
        agreed = {int(l.split()[1]) for l in lines if l.startswith("agreed")}
        try:
            with opened(path) as ledger:
                report["repaired"] += ledger.torn_tail_repaired
                spent = {r for r in range(1, ROUNDS + 1) if ledger.has_spent(entry(r).identity)}
                marked = {r for r in spent if ledger.has_agreed("run", r, 0, 0)}
                report["lost_debits"] += len(spent - released)
                if not released <= spent or len(spent - released) > 1:
                    report["faults"].append([kill_at, "spent", sorted(spent), sorted(released)])
                if not agreed <= marked or len(marked - agreed) > 1:
                    report["faults"].append([kill_at, "agreed", sorted(marked), sorted(agreed)])
                newest = ledger.highest_identity("run")
                if shown and (newest is None or newest.round < max(shown)):
                    report["faults"].append([kill_at, "joined", str(newest), sorted(shown)])
                if start != "new" and not ledger.has_spent(entry(0).identity):
                    report["faults"].append([kill_at, "forgot what was there"])
                ledger.reserve(entry(ROUNDS + 1))
        except Exception as error:
            report["faults"].append([kill_at, repr(error)])
print(json.dumps(report))
"""


@pytest.mark.parametrize("start", ["new", "existing", "torn"])
def test_kill_at_every_system_call(tmp_path, start):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER, str(tmp_path), start],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["faults"] == []
    assert report["finished"] == 2
    assert report["kills"] > 30
    # The kills hit what they aim at: records cut in half, and debits whose release never came.
    assert report["repaired"] >= 6
    assert report["lost_debits"] >= 3

"""What a silo's operator sees when the privacy machinery refuses, at the command line of real
processes: one clear line that says what to do, the right exit code, and nothing released.

One federation of four silos runs twice. silo-d may spend what one run costs and no more, so it
refuses the second. Damaged and outdated ledgers are copies of a silo that took part in both.

Covered: over-budget, rolled-back, torn and damaged ledgers, a second process, a looser plan. Not
covered here: a delta that is not finite (``test_bad_input.py``), figures
(``tests/silo_agent/books/test_budget.py``).
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from dp.accounting.charge import attempt_charges
from dp.accounting.compose import epsilon_of
from dp.ledger.journal import Journal
from federation.plan.read import read_plan
from ops.cli.envelope import Exit
from silo_agent.books.ledger import LEDGER_FILE
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("operator_errors"), pytest.mark.long]

DELTA = 1e-5
HELD, BACK, POOR = "silo-a", "silo-b", "silo-d"
"""The silo that is copied, the one that is put back in time, the one with a small budget."""
PLAN = cf.plan_toml(mode="silo", noise=1.0).replace("count = 1", "count = 1\nspare_attempts = 0")
OLD = f"old-{LEDGER_FILE}"
"""A copy from before the first run, beside the ledger."""


def epsilon_after(runs: int) -> float:
    charges = attempt_charges(read_plan(PLAN.encode()).spec, step=0)
    return epsilon_of(charges * runs, DELTA)["silo"]


def started(*arguments, data, output="json"):
    return subprocess.Popen(
        [
            sys.executable, "-m", "silo_agent.cli.main", *arguments,
            "--data", str(data), "--format", output,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def ended(process):
    """Exit code, envelope and what is said besides."""
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "Traceback" not in err, err
    return process.returncode, json.loads(out), err


def command(*arguments, data):
    return ended(started(*arguments, data=data))


def shown(*arguments, data):
    """What people read of a result."""
    out, err = started(*arguments, data=data, output="text").communicate(timeout=60)
    assert "Traceback" not in err, err
    return out


def kinds(directory):
    """Kinds of the records of a ledger, read from a copy."""
    copy = directory / "copy.ledger"
    shutil.copyfile(directory / LEDGER_FILE, copy)
    journal = Journal(copy)
    try:
        return [record["kind"] for record in journal.load()]
    finally:
        journal.close()
        copy.unlink()


def spooled(directory):
    spool = directory / "spool"
    return sorted(spool.iterdir()) if spool.exists() else []


def refusals(loopback, silo_id):
    """Rules that refused, from the silo's own metrics."""
    prefix = 'chorale_silo_policy_decisions_total{decision="refuse",rule="'
    samples = loopback.metrics(silo_id)
    return {
        name.removeprefix(prefix).removesuffix('"}')
        for name, value in samples.items()
        if name.startswith(prefix) and value > 0
    }


def refused_lines(loopback, silo_id):
    """The log lines that explain a refusal."""
    lines = [line for line in loopback.log(silo_id).splitlines() if line.startswith("{")]
    return [entry for entry in map(json.loads, lines) if entry["event"] == "refused"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Four silos after two runs; silo-d took part in the first alone."""
    with cf.federation(tmp_path_factory.mktemp("operator")) as loopback:
        cap = (epsilon_after(1) + epsilon_after(2)) / 2
        cf.configure(loopback, POOR, policy=cf.policy_toml(epsilon_cap=cap))
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        cf.await_heard(loopback)
        back = loopback.silo_dir(BACK)
        await_ledger(back)
        shutil.copyfile(back / LEDGER_FILE, back / OLD)
        run(loopback, "first")
        last, rounds = run(loopback, "second")
        # The others went on without the one that could not pay.
        assert last["run"]["state"] == "finished", last
        assert tuple(rounds[0]["survivors"]) == cf.SILOS[:3]
        yield loopback


def await_ledger(directory):
    ledger = directory / LEDGER_FILE
    until(lambda: ledger.exists() and ledger.stat().st_size, "the silo has a ledger")


def run(loopback, token):
    plan_file, adapter = cf.write_run(loopback, PLAN)
    return cf.watch_to_end(loopback, loopback.start_run(plan_file, adapter, token=token))


def test_a_run_over_budget_is_refused_and_explained(federation):
    assert refusals(federation, POOR) == {"epsilon_cap"}
    (line,) = refused_lines(federation, POOR)
    assert "raise the cap in the silo's own policy" in line["detail"]
    # One upload was charged, and there is none beyond it.
    assert kinds(federation.silo_dir(POOR)).count("spent") == 1
    assert spooled(federation.silo_dir(POOR)) == []
    assert federation.alive(POOR)
    code, envelope, _ = command("budget", data=federation.silo_dir(POOR))
    row = next(row for row in envelope["data"]["units"] if row["unit"] == "silo")
    assert code == Exit.OK
    assert row["epsilon_spent"]["epsilon"] == pytest.approx(epsilon_after(1), rel=1e-9)
    assert 0.0 < row["epsilon_left"] < epsilon_after(2) - epsilon_after(1)
    assert "\n  silo" in shown("budget", data=federation.silo_dir(POOR))
    code, envelope, _ = command("status", data=federation.silo_dir(POOR))
    assert (code, envelope["data"]["daemon"]) == (Exit.OK, "ready")
    assert "epsilon for each silo" in shown("status", data=federation.silo_dir(POOR))


def test_a_second_daemon_on_the_same_directory_is_one_too_many(federation):
    before = kinds(federation.silo_dir(HELD))
    code, envelope, said = command("run", data=federation.silo_dir(HELD))
    assert (code, envelope["error_code"]) == (Exit.SERVER, "ledger_locked")
    assert "held by another process" in envelope["message"]
    assert "stop that one first" in said
    assert federation.alive(HELD)
    assert kinds(federation.silo_dir(HELD)) == before


def flipped(now, _old):
    middle = len(now) // 2
    return now[:middle] + bytes([now[middle] ^ 1]) + now[middle + 1 :]


def torn(now, _old):
    # A record that was cut short, and a later one behind it.
    return now[:-90] + now[:64]


def rolled_back(_now, old):
    return old


DAMAGE = {
    flipped: ("ledger_corrupt", "damaged"),
    torn: ("ledger_corrupt", "data follow a torn ledger record"),
    rolled_back: ("ledger_rolled_back", "was seen"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_ledger_that_cannot_be_trusted_starts_nothing(federation, tmp_path, damage):
    error_code, text = DAMAGE[damage]
    data = tmp_path / "silo"
    shutil.copytree(federation.silo_dir(BACK), data)
    content = damage((data / LEDGER_FILE).read_bytes(), (data / OLD).read_bytes())
    (data / LEDGER_FILE).write_bytes(content)
    answers = [started(name, data=data) for name in ("run", "budget", "status")]
    for answer in answers[:2]:
        code, envelope, said = ended(answer)
        assert (code, envelope["error_code"]) == (Exit.ARGUMENTS, error_code)
        assert text in envelope["message"]
        assert "next: " in said
        assert "copy" in envelope["next_step"]
    code, envelope, _ = ended(answers[2])
    assert code == Exit.OK
    assert envelope["data"]["budget"] == []
    assert "problem: " in shown("status", data=data)
    # The damaged file is evidence and stays as it was.
    assert (data / LEDGER_FILE).read_bytes() == content
    assert spooled(data) == []


def test_a_looser_plan_is_refused_by_name_before_it_runs(federation):
    data = federation.silo_dir(HELD)
    policy = cf.policy_toml().replace(
        'max_epsilon_per_run = "unlimited"', "max_epsilon_per_run = 1.0"
    )
    elsewhere = federation.directory / "strict"
    elsewhere.mkdir()
    shutil.copyfile(data / "silo.toml", elsewhere / "silo.toml")
    (elsewhere / "policy.toml").write_text(policy)
    plan = federation.directory / "looser.toml"
    plan.write_text(PLAN)
    code, envelope, said = command("policy", "check", str(plan), data=elsewhere)
    assert (code, envelope["error_code"]) == (Exit.SERVER, "policy_refusal")
    assert envelope["data"]["rule"] == "epsilon_per_run"
    assert "refused by rule epsilon_per_run" in said
    assert str(elsewhere / "policy.toml") in envelope["next_step"]


def test_a_ledger_and_its_memory_put_back_together_are_noticed_by_the_others(federation):
    """The last test of the file: it leaves silo-b refusing."""
    back = federation.silo_dir(BACK)
    federation.kill(BACK)
    shutil.copyfile(back / OLD, back / LEDGER_FILE)
    # At that time this silo remembered nothing yet.
    (back / "state.json").unlink()
    before = kinds(back)
    federation.start_silo(BACK)
    plan_file, adapter = cf.write_run(federation, PLAN)
    run_id = federation.start_run(plan_file, adapter, token="third")
    last, rounds = cf.watch_to_end(federation, run_id)
    # Two silos refuse now, so there is no quorum.
    assert (last["run"]["state"], rounds) == ("failed", [])
    assert refusals(federation, BACK) == {"ledger_rolled_back"}
    (line,) = refused_lines(federation, BACK)
    assert "put the newest copy of privacy.ledger and state.json back" in line["detail"]
    assert kinds(back) == before
    assert spooled(back) == []
    assert federation.alive(BACK)

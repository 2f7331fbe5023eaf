"""Backup and restore of a federation of real daemons, in the middle of a run.

Two stories: a backup of a coordinator that went no further, after which the run goes on and its sum
is exact; and one that silos have left behind, which must not make anything happen twice.
"""

import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from lab.loopback import LoopbackError, LoopbackFederation
from server.site.backup_file import BackupReader
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = pytest.mark.long

SPARE = "quorum = 3\nspare_attempts = 2"
MODULE = "tests.kit.processes.dying_coordinator"


def wait_for(loopback, condition, what):
    until(condition, what, told=lambda: loopback.log("coordinator"))


def closed_rounds(loopback):
    return loopback.log("coordinator").count("round_finished")


def verify_audit(loopback):
    return loopback.chorale("audit", "verify", "--data", str(loopback.data_dir))["records"]


def replace_coordinator(loopback, file):
    """The machine is lost; another one, with the same address, is set up from the backup."""
    lost = loopback.directory / "lost"
    loopback.data_dir.rename(lost)
    restored = loopback.chorale("restore", str(file), "--data", str(loopback.data_dir))
    verify_audit(loopback)
    return lost, restored


def ledger(loopback, silo_id):
    """Every join, charge and signature on survivors of a silo."""
    return (loopback.silo_dir(silo_id) / "privacy.ledger").read_bytes()


def adopted(loopback):
    """Each silo's heads, by run."""
    return {
        silo_id: json.loads((loopback.silo_dir(silo_id) / "state.json").read_text())["heads"]
        for silo_id in cf.SILOS
    }


def last_published(data_dir):
    """The last round that a coordinator closed, and its adapter, as its audit log has them."""
    records = map(json.loads, (data_dir / "audit.jsonl").read_text().splitlines())
    last = [one["details"] for one in records if one["event"] == "round_finished"][-1]
    return last["round"], last["adapter"]


def when_quiet(loopback):
    """All ledgers and heads, once silos have dealt with what they were told before.

    But for what they wait with until a coordinator answers again.
    """

    def now():
        return {silo_id: ledger(loopback, silo_id) for silo_id in cf.SILOS}, adopted(loopback)

    last, found = None, now()
    while last != found:
        time.sleep(2)
        last, found = found, now()
    return found


def test_a_run_goes_on_from_a_backup_on_another_machine(tmp_path):
    with cf.federation(tmp_path) as loopback:
        # It dies in the second round, with the attempt open: shares are in its database.
        loopback.kill("coordinator")
        loopback.environment = {
            "CHORALE_TEST_DEATHS": "2:unmask:1",
            "CHORALE_TEST_DEATHS_DONE": str(tmp_path / "deaths"),
        }
        loopback.start_coordinator(module=MODULE)
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=4, phase_deadline_s=20))
        run_id = loopback.start_run(plan, adapter, token="backup")
        wait_for(loopback, lambda: not loopback.alive("coordinator"), "it dies in round 2")
        loopback.environment = {}
        file = tmp_path / "coordinator.backup"
        made = loopback.chorale("backup", "--out", str(file), "--data", str(loopback.data_dir))
        assert file.stat().st_mode & 0o777 == 0o600
        with file.open("rb") as source:
            assert BackupReader(source).manifest.audit_index == made["audit_index"]
        with pytest.raises(LoopbackError, match="exists"):
            loopback.chorale("backup", "--out", str(file), "--data", str(loopback.data_dir))
        with pytest.raises(LoopbackError, match="not empty"):
            loopback.chorale("restore", str(file), "--data", str(loopback.data_dir))
        _, restored = replace_coordinator(loopback, file)
        assert restored["held_runs"] == [run_id]
        loopback.start_coordinator()
        # Nothing goes on by itself.
        time.sleep(1.5)
        shown = loopback.chorale("run", "list", "--data", str(loopback.data_dir))["runs"]
        assert [run["state"] for run in shown] == ["paused"]
        loopback.chorale("run", "resume", run_id, "--data", str(loopback.data_dir))
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        # Survivors of round 2 were signed before the coordinator was lost: it is not asked again.
        outcomes = [figures["outcome"] for figures in rounds]
        assert outcomes == ["aggregated", "skipped", "aggregated", "aggregated"], rounds
        total = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in cf.SILOS)
        mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(cf.SILOS))
        expected = cf.flat(cf.initial_tensors())
        for _ in range(3):
            expected = (expected.astype(np.float64) + mean).astype(np.float32)
        result = cf.flat(cf.published(loopback, last["run"]["adapter_sha256"]))
        np.testing.assert_array_equal(result, expected)
        verify_audit(loopback)


def test_a_backup_that_silos_have_left_behind_makes_nothing_happen_twice(tmp_path):
    with cf.federation(tmp_path) as loopback:
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(rounds=40))
        run_id = loopback.start_run(plan, adapter, token="old")
        wait_for(loopback, lambda: closed_rounds(loopback) >= 1, "round 1")
        file = tmp_path / "coordinator.backup"
        # While it serves.
        loopback.chorale("backup", "--out", str(file), "--data", str(loopback.data_dir))
        with file.open("rb") as source:
            blobs = set(BackupReader(source).manifest.blobs)
        at_backup = closed_rounds(loopback)
        wait_for(loopback, lambda: closed_rounds(loopback) >= at_backup + 2, "two more rounds")
        loopback.kill("coordinator")
        before, heads = when_quiet(loopback)
        lost, restored = replace_coordinator(loopback, file)
        assert restored["held_runs"] == [run_id]
        loopback.start_coordinator()
        loopback.chorale("run", "resume", run_id, "--data", str(loopback.data_dir))
        last, _ = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "failed", last
        assert "chain" in last["error"]
        assert "restored from an older backup" in last["error"]
        # No silo was charged, joined or signed anything, nor adopted what was not published before.
        assert {silo_id: ledger(loopback, silo_id) for silo_id in cf.SILOS} == before
        for silo_id, now in adopted(loopback).items():
            # One that was checking the last record when the machine was lost may end with it now:
            # all rounds here have one sum, which the backup holds as well.
            head = now[run_id]
            ended = (head["round"], head["adapter_sha256"]) == last_published(lost)
            assert now == heads[silo_id] or ended, (silo_id, now, heads[silo_id])
        for silo_id in cf.SILOS:
            assert loopback.alive(silo_id)
        # Of four silos two that refuse put a quorum of three out of reach; others may be unasked.
        said = [s for s in cf.SILOS if "no longer contains the record" in loopback.log(s)]
        assert len(said) >= 2
        # The coordinator published nothing, and asked for no attempt.
        here = {path.name for path in (loopback.data_dir / "adapters").glob("??/*")}
        assert here == blobs
        log = loopback.log("coordinator")
        assert "attempt_resumed" not in log
        assert not re.search(r'"phase": "advertise_keys"', log.rpartition("coordinator_started")[2])
        verify_audit(loopback)
        assert (lost / "coordinator.db").exists()


def test_an_attempt_that_the_backup_forgot_is_joined_by_nobody_again(tmp_path):
    """Silos stand where the backup stands, but have joined an attempt that it knows nothing of."""
    with cf.federation(tmp_path) as loopback:
        loopback.kill("coordinator")
        loopback.environment = {
            "CHORALE_TEST_DEATHS": "2:training:0,2:share_keys:1",
            "CHORALE_TEST_DEATHS_DONE": str(tmp_path / "deaths"),
        }
        loopback.start_coordinator(module=MODULE)
        for silo_id in cf.SILOS:
            loopback.start_silo(silo_id)
        plan, adapter = cf.write_run(
            loopback, cf.plan_toml(rounds=3, phase_deadline_s=8).replace("quorum = 3", SPARE)
        )
        run_id = loopback.start_run(plan, adapter, token="forgot")
        wait_for(loopback, lambda: not loopback.alive("coordinator"), "it dies before round 2")
        file = tmp_path / "coordinator.backup"
        loopback.chorale("backup", "--out", str(file), "--data", str(loopback.data_dir))
        loopback.start_coordinator(module=MODULE)
        wait_for(loopback, lambda: not loopback.alive("coordinator"), "it dies in round 2")
        loopback.environment = {}
        replace_coordinator(loopback, file)
        loopback.start_coordinator()
        loopback.chorale("run", "resume", run_id, "--data", str(loopback.data_dir))
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        # The number that silos know brought no sum; the next one did, with everybody.
        assert [figures["outcome"] for figures in rounds] == ["aggregated"] * 3
        assert [int(figures["attempt"]) for figures in rounds] == [1, 2, 1]
        assert tuple(rounds[1]["survivors"]) == cf.SILOS
        refused = [s for s in cf.SILOS if '"check": "identity"' in loopback.log(s)]
        assert tuple(refused) == cf.SILOS
        for silo_id in cf.SILOS:
            assert loopback.alive(silo_id)


def test_a_pipe_carries_a_backup(tmp_path):
    """As through a program that encrypts."""
    with LoopbackFederation(directory=tmp_path / "f") as loopback:
        loopback.found()
        data = str(loopback.data_dir)
        command = [sys.executable, "-m", "server.cli.main"]
        out = subprocess.run(
            [*command, "backup", "--out", "-", "--data", data], capture_output=True, check=False
        )
        assert out.returncode == 0, out.stderr
        back = subprocess.run(
            [*command, "restore", "-", "--data", str(tmp_path / "new"), "--format", "json"],
            input=out.stdout, capture_output=True, check=False,
        )  # fmt: skip
        assert back.returncode == 0, back.stderr
        assert json.loads(back.stdout)["data"]["held_runs"] == []
        both = subprocess.run(
            [*command, "backup", "--out", "-", "--data", data, "--format", "json"],
            capture_output=True, check=False,
        )  # fmt: skip
        assert both.returncode == 4
        envelope = json.loads(both.stdout)
        assert envelope["error_code"] == "arguments"
        assert envelope["next_step"]

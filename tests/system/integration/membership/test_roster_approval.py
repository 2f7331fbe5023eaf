"""A roster that members approve instead of the root: real processes, the operators' commands."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lab.loopback import LoopbackError
from silo_agent.books.local_store import LocalStore
from silo_agent.cli.main import app as chorale_silo
from tests.kit.processes import constant_federation as cf

pytestmark = pytest.mark.long


def silo(loopback, silo_id, *arguments):
    """One of the silo operator's commands, in this process; its exit code and envelope."""
    where = ("--data", str(loopback.silo_dir(silo_id)), "--format", "json")
    done = CliRunner().invoke(chorale_silo, [*arguments, *where])
    return done.exit_code, json.loads(done.stdout)


def test_members_let_a_silo_in_and_every_silo_follows(tmp_path):
    with cf.federation(tmp_path) as loopback:
        where = ("--data", str(loopback.data_dir))
        nothing = silo(loopback, "silo-a", "roster", "show")[1]
        assert nothing["error_code"] == "roster_not_proposed"
        loopback.enrol("silo-e")
        cf.configure(loopback, "silo-e")
        loopback.chorale("roster", "propose", "--out", str(tmp_path / "next.json"), *where)
        code, shown = silo(loopback, "silo-a", "roster", "show")
        assert code == 0
        assert shown["data"]["added"] == ["silo-e"]
        # n = 4, c = 1: three must approve, and the newcomer is none of them.
        assert (shown["data"]["approvals_needed"], shown["data"]["approved_by"]) == (3, [])
        code, refused = silo(loopback, "silo-e", "roster", "approve", "--yes")
        assert (code, refused["error_code"]) == (1, "roster_not_member")
        # Nobody answers the question, so nothing is signed.
        code, _ = silo(loopback, "silo-b", "roster", "approve")
        assert code != 0
        for silo_id in ("silo-d", "silo-a"):
            assert silo(loopback, silo_id, "roster", "approve", "--yes")[0] == 0
        with pytest.raises(LoopbackError, match="2 of 4 silos approved epoch 2, 3 are needed"):
            loopback.chorale("roster", "publish", *where)
        code, done = silo(loopback, "silo-b", "roster", "approve", "--yes")
        assert (code, done["data"]["approved_by"]) == (0, ["silo-a", "silo-d"])
        assert loopback.chorale("roster", "publish", *where) == {"epoch": 2, "silos": 5}
        records = silo(loopback, "silo-b", "audit", "tail")[1]["data"]["records"]
        events = [record["event"] for record in records]
        assert events == ["log_begun", "joined", "roster_approved"]

        # Daemons that never saw epoch 1, and the newcomer, take part under epoch 2.
        for silo_id in ("silo-a", "silo-c", "silo-e"):
            loopback.start_silo(silo_id)
        plan, adapter = cf.write_run(loopback, cf.plan_toml(phase_deadline_s=40))
        run_id = loopback.start_run(plan, adapter, token="approved")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert rounds[0]["survivors"] == ["silo-a", "silo-c", "silo-e"], last
        assert LocalStore(loopback.silo_dir("silo-e")).newest_roster_epoch() == 2
        transcript = str(tmp_path / "transcript.json")
        loopback.chorale("transcript", "export", run_id, "1", "--out", transcript, *where)
        assert silo(loopback, "silo-e", "verify-transcript", transcript)[0] == 0

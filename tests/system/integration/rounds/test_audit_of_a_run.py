"""What a run leaves in the audit logs of real processes, and in the heads that each side keeps."""

from __future__ import annotations

import json

from federation.audit.lines import check_chain
from ops.audit_log import verify_log
from server.store import Store
from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.audit_heads import kept_head
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

VALUES = {"silo-a": "nan", "silo-b": 0.0, "silo-c": 0.125}
ROUND = [
    "task_accepted",
    "attempt_charged",
    "attempt_uploaded",
    "survivors_signed",
    "record_adopted",
]


def records(loopback, silo_id):
    lines = (loopback.silo_dir(silo_id) / AUDIT_FILE).read_text().splitlines()
    return [json.loads(line) for line in lines]


def exchanged(loopback):
    """Silos whose newest head at the coordinator is after the last record of their run."""
    store = Store(f"sqlite:///{loopback.data_dir / 'coordinator.db'}")
    try:
        return {row.silo_id: row.index for row in store.audit_heads.list()}
    finally:
        store.close()


def test_every_silo_leaves_the_same_records_whatever_it_learned(tmp_path):
    """One has nothing finite, one nothing at all; the heads must not tell."""
    with cf.federation(tmp_path, silos=tuple(VALUES)) as loopback:
        for silo_id, value in VALUES.items():
            cf.configure(loopback, silo_id, value=value)
            loopback.start_silo(silo_id)
        plan, adapter = cf.write_run(
            loopback, cf.plan_toml(rounds=2, mode="silo", noise=1.0, phase_deadline_s=40)
        )
        run_id = loopback.start_run(plan, adapter, token="audit")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert [one["outcome"] for one in rounds] == ["aggregated"] * 2, last
        newest = len(["log_begun", "joined", "daemon_started", "policy_changed", "record"]) + 9
        until(
            lambda: exchanged(loopback) == dict.fromkeys(VALUES, newest),
            f"all exchanged heads up to {newest}",
            told=lambda: (loopback.log("silo-a"), exchanged(loopback)),
        )
        loopback.stop()
        for silo_id in VALUES:
            found = records(loopback, silo_id)
            assert [record["event"] for record in found] == [
                "log_begun",
                "joined",
                "daemon_started",
                "policy_changed",
                "record_adopted",
                *ROUND,
                *ROUND,
                "daemon_stopped",
            ]
            # The details of what happened in the run are the same too, word for word.
            ours, theirs = (
                [record["details"] for record in log[4:-1]]
                for log in (found, records(loopback, "silo-a"))
            )
            assert ours == theirs
            log = loopback.silo_dir(silo_id) / AUDIT_FILE
            assert verify_log(log) == newest + 2
            # The coordinator's signed head is in its log, and shows the end of the run.
            head = kept_head(loopback.silo_dir(silo_id)).chain_head()
            assert verify_log(loopback.data_dir / "audit.jsonl", [head]) > head.index
        check_chain((loopback.data_dir / "audit.jsonl").read_bytes())

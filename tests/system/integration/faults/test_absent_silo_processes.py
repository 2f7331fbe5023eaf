"""Real daemons over mTLS: a silo that stalls in every round, and one that dies before a restart.

A failure: a silo that costs the others more rounds than the plan says, that works or is charged
while it sits out, or that is forgotten.
"""

import os
import signal
from functools import partial

import pytest

from silo_agent.books.audit import AUDIT_FILE
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

STALLS, DIES = cf.SILOS[3], cf.SILOS[0]
PHASE_S = 8


def last_seen(loopback, silo_id):
    name = f'chorale_silo_last_seen_timestamp_seconds{{silo="{silo_id}"}}'
    return loopback.metrics("coordinator")[name]


@pytest.mark.long
def test_a_silo_that_stalls_in_every_round_is_left_out_and_named(tmp_path):
    with cf.federation(tmp_path) as loopback:
        cf.let_cohorts_vary(loopback)
        for silo_id in cf.SILOS[:3]:
            loopback.start_silo(silo_id)
        loopback.environment = {"CHORALE_TEST_STALL_AT": "share_keys"}
        loopback.start_silo(STALLS, module="tests.kit.processes.faulty_silo")
        loopback.environment = {}
        cf.await_heard(loopback)
        text = cf.plan_toml(rounds=5, phase_deadline_s=PHASE_S)
        plan, adapter = cf.write_run(
            loopback, text.replace("[rounds]\n", "[rounds]\nsit_out_after = 2\n")
        )
        run_id = loopback.start_run(plan, adapter, token="stall")
        states = set()
        rounds = []
        for status in loopback.watch(run_id):
            rounds += status.get("finished", ())
            if len(rounds) >= 2 and "sitting_out" not in states:
                # It is about the run that is driven, so not once the last round is over.
                listed = loopback.chorale("silo", "list", "--data", str(loopback.data_dir))
                states |= {s["state"] for s in listed["silos"] if s["silo_id"] == STALLS}
        assert status["run"]["state"] == "finished", status
        assert [STALLS in one["cohort"] for one in rounds] == [True, True, False, False, False]
        # The phase in which it stalls; a busy machine may take long for all of them together.
        waited_s = [
            timing["duration_s"]
            for one in rounds
            for timing in one["timings"]
            if timing["phase"] == "share_keys"
        ]
        assert len(waited_s) == len(rounds)
        assert min(waited_s[:2]) >= PHASE_S > max(waited_s[2:])
        assert "sitting_out" in states
        name = f'chorale_silo_dropouts_total{{silo="{STALLS}"}}'
        assert loopback.metrics("coordinator")[name] == 2
        log = (loopback.silo_dir(STALLS) / AUDIT_FILE).read_text()
        # It worked when it was asked; then it was asked for nothing, and follows the chain still.
        assert log.count('"task_accepted"') == 2
        cf.await_adopted(loopback, status["run"]["adapter_sha256"], (STALLS,))


def test_a_silo_that_died_before_a_restart_is_still_missed(tmp_path):
    with cf.federation(tmp_path) as loopback:
        loopback.start_silo(DIES)
        log = partial(loopback.log, "coordinator")
        until(lambda: last_seen(loopback, DIES), f"{DIES} is heard of", told=log)
        loopback.kill(DIES)
        before = last_seen(loopback, DIES)
        os.kill(loopback.pid("coordinator"), signal.SIGTERM)
        until(lambda: not loopback.alive("coordinator"), "the coordinator dies", told=log)
        loopback.start_coordinator()
        assert last_seen(loopback, DIES) == before > 0
        # There from the start on: the alert counts from the coordinator's own start then.
        assert last_seen(loopback, STALLS) == 0
        # To the second: the machine's own start, from which it is counted, is known no better.
        assert loopback.metrics("coordinator")["process_start_time_seconds"] > before - 1
